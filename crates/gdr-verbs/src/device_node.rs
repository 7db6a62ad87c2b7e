//! The character devices of this library's devices, for programs that check them.
//!
//! UCX takes a device only if `/dev/infiniband/uverbsN` is a character device that it may read and
//! write. These functions of the C library, which the library for `LD_PRELOAD` replaces, answer as if it
//! were there. Opening it fails: no program needs that, as libibverbs opens it for programs.

use std::ffi::{CStr, c_char, c_int};

use crate::device::Device;
use crate::ret::plain;

/// The folder of the character devices.
const FOLDER: &[u8] = b"/dev/infiniband/";
/// The device number of the first one, by the kernel's `IB_UVERBS_MAJOR` and `IB_UVERBS_BASE_MINOR`.
const MAJOR: u32 = 231;
const FIRST_MINOR: u32 = 192;

/// The index of the device at a path that the kernel has just searched for without success.
///
/// # Safety
/// `path` is a C string unless the kernel set `EFAULT`.
unsafe fn missing(path: *const c_char) -> Option<u32> {
    let errno = std::io::Error::last_os_error();
    if !matches!(errno.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) {
        return None;
    }
    // SAFETY: the contract of this function.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    Device::index_of_node(path.strip_prefix(FOLDER)?)
}

/// # Safety
/// As access(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the contract of this function.
    let found = unsafe { libc::faccessat(libc::AT_FDCWD, path, mode, 0) };
    if found == 0 || mode & libc::X_OK != 0 {
        return found;
    }
    // SAFETY: the kernel has read the path, or it set `EFAULT`.
    plain(-1, || unsafe { missing(path) }.map_or(Ok(found), |_| Ok(0)))
}

/// # Safety
/// As stat(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, status: *mut libc::stat) -> c_int {
    // SAFETY: the contract of this function.
    let found = unsafe { libc::fstatat(libc::AT_FDCWD, path, status, 0) };
    if found == 0 {
        return found;
    }
    plain(-1, || {
        // SAFETY: the kernel has read the path, or it set `EFAULT`.
        let Some(index) = (unsafe { missing(path) }) else {
            return Ok(found);
        };
        // SAFETY: numbers; the kernel writes the structure only where it succeeds, so that the contract
        // of this function is all that says that it is writable.
        unsafe {
            status.write_bytes(0, 1);
            (*status).st_mode = libc::S_IFCHR | 0o666;
            (*status).st_nlink = 1;
            (*status).st_rdev = libc::makedev(MAJOR, FIRST_MINOR + index);
        }
        Ok(0)
    })
}

/// # Safety
/// As stat(2). The structure is the same.
#[unsafe(no_mangle)]
unsafe extern "C" fn stat64(path: *const c_char, status: *mut libc::stat) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { stat(path, status) }
}

/// What `stat` is in programs that were linked with a glibc before 2.33.
///
/// # Safety
/// As stat(2). 64-bit systems have one version of the structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn __xstat(
    _version: c_int,
    path: *const c_char,
    status: *mut libc::stat,
) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { stat(path, status) }
}

/// # Safety
/// As [`__xstat`].
#[unsafe(no_mangle)]
unsafe extern "C" fn __xstat64(
    _version: c_int,
    path: *const c_char,
    status: *mut libc::stat,
) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { stat(path, status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_character_devices_of_own_devices_are_there() {
        let path = |name: &str| std::ffi::CString::new(name).unwrap();
        let check = |name: &str| {
            // SAFETY: a C string, and a structure to write.
            unsafe {
                let mut status: libc::stat = std::mem::zeroed();
                let accessible = access(path(name).as_ptr(), libc::R_OK | libc::W_OK) == 0;
                let found = stat(path(name).as_ptr(), &mut status) == 0;
                assert_eq!(found, accessible, "{name}");
                found.then_some((status.st_mode & libc::S_IFMT, status.st_rdev))
            }
        };
        // Every host has a device of the loopback address, and none has thousands.
        let first = Some((libc::S_IFCHR, libc::makedev(231, 192)));
        assert_eq!(check("/dev/infiniband/uverbs0"), first);
        for other in ["uverbs9999", "uverbs", "uverbs00", "uverbs0x", "rdma_cm"] {
            assert_eq!(check(&format!("/dev/infiniband/{other}")), None, "{other}");
        }
        assert_eq!(
            check("/dev/null").map(|(kind, _)| kind),
            Some(libc::S_IFCHR)
        );
        assert_eq!(check("/nonexistent"), None);
        // SAFETY: the kernel sets `EFAULT`.
        assert_eq!(unsafe { access(std::ptr::without_provenance(1), 0) }, -1);
    }
}
