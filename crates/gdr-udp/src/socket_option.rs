//! Socket options that rustix does not cover.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Sets the option at `level` and `name` to a plain C structure.
pub(crate) fn set<T: Copy>(
    socket: BorrowedFd<'_>,
    (level, name): (c_int, c_int),
    value: &T,
) -> io::Result<()> {
    let (value, len) = (ptr::from_ref(value).cast(), size_of::<T>());
    // SAFETY: the kernel reads at most `size_of::<T>()` bytes of `value`, which outlives the call. If the value
    // contains pointers, the kernel validates what they refer to. It writes to neither.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value,
            len as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
