//! Why GPUDirect RDMA is off or slow on a node, and the fix.
//!
//! A [`Check`] is a pure function from what is known of a node ([`Context`]) to [`Finding`]s: it
//! reads through [`gdr_node::Source`] only, so that an archive of a node is judged word for word
//! like the node itself. [`diagnose`] runs the checks and puts every symptom under its root cause;
//! [`report`] writes the outcome for people and for programs.
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
