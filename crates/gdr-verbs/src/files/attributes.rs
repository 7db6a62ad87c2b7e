//! Extended attributes, which files of this library have none of: `ls -l` asks for access lists by them.

use std::ffi::{c_char, c_void};

use super::lookup::otherwise;
use super::tree::LastLink;
use crate::errno::Errno;

exported! {
    getxattr = get: (path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize
}
exported! {
    lgetxattr = get_of_link:
        (path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize
}
exported! { listxattr = list: (path: *const c_char, names: *mut c_char, size: usize) -> isize }
exported! { llistxattr = list_of_link: (path: *const c_char, names: *mut c_char, size: usize) -> isize }

/// # Safety
/// Same as getxattr(2).
unsafe fn get(path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize {
    // SAFETY: the contract of this function.
    let found = unsafe { libc::syscall(libc::SYS_getxattr, path, name, value, size) };
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe { no_attribute(found, path, LastLink::Follow, Errno::NODATA) }
}

/// # Safety
/// Same as lgetxattr(2).
unsafe fn get_of_link(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> isize {
    // SAFETY: the contract of this function.
    let found = unsafe { libc::syscall(libc::SYS_lgetxattr, path, name, value, size) };
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe { no_attribute(found, path, LastLink::Keep, Errno::NODATA) }
}

/// # Safety
/// Same as listxattr(2).
unsafe fn list(path: *const c_char, names: *mut c_char, size: usize) -> isize {
    // SAFETY: the contract of this function.
    let found = unsafe { libc::syscall(libc::SYS_listxattr, path, names, size) };
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe { no_attribute(found, path, LastLink::Follow, Errno::OPNOTSUPP) }
}

/// # Safety
/// Same as llistxattr(2).
unsafe fn list_of_link(path: *const c_char, names: *mut c_char, size: usize) -> isize {
    // SAFETY: the contract of this function.
    let found = unsafe { libc::syscall(libc::SYS_llistxattr, path, names, size) };
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe { no_attribute(found, path, LastLink::Keep, Errno::OPNOTSUPP) }
}

/// The result of the kernel, or this error for a file of this library and what its links lead to.
///
/// # Safety
/// Same as [`otherwise`].
unsafe fn no_attribute(found: i64, path: *const c_char, last: LastLink, errno: Errno) -> isize {
    if found >= 0 {
        return found as isize;
    }
    // SAFETY: the contract of this function.
    unsafe { otherwise(libc::AT_FDCWD, path, last, found as isize, |_| Err(errno)) }
}
