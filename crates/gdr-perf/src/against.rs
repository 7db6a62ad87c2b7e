//! The same bytes by `cuMemcpy`, in the same run, to and from the same buffer.

use std::fmt;

use serde::Serialize;

use crate::error::Result;
use crate::stats::Summary;
use crate::target::Target;
use crate::timer::Batches;

/// What to compare with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Against {
    /// Nothing.
    #[default]
    Nothing,
    /// `cuMemcpyHtoD` and `cuMemcpyDtoH`, from and to page-locked and pageable memory.
    Cuda,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// From the CPU to the GPU.
    ToGpu,
    /// From the GPU to the CPU.
    FromGpu,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ToGpu => "to GPU",
            Self::FromGpu => "from GPU",
        })
    }
}

/// One size, one way, by the mapping and by `cuMemcpy`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Comparison {
    /// How many times faster the mapping is than the faster of the two `cuMemcpy`, by their
    /// medians; below 1 it is slower.
    pub ratio: f64,
    /// Bytes a copy.
    pub size: u64,
    /// Which way.
    pub way: Way,
    /// Through the mapping.
    pub mapping: Summary,
    /// `cuMemcpy` of page-locked memory.
    pub page_locked: Summary,
    /// `cuMemcpy` of pageable memory.
    pub pageable: Summary,
}

/// Bytes of one size that each of the three ways copies at most, or 100 copies where those are
/// more: enough for a median, in seconds instead of minutes.
const MOST_BYTES: u64 = 1 << 30;

/// How often to copy `size` bytes where `asked` copies were asked for.
fn turns(asked: u32, size: u64) -> Batches {
    let enough = u32::try_from(MOST_BYTES / size.max(1))
        .unwrap_or(u32::MAX)
        .max(100);
    Batches::of(asked.min(enough))
}

/// Measures one size one way, one after the other: at most `asked` copies each.
pub(crate) fn compare(
    target: &mut Target,
    way: Way,
    offset: u64,
    size: u64,
    asked: u32,
) -> Result<Comparison> {
    let batches = turns(asked, size);
    let len = size as usize;
    let mut pageable_bytes = target.source[..len].to_vec();
    let Target {
        mapping,
        buffer,
        source,
        sink,
        ..
    } = target;
    let (mapping, page_locked, pageable) = match way {
        Way::ToGpu => (
            batches.time(|| Ok(mapping.write_at(offset, &source[..len])?))?,
            batches.time(|| Ok(buffer.write(offset, &source[..len])?))?,
            batches.time(|| Ok(buffer.write(offset, &pageable_bytes)?))?,
        ),
        Way::FromGpu => (
            batches.time(|| Ok(mapping.read_at(offset, &mut sink[..len])?))?,
            batches.time(|| Ok(buffer.read(offset, &mut sink[..len])?))?,
            batches.time(|| Ok(buffer.read(offset, &mut pageable_bytes)?))?,
        ),
    };
    let (mapping, page_locked, pageable) = (
        mapping.summary()?,
        page_locked.summary()?,
        pageable.summary()?,
    );
    // A copy that takes no measurable time is as fast as can be told, not infinitely fast.
    let own = mapping.median_ns.max(0.001);
    let ratio = page_locked.median_ns.min(pageable.median_ns) / own;
    Ok(Comparison {
        ratio,
        size,
        way,
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
