//! A list of segments as one run of bytes.

use smallvec::SmallVec;

use crate::key::Key;
use crate::memory::{Access, AccessError, Extent, Memory};
use crate::request::Segment;

/// Most requests have one segment, or a header and a body.
pub(crate) type Segments = SmallVec<[Segment; 2]>;

/// Bytes of all segments.
pub(crate) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Checks every segment that is not empty.
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

/// Fills `out` from the bytes at `offset` on. There must be so many.
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

/// Stores `bytes` from `offset` on. There must be room.
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
