//! Runs tests in a forked child, which only has the thread that forked.

use std::ffi::c_int;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A child that takes this many seconds hangs.
const LIMIT: u32 = 60;

/// Result of a child: `Ok`, or what is wrong.
pub type Outcome = Result<(), &'static str>;

/// Runs `child` in a forked child and waits for its end. Panics if it returned an error, panicked or hung.
#[track_caller]
pub fn in_child(child: impl FnOnce() -> Outcome) {
    assert_eq!(status_of(child), 0, "the child's wait status");
}

/// Like [`in_child`], but returns the child's status as waitpid(2) reports it, 0 after `Ok`.
pub fn status_of(child: impl FnOnce() -> Outcome) -> c_int {
    // SAFETY: the child runs only `child`, which is what the test is about, on its single thread, and leaves by `_exit`
    // or a signal.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: no preconditions; it ends a child that hangs.
            unsafe { libc::alarm(LIMIT) };
            let status = match catch_unwind(AssertUnwindSafe(child)) {
                Ok(Ok(())) => 0,
                Ok(Err(what)) => {
                    // Write directly: a lock on the parent's standard error might never be released here.
                    // SAFETY: the range is readable, and the descriptor belongs to the process.
                    unsafe { libc::write(2, what.as_ptr().cast(), what.len()) };
                    1
                }
                Err(_) => 101,
            };
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0, "fork");
            let mut status = 0;
            // SAFETY: this process's own child, and a writable status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        }
    }
}

/// Fails with `what` unless it holds.
pub fn check(holds: bool, what: &'static str) -> Outcome {
    holds.then_some(()).ok_or(what)
}

/// Fails with `what` unless a call failed because this is a forked child, with its crate's `ForkedChild` error.
pub fn refused<T, E: Debug>(result: Result<T, E>, what: &'static str) -> Outcome {
    // Crates that wrap another crate's error contain it in their own.
    let is_own = |error: E| {
        format!("{error:?}")
            .trim_end_matches(')')
            .ends_with("ForkedChild")
    };
    let is_refused = result.is_err_and(is_own);
    check(is_refused, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_finds_something_wrong_or_panics_has_another_status() {
        in_child(|| Ok(()));
        assert!(libc::WEXITSTATUS(status_of(|| Err("wrong"))) == 1);
        let panics = status_of(|| {
            std::panic::set_hook(Box::new(|_| {}));
            panic!("wrong");
        });
        assert!(libc::WEXITSTATUS(panics) == 101);
    }
}
