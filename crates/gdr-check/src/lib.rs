//! Rules that verbs programs must keep, over a shadow of a program's objects.
//!
//! A [`Shadow`] gets what a program registers, posts, polls, deregisters and destroys, in the order in
//! which it happens. It answers with [`Finding`]s: what a program did that the interface of verbs does not
//! allow, whether or not it went wrong this time. It has no I/O, no clock and no thread: memory is read by
//! [`Memory`], and time comes as ticks.
//!
//! A rule fires on what is certain. What the shadow does not know, such as an object that another library
//! made, makes it silent.

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

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
