//! A folder of this library as the working folder of a process: chdir(2) and getcwd(3).
//!
//! The kernel has no such folder. So it gets an empty one that is removed at once: whatever is looked up there by
//! a relative path is absent, and then found below the folder of this library. The name of the removed folder
//! has the path, by which programs that this process starts know where they are.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::fs::Mode;

use super::handle;
use super::lookup::{Seen, otherwise};
use super::next;
use super::tree::{LastLink, Node};
use crate::errno::Errno;
use crate::ret::{pointer, set_errno};

exported! { chdir = enter: (path: *const c_char) -> c_int }
exported! { fchdir = enter_descriptor: (fd: c_int) -> c_int }
exported! { getcwd = current: (room: *mut c_char, size: usize) -> *mut c_char }
exported! { __getcwd_chk = current_checked: (room: *mut c_char, size: usize, whole: usize) -> *mut c_char }
exported! { get_current_dir_name = current_allocated: () -> *mut c_char }

/// What the name of the removed folder begins with; slashes of the path are `%` in it.
const NAME: &str = "gdr-folder";
/// Where it may be made.
const PLACES: [&str; 2] = ["/tmp", "/dev/shm"];
/// How the kernel shows a removed folder.
const REMOVED: &str = " (deleted)";

/// The path of the working folder, if it is one of this library; null else. Values are never freed: another
/// thread may read one.
static FOLDER: AtomicPtr<CString> = AtomicPtr::new(ptr::null_mut());

/// The path of the working folder, if it is one of this library.
#[inline]
pub(super) fn own() -> Option<&'static CStr> {
    // SAFETY: null, or from `Box::into_raw` and never freed.
    unsafe { FOLDER.load(Ordering::Acquire).as_ref() }.map(CString::as_c_str)
}

/// Recognizes the working folder that this process begins with.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = recognize;

extern "C" fn recognize() {
    let Ok(folder) = rustix::fs::readlink("/proc/self/cwd", Vec::new()) else {
        return;
    };
    let path = folder.to_str().ok().and_then(|folder| {
        let (_, name) = folder.strip_suffix(REMOVED)?.rsplit_once('/')?;
        let (_, path) = name.split_once('%')?;
        name.starts_with(NAME)
            .then(|| format!("/{}", path.replace('%', "/")))
    });
    if let Some(path) = path.and_then(|path| CString::new(path).ok()) {
        FOLDER.store(Box::into_raw(Box::new(path)), Ordering::Release);
    }
}

/// Makes a folder of the tree the working folder.
fn enter_own(path: &str) -> Result<c_int, Errno> {
    let name = format!("{NAME}-{}{}", std::process::id(), path.replace('/', "%"));
    let mut folders = PLACES.iter().map(|place| format!("{place}/{name}"));
    let folder = folders.find(|folder| rustix::fs::mkdir(folder, Mode::RWXU).is_ok());
    let folder = folder.ok_or(Errno::ACCES)?;
    let entered = rustix::process::chdir(&folder);
    rustix::fs::rmdir(&folder)?;
    entered?;
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    FOLDER.store(Box::into_raw(Box::new(path)), Ordering::Release);
    Ok(0)
}

fn left() {
    FOLDER.store(ptr::null_mut(), Ordering::Release);
}

/// # Safety
/// Same as chdir(2).
unsafe fn enter(path: *const c_char) -> c_int {
    // SAFETY: the contract of this function.
    let entered = unsafe { libc::syscall(libc::SYS_chdir, path) } as c_int;
    if entered == 0 {
        left();
        return entered;
    }
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe {
        otherwise(
            libc::AT_FDCWD,
            path,
            LastLink::Follow,
            entered,
            |seen| match seen {
                Seen::Own(path, Node::Folder) => enter_own(path),
                Seen::Own(..) => Err(Errno::NOTDIR),
                Seen::Kernel(path) => {
                    rustix::process::chdir(&path)?;
                    left();
                    Ok(0)
                }
            },
        )
    }
}

/// # Safety
/// Same as fchdir(2).
unsafe fn enter_descriptor(fd: c_int) -> c_int {
    // SAFETY: the contract of this function.
    let entered = unsafe { libc::syscall(libc::SYS_fchdir, fd) } as c_int;
    if entered == 0 {
        left();
        return entered;
    }
    let errno = Errno::of_io(&std::io::Error::last_os_error());
    match handle::path_if_any(fd).and_then(|path| CString::new(path).ok()) {
        // SAFETY: a C string.
        Some(path) if errno == Errno::NOTDIR => unsafe { enter(path.as_ptr()) },
        _ => {
            set_errno(errno);
            entered
        }
    }
}

/// # Safety
/// Same as getcwd(3).
unsafe fn current(room: *mut c_char, size: usize) -> *mut c_char {
    let Some(path) = own() else {
        // SAFETY: the contract of this function.
        return unsafe { next::getcwd(room, size) };
    };
    let bytes = path.to_bytes_with_nul();
    pointer(|| {
        if size < bytes.len() && !(room.is_null() && size == 0) {
            return Err(if size == 0 {
                Errno::INVAL
            } else {
                Errno::RANGE
            });
        }
        let room = match room.is_null() {
            // SAFETY: the program frees it.
            true => unsafe { libc::malloc(size.max(bytes.len())) }.cast(),
            false => room,
        };
        if room.is_null() {
            return Err(Errno::NOMEM);
        }
        // SAFETY: there is room.
        unsafe {
            room.cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(room)
    })
}

/// # Safety
/// Same as getcwd(3); `whole` bytes at `room` are writable.
unsafe fn current_checked(room: *mut c_char, size: usize, whole: usize) -> *mut c_char {
    if size > whole {
        // This is what the C library does.
        std::process::abort();
    }
    // SAFETY: the contract of this function.
    unsafe { current(room, size) }
}

/// # Safety
/// Same as get_current_dir_name(3).
unsafe fn current_allocated() -> *mut c_char {
    match own() {
        // SAFETY: the contract of this function.
        None => unsafe { next::get_current_dir_name() },
        // SAFETY: there is no room to write.
        Some(_) => unsafe { current(ptr::null_mut(), 0) },
    }
}
