//! The seam between pinning and the ways to do it.

pub(crate) mod dmabuf;
pub(crate) mod gdrdrv;
pub(crate) mod range;
pub(crate) mod rm;
pub(crate) mod sim;

use std::fmt::Debug;

use gdr_cuda::{DevicePtr, Ordinal};

use crate::choice::BackendKind;
use crate::context::Attributes;
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::pinned::{Bar1, Bus, PinOptions, Route, RouteReport};
use crate::window::Window;

/// GPU pages as GDRCopy counts them: the unit in which GPU memory is pinned.
pub(crate) const GPU_PAGE: u64 = 64 << 10;

/// A range as the caller asked for it: at least one byte, and its end is an address.
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

    /// The range widened to whole GPU pages: its start and its length.
    pub(crate) fn pages(&self) -> (DevicePtr, u64) {
        let start = self.ptr.align_down(GPU_PAGE);
        let end = self.ptr.get() + self.len;
        (start, end.next_multiple_of(GPU_PAGE) - start.get())
    }

    pub(crate) fn forces_pcie(&self) -> bool {
        self.options.bus == Bus::Pcie
    }
}

/// A way to pin and map GPU memory.
pub(crate) trait Backend: Send + Sync + Debug {
    fn kind(&self) -> BackendKind;

    /// Why this backend, when it was the first that works.
    fn reason(&self) -> String;

    /// Takes hold of the range. Does not map it yet.
    fn pin(&self, request: &PinRequest) -> Result<Box<dyn Pin>>;

    fn attributes(&self) -> Attributes;

    /// How full a GPU's PCIe window is, where the backend can tell.
    fn bar1(&self, _device: Ordinal) -> Result<Option<Bar1>> {
        Ok(None)
    }

    /// Every route to a range, with the reason where it is closed. A backend with one route tries
    /// it.
    fn routes(&self, request: &PinRequest) -> Result<Vec<RouteReport>> {
        let route = self.pin(request)?.route();
        Ok(vec![RouteReport {
            route,
            refusal: None,
        }])
    }
}

/// A range that is held; released on drop.
pub(crate) trait Pin: Send + Sync + Debug {
    /// Where the held pages start. At or below the address that was pinned.
    fn va(&self) -> DevicePtr;

    /// Bytes held from [`Pin::va`] on.
    fn len(&self) -> u64;

    /// Unit of [`Pin::va`] and [`Pin::len`], bytes.
    fn page_size(&self) -> u32 {
        GPU_PAGE as u32
    }

    fn route(&self) -> Route;

    /// Whether the memory was freed under the pin.
    fn invalidated(&self) -> Result<bool> {
        Ok(false)
    }

    /// Maps the first `len` bytes from [`Pin::va`] on; `len` is a multiple of the host page and
    /// no more than [`Pin::len`].
    fn map(&self, len: u64, caching: Option<Caching>) -> Result<Window>;
}

/// Refuses a kind of mapping other than the one there is.
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
            options: PinOptions::default(),
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
