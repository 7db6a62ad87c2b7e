//! What this library has at a path where the kernel has nothing.

use std::ffi::{CStr, CString, c_char, c_int};

use super::device_files::Content;
use super::tree::{Found, LastLink, Node};
use super::{HIDDEN, files, handle, may_be_own, working_folder};
use crate::device_use::{self, Step};
use crate::errno::Errno;
use crate::ret::{errno, plain, set_errno};

/// What is at a path.
pub(super) enum Seen {
    /// A file of the tree, at this path without links.
    Own(&'static str, &'static Node<Content>),
    /// What the kernel has at this path, to which links of the tree lead.
    Kernel(CString),
}

/// Returns whether a path begins as the paths of this library's files do: all that most calls cost.
/// `dirfd` is as in openat(2).
///
/// # Safety
/// `path` is a C string.
#[inline(always)]
pub(super) unsafe fn may_begin_here(dirfd: c_int, path: *const c_char) -> bool {
    // SAFETY: the contract of this function, for a byte after one that is not the last.
    let byte = |at| unsafe { path.add(at).read() as u8 };
    // Each byte is read only if the bytes before it have matched, so none of these is the terminator.
    let begins = |rest: &[u8; 3]| byte(2) == rest[0] && byte(3) == rest[1] && byte(4) == rest[2];
    match byte(0) {
        0 => false,
        b'/' => match byte(1) {
            b'd' => begins(b"ev/") && matches!(byte(5), b'i' | b'/' | b'.'),
            b's' => begins(b"ys/") && matches!(byte(5), b'b' | b'c' | b'd' | b'/' | b'.'),
            other => matches!(other, b'/' | b'.'),
        },
        _ => dirfd == libc::AT_FDCWD && working_folder::own().is_some(),
    }
}

/// Like [`may_begin_here`], for a path of a call that failed. With other errors the kernel may not have read the path, which
/// may be anything then.
///
/// # Safety
/// `path` is a C string if errno is `ENOENT` or `ENOTDIR`, and errno is the one of the call.
#[inline(always)]
pub(super) unsafe fn may_have_failed_here(dirfd: c_int, path: *const c_char) -> bool {
    match errno() {
        // SAFETY: the contract of this function.
        libc::ENOENT => unsafe { may_begin_here(dirfd, path) },
        // The kernel does not see a descriptor of the tree as a directory.
        libc::ENOTDIR => true,
        _ => false,
    }
}

/// Answers a call that failed with `failed`: as `answer` says of what this library has at the path, or as it
/// failed. `dirfd` is as in openat(2).
///
/// # Safety
/// Same as [`may_have_failed_here`].
#[cold]
#[inline(never)]
pub(super) unsafe fn otherwise<T: Copy>(
    dirfd: c_int,
    path: *const c_char,
    last: LastLink,
    failed: T,
    answer: impl FnOnce(Seen) -> Result<T, Errno>,
) -> T {
    // SAFETY: the contract of this function.
    if !unsafe { may_have_failed_here(dirfd, path) } {
        return failed;
    }
    let Some(errno) = errno_of_absence() else {
        return failed;
    };
    // SAFETY: the contract of this function.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_relative = path.first() != Some(&b'/');
    if HIDDEN.get() || !is_relative && !may_be_own(path) {
        return failed;
    }
    let answer = plain(Err(Errno::IO), || {
        let whole = match is_relative {
            true => match folder(dirfd) {
                Some(folder) => [&folder, b"/".as_slice(), path].concat(),
                None => return Ok(Err(errno)),
            },
            false => path.to_vec(),
        };
        Ok(match seen(&whole, last) {
            Ok(Some(seen)) => answer(seen),
            Ok(None) if is_relative => kernel(whole).and_then(answer),
            Ok(None) => Err(errno),
            Err(errno) => Err(errno),
        })
    });
    answer.unwrap_or_else(|errno| {
        set_errno(errno);
        failed
    })
}

/// The path of the folder of the tree at which a relative path begins.
fn folder(dirfd: c_int) -> Option<Vec<u8>> {
    match dirfd {
        libc::AT_FDCWD => working_folder::own().map(|folder| folder.to_bytes().to_vec()),
        dirfd => handle::path(dirfd).map(String::into_bytes),
    }
}

/// Returns whether a path may lead to a file of this library where the kernel has one, too. `dirfd` is as in
/// openat(2).
pub(super) fn may_lead_here(dirfd: c_int, path: &[u8]) -> bool {
    match path.first() {
        Some(b'/') => may_be_own(path),
        _ => dirfd == libc::AT_FDCWD && working_folder::own().is_some(),
    }
}

/// The errno of the last call if it says that there is no file.
fn errno_of_absence() -> Option<Errno> {
    match errno() {
        libc::ENOENT => Some(Errno::NOENT),
        libc::ENOTDIR => Some(Errno::NOTDIR),
        _ => None,
    }
}

/// What the tree says of a path; `None` where it has nothing.
fn seen(path: &[u8], last: LastLink) -> Result<Option<Seen>, Errno> {
    match files().look_up(path, last) {
        Found::Here(path, node) => {
            device_use::reached(Step::Seen);
            Ok(Some(Seen::Own(path, node)))
        }
        Found::Elsewhere(other) if other == path => Ok(None),
        Found::Elsewhere(other) => kernel(other).map(Some),
        Found::NotAFolder => Err(Errno::NOTDIR),
        Found::TooManyLinks => Err(Errno::LOOP),
    }
}

fn kernel(path: Vec<u8>) -> Result<Seen, Errno> {
    CString::new(path)
        .map(Seen::Kernel)
        .map_err(|_| Errno::INVAL)
}

/// The path of a folder that the tree adds names to, for a path where the kernel has a folder. `dirfd` is as in
/// openat(2).
///
/// # Safety
/// `path` is a C string.
pub(super) unsafe fn shared_folder(dirfd: c_int, path: *const c_char) -> Option<&'static str> {
    // SAFETY: the contract of this function.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !may_lead_here(dirfd, path) || HIDDEN.get() {
        return None;
    }
    plain(None, || {
        let whole = match path.first() == Some(&b'/') {
            false => [&folder(dirfd).unwrap_or_default(), b"/".as_slice(), path].concat(),
            true => path.to_vec(),
        };
        Ok(match files().look_up(&whole, LastLink::Follow) {
            Found::Here(path, Node::Folder) => Some(path),
            _ => None,
        })
    })
}
