//! Checks that verbs programs follow the rules, using a shadow copy of each program's objects.
//!
//! A [`Shadow`] is given, in order, everything that a program registers, posts, polls, deregisters and destroys. It
//! returns [`Finding`]s: uses of verbs that the interface does not allow, whether or not they did any harm this time.
//! The crate does no I/O, reads no clock and starts no thread: [`Memory`] reads memory, and the caller passes the time
//! in ticks.
//!
//! A rule fires only if the violation is certain. Where the shadow lacks knowledge, for example about an object that
//! another library created, it reports nothing.

#![forbid(unsafe_code)]

mod checksum;
mod completion_queue;
mod finding;
mod posting;
mod queue_pair;
mod receive_queue;
mod region;
mod request;
mod rights;
mod rule;
mod shadow;
mod writable;

pub use checksum::Checksum;
pub use finding::{Finding, Found, FoundFrame, FoundPlace, Place, StackId};
pub use queue_pair::{NewQueuePair, Service, State};
pub use region::NewRegion;
pub use request::{Completion, Operation, Receive, Segment, Send, Signal};
pub use rule::{Rule, Severity};
pub use shadow::{Memory, Object, Shadow};

// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
