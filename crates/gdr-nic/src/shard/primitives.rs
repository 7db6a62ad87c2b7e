//! The lock and atomics used by the intake.
//!
//! The model checker compiles `intake.rs` with others; see `tests/loom.rs`.

pub(super) use std::sync::Mutex;
pub(super) use std::sync::atomic::{AtomicBool, Ordering, fence};

pub(super) use gdr_process::lock::lock;
