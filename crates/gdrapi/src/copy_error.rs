//! Errors of copies, in a form that a signal handler can report.

use std::ffi::c_int;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// `gdr_copy_to_mapping`.
    To,
    /// `gdr_copy_from_mapping`.
    From,
}

/// Why a copy was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// The number is not a handle of this process.
    NoHandle,
    /// The handle has no mapping.
    NotMapped,
    /// The range is not in the mapping.
    OutsideMapping,
    /// The host pointer is null.
    NullHost,
    /// Too many copies of the thread are in progress, each interrupted by a signal handler, or there
    /// is not enough memory for its first copy.
    TooDeep,
}

/// Builds a log line for each of the two functions.
macro_rules! lines {
    ($direction:expr, $reason:literal) => {
        match $direction {
            Direction::To => concat!("ERR:  gdr_copy_to_mapping: ", $reason, "\n"),
            Direction::From => concat!("ERR:  gdr_copy_from_mapping: ", $reason, "\n"),
        }
    };
}

impl CopyError {
    /// Returns the positive errno value.
    pub(crate) fn errno(self) -> c_int {
        match self {
            Self::NoHandle | Self::NotMapped | Self::OutsideMapping | Self::NullHost => {
                libc::EINVAL
            }
            Self::TooDeep => libc::EAGAIN,
        }
    }

    /// Returns the whole line for the log.
    pub(crate) fn line(self, direction: Direction) -> &'static str {
        match self {
            Self::NoHandle => lines!(
                direction,
                "the handle is not a pinned buffer: null, unpinned, of a parent process, or invalid"
            ),
            Self::NotMapped => lines!(
                direction,
                "the handle is not mapped: unpinned, unmapped, or gdr_map was not called"
            ),
            Self::OutsideMapping => lines!(direction, "the bytes are outside of the mapping"),
            Self::NullHost => lines!(direction, "the host pointer is null"),
            Self::TooDeep => lines!(
                direction,
                "too many copies of this thread are in progress, each interrupted by a signal \
                 handler, or there is no memory for its first copy"
            ),
        }
    }
}
