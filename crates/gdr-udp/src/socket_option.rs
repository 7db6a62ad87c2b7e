//! Options of sockets that rustix does not have.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Sets an option, by its level and its name, whose value is a plain structure of C.
pub(crate) fn set<T: Copy>(
    socket: BorrowedFd<'_>,
    (level, name): (c_int, c_int),
    value: &T,
) -> io::Result<()> {
    let (value, len) = (ptr::from_ref(value).cast(), size_of::<T>());
    // SAFETY: the kernel reads at most this many bytes of the value, which lives for the call, and what that
    // points to as far as it is mapped; it writes to neither.
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
