//! The lock and the atomics of the intake.
//!
//! The model checker compiles `intake.rs` with other ones, see `tests/loom.rs`.

pub(super) use std::sync::Mutex;
pub(super) use std::sync::atomic::{AtomicBool, Ordering, fence};

pub(super) use gdr_process::lock::lock;
