//! Open files of this library: memfds whose names are the paths of the files.

use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, Mode, SealFlags, SeekFrom};

use crate::errno::Errno;

/// What the names of the memfds begin with, and how the kernel shows that.
const NAME: &str = "gdr:";
const SHOWN: &[u8] = b"/memfd:gdr:";
const SHOWN_END: &[u8] = b" (deleted)";

/// Whether this process has opened a file of this library.
static ANY: AtomicBool = AtomicBool::new(false);

/// Opens a file of the tree at this path. Its bytes cannot be changed.
pub(super) fn new(
    path: &str,
    bytes: &[u8],
    mode: u32,
    is_inherited: Inherited,
) -> Result<OwnedFd, Errno> {
    let mut flags = MemfdFlags::ALLOW_SEALING;
    flags.set(MemfdFlags::CLOEXEC, is_inherited == Inherited::No);
    let fd = rustix::fs::memfd_create(format!("{NAME}{path}"), flags)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)
        .map_err(|error| Errno::of_io(&error))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    rustix::fs::seek(&file, SeekFrom::Start(0))?;
    ANY.store(true, Ordering::Relaxed);
    Ok(file.into())
}

/// Whether programs that this process starts get a descriptor (`O_CLOEXEC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inherited {
    Yes,
    No,
}

/// The path of a file of the tree, by its descriptor; `None` for any other descriptor, and where `/proc` is
/// not mounted.
pub(super) fn path(fd: i32) -> Option<String> {
    if fd < 0 {
        return None;
    }
    // SAFETY: the program says that it is open; the kernel refuses one that is not.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let name = path_of(fd)?;
    let path = name
        .to_bytes()
        .strip_prefix(SHOWN)?
        .strip_suffix(SHOWN_END)?;
    String::from_utf8(path.to_vec()).ok()
}

/// Like [`path`], for a file that has no name in a file system; costs nothing before this process has opened a
/// file of this library.
pub(super) fn path_if_any(fd: i32) -> Option<String> {
    ANY.load(Ordering::Relaxed).then(|| path(fd)).flatten()
}

/// Where an open file is, as the kernel says.
pub(super) fn path_of(fd: impl AsFd) -> Option<CString> {
    let own = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::readlink(own, Vec::new()).ok()
}
