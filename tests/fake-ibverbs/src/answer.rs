//! How verbs answer, and that nothing unwinds out of them.

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use crate::world::{World, world};

/// An `errno`.
pub(crate) type Errno = c_int;

/// What a verb came to.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// Runs a verb with the world's lock held. A failure is noted at the call that it began with.
fn run<T>(verb: impl FnOnce(&mut World) -> Outcome<T>) -> Outcome<T> {
    let attempt = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut world = world();
        let before = world.calls.len();
        let outcome = verb(&mut world);
        if let Err(errno) = outcome
            && let Some(call) = world.calls.get_mut(before)
        {
            call.errno = errno;
        }
        outcome
    }));
    attempt.unwrap_or_else(|_| {
        let said = "the fake itself panicked; its message is on standard error";
        world().violations.push(said.to_owned());
        Err(libc::EIO)
    })
}

/// A verb that answers with 0 or an `errno`.
pub(crate) fn status(verb: impl FnOnce(&mut World) -> Outcome<()>) -> c_int {
    run(verb).err().unwrap_or(0)
}

/// A verb that answers with a number, or a negated `errno`.
pub(crate) fn number(verb: impl FnOnce(&mut World) -> Outcome<c_int>) -> c_int {
    run(verb).unwrap_or_else(|errno| -errno)
}

/// A verb that counts, or answers with a negated `errno`.
pub(crate) fn count(verb: impl FnOnce(&mut World) -> Outcome<isize>) -> isize {
    run(verb).unwrap_or_else(|errno| -(errno as isize))
}

/// A verb that makes something; null and `errno` when it does not.
pub(crate) fn pointer<T>(verb: impl FnOnce(&mut World) -> Outcome<*mut T>) -> *mut T {
    run(verb).unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// A verb that cannot fail.
pub(crate) fn plain<T>(otherwise: T, verb: impl FnOnce(&mut World) -> T) -> T {
    run(|world| Ok(verb(world))).unwrap_or(otherwise)
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library gives the place of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}
