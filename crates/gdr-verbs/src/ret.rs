//! Results in the forms of libibverbs. No panic unwinds into C.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use crate::errno::Errno;

/// Runs a verb; a panic becomes `EIO`.
fn run<T>(verb: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    panic::catch_unwind(AssertUnwindSafe(verb)).unwrap_or_else(|_| {
        tracing::error!("a defect in this library; please report it");
        Err(Errno::IO)
    })
}

/// The errno of the last call that failed.
#[inline(always)]
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library returns the address of the errno of this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library returns the address of the errno of this thread.
    unsafe { *libc::__errno_location() = errno.get() };
}

/// Runs a verb that returns 0 or an errno.
pub(crate) fn status(verb: impl FnOnce() -> Result<(), Errno>) -> c_int {
    run(verb).map_or_else(Errno::get, |()| 0)
}

/// Runs a verb that returns 0 or an errno, and sets errno as well.
pub(crate) fn status_and_errno(verb: impl FnOnce() -> Result<(), Errno>) -> c_int {
    run(verb).map_or_else(
        |errno| {
            set_errno(errno);
            errno.get()
        },
        |()| 0,
    )
}

/// Runs a verb that returns 0, or -1 with errno set.
pub(crate) fn minus_one(verb: impl FnOnce() -> Result<(), Errno>) -> c_int {
    minus_one_or(|| verb().map(|()| 0))
}

/// Runs a function that returns a number, or -1 with errno set.
pub(crate) fn minus_one_or(verb: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    run(verb).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Runs a verb that returns a number, or a negative errno.
pub(crate) fn number(verb: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    run(verb).unwrap_or_else(|errno| -errno.get())
}

/// Runs a verb that returns a count, or a negative errno.
pub(crate) fn count(verb: impl FnOnce() -> Result<usize, Errno>) -> isize {
    run(verb).map_or_else(|errno| -(errno.get() as isize), |count| count as isize)
}

/// Runs a verb that returns a pointer, or null with errno set.
pub(crate) fn pointer<T>(verb: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    run(verb).unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// Runs a function that cannot fail, or returns `otherwise`.
pub(crate) fn plain<T>(otherwise: T, verb: impl FnOnce() -> Result<T, Errno>) -> T {
    run(verb).unwrap_or(otherwise)
}

/// The result of an unsupported verb that returns a pointer.
pub(crate) fn unsupported_pointer<T>() -> *mut T {
    pointer(|| Err(Errno::OPNOTSUPP))
}

/// The result of an unsupported verb that returns an errno.
pub(crate) fn unsupported() -> c_int {
    status(|| Err(Errno::OPNOTSUPP))
}

/// The result of an unsupported verb that returns -1 with errno set.
pub(crate) fn unsupported_minus_one() -> c_int {
    minus_one(|| Err(Errno::OPNOTSUPP))
}
