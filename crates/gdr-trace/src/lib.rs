//! What a traced verbs program registered and moved: the files that it leaves, and their report.
//!
//! The library that `gdr trace` puts into a process counts in a file that the process maps, so the
//! counts of a killed process are complete. [`layout`] describes that file, [`ProcessTrace`] is what
//! was read from one, and [`Report`] puts the processes of a run together.
//!
//! [`ProcessTrace::parse`] accepts any bytes: what is damaged is an error or is left out.

#![warn(clippy::disallowed_methods)]
#![forbid(unsafe_code)]

pub mod layout;
mod memory_kind;
mod operation;
mod process_trace;
mod prometheus;
mod report;
mod requirement;
mod text;

pub use memory_kind::MemoryKind;
pub use operation::Operation;
pub use process_trace::{
    Cell, CompletionErrors, NicTrace, ParseError, ProcessTrace, QueuePairTrace, RegionTrace,
    UnseenPosts,
};
pub use report::{Ended, PortTraffic, Report, Traffic};
pub use requirement::{ParseRequirementError, Requirement};

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
