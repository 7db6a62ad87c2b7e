//! Gathers bytes from, and scatters them to, a list of segments.

use smallvec::SmallVec;

use crate::contents::Contents;
use crate::ids::Key;
use crate::memory::{Access, AccessError, Extent, Memory};
use crate::request::Segment;

/// Two segments fit inline: most requests have one, or a header and a body.
pub(crate) type Segments = SmallVec<[Segment; 2]>;

/// Returns the total length of the segments.
pub(crate) fn total_len(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// The part of a segment that holds bytes of a message.
struct Part {
    key: Key,
    extent: Extent,
    /// Bytes from here to the end of the segment.
    room: u32,
}

/// Returns the non-empty parts of segments that hold `len` bytes at `offset` of a message. Ends early if the segments
/// do.
fn parts(
    segments: &[Segment],
    offset: u32,
    len: usize,
) -> impl Iterator<Item = Result<Part, AccessError>> {
    let (mut skip, mut left) = (offset, len);
    segments.iter().filter_map(move |segment| {
        if skip >= segment.len {
            skip -= segment.len;
            return None;
        }
        let room = segment.len - skip;
        let here = left.min(room as usize);
        let addr = segment.addr.checked_add(skip.into());
        skip = 0;
        left -= here;
        // No truncation: at most the length of a segment.
        let len = here as u32;
        let part = addr.map(|addr| Part {
            key: Key::Local(segment.lkey),
            extent: Extent { addr, len },
            room,
        });
        (here > 0).then_some(part.ok_or(AccessError::OutOfRange))
    })
}

/// Returns the part of the segment that holds the bytes at `offset`, up to `len` of them.
pub(crate) fn first_part(segments: &[Segment], offset: u32, len: usize) -> Option<(Key, Extent)> {
    let Part { key, extent, .. } = parts(segments, offset, len).next()?.ok()?;
    Some((key, extent))
}

/// Checks access to `len` bytes at `offset`. Other bytes are not checked: a receive may be longer than its memory as
/// long as no message is.
pub(crate) fn check(
    memory: &dyn Memory,
    segments: &[Segment],
    offset: u32,
    len: usize,
    access: Access,
) -> Result<(), AccessError> {
    parts(segments, offset, len).try_for_each(|part| {
        let Part { key, extent, .. } = part?;
        memory.check(key, extent, access)
    })
}

/// Copies the bytes at `offset` to `out`. Fails with [`AccessError::OutOfRange`] if the segments end before `out` is
/// full.
pub(crate) fn gather(
    memory: &mut dyn Memory,
    segments: &[Segment],
    offset: u32,
    mut out: &mut [u8],
) -> Result<(), AccessError> {
    for part in parts(segments, offset, out.len()) {
        let Part { key, extent, .. } = part?;
        let (piece, rest) = out.split_at_mut(extent.len as usize);
        memory.read(key, extent.addr, piece)?;
        out = rest;
    }
    if out.is_empty() {
        Ok(())
    } else {
        Err(AccessError::OutOfRange)
    }
}

/// Stores `contents` at `offset`. Fails with [`AccessError::OutOfRange`] if the segments end before all bytes are
/// stored.
pub(crate) fn scatter(
    memory: &mut dyn Memory,
    segments: &[Segment],
    offset: u32,
    mut contents: Contents<'_>,
) -> Result<(), AccessError> {
    for part in parts(segments, offset, contents.len()) {
        let Part { key, extent, room } = part?;
        let (piece, rest) = contents.split_at(extent.len as usize);
        piece.store(memory, key, extent.addr, room)?;
        contents = rest;
    }
    if contents.is_empty() {
        Ok(())
    } else {
        Err(AccessError::OutOfRange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::HeapMemory;

    /// Returns segments of the given offsets and lengths in a region of 64 bytes with ascending values.
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
        scatter(&mut memory, &segments, 1, Contents::Bytes(&[1, 2, 3])).unwrap();
        let bytes = memory.bytes(segments[0].lkey).unwrap();
        assert_eq!(bytes[39..43], [39, 40, 1, 42]);
        assert_eq!(bytes[9..14], [9, 2, 3, 12, 13]);
        let beyond = scatter(&mut memory, &segments, 3, Contents::Bytes(&[1, 2, 3]));
        assert_eq!(beyond, Err(AccessError::OutOfRange));
    }

    #[test]
    fn check_looks_at_the_bytes_of_the_message_and_at_nothing_behind_them() {
        // The second segment begins inside of the region and ends past it; the third has no key.
        let (memory, [inside, mut beyond, mut foreign]) = segments([(0, 8), (60, 8), (0, 4)]);
        foreign.lkey = crate::ids::Lkey(1);
        let check =
            |segments: &[Segment], len| check(&memory, segments, 0, len, Access::LOCAL_WRITE);
        let all = [inside, beyond, foreign];
        for len in 0..=12 {
            assert_eq!(check(&all, len), Ok(()), "{len}");
        }
        for len in 13..=16 {
            assert_eq!(check(&all, len), Err(AccessError::OutOfRange), "{len}");
        }
        beyond.len = 0;
        let all = [inside, beyond, foreign];
        assert_eq!(check(&all, 8), Ok(()), "an empty segment holds nothing");
        assert_eq!(check(&all, 9), Err(AccessError::UnknownKey));
        beyond = Segment {
            addr: u64::MAX,
            len: 2,
            ..inside
        };
        assert_eq!(check(&[beyond], 2), Err(AccessError::OutOfRange));
        assert_eq!(check(&[beyond], 0), Ok(()));
    }
}
