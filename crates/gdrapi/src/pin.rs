//! One pinned buffer and its mapping.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gdr_copy::{Caching, MapOptions, PinInfo, Pinned};

use crate::abi::{
    GDR_MAP_FLAG_DEFAULT, GDR_MAP_FLAG_REQ_CACHE_MAPPING, GDR_MAP_FLAG_REQ_DEVICE_MAPPING,
    GDR_MAP_FLAG_REQ_WC_MAPPING, GPU_PAGE_SIZE,
};
use crate::errno::{Failure, NO_HANDLE};
use crate::mapped::{Mapped, Window};

/// A pinned buffer, until it is released.
#[derive(Debug)]
pub(crate) struct PinnedBuffer {
    handle: u64,
    slot: usize,
    held: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    pinned: Pinned,
    mapping: Option<Mapping>,
}

/// What callers have been told about a mapping; the mapping itself is with [`Mapped`].
#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: usize,
    len: usize,
    caching: Caching,
}

/// What there is to know about a pinned buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description {
    pub(crate) pages: PinInfo,
    /// How it is mapped, if it is.
    pub(crate) mapped: Option<Caching>,
}

/// The kind of mapping that the flags of `gdr_map_v2` ask for.
pub(crate) fn requested_caching(flags: c_int) -> Result<Option<Caching>, Failure> {
    Ok(match flags {
        GDR_MAP_FLAG_DEFAULT => None,
        GDR_MAP_FLAG_REQ_WC_MAPPING => Some(Caching::WriteCombined),
        GDR_MAP_FLAG_REQ_CACHE_MAPPING => Some(Caching::Cached),
        GDR_MAP_FLAG_REQ_DEVICE_MAPPING => Some(Caching::Device),
        _ => {
            return Err(Failure::Argument(
                "the map flags are none of GDR_MAP_FLAG_*",
            ));
        }
    })
}

impl PinnedBuffer {
    pub(crate) fn new(handle: u64, slot: usize, pinned: Pinned) -> Self {
        Self {
            handle,
            slot,
            held: Mutex::new(Some(Held {
                pinned,
                mapping: None,
            })),
        }
    }

    /// Calls on one handle wait for each other; copies take no lock.
    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        // A panic in a holder leaves either a mapping or none, both of which are whole.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn describe(&self) -> Result<Description, Failure> {
        let held = self.held();
        let held = held.as_ref().ok_or(NO_HANDLE)?;
        let mapped = held.mapping.map(|mapping| mapping.caching);
        Ok(Description {
            pages: held.pinned.info(),
            mapped,
        })
    }

    pub(crate) fn invalidated(&self) -> Result<bool, Failure> {
        Ok(self
            .held()
            .as_ref()
            .ok_or(NO_HANDLE)?
            .pinned
            .invalidated()?)
    }

    /// Maps the first `size` bytes of the pinned pages; the answer is where.
    pub(crate) fn map(
        &self,
        mapped: &Mapped,
        size: usize,
        caching: Option<Caching>,
    ) -> Result<usize, Failure> {
        let mut held = self.held();
        let held = held.as_mut().ok_or(NO_HANDLE)?;
        if held.mapping.is_some() {
            return Err(Failure::AlreadyMapped);
        }
        let ptr = held.pinned.ptr();
        if !ptr.get().is_multiple_of(GPU_PAGE_SIZE) {
            return Err(Failure::NotAtGpuPage(ptr.get()));
        }
        let mut options = MapOptions::default().len(size as u64);
        if let Some(caching) = caching {
            options = options.caching(caching);
        }
        let window = Box::new(Window::new(self.handle, held.pinned.map_with(options)?));
        let start = window.start();
        held.mapping = Some(Mapping {
            start,
            len: window.len(),
            caching: window.caching(),
        });
        mapped.publish(self.slot, window);
        Ok(start)
    }

    /// Ends the mapping at `start`. Waits for copies under way.
    pub(crate) fn unmap(&self, mapped: &Mapped, start: usize, size: usize) -> Result<(), Failure> {
        let mut held = self.held();
        let mapping = &mut held.as_mut().ok_or(NO_HANDLE)?.mapping;
        let Mapping {
            start: expected,
            len,
            ..
        } = (*mapping).ok_or(Failure::Argument("the handle is not mapped"))?;
        if start != expected {
            return Err(Failure::Argument(
                "that is not the address which gdr_map returned",
            ));
        }
        if size == 0 || size > len {
            return Err(Failure::Argument(
                "the size is 0 or more than what was mapped",
            ));
        }
        *mapping = None;
        mapped.unpublish(self.slot);
        Ok(())
    }

    /// Unmaps and unpins. Every other call that still holds this finds it gone.
    pub(crate) fn release(&self, mapped: &Mapped) {
        let mut held = self.held();
        if let Some(held) = held.take() {
            if held.mapping.is_some() {
                mapped.unpublish(self.slot);
            }
            drop(held.pinned);
        }
    }
}
