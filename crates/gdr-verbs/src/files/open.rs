//! Opening files: open(2), openat(2) and fopen(3).

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::device_files::Content;
use super::handle::{self, Inherited};
use super::lookup::{Seen, may_begin_here, may_have_failed_here, otherwise, shared_folder};
use super::tree::{LastLink, Node};
use super::{bytes, next};
use crate::device_use::{self, Step};
use crate::errno::Errno;
use crate::rdma_cm;
use crate::ret::{errno, minus_one_or};

exported! { open open64 = open: (path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int }
exported! { __open_2 __open64_2 = open_existing: (path: *const c_char, flags: c_int) -> c_int }
exported! {
    openat openat64 = openat:
        (folder: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int
}
exported! {
    __openat_2 __openat64_2 = openat_existing: (folder: c_int, path: *const c_char, flags: c_int) -> c_int
}
exported! { fopen fopen64 = fopen: (path: *const c_char, mode: *const c_char) -> *mut libc::FILE }

/// # Safety
/// Same as open(2).
unsafe fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the contract of this function.
    let fd = unsafe { next::open64(path, flags, mode) };
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe { opened(fd, libc::AT_FDCWD, path, flags) }
}

/// # Safety
/// Same as open(2), without a mode.
unsafe fn open_existing(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { open(path, flags, 0) }
}

/// # Safety
/// Same as openat(2).
unsafe fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the contract of this function.
    let fd = unsafe { next::openat64(folder, path, flags, mode) };
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe { opened(fd, folder, path, flags) }
}

/// # Safety
/// Same as openat(2), without a mode.
unsafe fn openat_existing(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the contract of this function.
    unsafe { openat(folder, path, flags, 0) }
}

/// Returns what the kernel has opened, or opens what this library has at the path.
///
/// # Safety
/// `path` is a C string if the kernel has opened it, or if errno says that it has looked for it.
#[inline(always)]
unsafe fn opened(fd: c_int, folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the contract of this function.
    let may_be_here = unsafe {
        match fd {
            0.. => may_begin_here(folder, path),
            _ => {
                may_have_failed_here(folder, path)
                    || rdma_cm::is_refused(errno()) && may_begin_here(folder, path)
            }
        }
    };
    if !may_be_here {
        return fd;
    }
    // SAFETY: the contract of this function.
    unsafe { opened_here(fd, folder, path, flags) }
}

/// Like [`opened`], for a path that may be one of this library's files.
///
/// # Safety
/// `path` is a C string.
#[cold]
#[inline(never)]
unsafe fn opened_here(fd: c_int, folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the contract of this function.
    let fd = unsafe { rdma_cm::opened(fd, path, flags) };
    if fd >= 0 {
        if flags & libc::O_DIRECTORY == 0 {
            return fd;
        }
        // SAFETY: the contract of this function.
        let Some(shared) = (unsafe { shared_folder(folder, path) }) else {
            return fd;
        };
        // SAFETY: this function's own, as no one else knows of it.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        return minus_one_or(|| own(shared, &Node::Folder, flags));
    }
    let keeps_link = flags & libc::O_NOFOLLOW != 0 || flags & libc::O_EXCL != 0;
    let last = if keeps_link {
        LastLink::Keep
    } else {
        LastLink::Follow
    };
    // SAFETY: the contract of this function.
    unsafe { otherwise(folder, path, last, fd, |seen| open_seen(&seen, flags)) }
}

/// Opens what is at a path; returns its descriptor.
pub(super) fn open_seen(seen: &Seen, flags: c_int) -> Result<c_int, Errno> {
    match seen {
        Seen::Own(path, node) => own(path, node, flags),
        Seen::Kernel(path) => {
            let flags = OFlags::from_bits_retain(flags.cast_unsigned());
            Ok(rustix::fs::open(path, flags, Mode::empty())?.into_raw_fd())
        }
    }
}

/// Opens a file of the tree.
fn own(path: &str, node: &Node<Content>, flags: c_int) -> Result<c_int, Errno> {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 {
        return Err(Errno::EXIST);
    }
    let is_folder = matches!(node, Node::Folder);
    if flags & libc::O_DIRECTORY != 0 && !is_folder {
        return Err(Errno::NOTDIR);
    }
    let is_inherited = match flags & libc::O_CLOEXEC {
        0 => Inherited::Yes,
        _ => Inherited::No,
    };
    let fd = match node {
        Node::Folder if writes || flags & libc::O_CREAT != 0 => return Err(Errno::ISDIR),
        Node::Folder => handle::new(path, &[], 0o755, is_inherited)?,
        Node::File(_) if writes => return Err(Errno::ACCES),
        Node::File(content) => handle::new(path, &bytes(content), 0o444, is_inherited)?,
        Node::Link(_) => return Err(Errno::LOOP),
        Node::Device(_) => {
            device_use::reached(Step::NodeOpened);
            return Err(Errno::NXIO);
        }
    };
    Ok(fd.into_raw_fd())
}

/// # Safety
/// Same as fopen(3).
unsafe fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the contract of this function.
    let file = unsafe { next::fopen64(path, mode) };
    if !file.is_null() {
        return file;
    }
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe {
        otherwise(libc::AT_FDCWD, path, LastLink::Follow, file, |seen| {
            let fd = open_seen(&seen, flags_of(CStr::from_ptr(mode).to_bytes()))?;
            // The descriptor belongs to this function.
            let file = libc::fdopen(fd, mode);
            if file.is_null() {
                libc::close(fd);
                return Err(Errno::NOMEM);
            }
            Ok(file)
        })
    }
}

/// The flags of open(2) for a mode of fopen(3).
fn flags_of(mode: &[u8]) -> c_int {
    let only_reads = mode.first() == Some(&b'r') && !mode.contains(&b'+');
    let access = if only_reads {
        libc::O_RDONLY
    } else {
        libc::O_RDWR
    };
    let inherited = if mode.contains(&b'e') {
        libc::O_CLOEXEC
    } else {
        0
    };
    access | inherited
}
