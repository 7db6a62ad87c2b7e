//! A range as parts of memory objects: another client's objects, and this client's references to them.

use std::sync::Arc;

use super::abi::Handle;
use super::memory::Memory;

/// A part of a range: `len` bytes from `offset` on in a memory object of another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectRange {
    pub(super) client: Handle,
    pub(super) object: Handle,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A part of a range: `len` bytes from `offset` on in a memory object of this client.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) memory: Arc<Memory>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Why extents cannot cover a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExtentError {
    #[error("the range has no memory object")]
    Empty,
    #[error("the range starts before its memory object")]
    BeforeObject,
    #[error("{len} bytes at {offset} do not fit into the memory object of {size} bytes")]
    PastObject { len: u64, offset: u64, size: u64 },
    #[error("{len} bytes at {offset} in the memory object are not whole pages")]
    NotPages { len: u64, offset: u64 },
}

/// Widens the extents of a range by `before` and `after` bytes, to whole GPU pages.
///
/// A GPU page of 64 KiB lies in one memory object, so the added bytes are in the same object. Fails if the extents do
/// not fit their objects.
pub(super) fn widen(
    mut extents: Vec<Extent>,
    before: u64,
    after: u64,
) -> Result<Vec<Extent>, ExtentError> {
    let first = extents.first_mut().ok_or(ExtentError::Empty)?;
    first.offset = first
        .offset
        .checked_sub(before)
        .ok_or(ExtentError::BeforeObject)?;
    first.len += before;
    if let Some(last) = extents.last_mut() {
        last.len += after;
    }
    let page = crate::bar_mapping::host_page();
    for extent in &extents {
        let size = extent.memory.size();
        let Extent { offset, len, .. } = *extent;
        // A route that found the wrong object probably fails here, before anything is mapped.
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(ExtentError::PastObject { len, offset, size });
        }
        if !offset.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(ExtentError::NotPages { len, offset });
        }
    }
    Ok(extents)
}

/// Returns the first `len` bytes of a range.
pub(super) fn head(extents: &[Extent], len: u64) -> Vec<Extent> {
    let mut left = len;
    let mut head = Vec::new();
    for extent in extents {
        if left == 0 {
            break;
        }
        let len = extent.len.min(left);
        head.push(Extent {
            len,
            ..extent.clone()
        });
        left -= len;
    }
    head
}
