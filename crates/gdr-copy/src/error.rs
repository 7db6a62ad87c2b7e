//! Errors of pinning, mapping and copying.

use std::io;

use gdr_cuda::{DevicePtr, PointerKind};

use crate::backend::rm::status::RmStatus;
use crate::backend_kind::{BackendKind, ParseBackendError, Rejected, list};
use crate::cpu::Caching;
use crate::plan::CopyPath;
use crate::report::Route;
use gdr_process::ProcessId;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why GPU memory could not be pinned, mapped or copied, with a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the fields say it")]
pub enum Error {
    /// No backend works on this machine.
    #[error("GPU memory cannot be mapped on this machine:{}", list(.tried))]
    NoBackend { tried: Vec<Rejected> },
    /// The requested backend does not work on this machine.
    #[error("backend {backend} cannot be used: {reason}")]
    BackendUnavailable {
        backend: BackendKind,
        reason: String,
    },
    /// The value of `GDR_BACKEND` is not the name of a backend.
    #[error("GDR_BACKEND: {0}")]
    BackendName(#[from] ParseBackendError),
    /// The GPU driver failed.
    #[error(transparent)]
    Gpu(#[from] gdr_cuda::Error),
    /// The address does not belong to memory that stays on a GPU.
    #[error("{ptr} is {} memory, which cannot be pinned: {}", kind_name(*.kind), kind_remedy(*.kind))]
    NotDeviceMemory { ptr: DevicePtr, kind: PointerKind },
    /// The range ends after its allocation.
    #[error(
        "{len} bytes at {ptr} run past their allocation ({size} bytes from {base}): pin at most {} \
         bytes from there", .base.get().saturating_add(*.size).saturating_sub(.ptr.get())
    )]
    PastAllocation {
        ptr: DevicePtr,
        len: u64,
        base: DevicePtr,
        size: u64,
    },
    /// The range is empty, or ends after the end of the address space.
    #[error("{len} bytes at {ptr} cannot be pinned: pin at least one byte")]
    EmptyRange { ptr: DevicePtr, len: u64 },
    /// A device node could not be opened.
    #[error("{path} cannot be opened: {source}; {}", node_remedy(.path, .source))]
    DeviceNode { path: String, source: io::Error },
    /// A call of the NVIDIA driver's resource manager failed.
    #[error("the NVIDIA driver refused {call} for {what}: {status}{}", .status.remedy())]
    Rm {
        call: &'static str,
        what: &'static str,
        status: RmStatus,
    },
    /// The GPU's BAR1 has no space left.
    #[error(
        "BAR1 of GPU {gpu} has no room to map {wanted} bytes: {} in all, {} free, {mapped} mapped \
         by this process; unmap something, map less, or enable Resizable BAR / large BAR1 in the \
         firmware setup", size_or_unknown(*.total), size_or_unknown(*.free)
    )]
    Bar1Exhausted {
        gpu: gdr_cuda::Bdf,
        wanted: u64,
        total: Option<u64>,
        free: Option<u64>,
        mapped: u64,
    },
    /// A route failed its self-test on this driver.
    #[error(
        "the {route} route failed its self-test on NVIDIA driver {driver}: {reason}; use another \
         backend (GDR_BACKEND=gdrdrv with NVIDIA's module, or dmabuf from driver 610 on) and \
         report this driver version"
    )]
    SelfTest {
        route: Route,
        driver: String,
        reason: String,
    },
    /// No route reaches this memory.
    #[error("no route reaches {len} bytes at {ptr}:{}", routes(.refused))]
    NoRoute {
        ptr: DevicePtr,
        len: u64,
        refused: Vec<(Route, String)>,
    },
    /// The process has forked since the context was opened.
    #[error(
        "this process is a forked child, and pins and mappings belong to the process that created \
         them; open a new context after the fork, and initialize CUDA after it, too"
    )]
    ForkedChild,
    /// The pin is already mapped.
    #[error(
        "the range is already mapped: a pin has one mapping at a time; drop that mapping first"
    )]
    AlreadyMapped,
    /// The memory was freed while it was pinned (`gdrdrv` in its non-persistent mode).
    #[error("the memory was freed while it was pinned, so its mapping is invalid; unpin it")]
    Invalidated,
    /// The backend does not offer this kind of mapping for this memory.
    #[error(
        "a {wanted} mapping was requested, but the backend {backend} maps this memory {offered}"
    )]
    Caching {
        wanted: Caching,
        offered: Caching,
        backend: BackendKind,
    },
    /// The copy routine faults on this memory.
    #[error(
        "copy routine {routine} needs uncached memory, but this mapping is {caching} (backend \
         {backend}); use another routine, such as portable"
    )]
    Routine {
        routine: &'static str,
        caching: Caching,
        backend: BackendKind,
    },
    /// The backend cannot force the bus.
    #[error(
        "backend {backend} cannot force the mapping onto PCIe: {reason}; pin without that option"
    )]
    ForcePcie {
        backend: BackendKind,
        reason: &'static str,
    },
    /// The mapping would be longer than the pin.
    #[error("{wanted} bytes cannot be mapped: the pin covers only {available}")]
    MapLength { wanted: u64, available: u64 },
    /// The access ends after the mapping.
    #[error("bytes {offset}..{} lie outside the mapping of {mapped} bytes", .offset.saturating_add(*.len))]
    OutOfRange { offset: u64, len: u64, mapped: u64 },
    /// A copy failed after some of its bytes.
    #[error(
        "only {copied} of {len} bytes were copied: {source}; the other bytes may be old, new or mixed: \
         copy them again, or discard the buffer"
    )]
    Incomplete {
        copied: u64,
        len: u64,
        source: Box<Error>,
    },
    /// The memory was freed by its allocator, and its address may have a new owner.
    #[error(
        "the memory at {ptr} was freed after it was mapped, and the copy engine would access whatever \
         replaced it; keep the allocation alive during copies"
    )]
    Freed { ptr: DevicePtr },
    /// The mapping is not a part of the buffer.
    #[error(
        "the mapping covers memory at {mapped}, which is not part of the buffer at {allocated}"
    )]
    MappedElsewhere {
        mapped: DevicePtr,
        allocated: DevicePtr,
    },
    /// The planner's limits do not allow this copy path.
    #[error("the planner may not use the path {path}; allow it in the planner's limits")]
    PathForbidden { path: CopyPath },
    /// A resident kernel cannot run on this GPU.
    #[error("a resident kernel cannot run on {gpu}: {reason}; leave `resident` out")]
    NoResidentKernel { gpu: String, reason: &'static str },
    /// The address of a flag is not a multiple of its size.
    #[error(
        "a flag of {size} bytes cannot be at offset {offset}: {address:#x} is not a multiple of {size}"
    )]
    Unaligned {
        offset: u64,
        address: usize,
        size: usize,
    },
    /// The version of the `gdrdrv` module is not supported.
    #[error("gdrdrv {found} is loaded, but {wanted} is needed; {remedy}")]
    ModuleVersion {
        found: String,
        wanted: String,
        remedy: &'static str,
    },
    /// A call of the `gdrdrv` module failed.
    #[error("the gdrdrv module refused {call}: {source}; {remedy}")]
    Module {
        call: &'static str,
        source: io::Error,
        remedy: &'static str,
    },
    /// Dma-bufs of CUDA cannot be mapped on this machine.
    #[error(
        "dma-bufs cannot be mapped here: {reason}; update the NVIDIA driver to 610.43.02 (CUDA 13.3) or \
         later, or use another backend (GDR_BACKEND=rm needs nothing but the driver)"
    )]
    DmaBufMmap {
        reason: String,
        source: Option<io::Error>,
    },
    /// A system call failed.
    #[error("{call} failed: {source}{}", os_remedy(.source))]
    Os {
        call: &'static str,
        source: io::Error,
    },
}

