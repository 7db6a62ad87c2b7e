//! Forked children.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};

use crate::side::library;

/// The process ID of a forked child.
pub(crate) struct Child(pub(crate) libc::pid_t);

impl Child {
    /// Runs `work` in a child, which then ends by `_exit`: with 0 unless it panics or hangs.
    pub(crate) fn fork(work: impl FnOnce()) -> Self {
        // Builds and loads the library here: a child cannot wait for another thread of its parent that does so.
        library();
        // SAFETY: the child calls the library, which this tests, and the C library's allocator, which may be used after
        // a fork.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: ends a child that hangs.
                unsafe { libc::alarm(60) };
                let outcome = panic::catch_unwind(AssertUnwindSafe(work));
                // SAFETY: ends the child without the parent's destructors.
                unsafe { libc::_exit(c_int::from(outcome.is_err())) }
            }
            pid => {
                assert!(pid > 0);
                Self(pid)
            }
        }
    }

    pub(crate) fn kill(&self) {
        // SAFETY: a child of this process that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
    }

    /// Waits for the end of the child; returns its status as reported by `waitpid`.
    pub(crate) fn wait(self) -> c_int {
        let mut status = 0;
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        status
    }
}
