//! Conversion of results to return values in C. No panic unwinds into C.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use crate::c_abi::{Outcome, set_errno};
use crate::state::{LibraryState, lock_state};

/// Runs a verb with the state locked, and stores its `errno` in its first recorded call.
fn run<T>(verb: impl FnOnce(&mut LibraryState) -> Outcome<T>) -> Outcome<T> {
    let attempt = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut library = lock_state();
        let before = library.calls.len();
        let outcome = verb(&mut library);
        if let Err(errno) = outcome
            && let Some(call) = library.calls.get_mut(before)
        {
            call.errno = errno;
        }
        outcome
    }));
    attempt.unwrap_or_else(|_| {
        let what = "the fake itself panicked; its message is on standard error";
        lock_state().violations.push(what.to_owned());
        Err(libc::EIO)
    })
}

/// Runs a verb that returns 0 or an `errno`.
pub(crate) fn status(verb: impl FnOnce(&mut LibraryState) -> Outcome<()>) -> c_int {
    run(verb).err().unwrap_or(0)
}

/// Runs a verb that returns a number, or a negative `errno`.
pub(crate) fn number(verb: impl FnOnce(&mut LibraryState) -> Outcome<c_int>) -> c_int {
    run(verb).unwrap_or_else(|errno| -errno)
}

/// Runs a verb that returns a count, or a negative `errno`.
pub(crate) fn count(verb: impl FnOnce(&mut LibraryState) -> Outcome<isize>) -> isize {
    run(verb).unwrap_or_else(|errno| -(errno as isize))
}

/// Runs a verb that returns a pointer, or null with `errno` set.
pub(crate) fn pointer<T>(verb: impl FnOnce(&mut LibraryState) -> Outcome<*mut T>) -> *mut T {
    run(verb).unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// Runs a verb that cannot fail.
pub(crate) fn plain<T>(otherwise: T, verb: impl FnOnce(&mut LibraryState) -> T) -> T {
    run(|library| Ok(verb(library))).unwrap_or(otherwise)
}