impl Error {
    /// Returns the code of this error for programs, such as `no_backend`.
    ///
    /// A variant keeps its code even if it is renamed.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Gpu(error) => error.code(),
            Self::NoBackend { .. } => "no_backend",
            Self::BackendUnavailable { .. } => "backend_unavailable",
            Self::BackendName { .. } => "backend_name",
            Self::NotDeviceMemory { .. } => "not_device_memory",
            Self::PastAllocation { .. } => "past_allocation",
            Self::EmptyRange { .. } => "empty_range",
            Self::DeviceNode { .. } => "device_node",
            Self::Rm { .. } => "rm",
            Self::SelfTest { .. } => "self_test",
            Self::NoRoute { .. } => "no_route",
            Self::ForkedChild { .. } => "forked_child",
            Self::AlreadyMapped { .. } => "already_mapped",
            Self::Invalidated { .. } => "invalidated",
            Self::Caching { .. } => "caching",
            Self::ForcePcie { .. } => "force_pcie",
            Self::MapLength { .. } => "map_length",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Unaligned { .. } => "unaligned",
            Self::ModuleVersion { .. } => "module_version",
            Self::Module { .. } => "module",
            Self::DmaBufMmap { .. } => "dma_buf_mmap",
            Self::Routine { .. } => "routine",
            Self::Os { .. } => "os",
            Self::Bar1Exhausted { .. }
            | Self::Incomplete { .. }
            | Self::Freed { .. }
            | Self::MappedElsewhere { .. }
            | Self::PathForbidden { .. }
            | Self::NoResidentKernel { .. } => "mapping",
        }
    }

    pub(crate) fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os {
            call,
            source: source.into(),
        }
    }
}

