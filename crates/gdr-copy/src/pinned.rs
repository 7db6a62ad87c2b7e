//! Pinned ranges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_cuda::{DeviceBuffer, DevicePtr};

use crate::backend::{Backend, PinRequest};
use crate::backend_kind::BackendKind;
use crate::bar_mapping::host_page;
use crate::error::{Error, Result, only_in};
use crate::mapping::Mapping;
use crate::options::MapOptions;
use crate::pin_state::PinState;
use crate::report::{PinInfo, Route};
use gdr_process::ProcessId;

/// Pinned GPU memory, which stays allocated while this value or its [`Mapping`] exists.
#[derive(Debug)]
pub struct Pinned(Arc<PinState>);

impl Pinned {
    /// Creates the pin. `buffer` is kept alive until the pin and its mapping are dropped.
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        origin: ProcessId,
        request: &PinRequest,
        buffer: Option<Arc<DeviceBuffer>>,
    ) -> Result<Self> {
        Ok(Self(Arc::new(PinState {
            pin: backend.pin(request)?,
            backend,
            buffer,
            origin,
            ptr: request.ptr,
            len: request.len,
            is_mapped: AtomicBool::new(false),
        })))
    }

    /// Returns the pointer that was pinned.
    pub fn ptr(&self) -> DevicePtr {
        self.0.ptr
    }

    /// Returns the number of bytes that were requested.
    #[expect(clippy::len_without_is_empty, reason = "a pin has at least one byte")]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Returns the buffer that was pinned, if it was pinned by [`Context::pin_buffer`].
    ///
    /// [`Context::pin_buffer`]: crate::Context::pin_buffer
    pub fn buffer(&self) -> Option<&Arc<DeviceBuffer>> {
        self.0.buffer.as_ref()
    }

    /// Returns the pages that are pinned.
    pub fn info(&self) -> PinInfo {
        let pin = &self.0.pin;
        PinInfo {
            va: pin.va(),
            mapped_size: pin.len(),
            page_size: pin.page_size(),
        }
    }

    /// Returns the route by which the memory was pinned.
    pub fn route(&self) -> Route {
        self.0.pin.route()
    }

    /// Returns the backend of this pin.
    pub fn backend(&self) -> BackendKind {
        self.0.backend.kind()
    }

    /// Returns whether a [`Mapping`] of this pin exists.
    pub fn is_mapped(&self) -> bool {
        self.0.is_mapped.load(Ordering::Acquire)
    }

    /// Returns whether the memory was freed while it was pinned. This is possible only with `gdrdrv` in its
    /// non-persistent mode; otherwise a freed buffer stays allocated until it is unpinned.
    ///
    /// # Errors
    /// [`Error::ForkedChild`]; errors of the module.
    pub fn invalidated(&self) -> Result<bool> {
        only_in(&self.0.origin)?;
        self.0.pin.invalidated()
    }

    /// Maps the whole range.
    ///
    /// # Errors
    /// Same as [`Pinned::map_with`].
    pub fn map(&self) -> Result<Mapping> {
        self.map_with(MapOptions::new())
    }

    /// Maps the range.
    ///
    /// # Errors
    /// [`Error::AlreadyMapped`] while another mapping of this pin exists; [`Error::MapLength`], [`Error::Caching`],
    /// [`Error::Bar1Exhausted`], [`Error::ForkedChild`]; errors of the driver.
    pub fn map_with(&self, options: MapOptions) -> Result<Mapping> {
        let state = &self.0;
        only_in(&state.origin)?;
        let available = state.pin.len();
        let wanted = options.len().unwrap_or(available);
        let len = wanted
            .checked_next_multiple_of(host_page())
            .filter(|&len| len > 0 && len <= available)
            .ok_or(Error::MapLength { wanted, available })?;
        // Set before the driver maps the range, so that only one of two threads maps it.
        if state.is_mapped.swap(true, Ordering::AcqRel) {
            return Err(Error::AlreadyMapped);
        }
        let mapping = state
            .pin
            .map(len, options.caching())
            .inspect_err(|_| state.unmapped())?;
        let skip = state.ptr.get() - state.pin.va().get();
        Ok(Mapping::new(state.clone(), mapping, skip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::fake::FakeBackend;
    use crate::cpu::{Caching, FOR_UNCACHED_ONLY, Routine};

    #[test]
    fn memory_is_copied_by_the_first_routine_that_it_accepts() {
        let portable = Routine::by_name("portable").unwrap();
        for (kind, caching, chosen) in [
            (BackendKind::Rm, Caching::WriteCombined, &FOR_UNCACHED_ONLY),
            (BackendKind::Rm, Caching::Cached, portable),
            (BackendKind::Sim, Caching::WriteCombined, portable),
        ] {
            let pinned = FakeBackend { kind, caching }.pin(0, 4096);
            let routines = [&FOR_UNCACHED_ONLY, portable];
            assert_eq!(pinned.0.first_accepted(routines, caching), Some(chosen));
            assert_eq!(
                pinned.0.first_accepted([&FOR_UNCACHED_ONLY; 0], caching),
                None
            );
        }
    }

    #[test]
    fn a_pin_has_one_mapping_at_a_time_and_none_longer_than_itself() {
        let (kind, caching) = (BackendKind::Rm, Caching::WriteCombined);
        let pinned = FakeBackend { kind, caching }.pin(100, 10_000);
        let available = pinned.info().mapped_size;
        for len in [0, available + 1, u64::MAX] {
            let refused = pinned
                .map_with(MapOptions::new().with_len(len))
                .unwrap_err();
            assert!(
                matches!(refused, Error::MapLength { .. }),
                "{len}: {refused}"
            );
            assert!(!pinned.is_mapped());
        }
        let other = MapOptions::new().with_caching(Caching::Cached);
        assert!(matches!(pinned.map_with(other), Err(Error::Caching { .. })));
        assert!(!pinned.is_mapped(), "a refused mapping does not count");
        let mapping = pinned
            .map_with(MapOptions::new().with_len(available))
            .unwrap();
        assert_eq!((mapping.len(), mapping.window().1), (10_000, available));
        assert!(pinned.is_mapped());
        assert!(matches!(pinned.map(), Err(Error::AlreadyMapped)));
        drop(mapping);
        // A mapping of one byte covers one page, and the pinned pointer is 100 bytes into that page.
        let page = pinned.map_with(MapOptions::new().with_len(1)).unwrap();
        assert_eq!(
            (page.len(), page.window().1),
            (host_page() - 100, host_page())
        );
    }
}
