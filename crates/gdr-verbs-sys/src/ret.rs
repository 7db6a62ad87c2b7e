//! Conversion of the return values of C functions.

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::errno::Errno;
use crate::error::VerbError;

/// Converts a status: 0 on success, otherwise a positive or negative `errno`, or -1 with `errno` set.
pub(crate) fn status(verb: &'static str, ret: c_int) -> Result<(), VerbError> {
    let errno = match ret {
        0 => return Ok(()),
        -1 => Errno::last(),
        // The most negative number has no absolute value and is not an errno, so it stays unchanged.
        other => Errno(other.checked_abs().unwrap_or(other)),
    };
    Err(VerbError::Failed { verb, errno })
}

/// Converts a pointer to a new object, which is null with `errno` set on failure.
pub(crate) fn pointer<T>(verb: &'static str, ret: *mut T) -> Result<NonNull<T>, VerbError> {
    NonNull::new(ret).ok_or_else(|| VerbError::Failed {
        verb,
        errno: Errno::last(),
    })
}

/// Converts a count, which is a negative `errno` on failure.
pub(crate) fn count(verb: &'static str, ret: isize) -> Result<usize, VerbError> {
    usize::try_from(ret).map_err(|_| VerbError::Failed {
        verb,
        errno: i32::try_from(ret.unsigned_abs()).map_or(Errno::EIO, Errno),
    })
}

/// The C type of a return value: `status`, `pointer` and `count` for the functions of these names,
/// `plain` for a function that cannot fail.
macro_rules! c_type {
    (status) => { std::ffi::c_int };
    (count) => { isize };
    (pointer $type:ty) => { *mut $type };
    (plain $type:ty) => { $type };
}

/// The Rust type of a return value.
macro_rules! rust_type {
    (status) => { Result<(), $crate::VerbError> };
    (count) => { Result<usize, $crate::VerbError> };
    (pointer $type:ty) => { Result<std::ptr::NonNull<$type>, $crate::VerbError> };
    (plain $type:ty) => { $type };
    (optional plain $type:ty) => { Result<$type, $crate::VerbError> };
    (optional $($ret:tt)+) => { $crate::ret::rust_type!($($ret)+) };
}

/// Converts a return value from C to Rust.
macro_rules! from_ret {
    (plain $type:ty, $verb:expr, $ret:expr) => {
        $ret
    };
    (optional plain $type:ty, $verb:expr, $ret:expr) => {
        Ok($ret)
    };
    (optional $kind:ident $($type:ty)?, $verb:expr, $ret:expr) => {
        $crate::ret::$kind($verb, $ret)
    };
    ($kind:ident $($type:ty)?, $verb:expr, $ret:expr) => {
        $crate::ret::$kind($verb, $ret)
    };
}
pub(crate) use {c_type, from_ret, rust_type};

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
    fn a_null_pointer_gives_the_current_errno() {
        // SAFETY: the descriptor is invalid, so the call only sets errno.
        unsafe { libc::close(-1) };
        let ret = pointer::<u8>("ibv_x", std::ptr::null_mut());
        assert_eq!(ret, Err(failed(Errno::EBADF)));
    }
}
