//! Why GPU memory could not be pinned, mapped or copied.

use std::io;

use gdr_cuda::{DevicePtr, PointerKind};

use crate::backend::rm::RmStatus;
use crate::choice::{BackendKind, ParseBackendError, Rejected, list};
use crate::cpu::Caching;
use crate::pinned::Route;

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why GPU memory could not be pinned, mapped or copied: what failed, why, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No backend works on this machine.
    #[error("GPU memory cannot be mapped on this machine:{}", list(.tried))]
    NoBackend {
        /// Every backend, with the reason it was passed over.
        tried: Vec<Rejected>,
    },
    /// The backend that was asked for does not work here.
    #[error("backend {backend} cannot be used: {reason}")]
    BackendUnavailable {
        /// The one that was asked for.
        backend: BackendKind,
        /// Why, and what to do.
        reason: String,
    },
    /// `GDR_BACKEND` holds no backend's name.
    #[error("GDR_BACKEND: {0}")]
    BackendName(#[from] ParseBackendError),
    /// The GPU driver refused.
    #[error(transparent)]
    Gpu(#[from] gdr_cuda::Error),
    /// The address is not memory that lies on a GPU for good.
    #[error("{ptr} is {} memory, which cannot be pinned: {}", kind_name(*.kind), kind_remedy(*.kind))]
    NotDeviceMemory {
        /// The address.
        ptr: DevicePtr,
        /// What it is.
        kind: PointerKind,
    },
    /// The range runs past its allocation.
    #[error(
        "{len} bytes at {ptr} run past their allocation ({size} bytes from {base}): pin at most {} \
         bytes from there", .base.get().saturating_add(*.size).saturating_sub(.ptr.get())
    )]
    PastAllocation {
        /// Where the range starts.
        ptr: DevicePtr,
        /// Its length.
        len: u64,
        /// Where the allocation starts.
        base: DevicePtr,
        /// How long the allocation is.
        size: u64,
    },
    /// A range of no bytes, or one past the end of the address space.
    #[error("{len} bytes at {ptr} is no range that can be pinned: give at least one byte")]
    EmptyRange {
        /// The address.
        ptr: DevicePtr,
        /// The length.
        len: u64,
    },
    /// A device node could not be opened.
    #[error("{path} cannot be opened: {source}; {}", node_remedy(.source))]
    DeviceNode {
        /// The node.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The NVIDIA driver's resource manager refused a call.
    #[error("the NVIDIA driver refused {call} for {what}: {status}{}", .status.remedy())]
    Rm {
        /// The call, by its name in the driver's headers.
        call: &'static str,
        /// What it was asked for.
        what: &'static str,
        /// Its answer.
        status: RmStatus,
    },
    /// The GPU's PCIe window is full.
    #[error(
        "BAR1 of GPU {gpu} has no room to map {wanted} bytes: {} in all, {} free, {mapped} mapped \
         by this process; unmap something, map less, or enable Resizable BAR / large BAR1 in the \
         firmware set-up", size_or_unknown(*.total), size_or_unknown(*.free)
    )]
    Bar1Exhausted {
        /// PCI address of the GPU.
        gpu: gdr_cuda::Bdf,
        /// Bytes that were to be mapped.
        wanted: u64,
        /// Size of BAR1, bytes, where the driver tells.
        total: Option<u64>,
        /// Free bytes of BAR1, where the driver tells.
        free: Option<u64>,
        /// Bytes that this process has mapped through this library.
        mapped: u64,
    },
    /// The way to reach this kind of memory did not prove itself on this driver.
    #[error(
        "the {route} route failed its self-test on NVIDIA driver {driver}: {reason}; use another \
         backend (GDR_BACKEND=gdrdrv with NVIDIA's module, or dmabuf from driver 610 on) and \
         report this driver version"
    )]
    SelfTest {
        /// The route under test.
        route: Route,
        /// The driver's version.
        driver: String,
        /// What was wrong.
        reason: String,
    },
    /// Every route to this memory was refused.
    #[error("no route reaches {len} bytes at {ptr}:{}", routes(.refused))]
    NoRoute {
        /// Where the range starts.
        ptr: DevicePtr,
        /// Its length.
        len: u64,
        /// Each route with the reason it was refused.
        refused: Vec<(Route, String)>,
    },
    /// The process has forked since the context was opened.
    #[error(
        "this is a forked child: pins and mappings belong to the process that made them; open a \
         new context after fork (CUDA itself must be initialized after fork, too)"
    )]
    ForkedChild,
    /// A pin has one mapping at a time.
    #[error("this range is mapped already: a pin has one mapping at a time; drop that one first")]
    AlreadyMapped,
    /// The memory is gone (`gdrdrv` in its non-persistent mode).
    #[error("the memory was freed while it was pinned, and its mapping is gone; unpin it")]
    Invalidated,
    /// A kind of mapping that this backend does not offer for this memory.
    #[error("a {wanted} mapping was asked for, but {backend} maps this memory {offered}")]
    Caching {
        /// What was asked for.
        wanted: Caching,
        /// What there is.
        offered: Caching,
        /// The backend.
        backend: BackendKind,
    },
    /// A bus that this backend cannot be told to use.
    #[error(
        "backend {backend} cannot force the mapping onto PCIe: {reason}; pin without that option"
    )]
    ForcePcie {
        /// The backend.
        backend: BackendKind,
        /// Why not.
        reason: &'static str,
    },
    /// More bytes than the pin covers.
    #[error("{wanted} bytes were to be mapped, but the pin covers {available}")]
    MapLength {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes pinned.
        available: u64,
    },
    /// An access past the mapping.
    #[error("bytes {offset}..{} lie outside the mapping of {mapped} bytes", .offset.saturating_add(*.len))]
    OutOfRange {
        /// Where the access starts.
        offset: u64,
        /// Its length.
        len: u64,
        /// The mapping's length.
        mapped: u64,
    },
    /// A flag at an address that is no multiple of its size.
    #[error(
        "a flag of {size} bytes cannot stand at offset {offset}: {address:#x} is not a multiple of {size}"
    )]
    Unaligned {
        /// Offset in the mapping.
        offset: u64,
        /// CPU address.
        address: usize,
        /// Size of the flag.
        size: usize,
    },
    /// The `gdrdrv` module and this library do not fit together.
    #[error("gdrdrv {found} is loaded, but {wanted} is needed; {remedy}")]
    ModuleVersion {
        /// The module's version.
        found: String,
        /// What is needed.
        wanted: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The `gdrdrv` module refused a call.
    #[error("the gdrdrv module refused {call}: {source}; {remedy}")]
    Module {
        /// The call, by its name in the module's header.
        call: &'static str,
        /// Its answer.
        source: io::Error,
        /// What that means here, and what to do.
        remedy: &'static str,
    },
    /// CUDA's dma-bufs cannot be mapped here.
    #[error(
        "dma-bufs cannot be mapped here: {reason}; it takes NVIDIA driver 610.43.02 (CUDA 13.3) \
         or later: update it, or use another backend (GDR_BACKEND=rm needs the driver only)"
    )]
    DmaBufMmap {
        /// What is in the way.
        reason: String,
        /// The system's answer, where it was asked.
        source: Option<io::Error>,
    },
    /// The operating system refused.
    #[error("{call} failed: {source}{}", os_remedy(.source))]
    Os {
        /// The call.
        call: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os {
            call,
            source: source.into(),
        }
    }
}

