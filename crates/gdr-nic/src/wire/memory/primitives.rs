//! The atomics of the rings.
//!
//! The model checker compiles `header.rs` and `ring.rs` with other ones, see `tests/loom.rs`.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, fence};
pub(super) use std::thread::yield_now;
