//! Errors and their errno values.

use std::ffi::c_int;
use std::io;

use gdr_copy::Error;
use gdr_cuda::CuResult;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// An argument is wrong.
    #[error("{0}")]
    Argument(&'static str),
    /// GDRCopy does not allow the pinned address to be mapped.
    #[error(
        "the pinned address {0:#x} is not a multiple of 64 KiB, so it cannot be mapped; pin a \
         range that starts at a GPU page (round the address down, or allocate 64 KiB more)"
    )]
    NotAtGpuPage(u64),
    /// The handle is mapped.
    #[error("the handle is mapped already; unmap it first")]
    AlreadyMapped,
    /// Every slot is in use.
    #[error("{0} buffers are pinned, and there are no more handles; unpin some")]
    TooManyPins(usize),
    /// An error of gdr-copy.
    #[error(transparent)]
    Copy(#[from] Error),
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        call: &'static str,
        source: io::Error,
    },
}

/// A null, stale or invalid `gdr_t`.
pub(crate) const NO_LIBRARY: Failure = Failure::Argument(
    "the gdr_t is not open in this process: null, closed, of a parent process, or invalid",
);
/// A null, stale or invalid handle, or one of another `gdr_t`.
pub(crate) const NO_HANDLE: Failure = Failure::Argument(
    "the handle is not a pinned buffer of this gdr_t: null, unpinned, of a parent process, or invalid",
);

impl Failure {
    pub(crate) fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os {
            call,
            source: source.into(),
        }
    }

    /// Returns the positive errno value of this error.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Self::Argument(_) | Self::NotAtGpuPage(_) => libc::EINVAL,
            Self::AlreadyMapped => libc::EAGAIN,
            Self::TooManyPins(_) => libc::ENOMEM,
            Self::Copy(error) => errno_of_copy(error),
            Self::Os { source, .. } => errno_of_os(source),
        }
    }
}

// From `nvstatuscodes.h` of the open kernel modules.
const NV_ERR_INSUFFICIENT_RESOURCES: u32 = 0x1a;
const NV_ERR_INSUFFICIENT_PERMISSIONS: u32 = 0x1b;
const NV_ERR_NO_MEMORY: u32 = 0x51;

/// Returns the errno value of `gdrdrv` for the same error, where it has one.
fn errno_of_copy(error: &Error) -> c_int {
    match error {
        Error::NoBackend { .. } | Error::BackendUnavailable { .. } => libc::ENODEV,
        Error::BackendName(_) => libc::EINVAL,
        Error::Gpu(error) => errno_of_gpu(error),
        Error::NotDeviceMemory { .. }
        | Error::PastAllocation { .. }
        | Error::EmptyRange { .. }
        | Error::MapLength { .. }
        | Error::OutOfRange { .. }
        | Error::Unaligned { .. }
        | Error::Invalidated
        | Error::ForkedChild
        | Error::ForcePcie { .. } => libc::EINVAL,
        Error::DeviceNode { source, .. }
        | Error::Module { source, .. }
        | Error::Os { source, .. } => errno_of_os(source),
        Error::Rm { status, .. } => match status.0 {
            NV_ERR_INSUFFICIENT_RESOURCES | NV_ERR_NO_MEMORY => libc::ENOMEM,
            NV_ERR_INSUFFICIENT_PERMISSIONS => libc::EACCES,
            _ => libc::EIO,
        },
        Error::Bar1Exhausted { .. } => libc::ENOMEM,
        Error::SelfTest { .. } | Error::NoRoute { .. } | Error::Caching { .. } => libc::EOPNOTSUPP,
        Error::AlreadyMapped => libc::EAGAIN,
        Error::ModuleVersion { .. } => libc::EPROTONOSUPPORT,
        Error::DmaBufMmap { .. } => libc::ENODEV,
        // Variants newer than this function.
        _ => libc::EIO,
    }
}

fn errno_of_gpu(error: &gdr_cuda::Error) -> c_int {
    use gdr_cuda::Error as Gpu;
    match error {
        Gpu::Library { .. } | Gpu::Symbol { .. } | Gpu::NoSuchDevice { .. } => libc::ENODEV,
        Gpu::UnknownPointer { .. } | Gpu::OutOfRange { .. } => libc::EINVAL,
        Gpu::Call { result, .. } => errno_of_cuda(*result),
        Gpu::Deadline { .. } => libc::ETIMEDOUT,
        Gpu::Os { source, .. } => errno_of_os(source),
        _ => libc::EIO,
    }
}

