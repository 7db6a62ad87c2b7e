//! The trait of the backends, which pin and map GPU memory.

pub(crate) mod dmabuf;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod gdrdrv;
pub(crate) mod range;
pub(crate) mod rm;
pub(crate) mod sim;
mod uninterrupted;

use std::fmt::Debug;

use gdr_cuda::{DevicePtr, Ordinal};

use crate::backend_kind::BackendKind;
use crate::bar_mapping::BarMapping;
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::options::{Bus, PinOptions};
use crate::report::Attributes;
use crate::report::{Bar1, Route, RouteReport};

/// GPU pages as GDRCopy counts them: the unit in which GPU memory is pinned.
pub(crate) const GPU_PAGE: u64 = 64 << 10;

/// A requested range: at least one byte long, and its end is a valid address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinRequest {
    pub(crate) ptr: DevicePtr,
    pub(crate) len: u64,
    pub(crate) options: PinOptions,
}

impl PinRequest {
    pub(crate) fn new(ptr: DevicePtr, len: u64, options: PinOptions) -> Result<Self> {
        // Room to widen the range to pages without passing the end of the address space.
        let last = u64::MAX - (1 << 20);
        match ptr.get().checked_add(len) {
            Some(end) if len > 0 && end <= last => Ok(Self { ptr, len, options }),
            _ => Err(Error::EmptyRange { ptr, len }),
        }
    }

    /// Returns the range widened to whole GPU pages: its start and its length.
    pub(crate) fn pages(&self) -> (DevicePtr, u64) {
        let start = self.ptr.align_down(GPU_PAGE);
        let end = self.ptr.get() + self.len;
        (start, end.next_multiple_of(GPU_PAGE) - start.get())
    }

    pub(crate) fn forces_pcie(&self) -> bool {
        self.options.bus() == Bus::Pcie
    }
}

/// Pins and maps GPU memory.
pub(crate) trait Backend: Send + Sync + Debug {
    fn kind(&self) -> BackendKind;

    /// Returns why this backend was chosen as the first that works.
    fn reason(&self) -> String;

    /// Pins the range without mapping it.
    fn pin(&self, request: &PinRequest) -> Result<Box<dyn Pin>>;

    fn attributes(&self) -> Attributes;

    /// Returns the size and free space of a GPU's BAR1, if the backend can read them.
    fn bar1(&self, _device: Ordinal) -> Result<Option<Bar1>> {
        Ok(None)
    }

    /// Returns every route to a range, with the reason if a route does not reach it. By default, tries the backend's
    /// only route.
    fn routes(&self, request: &PinRequest) -> Result<Vec<RouteReport>> {
        let route = self.pin(request)?.route();
        Ok(vec![RouteReport {
            route,
            refusal: None,
        }])
    }
}

/// A pinned range; released on drop.
pub(crate) trait Pin: Send + Sync + Debug {
    /// Returns where the pinned pages start, at or below the address that was pinned.
    fn va(&self) -> DevicePtr;

    /// Returns the number of bytes pinned from [`Pin::va`] on.
    fn len(&self) -> u64;

    /// Returns the unit of [`Pin::va`] and [`Pin::len`] in bytes.
    fn page_size(&self) -> u32 {
        GPU_PAGE as u32
    }

    fn route(&self) -> Route;

    /// Returns whether the memory was freed while it was pinned.
    fn invalidated(&self) -> Result<bool> {
        Ok(false)
    }

    /// Maps the first `len` bytes from [`Pin::va`] on; `len` is a multiple of the host page and no more than
    /// [`Pin::len`].
    fn map(&self, len: u64, caching: Option<Caching>) -> Result<BarMapping>;
}

/// Refuses every kind of mapping except the offered one.
pub(crate) fn only(
    backend: BackendKind,
    offered: Caching,
    wanted: Option<Caching>,
) -> Result<Caching> {
    match wanted {
        Some(wanted) if wanted != offered => Err(Error::Caching {
            wanted,
            offered,
            backend,
        }),
        _ => Ok(offered),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_widened_to_whole_gpu_pages() {
        let request = |ptr, len| PinRequest {
            ptr: DevicePtr::new(ptr),
            len,
            options: PinOptions::new(),
        };
        assert_eq!(
            request(0x2_0000, 1).pages(),
            (DevicePtr::new(0x2_0000), 0x1_0000)
        );
        assert_eq!(
            request(0x2_ffff, 2).pages(),
            (DevicePtr::new(0x2_0000), 0x2_0000)
        );
        assert_eq!(
            request(0x2_0000, 0x1_0000).pages(),
            (DevicePtr::new(0x2_0000), 0x1_0000)
        );
    }
}
