//! The boundary between C and Rust: panics do not unwind across it, and errors become errno values.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::Failure;

/// Runs the body of an exported function and returns 0 or a positive errno value.
///
/// A panic becomes `EIO`. Thread cancellation is disabled for the duration, because a cancelled thread would unwind
/// through Rust frames while holding locks.
pub(crate) fn guarded(call: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guarded_value(call, body).err().unwrap_or(0)
}

/// Like [`guarded`], for functions that return a value; the error is a positive errno value.
pub(crate) fn guarded_value<T>(
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

// From <pthread.h>; the `libc` crate does not declare it for Linux.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Disables cancellation of this thread while it exists.
pub(crate) struct Uncancellable(c_int);

impl Uncancellable {
    pub(crate) fn new() -> Self {
        let mut old = 0;
        // SAFETY: sets a flag of the calling thread and writes the old one to `old`.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut old) };
        Self(old)
    }
}

impl Drop for Uncancellable {
    fn drop(&mut self) {
        let mut ignored = 0;
        // SAFETY: as above; the same function returned the state.
        unsafe { pthread_setcancelstate(self.0, &mut ignored) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_eio() {
        assert_eq!(
            guarded("test", || panic!("on purpose, in a test")),
            libc::EIO
        );
    }

    /// Sets the calling thread's cancellation state and returns the previous one.
    fn set_cancel_state(state: c_int) -> c_int {
        let mut old = -1;
        // SAFETY: sets a flag of the calling thread and writes the old one to `old`.
        assert_eq!(unsafe { pthread_setcancelstate(state, &mut old) }, 0);
        old
    }

    #[test]
    fn cancellation_is_disabled_in_a_call_and_restored_afterwards() {
        const PTHREAD_CANCEL_ENABLE: c_int = 0;
        for before in [PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_DISABLE] {
            set_cancel_state(before);
            let mut during = -1;
            let body = || {
                during = set_cancel_state(PTHREAD_CANCEL_DISABLE);
                Ok(())
            };
            assert_eq!(guarded("test", body), 0);
            assert_eq!(during, PTHREAD_CANCEL_DISABLE);
            assert_eq!(set_cancel_state(PTHREAD_CANCEL_ENABLE), before);
        }
    }

    #[test]
    fn success_is_zero_and_an_error_its_errno() {
        assert_eq!(guarded("test", || Ok(())), 0);
        assert_eq!(
            guarded("test", || Err(Failure::AlreadyMapped)),
            libc::EAGAIN
        );
        assert_eq!(guarded_value("test", || Ok(7)), Ok(7));
    }
}
