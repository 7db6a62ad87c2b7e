//! Primitives of [`biased_lock`](crate::biased_lock), [`lending`](crate::lending) and [`reader`](crate::reader).
//!
//! The model checker compiles them with others; see `tests/loom.rs`.

use std::time::Duration;

pub(crate) use crate::lock::{read, write};
pub(crate) use crate::process_fence::{process_fence, register_process_fence};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};
pub(crate) use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Reads after the last change from which on a lock is biased: a burst of changes then runs one process fence.
pub(crate) const BIASED_AFTER: u32 = 32;

/// The longest wait, in turns of [`relax`]: more than 20 seconds.
pub(crate) const MOST_TURNS: u32 = 400_000;

/// Keeps the memory accesses before and after it in program order, for a thread that runs [`process_fence`].
#[inline(always)]
pub(crate) fn thread_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Waits until the stores that other threads have executed are visible, without the kernel's help.
pub(crate) fn wait_for_stores() {
    // A store leaves its CPU's buffer within a microsecond, or when the hypervisor suspends the CPU.
    std::thread::sleep(Duration::from_millis(10));
}

/// Waits a moment for other threads; `turn` counts the calls of one wait.
pub(crate) fn relax(turn: u32) {
    match turn {
        0..128 => std::hint::spin_loop(),
        128..1024 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50)),
    }
}
