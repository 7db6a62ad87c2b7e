//! Reads trace files of verbs programs, and reports what the programs registered and moved.
//!
//! The library that `gdr trace` loads into a process keeps its counters in a file that the process maps, so they are
//! complete even if the process is killed. [`layout`] describes the file, [`ProcessTrace`] holds the parsed content of
//! one file, and [`Report`] combines the processes of a run.
//!
//! [`ProcessTrace::parse`] accepts arbitrary bytes: damaged parts are left out, or cause an error.

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
