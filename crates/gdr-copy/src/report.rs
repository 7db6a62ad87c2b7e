//! Descriptions of backends, pins and routes, for callers and for reports.

use std::fmt;

use gdr_cuda::DevicePtr;

/// The version of a kernel module, such as 2.5.
pub type ModuleVersion = (u16, u16);

/// The features of a backend, in GDRCopy's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Whether mappings outlive `cudaFree`.
    pub persistent: bool,
    /// Whether [`Bus::Pcie`](crate::Bus::Pcie) can be requested (it may still fail on this platform).
    pub force_pcie: bool,
    /// Whether mappings are mmaps of a dma-buf.
    pub dma_buf_mmap: bool,
    /// The version of the `gdrdrv` module, if that is the backend.
    pub module: Option<ModuleVersion>,
}

/// The route by which memory was pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Route {
    /// `rm`: the POSIX descriptor of VMM memory that allows exporting one.
    PosixFd,
    /// `rm`: the RM client and object in CUDA's IPC handle of a `cuMemAlloc` allocation.
    IpcHandle,
    /// `rm`: the RM client and objects in the dma-buf export call that CUDA itself makes.
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

/// Whether a route works for some memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteReport {
    /// The route.
    pub route: Route,
    /// Why it does not work; `None` if it works and has passed its self-test, if it needs one.
    pub refusal: Option<String>,
}

/// The size and free space of a GPU's BAR1, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar1 {
    /// The size.
    pub total: u64,
    /// The part that no process has mapped. On GPUs whose BAR1 permanently maps all of the memory ("static BAR1"),
    /// mappings take no space, and this does not change.
    pub free: u64,
}

/// The pages of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinInfo {
    /// The start of the pinned pages, at or below the pinned pointer.
    pub va: DevicePtr,
    /// The number of bytes pinned, starting at `va`.
    pub mapped_size: u64,
    /// The unit of both, in bytes.
    pub page_size: u32,
}
