//! The line between C and Rust: nothing unwinds across it, and every refusal is an errno value.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::Failure;

/// Runs the body of an exported function and turns its outcome into the function's answer.
///
/// A panic becomes `EIO`. Thread cancellation is held off meanwhile: a cancelled thread would
/// unwind through Rust frames with locks held.
pub(crate) fn answer(call: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    value(call, body).err().unwrap_or(0)
}

/// As [`answer`], for functions that return something else; the error is a positive errno value.
pub(crate) fn value<T>(
    call: &'static str,
    body: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, c_int> {
    let _uncancellable = Uncancellable::new();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => {
            tracing::error!("{call}: {failure}");
            Err(failure.errno())
        }
        Err(_) => {
            tracing::error!("{call}: a defect in this library; please report it");
            Err(libc::EIO)
        }
    }
}

// From <pthread.h>; the `libc` crate has no Linux declaration of it.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// No cancellation of this thread while it lives.
struct Uncancellable(c_int);

impl Uncancellable {
    fn new() -> Self {
        let mut old = 0;
        // SAFETY: sets a flag of the calling thread and writes the old one to `old`.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut old) };
        Self(old)
    }
}

impl Drop for Uncancellable {
    fn drop(&mut self) {
        let mut ignored = 0;
        // SAFETY: as above; the state is one that the same function gave.
        unsafe { pthread_setcancelstate(self.0, &mut ignored) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_as_eio() {
        assert_eq!(
            answer("test", || panic!("on purpose, in a test")),
            libc::EIO
        );
    }

    #[test]
    fn success_is_zero_and_a_refusal_its_errno() {
        assert_eq!(answer("test", || Ok(())), 0);
        assert_eq!(answer("test", || Err(Failure::AlreadyMapped)), libc::EAGAIN);
        assert_eq!(value("test", || Ok(7)), Ok(7));
    }
}
