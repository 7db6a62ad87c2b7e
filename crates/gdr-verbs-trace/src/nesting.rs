//! Detects calls of libibverbs within calls of libibverbs, which must not be counted again.
//!
//! libibverbs' `ibv_reg_mr` calls `ibv_reg_mr_iova2`, and a library in front of another calls the same function there.
//! These calls also arrive through the exported functions.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

use gdr_verbs_sys::Errno;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call into the real library, in progress until this is dropped.
pub(crate) struct Nesting {
    is_outermost: bool,
}

impl Nesting {
    pub(crate) fn enter() -> Self {
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        Self {
            is_outermost: depth == 0,
        }
    }

    /// Returns whether the program made the call, and not a library within one.
    pub(crate) fn is_outermost(&self) -> bool {
        self.is_outermost
    }
}

impl Drop for Nesting {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Returns the errno of this thread.
pub(crate) fn errno() -> Errno {
    // SAFETY: the C library returns the address of the errno of this thread.
    Errno(unsafe { *libc::__errno_location() })
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Runs `work` and leaves errno as it was.
pub(crate) fn keep_errno<T>(work: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = work();
    set_errno(before);
    result
}

/// Runs `work` for its counts; a panic ends that and nothing else.
#[inline]
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    panic::catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Like [`quietly`], and leaves errno as it was.
#[inline]
pub(crate) fn keep_quiet<T>(work: impl FnOnce() -> T) -> Option<T> {
    keep_errno(|| quietly(work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_nested_calls_is_outermost() {
        let first = Nesting::enter();
        assert!(first.is_outermost());
        assert!(!Nesting::enter().is_outermost());
        drop(first);
        assert!(Nesting::enter().is_outermost());
    }

    #[test]
    fn errno_stays_as_it_was() {
        set_errno(Errno::EFAULT);
        keep_errno(|| set_errno(Errno::EINVAL));
        assert_eq!(errno(), Errno::EFAULT);
    }
}
