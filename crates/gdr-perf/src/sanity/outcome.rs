//! How a check ends early.

use gdr_cuda::{CuResult, DeviceBuffer, MemoryKind};

use crate::bench_target::BenchTarget;
use crate::error::Error;

/// Result of a check; `Ok` means that it passed.
pub(super) type Outcome<T = ()> = Result<T, Stop>;

/// Why a check ended early.
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

/// Fails the check with a formatted message unless the condition holds.
macro_rules! require {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::sanity::outcome::Stop::Failed(format!($($words)+)));
        }
    };
}
pub(super) use require;

/// Allocates memory, or waives the check if this GPU has no such memory or no room for it.
pub(super) fn allocate(target: &BenchTarget, kind: MemoryKind, len: u64) -> Outcome<DeviceBuffer> {
    target
        .gpu()
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

/// Returns the text of a refusal; anything but the expected refusal fails the check.
pub(super) fn require_refusal<T, E: Into<Error>>(
    what: &str,
    result: Result<T, E>,
    expected: impl FnOnce(&gdr_copy::Error) -> bool,
) -> Outcome<String> {
    let error = match result {
        Ok(_) => return Err(Stop::failed(format!("{what} was accepted"))),
        Err(error) => error.into(),
    };
    let text = error.to_string();
    require!(
        matches!(&error, Error::Copy(error) if expected(error)),
        "{what} was refused for another reason: {text}"
    );
    // An error text must say what failed, why, and what to do.
    require!(
        text.split_whitespace().count() >= 5,
        "{what}: `{text}` does not explain the refusal"
    );
    Ok(text)
}
