//! How a check ends early.

use gdr_cuda::{CuResult, DeviceBuffer, MemoryKind};

use crate::error::Error;
use crate::site::Site;

/// Nothing to say means that it passed.
pub(super) type Outcome<T = ()> = Result<T, Stop>;

/// Why a check went no further.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(String),
    Waived(String),
}

impl Stop {
    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }

    pub(super) fn waived(reason: impl Into<String>) -> Self {
        Self::Waived(reason.into())
    }
}

macro_rules! failure_of {
    ($($error:ty),*) => {$(
        impl From<$error> for Stop {
            fn from(error: $error) -> Self {
                Self::Failed(error.to_string())
            }
        }
    )*};
}
failure_of!(
    gdr_cuda::Error,
    gdr_copy::Error,
    Error,
    std::io::Error,
    std::num::TryFromIntError
);

/// Fails the check, with the words that follow, unless the condition holds.
macro_rules! require {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::sanity::outcome::Stop::Failed(format!($($words)+)));
        }
    };
}
pub(super) use require;

/// Allocates, or waives the check where this GPU has no such memory or no room for it.
pub(super) fn allocate(site: &Site, kind: MemoryKind, len: u64) -> Outcome<DeviceBuffer> {
    site.gpu()
        .allocate(kind, len)
        .map_err(|error| match error.cu_result() {
            Some(CuResult::NOT_SUPPORTED | CuResult::NOT_PERMITTED) => Stop::waived(format!(
                "this GPU has no {} memory: {error}",
                kind.function()
            )),
            Some(CuResult::OUT_OF_MEMORY) => {
                Stop::waived(format!("the GPU has no {len} bytes free: {error}"))
            }
            _ => error.into(),
        })
}

/// A refusal, with the words that must be in it; anything else fails the check.
pub(super) fn require_refusal<T>(
    what: &str,
    result: gdr_copy::Result<T>,
    expected: impl FnOnce(&gdr_copy::Error) -> bool,
) -> Outcome<String> {
    match result {
        Ok(_) => Err(Stop::failed(format!("{what} was accepted"))),
        Err(error) => {
            let text = error.to_string();
            require!(
                expected(&error),
                "{what} was refused for another reason: {text}"
            );
            // One word and a number help nobody: what failed, why, what to do.
            require!(
                text.split_whitespace().count() >= 5,
                "{what}: `{text}` explains nothing"
            );
            Ok(text)
        }
    }
}
