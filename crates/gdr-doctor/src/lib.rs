//! Finds out why GPUDirect RDMA is off or slow on a node, and how to fix it.
//!
//! A [`Check`] is a pure function from the known facts about a node ([`Context`]) to [`Finding`]s. It
//! reads only through [`gdr_node::Source`], so an archive of a node yields exactly the same findings as
//! the node itself. [`diagnose`] runs the checks and groups symptoms under their root cause; [`report`]
//! writes the result for people and for programs.
//!
//! ```
//! use gdr_doctor::{Context, Outcome, Selection, diagnose, report};
//! use gdr_node::{Inventory, MemorySource};
//!
//! let node = MemorySource::new();
//! let inventory = Inventory::read(&node);
//! let diagnosis = diagnose(&Context::new(&node, &inventory), &Selection::all());
//! assert_ne!(diagnosis.outcome(), Outcome::Healthy);
//! println!("{}", report::text::render(&diagnosis, &report::text::Style::default()));
//! ```
#![forbid(unsafe_code)]

mod about;
mod check;
mod check_id;
mod checks;
mod context;
mod diagnosis;
pub mod distances;
pub mod environment;
pub mod facts;
mod finding;
pub mod fix;
mod gpudirect_support;
mod judgement;
mod nic_assignment;
mod nvlink;
pub mod peermem;
mod process;
pub mod report;
mod root_cause;
mod runner;
mod timestamp;
pub mod version;

pub use about::{About, Capture, Model};
pub use check::{Check, CheckId, Documentation, Group, Workload};
pub use checks::{all, find};
pub use context::{Context, Nic, Pair};
pub use diagnosis::{Counts, Diagnosis, Origin, Outcome, Reported, Selection, diagnose};
pub use finding::{Evidence, Finding, Subject, Verdict};
pub use fix::{Action, Effect, Fix, Persistence, Privilege, Register, Risk, Shown, Site};
pub use timestamp::Timestamp;

/// What messages of the kernel look like, and what they mean.
pub mod kernel_log {
    pub use crate::checks::kernel_log::expressions;
    pub use crate::checks::kernel_log::xid::meaning_of_xid;
}

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
