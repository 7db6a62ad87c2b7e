//! Symbolic links: readlink(2) and realpath(3).

use std::ffi::{c_char, c_int};
use std::ptr;

use super::lookup::{Seen, otherwise};
use super::next;
use super::tree::{LastLink, Node};
use crate::errno::Errno;

exported! { readlink = read: (path: *const c_char, room: *mut c_char, size: usize) -> isize }
exported! {
    readlinkat = read_at: (folder: c_int, path: *const c_char, room: *mut c_char, size: usize) -> isize
}
exported! {
    __readlink_chk = read_checked:
        (path: *const c_char, room: *mut c_char, size: usize, whole: usize) -> isize
}
exported! { realpath = resolve: (path: *const c_char, room: *mut c_char) -> *mut c_char }
exported! {
    __realpath_chk = resolve_checked: (path: *const c_char, room: *mut c_char, size: usize) -> *mut c_char
}
exported! { canonicalize_file_name = resolve_allocated: (path: *const c_char) -> *mut c_char }

/// # Safety
/// Same as readlink(2).
unsafe fn read(path: *const c_char, room: *mut c_char, size: usize) -> isize {
    // SAFETY: the contract of this function.
    unsafe { read_at(libc::AT_FDCWD, path, room, size) }
}

/// # Safety
/// Same as readlink(2); `whole` bytes at `room` are writable.
unsafe fn read_checked(path: *const c_char, room: *mut c_char, size: usize, whole: usize) -> isize {
    if size > whole {
        // It ends the process.
        // SAFETY: the contract of this function.
        return unsafe { next::__readlink_chk(path, room, size, whole) };
    }
    // SAFETY: the contract of this function.
    unsafe { read(path, room, size) }
}

/// # Safety
/// Same as readlinkat(2).
unsafe fn read_at(folder: c_int, path: *const c_char, room: *mut c_char, size: usize) -> isize {
    // SAFETY: the contract of this function.
    let found = unsafe { libc::syscall(libc::SYS_readlinkat, folder, path, room, size) } as isize;
    if found >= 0 {
        return found;
    }
    // SAFETY: the kernel has read the path if it says that nothing is there; the contract of this function.
    unsafe {
        otherwise(folder, path, LastLink::Keep, found, |seen| match seen {
            Seen::Own(_, Node::Link(target)) => {
                let size = size.min(target.len());
                room.cast::<u8>()
                    .copy_from_nonoverlapping(target.as_ptr(), size);
                Ok(size as isize)
            }
            Seen::Own(..) => Err(Errno::INVAL),
            Seen::Kernel(path) => {
                let folder = libc::AT_FDCWD;
                match libc::syscall(libc::SYS_readlinkat, folder, path.as_ptr(), room, size) {
                    -1 => Err(Errno::of_io(&std::io::Error::last_os_error())),
                    len => Ok(len as isize),
                }
            }
        })
    }
}

/// # Safety
/// Same as realpath(3).
unsafe fn resolve(path: *const c_char, room: *mut c_char) -> *mut c_char {
    // SAFETY: the contract of this function.
    let found = unsafe { next::realpath(path, room) };
    if !found.is_null() || path.is_null() {
        return found;
    }
    // SAFETY: the C library has read the path; a room has `PATH_MAX` bytes, and paths of the tree are shorter.
    unsafe {
        otherwise(
            libc::AT_FDCWD,
            path,
            LastLink::Follow,
            found,
            |seen| match seen {
                Seen::Own(path, _) => {
                    let room = match room.is_null() {
                        true => libc::malloc(path.len() + 1).cast(),
                        false => room,
                    };
                    if room.is_null() {
                        return Err(Errno::NOMEM);
                    }
                    room.cast::<u8>()
                        .copy_from_nonoverlapping(path.as_ptr(), path.len());
                    room.add(path.len()).write(0);
                    Ok(room)
                }
                Seen::Kernel(path) => {
                    let found = next::realpath(path.as_ptr(), room);
                    match found.is_null() {
                        true => Err(Errno::of_io(&std::io::Error::last_os_error())),
                        false => Ok(found),
                    }
                }
            },
        )
    }
}

/// # Safety
/// Same as realpath(3); `size` bytes at `room` are writable.
unsafe fn resolve_checked(path: *const c_char, room: *mut c_char, size: usize) -> *mut c_char {
    if size < libc::PATH_MAX as usize {
        // This is what the C library does.
        std::process::abort();
    }
    // SAFETY: the contract of this function.
    unsafe { resolve(path, room) }
}

/// # Safety
/// Same as canonicalize_file_name(3).
unsafe fn resolve_allocated(path: *const c_char) -> *mut c_char {
    // SAFETY: the contract of this function.
    unsafe { resolve(path, ptr::null_mut()) }
}
