//! Pinned buffers and their mappings.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdr_copy::{BackendKind, Caching, MapOptions, PinInfo, Pinned};
use gdr_cuda::Driver;

use crate::abi::{
    GDR_MAP_FLAG_DEFAULT, GDR_MAP_FLAG_REQ_CACHE_MAPPING, GDR_MAP_FLAG_REQ_DEVICE_MAPPING,
    GDR_MAP_FLAG_REQ_WC_MAPPING, GPU_PAGE_SIZE,
};
use crate::errno::{Failure, NO_HANDLE};
use crate::long_copies::{self, LongCopies};
use crate::mapping_table::{MappingTable, PublishedMapping};
use crate::stack::Depth;

/// A pinned buffer, until it is released.
#[derive(Debug)]
pub(crate) struct PinnedBuffer {
    handle: u64,
    slot: usize,
    state: Mutex<Option<PinState>>,
}

#[derive(Debug)]
struct PinState {
    pinned: Pinned,
    mapping: Option<MappedRange>,
}

/// The address, length and kind of a mapping; the mapping itself is in the [`MappingTable`].
#[derive(Clone, Copy, Debug)]
struct MappedRange {
    start: usize,
    len: usize,
    caching: Caching,
}

/// Description of a pinned buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description {
    pub(crate) pages: PinInfo,
    /// Kind of its mapping, if mapped.
    pub(crate) mapped: Option<Caching>,
}

/// Returns the kind of mapping that the flags of `gdr_map_v2` request.
pub(crate) fn requested_caching(flags: c_int) -> Result<Option<Caching>, Failure> {
    Ok(match flags {
        GDR_MAP_FLAG_DEFAULT => None,
        GDR_MAP_FLAG_REQ_WC_MAPPING => Some(Caching::WriteCombined),
        GDR_MAP_FLAG_REQ_CACHE_MAPPING => Some(Caching::Cached),
        GDR_MAP_FLAG_REQ_DEVICE_MAPPING => Some(Caching::Device),
        _ => {
            return Err(Failure::Argument(
                "the map flags are not one of GDR_MAP_FLAG_*",
            ));
        }
    })
}

impl PinnedBuffer {
    pub(crate) fn new(handle: u64, slot: usize, pinned: Pinned) -> Self {
        Self {
            handle,
            slot,
            state: Mutex::new(Some(PinState {
                pinned,
                mapping: None,
            })),
        }
    }

    /// Serializes calls with one handle; copies take no lock.
    fn lock(&self) -> MutexGuard<'_, Option<PinState>> {
        // The state is valid after a panic in a thread that had it locked: mapped or not mapped.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn describe(&self) -> Result<Description, Failure> {
        let state = self.lock();
        let state = state.as_ref().ok_or(NO_HANDLE)?;
        let mapped = state.mapping.map(|mapping| mapping.caching);
        Ok(Description {
            pages: state.pinned.info(),
            mapped,
        })
    }

    pub(crate) fn invalidated(&self) -> Result<bool, Failure> {
        Ok(self
            .lock()
            .as_ref()
            .ok_or(NO_HANDLE)?
            .pinned
            .invalidated()?)
    }

    /// Maps the first `size` bytes of the pinned pages and returns the address. `driver` is the GPU's driver, for long
    /// copies.
    pub(crate) fn map(
        &self,
        table: &MappingTable,
        size: usize,
        caching: Option<Caching>,
        driver: impl FnOnce(BackendKind) -> Option<Arc<dyn Driver>>,
    ) -> Result<usize, Failure> {
        let mut state = self.lock();
        let state = state.as_mut().ok_or(NO_HANDLE)?;
        if state.mapping.is_some() {
            return Err(Failure::AlreadyMapped);
        }
        let ptr = state.pinned.ptr();
        if !ptr.get().is_multiple_of(GPU_PAGE_SIZE) {
            return Err(Failure::NotAtGpuPage(ptr.get()));
        }
        let mut options = MapOptions::new().with_len(size as u64);
        if let Some(caching) = caching {
            options = options.with_caching(caching);
        }
        let mapping = Arc::new(state.pinned.map_with(options)?);
        let long = long_copies::limits().and_then(|limits| {
            let driver = driver(mapping.backend())?;
            let made = LongCopies::of(&mapping, &driver, limits);
            made.unwrap_or_else(|error| {
                tracing::info!(%error, "each copy of this mapping is made by its thread");
                None
            })
        });
        let mapping = Box::new(PublishedMapping::new(self.handle, mapping, long));
        let start = mapping.start();
        state.mapping = Some(MappedRange {
            start,
            len: mapping.len(),
            caching: mapping.caching(),
        });
        table.publish(self.slot, mapping);
        Ok(start)
    }

    /// Unmaps the mapping at `start`, for a call into the library at depth `here`. Waits for copies in
    /// progress.
    pub(crate) fn unmap(
        &self,
        table: &MappingTable,
        here: Depth,
        start: usize,
        size: usize,
    ) -> Result<(), Failure> {
        let mut state = self.lock();
        let mapping = &mut state.as_mut().ok_or(NO_HANDLE)?.mapping;
        let MappedRange {
            start: expected,
            len,
            ..
        } = (*mapping).ok_or(Failure::Argument("the handle is not mapped"))?;
        if start != expected {
            return Err(Failure::Argument(
                "the address is not the one that gdr_map returned",
            ));
        }
        if size == 0 || size > len {
            return Err(Failure::Argument(
                "the size is 0 or larger than the mapping",
            ));
        }
        *mapping = None;
        table.unpublish(self.slot, here);
        Ok(())
    }

    /// Unmaps and unpins. Later calls with this buffer fail.
    pub(crate) fn release(&self, table: &MappingTable, here: Depth) {
        let mut state = self.lock();
        if let Some(state) = state.take() {
            if state.mapping.is_some() {
                table.unpublish(self.slot, here);
            }
            drop(state.pinned);
        }
    }
}
