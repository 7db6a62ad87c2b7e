//! What a file is: the functions of stat(2), statx(2) and access(2).

use std::ffi::{c_char, c_int, c_uint};

use super::device_files::Content;
use super::lookup::{Seen, may_have_failed_here, otherwise};
use super::tree::{LastLink, Node};
use super::{bytes, files, handle, next};
use crate::errno::Errno;
use crate::rdma_cm;
use crate::ret::plain;

exported! { stat stat64 = stat: (path: *const c_char, status: *mut libc::stat) -> c_int }
exported! { lstat lstat64 = lstat: (path: *const c_char, status: *mut libc::stat) -> c_int }
exported! { fstat fstat64 = fstat: (fd: c_int, status: *mut libc::stat) -> c_int }
exported! {
    fstatat fstatat64 = fstatat:
        (folder: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int
}
// What these are in programs that were linked with a glibc before 2.33. 64-bit systems have one version of
// the structure.
exported! {
    __xstat __xstat64 = xstat: (version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int
}
exported! {
    __lxstat __lxstat64 = lxstat: (version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int
}
exported! { __fxstat __fxstat64 = fxstat: (version: c_int, fd: c_int, status: *mut libc::stat) -> c_int }
exported! {
    __fxstatat __fxstatat64 = fxstatat: (
        version: c_int, folder: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int
    ) -> c_int
}
exported! {
    statx = extended: (
        folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut libc::statx
    ) -> c_int
}
exported! { access = accessible: (path: *const c_char, mode: c_int) -> c_int }
exported! {
    faccessat = accessible_at: (folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int
}

/// # Safety
/// Same as stat(2).
pub(super) unsafe fn stat(path: *const c_char, status: *mut libc::stat) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { by_path(libc::AT_FDCWD, path, status, 0) }
}

/// # Safety
/// Same as lstat(2).
pub(super) unsafe fn lstat(path: *const c_char, status: *mut libc::stat) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { by_path(libc::AT_FDCWD, path, status, libc::AT_SYMLINK_NOFOLLOW) }
}

/// # Safety
/// Same as stat(2).
unsafe fn xstat(_version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { stat(path, status) }
}

/// # Safety
/// Same as lstat(2).
unsafe fn lxstat(_version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { lstat(path, status) }
}

/// # Safety
/// Same as fstat(2).
unsafe fn fxstat(_version: c_int, fd: c_int, status: *mut libc::stat) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { fstat(fd, status) }
}

/// # Safety
/// Same as fstatat(2).
unsafe fn fxstatat(
    _version: c_int,
    folder: c_int,
    path: *const c_char,
    status: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { fstatat(folder, path, status, flags) }
}

/// # Safety
/// Same as fstat(2).
unsafe fn fstat(fd: c_int, status: *mut libc::stat) -> c_int {
    // SAFETY: the contract of this function. A system call, since an older C library has no such function, and a
    // newer one makes another call, which takes longer.
    let found = unsafe { libc::syscall(libc::SYS_fstat, fd, status) } as c_int;
    if found == 0 {
        // SAFETY: the kernel has written it.
        unsafe { correct(fd, &mut *status) };
    }
    found
}

/// # Safety
/// Same as fstatat(2).
unsafe fn fstatat(
    folder: c_int,
    path: *const c_char,
    status: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the contract of this function.
    let found = unsafe { by_path(folder, path, status, flags) };
    if found == 0 && flags & libc::AT_EMPTY_PATH != 0 {
        // SAFETY: it was written.
        unsafe { correct(folder, &mut *status) };
    }
    found
}

/// Like fstatat(2), of a path that is not empty.
///
/// # Safety
/// Same as fstatat(2).
#[inline(always)]
unsafe fn by_path(
    folder: c_int,
    path: *const c_char,
    status: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the contract of this function.
    let found = unsafe { next::fstatat64(folder, path, status, flags) };
    // SAFETY: the kernel has read the path if it says that nothing is there.
    if found == 0 || !unsafe { may_have_failed_here(folder, path) } {
        return found;
    }
    // SAFETY: the contract of this function.
    unsafe { by_path_here(folder, path, status, flags, found) }
}

/// Like [`by_path`], for what the kernel has not found.
///
/// # Safety
/// Same as fstatat(2).
#[cold]
#[inline(never)]
unsafe fn by_path_here(
    folder: c_int,
    path: *const c_char,
    status: *mut libc::stat,
    flags: c_int,
    found: c_int,
) -> c_int {
    // SAFETY: the kernel has read the path if it says that nothing is there. It writes the structure only where it succeeds,
    // so the contract of this function is all that says that it is writable.
    unsafe {
        otherwise(folder, path, last(flags), found, |seen| match seen {
            Seen::Own(path, node) => {
                status.write_bytes(0, 1);
                fill(path, node, &mut *status);
                Ok(0)
            }
            Seen::Kernel(path) => {
                let path = path.as_ptr();
                of_kernel(next::fstatat64(libc::AT_FDCWD, path, status, flags).into())
            }
        })
    }
}

/// The result of a system call.
fn of_kernel(result: i64) -> Result<c_int, Errno> {
    match result {
        -1 => Err(Errno::of_io(&std::io::Error::last_os_error())),
        other => Ok(other as c_int),
    }
}

const fn last(flags: c_int) -> LastLink {
    match flags & libc::AT_SYMLINK_NOFOLLOW {
        0 => LastLink::Follow,
        _ => LastLink::Keep,
    }
}

/// Writes what an open file of the tree is in the place of what its memfd is.
#[inline(always)]
fn correct(fd: c_int, status: &mut libc::stat) {
    // A memfd does not have a name in a file system.
    if status.st_nlink == 0 || rdma_cm::are_any_open() {
        correct_own(fd, status);
    }
}

#[cold]
#[inline(never)]
fn correct_own(fd: c_int, status: &mut libc::stat) {
    if let Some(number) = rdma_cm::device_of(fd) {
        status.st_mode = libc::S_IFCHR | 0o666;
        status.st_rdev = number;
        return;
    }
    if status.st_nlink != 0 {
        return;
    }
    plain((), || {
        if let Some(path) = handle::path_if_any(fd)
            && let Some((path, node)) = files().at(&path)
        {
            let size = status.st_size;
            fill(path, node, status);
            status.st_size = size;
        }
        Ok(())
    });
}

fn mode(node: &Node<Content>) -> libc::mode_t {
    match node {
        Node::Folder => libc::S_IFDIR | 0o755,
        Node::File(_) => libc::S_IFREG | 0o444,
        Node::Link(_) => libc::S_IFLNK | 0o777,
        Node::Device(_) => libc::S_IFCHR | 0o666,
    }
}

fn size(node: &Node<Content>) -> usize {
    match node {
        Node::File(content) => bytes(content).len(),
        Node::Link(target) => target.len(),
        Node::Folder | Node::Device(_) => 0,
    }
}

/// The number of a file, which is the same in every process.
pub(super) fn inode(path: &str) -> u64 {
    // FNV-1a.
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The number of the file system: one that the kernel gives to none, as it begins with 1.
const FILE_SYSTEM: (c_uint, c_uint) = (0, 0xf_ffff);

fn fill(path: &str, node: &Node<Content>, status: &mut libc::stat) {
    let (major, minor) = FILE_SYSTEM;
    status.st_dev = libc::makedev(major, minor);
    status.st_ino = inode(path);
    status.st_mode = mode(node);
    status.st_nlink = 1;
    status.st_size = size(node) as libc::off_t;
    status.st_blksize = 4096;
    if let Node::Device(number) = node {
        status.st_rdev = libc::makedev(number.major, number.minor);
    }
}

/// # Safety
/// Same as statx(2).
unsafe fn extended(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    status: *mut libc::statx,
) -> c_int {
    // SAFETY: the contract of this function. A system call, since an older C library has no such function.
    let found =
        unsafe { libc::syscall(libc::SYS_statx, folder, path, flags, mask, status) } as c_int;
    if found == 0 {
        if flags & libc::AT_EMPTY_PATH != 0 {
            // SAFETY: the kernel has written it.
            let status = unsafe { &mut *status };
            if status.stx_nlink == 0
                && let Some(path) = plain(None, || Ok(handle::path_if_any(folder)))
            {
                plain((), || {
                    if let Some((path, node)) = files().at(&path) {
                        let size = status.stx_size;
                        fill_extended(path, node, status);
                        status.stx_size = size;
                    }
                    Ok(())
                });
            }
        }
        return found;
    }
    // SAFETY: as in `by_path_here`.
    unsafe {
        otherwise(folder, path, last(flags), found, |seen| match seen {
            Seen::Own(path, node) => {
                status.write_bytes(0, 1);
                fill_extended(path, node, &mut *status);
                Ok(0)
            }
            Seen::Kernel(path) => {
                let (folder, path) = (libc::AT_FDCWD, path.as_ptr());
                of_kernel(libc::syscall(
                    libc::SYS_statx,
                    folder,
                    path,
                    flags,
                    mask,
                    status,
                ))
            }
        })
    }
}

fn fill_extended(path: &str, node: &Node<Content>, status: &mut libc::statx) {
    status.stx_mask =
        libc::STATX_BASIC_STATS & !(libc::STATX_ATIME | libc::STATX_MTIME | libc::STATX_CTIME);
    (status.stx_dev_major, status.stx_dev_minor) = FILE_SYSTEM;
    status.stx_ino = inode(path);
    status.stx_mode = mode(node) as u16;
    status.stx_nlink = 1;
    status.stx_size = size(node) as u64;
    status.stx_blksize = 4096;
    if let Node::Device(number) = node {
        (status.stx_rdev_major, status.stx_rdev_minor) = (number.major, number.minor);
    }
}

/// # Safety
/// Same as access(2).
unsafe fn accessible(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the contract of this function.
    let found = unsafe { next::access(path, mode) };
    // SAFETY: as above.
    unsafe { accessible_otherwise(found, libc::AT_FDCWD, path, mode, 0) }
}

/// # Safety
/// Same as faccessat(2).
unsafe fn accessible_at(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: the contract of this function.
    let found = unsafe { next::faccessat(folder, path, mode, flags) };
    // SAFETY: as above.
    unsafe { accessible_otherwise(found, folder, path, mode, flags) }
}

/// Returns what the kernel has found, or what this library has at the path.
///
/// # Safety
/// Same as faccessat(2).
#[inline(always)]
unsafe fn accessible_otherwise(
    found: c_int,
    folder: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the kernel has read the path if it says that nothing is there.
    if found == 0 || !unsafe { may_have_failed_here(folder, path) } {
        return found;
    }
    // SAFETY: as above.
    unsafe {
        otherwise(folder, path, last(flags), found, |seen| match seen {
            Seen::Own(_, node) => {
                let permitted = match node {
                    Node::Folder => libc::R_OK | libc::X_OK,
                    Node::File(_) => libc::R_OK,
                    Node::Device(_) => libc::R_OK | libc::W_OK,
                    Node::Link(_) => libc::R_OK | libc::W_OK | libc::X_OK,
                };
                if mode & !permitted == 0 {
                    Ok(0)
                } else {
                    Err(Errno::ACCES)
                }
            }
            Seen::Kernel(path) => {
                let flags = flags & libc::AT_EACCESS;
                match next::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, flags) {
                    0 => Ok(0),
                    failed => of_kernel(failed.into()),
                }
            }
        })
    }
}