/// Fails in any process other than this one.
pub(crate) fn only_in(process: &ProcessId) -> Result<()> {
    match process.is_current() {
        true => Ok(()),
        false => Err(Error::ForkedChild),
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
            "it migrates between host and GPU; access it from the CPU directly, or allocate with \
             cudaMalloc"
        }
        PointerKind::Host => "the CPU can access it directly",
        _ => "allocate with cudaMalloc, cuMemCreate or a CUDA memory pool",
    }
}

fn node_remedy(path: &str, source: &io::Error) -> &'static str {
    let of_gdrdrv = path.ends_with("gdrdrv");
    match source.raw_os_error() {
        // ENXIO and ENODEV: the node was created by hand, or is left over from an unloaded module.
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) if of_gdrdrv => {
            "the gdrdrv module is not loaded (modprobe gdrdrv, as root), or the container does not \
             pass the device in (--device /dev/gdrdrv)"
        }
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            "the NVIDIA driver is not loaded (nvidia-smi, nvidia-modprobe), or the container does \
             not pass the device in (--gpus, --device)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "this user may not open it: check the node's mode and group, and the container's \
             device rules"
        }
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)",
        _ if of_gdrdrv => "check dmesg for messages of gdrdrv",
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

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn a_missing_node_names_the_module_that_creates_it() {
        let text = |path: &str, errno| {
            let (path, source) = (path.to_owned(), io::Error::from_raw_os_error(errno));
            Error::DeviceNode { path, source }.to_string()
        };
        for errno in [libc::ENOENT, libc::ENXIO, libc::ENODEV] {
            let gdrdrv = text("/dev/gdrdrv", errno);
            assert_contains!(gdrdrv, "modprobe gdrdrv");
            assert!(!gdrdrv.contains("nvidia-smi"), "{gdrdrv}");
            let nvidia = text("/dev/nvidiactl", errno);
            assert_contains!(nvidia, "nvidia-modprobe");
            assert!(!nvidia.contains("gdrdrv"), "{nvidia}");
        }
        assert!(text("/dev/gdrdrv", libc::EIO).contains("messages of gdrdrv"));
        assert!(text("/dev/nvidia0", libc::EACCES).contains("mode and group"));
        assert!(text("/dev/gdrdrv", libc::EACCES).contains("mode and group"));
    }
}
