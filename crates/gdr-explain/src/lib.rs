//! Explains what error messages from NCCL, UCX, perftest, the kernel or a loader most likely mean for
//! GPUDirect RDMA, and whether a log shows that GPUDirect RDMA is in use.
//!
//! [`causes()`] is the table of known [`Cause`]s. [`explain()`] ranks those that match a message or a
//! log, [`read()`] does the same for a log of any length, and [`Explanation::confirm`] compares an
//! explanation with the doctor's findings on this node.
//!
//! ```
//! use gdr_explain::{InUse, explain, read};
//!
//! let found = explain("modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument");
//! assert_eq!(found[0].cause.id, "peermem-symbols");
//!
//! let log = "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n";
//! let answer = read(log.as_bytes())?;
//! assert_eq!(answer.gpudirect.in_use, InUse::Yes);
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod cause;
mod causes;
mod channel;
mod clean;
#[cfg(test)]
mod differential;
mod explainer;
mod explanation;
mod facts;
mod found;
mod hosts;
mod lines;
mod literals;
mod matcher;
mod mention;
mod parts;
mod previous;
mod reader;
mod record;
mod signs;
mod suppositions;
mod table;
mod usage;

pub use cause::{Cause, Detail, Kind, Pattern, Remedy, Strength, When};
pub use causes::all as causes;
pub use channel::{Direction, Transport};
pub use explainer::{Answer, Explainer, explain, read};
pub use explanation::{Confirmation, Explanation, Match};
pub use facts::Fact;
pub use hosts::{addresses, hosts};
pub use lines::MAX_LINE;
pub use parts::{Operation, Parts, Status};
pub use usage::{Connection, Connections, GpuDirect, InUse, UsageEvidence};

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