fn kind_name(kind: PointerKind) -> &'static str {
    match kind {
        PointerKind::Device => "device",
        PointerKind::Host => "host",
        PointerKind::Managed => "managed (unified)",
        _ => "array or otherwise special",
    }
}

fn kind_remedy(kind: PointerKind) -> &'static str {
    match kind {
        PointerKind::Managed => {
            "the driver moves it between host and GPU; use it from the CPU directly, or allocate \
             with cudaMalloc"
        }
        PointerKind::Host => "the CPU can use it as it is",
        _ => "allocate with cudaMalloc, cuMemCreate or a CUDA memory pool",
    }
}

fn node_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOENT) => {
            "the NVIDIA driver is not loaded (nvidia-smi, nvidia-modprobe), or the container does \
             not pass the device in (--gpus, --device)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "this user may not use it: check the node's mode and group, and the container's \
             device rules"
        }
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)",
        _ => "check dmesg for messages of the NVIDIA driver",
    }
}

fn os_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit on open files (ulimit -n)",
        Some(libc::ENOMEM) => {
            "; the limit on address space or mappings is reached (ulimit -v, vm.max_map_count)"
        }
        _ => "",
    }
}

fn size_or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or_else(
        || "an unknown number of bytes".to_owned(),
        |bytes| format!("{bytes} bytes"),
    )
}

fn routes(refused: &[(Route, String)]) -> String {
    refused
        .iter()
        .map(|(route, reason)| format!("\n  {route}: {reason}"))
        .collect()
}
