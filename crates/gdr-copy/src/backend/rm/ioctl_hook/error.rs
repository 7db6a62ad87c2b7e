//! Why CUDA's export call could not be read.

use std::io;

#[cfg(test)]
use gdr_cuda::CuResult;

/// Why CUDA's export call could not be read.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum HookError {
    #[error("observing the driver library's calls is not implemented for this CPU architecture")]
    Unsupported,
    #[error("the loader does not list the driver library")]
    NotLoaded,
    #[error("the driver library does not have {0}")]
    NoTable(&'static str),
    #[error("the driver library does not call {0} through its global offset table")]
    NoEntry(String),
    #[error("the driver library's table cannot be made writable: {0}")]
    Unseal(#[source] io::Error),
    #[error("the driver library's table cannot be made read-only again: {0}")]
    Seal(#[source] io::Error),
    #[error("another library keeps changing the driver library's table")]
    Contended,
    #[error("too many other libraries have hooked the driver library's table")]
    TooManyHooks,
    #[error("the process has no ioctl function")]
    NoIoctl,
    #[error(transparent)]
    Cuda(#[from] gdr_cuda::Error),
    #[error("an export of {0} bytes has an unknown layout")]
    Layout(usize),
    #[error("an export of {count} objects at index {index} is not valid")]
    Index { count: usize, index: usize },
    #[error("CUDA exported the range, but no call to the driver was observed")]
    NotSeen,
    #[error("{seen} of {total} objects were exported")]
    Incomplete { seen: usize, total: usize },
}

impl HookError {
    /// Returns the error of a range that CUDA does not export.
    #[cfg(test)]
    pub(in super::super) fn not_exported() -> Self {
        let (call, result) = ("cuMemGetHandleForAddressRange", CuResult::NOT_SUPPORTED);
        gdr_cuda::Error::Call { call, result }.into()
    }
}