fn errno_of_cuda(result: CuResult) -> c_int {
    match result {
        CuResult::INVALID_VALUE => libc::EINVAL,
        CuResult::OUT_OF_MEMORY => libc::ENOMEM,
        CuResult::NO_DEVICE => libc::ENODEV,
        CuResult::NOT_PERMITTED => libc::EACCES,
        CuResult::NOT_SUPPORTED => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

fn errno_of_os(error: &io::Error) -> c_int {
    error
        .raw_os_error()
        .filter(|&errno| errno > 0)
        .unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use gdr_copy::{BackendKind, Caching};
    use gdr_cuda::{DevicePtr, PointerKind};

    use super::*;

    fn errno(error: impl Into<Error>) -> c_int {
        Failure::Copy(error.into()).errno()
    }

    #[test]
    fn wrong_arguments_are_einval() {
        let ptr = DevicePtr::new(0x1000);
        assert_eq!(NO_LIBRARY.errno(), libc::EINVAL);
        assert_eq!(NO_HANDLE.errno(), libc::EINVAL);
        assert_eq!(Failure::NotAtGpuPage(1).errno(), libc::EINVAL);
        assert_eq!(
            errno(Error::NotDeviceMemory {
                ptr,
                kind: PointerKind::Managed
            }),
            libc::EINVAL
        );
        let past = Error::PastAllocation {
            ptr,
            len: 2,
            base: ptr,
            size: 1,
        };
        assert_eq!(errno(past), libc::EINVAL);
        assert_eq!(errno(Error::EmptyRange { ptr, len: 0 }), libc::EINVAL);
        assert_eq!(
            errno(Error::MapLength {
                wanted: 2,
                available: 1
            }),
            libc::EINVAL
        );
        assert_eq!(errno(Error::ForkedChild), libc::EINVAL);
        assert_eq!(errno(gdr_cuda::Error::UnknownPointer { ptr }), libc::EINVAL);
    }

    #[test]
    fn a_second_mapping_is_eagain() {
        assert_eq!(Failure::AlreadyMapped.errno(), libc::EAGAIN);
        assert_eq!(errno(Error::AlreadyMapped), libc::EAGAIN);
    }

    #[test]
    fn an_exhausted_resource_is_enomem() {
        let gpu = gdr_cuda::Bdf {
            domain: 0,
            bus: 1,
            device: 0,
            function: 0,
        };
        let full = Error::Bar1Exhausted {
            gpu,
            wanted: 1,
            total: None,
            free: None,
            mapped: 0,
        };
        assert_eq!(errno(full), libc::ENOMEM);
        assert_eq!(Failure::TooManyPins(1).errno(), libc::ENOMEM);
        let (call, result) = ("cuMemAlloc", CuResult::OUT_OF_MEMORY);
        assert_eq!(errno(gdr_cuda::Error::Call { call, result }), libc::ENOMEM);
    }

    #[test]
    fn what_the_platform_does_not_support_is_eopnotsupp() {
        let caching = Error::Caching {
            wanted: Caching::Cached,
            offered: Caching::WriteCombined,
            backend: BackendKind::Sim,
        };
        assert_eq!(errno(caching), libc::EOPNOTSUPP);
    }

    #[test]
    fn an_errno_of_the_system_is_passed_on() {
        for number in [libc::EACCES, libc::ENOENT, libc::EMFILE] {
            let source = io::Error::from_raw_os_error(number);
            assert_eq!(
                errno(Error::DeviceNode {
                    path: "/dev/x".into(),
                    source
                }),
                number
            );
            let source = io::Error::from_raw_os_error(number);
            assert_eq!(Failure::os("mmap", source).errno(), number);
        }
        assert_eq!(
            Failure::os("read", io::ErrorKind::UnexpectedEof).errno(),
            libc::EIO
        );
    }

    #[test]
    fn a_machine_without_a_gpu_is_enodev() {
        assert_eq!(errno(Error::NoBackend { tried: Vec::new() }), libc::ENODEV);
        let error = gdr_cuda::Error::Library {
            library: "x".into(),
            reason: "y".into(),
        };
        assert_eq!(errno(error), libc::ENODEV);
    }

    #[test]
    fn any_other_error_is_eio() {
        let (call, result) = ("cuCtxSynchronize", CuResult(719));
        assert_eq!(errno(gdr_cuda::Error::Call { call, result }), libc::EIO);
    }
}
