//! Which bytes of an object a get reads, and where they go.

use std::slice;

use crate::error::{Error, Result};
use crate::link_shared::LocalMemory;

/// Consecutive bytes of an object, and where they go in local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte in the object.
    pub from: u64,
    /// The number of bytes.
    pub len: u64,
    /// Where the first byte goes.
    pub to: u64,
}

/// Bytes of an object, and the memory that they go to.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    extents: Extents<'a>,
    /// Of all extents.
    pub(crate) len: u64,
    pub(crate) to: &'a LocalMemory,
}

#[derive(Clone, Copy)]
enum Extents<'a> {
    One(Extent),
    Many(&'a [Extent]),
}

impl<'a> Part<'a> {
    /// Returns the part that is all of an object of `bytes`, placed at the beginning of `to`.
    pub(crate) const fn all(bytes: u64, to: &'a LocalMemory) -> Self {
        let extent = Extent {
            from: 0,
            len: bytes,
            to: 0,
        };
        Self {
            extents: Extents::One(extent),
            len: bytes,
            to,
        }
    }

    /// Returns a part of an object of `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if an extent is not within both.
    pub(crate) fn of(extents: &'a [Extent], bytes: u64, to: &'a LocalMemory) -> Result<Self> {
        let mut len = 0_u64;
        for extent in extents {
            check_range(extent.from, extent.len, bytes)?;
            check_range(extent.to, extent.len, to.len())?;
            len = len.saturating_add(extent.len);
        }
        let extents = Extents::Many(extents);
        Ok(Self { extents, len, to })
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        match &self.extents {
            Extents::One(extent) => slice::from_ref(extent),
            Extents::Many(extents) => extents,
        }
    }

    /// Returns where the bytes of an object of `bytes` begin, if it is all of them and in their order.
    pub(crate) fn whole(&self, bytes: u64) -> Option<u64> {
        match self.extents() {
            [extent] if extent.len == bytes => Some(extent.to),
            _ => None,
        }
    }
}

/// Fails unless `len` bytes at `offset` are within `size`.
fn check_range(offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfRange { offset, len, size }),
    }
}
