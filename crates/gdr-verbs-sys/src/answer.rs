//! How functions in C answer, and what that is in Rust.

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::errno::Errno;
use crate::error::VerbError;

/// Verbs that answer with a number give 0, an `errno`, or -1 with `errno` set; a few give a
/// negated `errno`.
pub(crate) fn status(verb: &'static str, answer: c_int) -> Result<(), VerbError> {
    let errno = match answer {
        0 => return Ok(()),
        -1 => Errno::last(),
        // The most negative number, which no errno is, stays itself.
        other => Errno(other.checked_abs().unwrap_or(other)),
    };
    Err(VerbError::Failed { verb, errno })
}

/// Verbs that make an object give it, or null with `errno` set.
pub(crate) fn pointer<T>(verb: &'static str, answer: *mut T) -> Result<NonNull<T>, VerbError> {
    NonNull::new(answer).ok_or_else(|| VerbError::Failed {
        verb,
        errno: Errno::last(),
    })
}

/// Verbs that count give a negated `errno` when they fail.
pub(crate) fn count(verb: &'static str, answer: isize) -> Result<usize, VerbError> {
    usize::try_from(answer).map_err(|_| VerbError::Failed {
        verb,
        errno: i32::try_from(answer.unsigned_abs()).map_or(Errno::EIO, Errno),
    })
}

/// The type in C of an answer: `status` and `count` as [`status`] and [`count`] read them, `pointer`
/// to something or null, `plain` for what cannot fail.
macro_rules! c_type {
    (status) => { std::ffi::c_int };
    (count) => { isize };
    (pointer $type:ty) => { *mut $type };
    (plain $type:ty) => { $type };
}

/// The type in Rust of an answer.
macro_rules! rust_type {
    (status) => { Result<(), $crate::VerbError> };
    (count) => { Result<usize, $crate::VerbError> };
    (pointer $type:ty) => { Result<std::ptr::NonNull<$type>, $crate::VerbError> };
    (plain $type:ty) => { $type };
    (optional plain $type:ty) => { Result<$type, $crate::VerbError> };
    (optional $($answer:tt)+) => { $crate::answer::rust_type!($($answer)+) };
}

/// An answer in C as one in Rust.
macro_rules! read_answer {
    (plain $type:ty, $verb:expr, $answer:expr) => {
        $answer
    };
    (optional plain $type:ty, $verb:expr, $answer:expr) => {
        Ok($answer)
    };
    (optional $kind:ident $($type:ty)?, $verb:expr, $answer:expr) => {
        $crate::answer::$kind($verb, $answer)
    };
    ($kind:ident $($type:ty)?, $verb:expr, $answer:expr) => {
        $crate::answer::$kind($verb, $answer)
    };
}
pub(crate) use {c_type, read_answer, rust_type};

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(errno: Errno) -> VerbError {
        VerbError::Failed {
            verb: "ibv_x",
            errno,
        }
    }

    #[test]
    fn a_status_is_zero_or_an_errno_of_either_sign() {
        assert_eq!(status("ibv_x", 0), Ok(()));
        assert_eq!(status("ibv_x", 22), Err(failed(Errno::EINVAL)));
        assert_eq!(status("ibv_x", -22), Err(failed(Errno::EINVAL)));
        assert_eq!(status("ibv_x", c_int::MIN), Err(failed(Errno(c_int::MIN))));
    }

    #[test]
    fn a_count_is_not_negative() {
        assert_eq!(count("ibv_x", 3), Ok(3));
        assert_eq!(count("ibv_x", -95), Err(failed(Errno::EOPNOTSUPP)));
        assert_eq!(count("ibv_x", isize::MIN), Err(failed(Errno::EIO)));
    }

    #[test]
    fn a_null_pointer_is_the_errno_that_came_with_it() {
        // SAFETY: a descriptor that is none: the call only sets errno.
        unsafe { libc::close(-1) };
        let answer = pointer::<u8>("ibv_x", std::ptr::null_mut());
        assert_eq!(answer, Err(failed(Errno::EBADF)));
    }
}
