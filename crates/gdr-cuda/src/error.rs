//! Errors of the GPU driver and of this crate.

use std::fmt;
use std::time::Duration;

use crate::device::Ordinal;
use crate::pointer::{DevicePtr, Family, PointerKind};

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A `CUresult`. Numbers that are newer than this library are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CuResult(pub u32);

impl CuResult {
    /// `CUDA_SUCCESS`.
    pub const SUCCESS: Self = Self(0);
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_NOT_INITIALIZED`: `cuInit` was not called, or this is a forked child.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// `CUDA_ERROR_DEINITIALIZED`: the driver is shutting down with the process.
    pub const DEINITIALIZED: Self = Self(4);
    /// `CUDA_ERROR_NO_DEVICE`.
    pub const NO_DEVICE: Self = Self(100);
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub const INVALID_DEVICE: Self = Self(101);
    /// `CUDA_ERROR_INVALID_CONTEXT`.
    pub const INVALID_CONTEXT: Self = Self(201);
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub const INVALID_HANDLE: Self = Self(400);
    /// `CUDA_ERROR_NOT_READY`.
    pub const NOT_READY: Self = Self(600);
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
    pub const CONTEXT_IS_DESTROYED: Self = Self(709);
    /// `CUDA_ERROR_MISALIGNED_ADDRESS`.
    pub const MISALIGNED_ADDRESS: Self = Self(716);
    /// `CUDA_ERROR_LAUNCH_FAILED`.
    pub const LAUNCH_FAILED: Self = Self(719);
    /// `CUDA_ERROR_NOT_PERMITTED`.
    pub const NOT_PERMITTED: Self = Self(800);
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: Self = Self(801);

    /// Returns the name in the header, if this library knows it.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "CUDA_SUCCESS",
            1 => "CUDA_ERROR_INVALID_VALUE",
            2 => "CUDA_ERROR_OUT_OF_MEMORY",
            3 => "CUDA_ERROR_NOT_INITIALIZED",
            4 => "CUDA_ERROR_DEINITIALIZED",
            34 => "CUDA_ERROR_STUB_LIBRARY",
            46 => "CUDA_ERROR_DEVICE_UNAVAILABLE",
            100 => "CUDA_ERROR_NO_DEVICE",
            101 => "CUDA_ERROR_INVALID_DEVICE",
            200 => "CUDA_ERROR_INVALID_IMAGE",
            201 => "CUDA_ERROR_INVALID_CONTEXT",
            202 => "CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
            205 => "CUDA_ERROR_MAP_FAILED",
            209 => "CUDA_ERROR_NO_BINARY_FOR_GPU",
            214 => "CUDA_ERROR_ECC_UNCORRECTABLE",
            218 => "CUDA_ERROR_INVALID_PTX",
            222 => "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            304 => "CUDA_ERROR_OPERATING_SYSTEM",
            400 => "CUDA_ERROR_INVALID_HANDLE",
            401 => "CUDA_ERROR_ILLEGAL_STATE",
            500 => "CUDA_ERROR_NOT_FOUND",
            600 => "CUDA_ERROR_NOT_READY",
            700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
            701 => "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            702 => "CUDA_ERROR_LAUNCH_TIMEOUT",
            709 => "CUDA_ERROR_CONTEXT_IS_DESTROYED",
            716 => "CUDA_ERROR_MISALIGNED_ADDRESS",
            717 => "CUDA_ERROR_INVALID_ADDRESS_SPACE",
            719 => "CUDA_ERROR_LAUNCH_FAILED",
            800 => "CUDA_ERROR_NOT_PERMITTED",
            801 => "CUDA_ERROR_NOT_SUPPORTED",
            802 => "CUDA_ERROR_SYSTEM_NOT_READY",
            803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            804 => "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            900 => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            901 => "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            906 => "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
            908 => "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
            999 => "CUDA_ERROR_UNKNOWN",
            _ => return None,
        })
    }
}

impl fmt::Display for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}

impl fmt::Debug for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason why a GPU operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the fields say it")]
pub enum Error {
    /// The CUDA driver library cannot be loaded.
    #[error(
        "the CUDA driver library {library} cannot be loaded: {reason}; install the NVIDIA driver or, \
         in a container, pass the driver in (NVIDIA_DRIVER_CAPABILITIES=compute)"
    )]
    Library { library: String, reason: String },
    /// The driver is too old: a function is missing.
    #[error("the CUDA driver library is too old: it lacks {symbol}; update the NVIDIA driver")]
    Symbol { symbol: &'static str },
    /// A driver call failed.
    #[error("{call} failed: {result}")]
    Call {
        call: &'static str,
        result: CuResult,
    },
    /// The driver does not know this address.
    #[error(
        "the GPU driver does not know the address {ptr}: it was never allocated, was freed, or is host \
         memory; pass a pointer from cudaMalloc, cuMemCreate or a CUDA memory pool"
    )]
    UnknownPointer { ptr: DevicePtr },
    /// This GPU does not exist in this process.
    #[error("GPU {ordinal} does not exist: this process sees {count}; check CUDA_VISIBLE_DEVICES")]
    NoSuchDevice { ordinal: Ordinal, count: u32 },
    /// The range ends after its buffer.
    #[error("bytes {offset}..{end} lie outside the buffer of {len} bytes", end = offset.saturating_add(*wanted))]
    OutOfRange { offset: u64, wanted: u64, len: u64 },
    /// The access is not aligned to its words.
    #[error("offset {offset} is not aligned: use a multiple of {alignment}")]
    Misaligned { offset: u64, alignment: u64 },
    /// A copy overlaps its destination.
    #[error(
        "the {len} bytes at {ptr} overlap the destination of the copy: copy them through another buffer"
    )]
    Overlap { ptr: DevicePtr, len: u64 },
    /// The memory does not stay on a GPU.
    #[error(
        "{ptr} does not point to memory that stays on a GPU ({kind:?}): pass a pointer from cudaMalloc, \
         cuMemCreate or a CUDA memory pool"
    )]
    NotDeviceMemory { ptr: DevicePtr, kind: PointerKind },
    /// The memory is on another GPU.
    #[error("{ptr} is on GPU {owner}, not on GPU {gpu}: open GPU {owner} for it")]
    OtherDevice {
        ptr: DevicePtr,
        owner: Ordinal,
        gpu: Ordinal,
    },
    /// The range ends after its allocation, or is empty.
    #[error(
        "{len} bytes at {ptr} exceed the allocation: use 1 to {available} bytes at that address"
    )]
    PastAllocation {
        ptr: DevicePtr,
        len: u64,
        available: u64,
    },
    /// The buffer and the stream belong to different GPUs or drivers.
    #[error(
        "the buffer (GPU {buffer}) and the stream (GPU {stream}) belong to different GPUs or drivers: \
         create both from one Gpu"
    )]
    ForeignBuffer { buffer: Ordinal, stream: Ordinal },
    /// Two streams belong to different GPUs or drivers.
    #[error(
        "the streams belong to GPU {stream} and GPU {other}, or to different drivers: create both from \
         one Gpu"
    )]
    ForeignStream { stream: Ordinal, other: Ordinal },
    /// Other processes cannot open the memory.
    #[error(
        "other processes cannot open the memory at {ptr} ({family:?}): allocate it with cudaMalloc, or \
         with cuMemCreate and a POSIX file descriptor as handle type"
    )]
    NotExportable { ptr: DevicePtr, family: Family },
    /// The memory to open is this process's own.
    #[error("a process cannot open its own memory by a handle: use the memory's address")]
    OwnExport,
    /// Another process's memory is shorter than that process reports.
    #[error("the other process claims to export {claimed} bytes, but the allocation has {found}")]
    FalseExport { claimed: u64, found: u64 },
    /// GPU work did not finish in time.
    #[error("{what} did not finish within {limit:?}; the GPU may be hung or busy with other work")]
    Deadline { what: &'static str, limit: Duration },
    /// A system call of the simulation failed.
    #[error("{what}: {source}")]
    Os {
        what: &'static str,
        source: std::io::Error,
    },
}

impl Error {
    /// Returns the code of this error for programs, such as `library`.
    ///
    /// A variant keeps its code even if it is renamed.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Library { .. } => "library",
            Self::Symbol { .. } => "symbol",
            Self::Call { .. } => "call",
            Self::UnknownPointer { .. } => "unknown_pointer",
            Self::NoSuchDevice { .. } => "no_such_device",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Overlap { .. } => "overlap",
            Self::Misaligned { .. } => "misaligned",
            Self::ForeignBuffer { .. } => "foreign_buffer",
            Self::NotDeviceMemory { .. } => "not_device_memory",
            Self::OtherDevice { .. } => "other_device",
            Self::PastAllocation { .. } => "past_allocation",
            Self::Deadline { .. } => "deadline",
            Self::Os { .. } => "os",
            Self::ForeignStream { .. }
            | Self::NotExportable { .. }
            | Self::OwnExport { .. }
            | Self::FalseExport { .. } => "cuda",
        }
    }

    /// Returns the driver's result, if a driver call failed.
    pub fn cu_result(&self) -> Option<CuResult> {
        match self {
            Self::Call { result, .. } => Some(*result),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_newer_than_this_library_is_shown_by_number() {
        assert_eq!(CuResult(12345).to_string(), "CUresult 12345");
        assert_eq!(
            CuResult::NOT_READY.to_string(),
            "CUDA_ERROR_NOT_READY (600)"
        );
    }
}
