//! The state that a pin and its mapping share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_cuda::{DeviceBuffer, DevicePtr};

use crate::backend::{Backend, Pin};
use crate::backend_kind::BackendKind;
use crate::cpu::{Caching, Routine};
use gdr_process::ProcessId;

/// A range that a backend has pinned.
#[derive(Debug)]
pub(crate) struct PinState {
    // Fields are dropped in this order: the pin is released before its backend, and before the memory may be freed.
    pub(crate) pin: Box<dyn Pin>,
    pub(crate) backend: Arc<dyn Backend>,
    /// The buffer that contains the range, if a buffer was pinned.
    pub(crate) buffer: Option<Arc<DeviceBuffer>>,
    pub(crate) origin: ProcessId,
    pub(crate) ptr: DevicePtr,
    pub(crate) len: u64,
    pub(crate) is_mapped: AtomicBool,
}

impl PinState {
    /// Called by the mapping after its munmap.
    pub(crate) fn unmapped(&self) {
        self.is_mapped.store(false, Ordering::Release);
    }

    /// Returns whether `routine` can be used on this memory if it is mapped with `caching`. Some routines fault on
    /// cacheable memory, and simulated memory is always cacheable, whatever its mapping reports.
    pub(crate) fn accepts(&self, routine: &Routine, caching: Caching) -> bool {
        let uncached = caching != Caching::Cached && self.backend.kind() != BackendKind::Sim;
        uncached || !routine.needs_uncached_mapping()
    }

    /// Returns the first of `routines`, listed best first, that can be used on this memory.
    pub(crate) fn first_accepted(
        &self,
        routines: impl IntoIterator<Item = &'static Routine>,
        caching: Caching,
    ) -> Option<&'static Routine> {
        routines
            .into_iter()
            .find(|routine| self.accepts(routine, caching))
    }

    /// Returns the copy routine for this memory.
    pub(crate) fn routine(&self, caching: Caching) -> &'static Routine {
        let best = Routine::best();
        let by_preference = [best]
            .into_iter()
            .chain(Routine::supported().iter().copied());
        // `portable` is always supported and works on all memory.
        self.first_accepted(by_preference, caching).unwrap_or(best)
    }
}
