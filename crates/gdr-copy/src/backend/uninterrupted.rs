//! Calls that a signal may interrupt.

use std::ffi::c_int;
use std::io;

/// The maximum number of repetitions, so that a process that receives signals all the time makes progress.
const MOST_REPEATED: u32 = 1000;

/// Repeats an ioctl while a signal interrupts it, which happens only before the driver has begun.
pub(super) fn uninterrupted(mut ioctl: impl FnMut() -> c_int) -> io::Result<()> {
    for _ in 0..MOST_REPEATED {
        if ioctl() == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail_with(errno: c_int) -> c_int {
        // SAFETY: errno's location belongs to this thread.
        unsafe { *libc::__errno_location() = errno };
        -1
    }

    #[test]
    fn an_interrupted_call_is_repeated_and_not_for_ever() {
        let mut calls = 0;
        let second = uninterrupted(|| {
            calls += 1;
            match calls {
                1 => fail_with(libc::EINTR),
                _ => 0,
            }
        });
        assert!(second.is_ok());
        assert_eq!(calls, 2);
        let never = uninterrupted(|| fail_with(libc::EINTR)).unwrap_err();
        assert_eq!(never.kind(), io::ErrorKind::Interrupted);
        let refused = uninterrupted(|| fail_with(libc::ENOTTY)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOTTY));
    }
}
