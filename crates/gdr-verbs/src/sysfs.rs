//! Files of sysfs, which programs read by functions of libibverbs.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::errno::Errno;
use crate::ret::{plain, set_errno};

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// # Safety
/// `text` is a C string.
unsafe fn path<'a>(text: *const c_char) -> &'a Path {
    // SAFETY: the contract of this function.
    Path::new(OsStr::from_bytes(
        unsafe { CStr::from_ptr(text) }.to_bytes(),
    ))
}

/// Reads a file without its final newline; returns its length, or -1.
///
/// # Safety
/// `folder` and `file` are C strings; `size` bytes at `room` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    room: *mut c_char,
    size: usize,
) -> c_int {
    plain(-1, || {
        // SAFETY: the contract of this function.
        let (folder, file) = unsafe { (path(folder), path(file)) };
        let file: PathBuf = folder.join(file);
        let mut bytes = fs::read(file).map_err(|error| {
            let errno = Errno::of_io(&error);
            set_errno(errno);
            errno
        })?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        bytes.truncate(size);
        // SAFETY: no more than `size` bytes.
        unsafe {
            room.cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        if bytes.len() < size {
            // SAFETY: there is room after the bytes.
            unsafe { room.add(bytes.len()).write(0) };
        }
        Ok(bytes.len() as c_int)
    })
}
