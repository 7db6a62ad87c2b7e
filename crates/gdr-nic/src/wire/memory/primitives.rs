//! Atomics of the rings, and the deadlines of their waits.
//!
//! The model checker compiles `header.rs` and `ring.rs` with its own versions, see `tests/loom.rs`.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, fence};
pub(super) use std::thread::yield_now;

pub(super) use gdr_udp::Deadline;
