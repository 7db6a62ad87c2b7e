//! Gathers bytes from a list of segments, and scatters bytes to one.

use smallvec::SmallVec;

use crate::ids::Key;
use crate::memory::{Access, AccessError, Extent, Memory};
use crate::request::Segment;

/// Two segments are stored inline: most requests have one, or a header and a body.
pub(crate) type Segments = SmallVec<[Segment; 2]>;

/// The length of all segments together.
pub(crate) fn total_len(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Checks the access to every segment that is not empty.
pub(crate) fn check(
    memory: &dyn Memory,
    segments: &[Segment],
    access: Access,
) -> Result<(), AccessError> {
    segments
        .iter()
        .filter(|segment| segment.len > 0)
        .try_for_each(|segment| {
            let extent = Extent {
                addr: segment.addr,
                len: segment.len,
            };
            memory.check(Key::Local(segment.lkey), extent, access)
        })
}

/// Copies the bytes at `offset` to `out`. Fails with [`AccessError::OutOfRange`] if the segments
/// end before `out` is full.
pub(crate) fn gather(
    memory: &mut dyn Memory,
    segments: &[Segment],
    offset: u32,
    mut out: &mut [u8],
) -> Result<(), AccessError> {
    let mut skip = offset;
    for segment in segments {
        if out.is_empty() {
            break;
        }
        if skip >= segment.len {
            skip -= segment.len;
            continue;
        }
        let here = out.len().min((segment.len - skip) as usize);
        let (piece, rest) = out.split_at_mut(here);
        let addr = segment
            .addr
            .checked_add(skip.into())
            .ok_or(AccessError::OutOfRange)?;
        memory.read(Key::Local(segment.lkey), addr, piece)?;
        out = rest;
        skip = 0;
    }
    if out.is_empty() {
        Ok(())
    } else {
        Err(AccessError::OutOfRange)
    }
}

/// Stores `bytes` at `offset`. Fails with [`AccessError::OutOfRange`] if the segments end before
/// all bytes are stored.
pub(crate) fn scatter(
    memory: &mut dyn Memory,
    segments: &[Segment],
    offset: u32,
    mut bytes: &[u8],
) -> Result<(), AccessError> {
    let mut skip = offset;
    for segment in segments {
        if bytes.is_empty() {
            break;
        }
        if skip >= segment.len {
            skip -= segment.len;
            continue;
        }
        let here = bytes.len().min((segment.len - skip) as usize);
        let (piece, rest) = bytes.split_at(here);
        let addr = segment
            .addr
            .checked_add(skip.into())
            .ok_or(AccessError::OutOfRange)?;
        memory.write(Key::Local(segment.lkey), addr, piece)?;
        bytes = rest;
        skip = 0;
    }
    if bytes.is_empty() {
        Ok(())
    } else {
        Err(AccessError::OutOfRange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::HeapMemory;

    /// Segments of the given offsets and lengths in a region of 64 bytes with ascending values.
    fn segments<const N: usize>(ranges: [(u64, u32); N]) -> (HeapMemory, [Segment; N]) {
        let mut memory = HeapMemory::new();
        let (lkey, _) = memory.register(0x1000, (0..64).collect(), Access::LOCAL_WRITE);
        let segment = |(offset, len)| Segment {
            lkey,
            addr: 0x1000 + offset,
            len,
        };
        (memory, ranges.map(segment))
    }

    #[test]
    fn gather_copies_across_segments_from_any_offset() {
        let (mut memory, segments) = segments([(40, 2), (0, 0), (10, 3)]);
        assert_eq!(total_len(&segments), 5);
        let all = [40, 41, 10, 11, 12];
        for offset in 0..=all.len() {
            let mut out = vec![0; all.len() - offset];
            gather(&mut memory, &segments, offset as u32, &mut out).unwrap();
            assert_eq!(out, all[offset..]);
        }
        let beyond = gather(&mut memory, &segments, 1, &mut [0; 5]);
        assert_eq!(beyond, Err(AccessError::OutOfRange));
    }

    #[test]
    fn scatter_copies_across_segments_and_not_beyond_them() {
        let (mut memory, segments) = segments([(40, 2), (0, 0), (10, 3)]);
        scatter(&mut memory, &segments, 1, &[1, 2, 3]).unwrap();
        let bytes = memory.bytes(segments[0].lkey).unwrap();
        assert_eq!(bytes[39..43], [39, 40, 1, 42]);
        assert_eq!(bytes[9..14], [9, 2, 3, 12, 13]);
        let beyond = scatter(&mut memory, &segments, 3, &[1, 2, 3]);
        assert_eq!(beyond, Err(AccessError::OutOfRange));
    }

    #[test]
    fn check_ignores_empty_segments_only() {
        let (memory, mut segments) = segments([(0, 64), (99, 0)]);
        assert_eq!(check(&memory, &segments, Access::LOCAL_WRITE), Ok(()));
        segments[1].len = 1;
        let outside = check(&memory, &segments, Access::LOCAL_WRITE);
        assert_eq!(outside, Err(AccessError::OutOfRange));
    }
}
