//! Copies by `cuMemcpy` as a baseline, in the same run, to and from the same buffer.

use serde::Serialize;

use crate::error::Result;
use crate::mapped_buffer::{CopyDirection, MappedBuffer, direction_name};
use crate::stats::Summary;
use crate::timer::Batches;

/// What to compare copies through the mapping with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Baseline {
    /// Nothing.
    #[default]
    None,
    /// `cuMemcpyHtoD` and `cuMemcpyDtoH`, with both page-locked and pageable host memory.
    CuMemcpy,
}

/// Copies of one size in one direction, through the mapping and by `cuMemcpy`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Comparison {
    /// How many times faster the mapping is than the faster of the two `cuMemcpy` variants, by their medians. Below 1,
    /// the mapping is slower.
    pub ratio: f64,
    /// Bytes a copy.
    pub size: u64,
    /// Where the bytes go.
    #[serde(rename = "way", serialize_with = "direction_name")]
    pub direction: CopyDirection,
    /// Through the mapping.
    pub mapping: Summary,
    /// `cuMemcpy` of page-locked memory.
    pub page_locked: Summary,
    /// `cuMemcpy` of pageable memory.
    pub pageable: Summary,
}

/// Maximum number of bytes that each method copies per size, unless 100 copies exceed it. This suffices for a median
/// and takes seconds instead of minutes.
const MOST_BYTES: u64 = 1 << 30;

/// Returns the batches for `asked` copies of `size` bytes.
fn turns(asked: u32, size: u64) -> Batches {
    let enough = u32::try_from(MOST_BYTES / size.max(1))
        .unwrap_or(u32::MAX)
        .max(100);
    Batches::of(asked.min(enough))
}

/// Measures one size in one direction, with the methods taking turns and making at most `asked` copies each.
pub(crate) fn compare(
    mapped: &mut MappedBuffer,
    direction: CopyDirection,
    offset: u64,
    size: u64,
    asked: u32,
) -> Result<Comparison> {
    let batches = turns(asked, size);
    let len = size as usize;
    let mut pageable_bytes = mapped.source[..len].to_vec();
    let mapping = mapped.time(direction, offset, len, batches)?.summary()?;
    let page_locked = mapped
        .time_cu_memcpy(direction, offset, len, batches)?
        .summary()?;
    let buffer = &mapped.buffer;
    let pageable = match direction {
        CopyDirection::ToGpu => batches.time(|| Ok(buffer.write(offset, &pageable_bytes)?))?,
        CopyDirection::FromGpu => batches.time(|| Ok(buffer.read(offset, &mut pageable_bytes)?))?,
    };
    let pageable = pageable.summary()?;
    // Avoid an infinite ratio for a copy too short to measure.
    let own = mapping.median_ns.max(0.001);
    let ratio = page_locked.median_ns.min(pageable.median_ns) / own;
    Ok(Comparison {
        ratio,
        size,
        direction,
        mapping,
        page_locked,
        pageable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_copies_are_made_less_often_but_often_enough() {
        assert_eq!(turns(10_000, 1).iterations(), 10_000);
        assert_eq!(turns(10_000, 1 << 20).iterations(), 1100);
        assert_eq!(turns(10_000, 16 << 20).iterations(), 100);
        assert_eq!(turns(10, 16 << 20).iterations(), 10);
    }
}
