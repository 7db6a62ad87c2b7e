//! Pinned ranges.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_cuda::DevicePtr;

use crate::backend::{Backend, Pin, PinRequest};
use crate::choice::BackendKind;
use crate::cpu::{Caching, Routine};
use crate::error::{Error, Result};
use crate::fork::Origin;
use crate::mapping::Mapping;
use crate::window::host_page;

/// Which bus a mapping must go over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bus {
    /// The platform's choice: PCIe on most machines, the coherent link on Grace-based ones.
    #[default]
    Default,
    /// PCIe (BAR1), also where a coherent link exists.
    Pcie,
}

/// What the ends of a pinned range mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Bytes: the range lies within its allocation.
    #[default]
    Bytes,
    /// GPU pages of 64 KiB, as GDRCopy counts: the range may begin before its allocation and end
    /// after it, as long as the allocation has a part of those pages.
    GpuPages,
}

/// How to pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinOptions {
    /// Which bus the mapping must go over.
    pub bus: Bus,
    /// What the ends of the range mean.
    pub extent: Extent,
}

impl PinOptions {
    /// Pins for a mapping over `bus`.
    pub fn bus(mut self, bus: Bus) -> Self {
        self.bus = bus;
        self
    }

    /// Pins a range whose ends mean `extent`.
    pub fn extent(mut self, extent: Extent) -> Self {
        self.extent = extent;
        self
    }
}

/// How to map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapOptions {
    /// The kind of mapping; `None` takes the backend's own.
    pub caching: Option<Caching>,
    /// Bytes to map, counted from [`PinInfo::va`] and rounded up to host pages; `None` maps the
    /// whole pin.
    pub len: Option<u64>,
}

impl MapOptions {
    /// Asks for a kind of mapping.
    pub fn caching(mut self, caching: Caching) -> Self {
        self.caching = Some(caching);
        self
    }

    /// Maps only the first `len` bytes from [`PinInfo::va`] on.
    pub fn len(mut self, len: u64) -> Self {
        self.len = Some(len);
        self
    }
}

/// How the memory behind a pin was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// `rm`: the POSIX descriptor of VMM memory that allows exporting one.
    PosixFd,
    /// `rm`: the driver's names in CUDA's IPC handle of a `cuMemAlloc` allocation.
    IpcHandle,
    /// `rm`: the driver's names in CUDA's own dma-buf export call.
    DmaBufCall,
    /// `dmabuf`: mmap of the dma-buf itself.
    DmaBufMmap,
    /// `gdrdrv`: NVIDIA's kernel module.
    Module,
    /// `sim`: the simulated GPU's memfd.
    Simulated,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PosixFd => "POSIX fd export",
            Self::IpcHandle => "IPC handle",
            Self::DmaBufCall => "dma-buf export call",
            Self::DmaBufMmap => "dma-buf mmap",
            Self::Module => "gdrdrv module",
            Self::Simulated => "simulated memory",
        })
    }
}

/// Whether a route leads to some memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteReport {
    /// The route.
    pub route: Route,
    /// Why it does not; `None` where it does and, for routes that need it, has proved itself.
    pub refusal: Option<String>,
}

/// Room in a GPU's PCIe window, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar1 {
    /// Its size.
    pub total: u64,
    /// What of it no process has mapped. On GPUs whose BAR1 shows all of the memory for good
    /// ("static BAR1"), mappings take no room and this does not change.
    pub free: u64,
}

/// What is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinInfo {
    /// Where the pinned pages start, at or below the pointer that was pinned.
    pub va: DevicePtr,
    /// Bytes pinned from `va` on.
    pub mapped_size: u64,
    /// Unit of both, bytes.
    pub page_size: u32,
}

/// State shared by a pin and its mapping.
#[derive(Debug)]
pub(crate) struct PinState {
    // Field order is drop order: the pin is released before the backend it belongs to.
    pin: Box<dyn Pin>,
    backend: Arc<dyn Backend>,
    origin: Origin,
    ptr: DevicePtr,
    len: u64,
    mapped: AtomicBool,
}

impl PinState {
    /// Called by the mapping once its window is gone.
    pub(crate) fn unmapped(&self) {
        self.mapped.store(false, Ordering::Release);
    }

    /// The copy routine for this memory: simulated memory is ordinary memory, on which a routine
    /// for real windows may fault.
    pub(crate) fn routine(&self) -> &'static Routine {
        let best = Routine::best();
        let ordinary = self.backend.kind() == BackendKind::Sim;
        if !(ordinary && best.needs_uncached_window()) {
            return best;
        }
        let any = Routine::supported()
            .iter()
            .copied()
            .find(|r| !r.needs_uncached_window());
        any.unwrap_or(best)
    }

    pub(crate) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

/// GPU memory that is held for mapping: it stays allocated while this value or its [`Mapping`]
/// lives.
#[derive(Debug)]
pub struct Pinned(Arc<PinState>);

impl Pinned {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        origin: Origin,
        ptr: DevicePtr,
        len: u64,
        options: PinOptions,
    ) -> Result<Self> {
        let pin = backend.pin(&PinRequest::new(ptr, len, options)?)?;
        let mapped = AtomicBool::new(false);
        Ok(Self(Arc::new(PinState {
            pin,
            backend,
            origin,
            ptr,
            len,
            mapped,
        })))
    }

    /// The pointer that was pinned.
    pub fn ptr(&self) -> DevicePtr {
        self.0.ptr
    }

    /// Bytes that were asked for.
    #[allow(clippy::len_without_is_empty, reason = "a pin has at least one byte")]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// The pages that are held.
    pub fn info(&self) -> PinInfo {
        let pin = &self.0.pin;
        PinInfo {
            va: pin.va(),
            mapped_size: pin.len(),
            page_size: pin.page_size(),
        }
    }

    /// How the memory was reached.
    pub fn route(&self) -> Route {
        self.0.pin.route()
    }

    /// The backend that holds it.
    pub fn backend(&self) -> BackendKind {
        self.0.backend.kind()
    }

    /// Whether a [`Mapping`] of this pin lives.
    pub fn is_mapped(&self) -> bool {
        self.0.mapped.load(Ordering::Acquire)
    }

    /// Whether the memory was freed under the pin. Only `gdrdrv` in its non-persistent mode ever
    /// says yes; elsewhere a freed buffer stays allocated until it is unpinned.
    pub fn invalidated(&self) -> Result<bool> {
        self.0.origin.check()?;
        self.0.pin.invalidated()
    }

    /// Maps the whole range.
    pub fn map(&self) -> Result<Mapping> {
        self.map_with(MapOptions::default())
    }

    /// Maps the range.
    ///
    /// # Errors
    /// [`Error::AlreadyMapped`] while another mapping of this pin lives.
    pub fn map_with(&self, options: MapOptions) -> Result<Mapping> {
        let state = &self.0;
        state.origin.check()?;
        let held = state.pin.len();
        let wanted = options.len.unwrap_or(held);
        let len = wanted
            .checked_next_multiple_of(host_page())
            .filter(|&len| len > 0 && len <= held)
            .ok_or(Error::MapLength {
                wanted,
                available: held,
            })?;
        if state.mapped.swap(true, Ordering::AcqRel) {
            return Err(Error::AlreadyMapped);
        }
        let window = state
            .pin
            .map(len, options.caching)
            .inspect_err(|_| state.unmapped())?;
        let skip = state.ptr.get() - state.pin.va().get();
        Ok(Mapping::new(state.clone(), window, skip))
    }
}
