//! Listing folders: opendir(3), readdir(3), scandir(3) and glob(3).
//!
//! An open folder of the tree is a place of a fixed array, so that one comparison shows whether a `DIR` is one
//! of this library.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, TryLockError};

use super::files;
use super::handle::{self, Inherited};
use super::lookup::{Seen, may_lead_here, otherwise, shared_folder};
use super::next::{self, Compare, Filter};
use super::status::{self, inode};
use super::tree::{LastLink, Node};
use crate::device::lock;
use crate::errno::Errno;
use crate::ret::{minus_one, plain, pointer, set_errno};

exported! { opendir = open: (path: *const c_char) -> *mut libc::DIR }
exported! { fdopendir = open_descriptor: (fd: c_int) -> *mut libc::DIR }
exported! { readdir readdir64 = read: (folder: *mut libc::DIR) -> *mut libc::dirent }
exported! {
    readdir_r readdir64_r = read_into:
        (folder: *mut libc::DIR, entry: *mut libc::dirent, found: *mut *mut libc::dirent) -> c_int
}
exported! { closedir = close: (folder: *mut libc::DIR) -> c_int }
exported! { dirfd = descriptor: (folder: *mut libc::DIR) -> c_int }
exported! { rewinddir = rewind: (folder: *mut libc::DIR) -> () }
exported! { telldir = position: (folder: *mut libc::DIR) -> c_long }
exported! { seekdir = go_to: (folder: *mut libc::DIR, position: c_long) -> () }
exported! {
    scandir scandir64 = scan: (
        path: *const c_char, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare
    ) -> c_int
}
exported! {
    glob glob64 = expand:
        (pattern: *const c_char, flags: c_int, on_error: *mut c_void, found: *mut Glob) -> c_int
}

/// How many folders of the tree may be open at once.
const MOST: usize = 128;

/// A place for an open folder.
struct Place {
    folder: Mutex<Option<OpenFolder>>,
    /// What `readdir` has returned last.
    entry: UnsafeCell<libc::dirent>,
}

// SAFETY: as the C library says, a program calls `readdir` for one folder from one thread at a time.
unsafe impl Sync for Place {}

struct OpenFolder {
    fd: OwnedFd,
    entries: Vec<libc::dirent>,
    next: usize,
}

static PLACES: [Place; MOST] = [const {
    Place {
        folder: Mutex::new(None),
        // SAFETY: numbers.
        entry: UnsafeCell::new(unsafe { mem::zeroed() }),
    }
}; MOST];

/// The place of a folder of the tree; `None` for one of the C library.
#[inline]
fn place(folder: *mut libc::DIR) -> Option<&'static Place> {
    let offset = folder.addr().wrapping_sub(PLACES.as_ptr().addr());
    (offset < size_of_val(&PLACES)).then(|| &PLACES[offset / size_of::<Place>()])
}

/// Opens a folder of the tree; its names and the kernel's are in it. `fd` gives the descriptor, as the last step.
fn open_own(
    path: &str,
    fd: impl FnOnce() -> Result<OwnedFd, Errno>,
) -> Result<*mut libc::DIR, Errno> {
    let entries = entries(path)?;
    for place in &PLACES {
        let mut folder = match place.folder.try_lock() {
            Ok(folder) => folder,
            Err(TryLockError::Poisoned(folder)) => folder.into_inner(),
            // In a forked child the lock may stay locked forever.
            Err(TryLockError::WouldBlock) => continue,
        };
        if folder.is_none() {
            *folder = Some(OpenFolder {
                fd: fd()?,
                entries,
                next: 0,
            });
            return Ok(ptr::from_ref(place).cast_mut().cast());
        }
    }
    Err(Errno::MFILE)
}

/// A descriptor of a folder of the tree.
fn new_descriptor(path: &str) -> Result<OwnedFd, Errno> {
    handle::new(path, &[], 0o755, Inherited::No)
}

/// The entries of a folder by their names, together with the kernel's, which take precedence.
fn entries(path: &str) -> Result<Vec<libc::dirent>, Errno> {
    let mut all = BTreeMap::new();
    for name in [c".", c".."] {
        all.insert(
            name.to_bytes().to_vec(),
            entry(name.to_bytes(), libc::DT_DIR, path),
        );
    }
    for (name, node) in files().entries(path) {
        let kind = match node {
            Node::Folder => libc::DT_DIR,
            Node::File(_) => libc::DT_REG,
            Node::Link(_) => libc::DT_LNK,
            Node::Device(_) => libc::DT_CHR,
        };
        let own = entry(name.as_bytes(), kind, &format!("{path}/{name}"));
        all.insert(name.as_bytes().to_vec(), own);
    }
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    // SAFETY: a C string, and a folder that is open, or null.
    unsafe {
        let folder = next::opendir(path.as_ptr());
        while !folder.is_null() {
            let next = next::readdir64(folder);
            if next.is_null() {
                next::closedir(folder);
                break;
            }
            // The C library's entry may be shorter than the structure.
            let name = CStr::from_ptr((&raw const (*next).d_name).cast()).to_bytes();
            let mut copy = entry(name, (*next).d_type, "");
            copy.d_ino = (*next).d_ino;
            all.insert(name.to_vec(), copy);
        }
    }
    Ok(all.into_values().collect())
}

/// An entry for the file at a path.
fn entry(name: &[u8], kind: u8, path: &str) -> libc::dirent {
    // SAFETY: numbers.
    let mut entry: libc::dirent = unsafe { mem::zeroed() };
    // The last byte stays zero.
    let most = entry.d_name.len() - 1;
    for (place, byte) in entry.d_name[..most].iter_mut().zip(name) {
        *place = *byte as c_char;
    }
    entry.d_ino = inode(path);
    entry.d_reclen = size_of::<libc::dirent>() as u16;
    entry.d_type = kind;
    entry
}

/// # Safety
/// Same as opendir(3).
unsafe fn open(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: the contract of this function.
    let folder = unsafe { next::opendir(path) };
    if !folder.is_null() {
        // SAFETY: the kernel has read the path.
        let Some(shared) = (unsafe { shared_folder(libc::AT_FDCWD, path) }) else {
            return folder;
        };
        // SAFETY: it was opened here.
        unsafe { close(folder) };
        return pointer(|| open_own(shared, || new_descriptor(shared)));
    }
    // SAFETY: the kernel has read the path if it says that nothing is there.
    unsafe {
        otherwise(
            libc::AT_FDCWD,
            path,
            LastLink::Follow,
            folder,
            |seen| match seen {
                Seen::Own(path, Node::Folder) => open_own(path, || new_descriptor(path)),
                Seen::Own(..) => Err(Errno::NOTDIR),
                Seen::Kernel(path) => {
                    let folder = next::opendir(path.as_ptr());
                    match folder.is_null() {
                        true => Err(Errno::of_io(&std::io::Error::last_os_error())),
                        false => Ok(folder),
                    }
                }
            },
        )
    }
}

/// # Safety
/// Same as fdopendir(3).
unsafe fn open_descriptor(fd: c_int) -> *mut libc::DIR {
    // SAFETY: the contract of this function.
    let folder = unsafe { next::fdopendir(fd) };
    if !folder.is_null() {
        return folder;
    }
    let errno = Errno::of_io(&std::io::Error::last_os_error());
    pointer(|| match handle::path_if_any(fd) {
        Some(path) if errno == Errno::NOTDIR => match files().at(&path) {
            Some((path, Node::Folder)) => open_own(path, || {
                // SAFETY: the program gives its descriptor to this function, if it succeeds.
                Ok(unsafe { OwnedFd::from_raw_fd(fd) })
            }),
            _ => Err(errno),
        },
        _ => Err(errno),
    })
}

/// The next entry of a folder of the tree.
fn next_entry(place: &Place) -> Option<libc::dirent> {
    let mut folder = lock(&place.folder);
    let folder = folder.as_mut()?;
    let mut entry = *folder.entries.get(folder.next)?;
    folder.next += 1;
    entry.d_off = folder.next as libc::off_t;
    Some(entry)
}

/// # Safety
/// Same as readdir(3).
unsafe fn read(folder: *mut libc::DIR) -> *mut libc::dirent {
    let Some(place) = place(folder) else {
        // SAFETY: the contract of this function.
        return unsafe { next::readdir64(folder) };
    };
    // SAFETY: as above.
    unsafe { read_own(place) }
}

/// Like [`read`], for a folder of the tree.
///
/// # Safety
/// Same as readdir(3).
#[cold]
#[inline(never)]
unsafe fn read_own(place: &Place) -> *mut libc::dirent {
    plain(ptr::null_mut(), || {
        let Some(entry) = next_entry(place) else {
            return Ok(ptr::null_mut());
        };
        // SAFETY: the program reads the last entry from one thread.
        unsafe { place.entry.get().write(entry) };
        Ok(place.entry.get())
    })
}

/// # Safety
/// Same as readdir_r(3).
unsafe fn read_into(
    folder: *mut libc::DIR,
    entry: *mut libc::dirent,
    found: *mut *mut libc::dirent,
) -> c_int {
    let Some(place) = place(folder) else {
        // SAFETY: the contract of this function.
        return unsafe { next::readdir64_r(folder, entry, found) };
    };
    plain(libc::EIO, || {
        let next = next_entry(place);
        // SAFETY: the contract of this function.
        unsafe {
            found.write(if next.is_some() {
                entry
            } else {
                ptr::null_mut()
            });
            if let Some(next) = next {
                entry.write(next);
            }
        }
        Ok(0)
    })
}

/// # Safety
/// Same as closedir(3).
unsafe fn close(folder: *mut libc::DIR) -> c_int {
    let Some(place) = place(folder) else {
        // SAFETY: the contract of this function.
        return unsafe { next::closedir(folder) };
    };
    minus_one(|| lock(&place.folder).take().map(drop).ok_or(Errno::BADF))
}

/// # Safety
/// Same as dirfd(3).
unsafe fn descriptor(folder: *mut libc::DIR) -> c_int {
    let Some(place) = place(folder) else {
        // SAFETY: the contract of this function.
        return unsafe { next::dirfd(folder) };
    };
    let folder = lock(&place.folder);
    folder.as_ref().map_or(-1, |folder| folder.fd.as_raw_fd())
}

/// # Safety
/// Same as rewinddir(3).
unsafe fn rewind(folder: *mut libc::DIR) {
    match place(folder) {
        // SAFETY: the contract of this function.
        None => unsafe { next::rewinddir(folder) },
        Some(place) => plain((), || {
            // Like the C library, read the directory again.
            if let Some(folder) = &mut *lock(&place.folder) {
                let path = handle::path(folder.fd.as_raw_fd()).ok_or(Errno::BADF)?;
                (folder.entries, folder.next) = (entries(&path)?, 0);
            }
            Ok(())
        }),
    }
}

/// # Safety
/// Same as telldir(3).
unsafe fn position(folder: *mut libc::DIR) -> c_long {
    let Some(place) = place(folder) else {
        // SAFETY: the contract of this function.
        return unsafe { next::telldir(folder) };
    };
    let folder = lock(&place.folder);
    folder.as_ref().map_or(-1, |folder| folder.next as c_long)
}

/// # Safety
/// Same as seekdir(3).
unsafe fn go_to(folder: *mut libc::DIR, position: c_long) {
    match place(folder) {
        // SAFETY: the contract of this function.
        None => unsafe { next::seekdir(folder, position) },
        Some(place) => {
            if let Some(folder) = &mut *lock(&place.folder) {
                folder.next = usize::try_from(position).unwrap_or(0);
            }
        }
    }
}

/// # Safety
/// Same as scandir(3).
unsafe fn scan(
    path: *const c_char,
    list: *mut *mut *mut libc::dirent,
    filter: Filter,
    compare: Compare,
) -> c_int {
    // SAFETY: the path of a folder, as the contract of this function says; the C library reads it.
    let is_own = unsafe { may_lead_here(libc::AT_FDCWD, CStr::from_ptr(path).to_bytes()) };
    if !is_own {
        // SAFETY: the contract of this function.
        return unsafe { next::scandir64(path, list, filter, compare) };
    }
    // SAFETY: as above.
    let folder = unsafe { open(path) };
    if folder.is_null() {
        return -1;
    }
    let mut chosen: Vec<*mut libc::dirent> = Vec::new();
    loop {
        // SAFETY: it is open.
        let next = unsafe { read(folder) };
        if next.is_null() {
            break;
        }
        // SAFETY: a function of the program, with an entry.
        if filter.is_some_and(|filter| unsafe { filter(next) } == 0) {
            continue;
        }
        // SAFETY: an entry, whose length it says; the program frees its copy.
        unsafe {
            let len = usize::from((*next).d_reclen);
            let copy: *mut libc::dirent = libc::malloc(len).cast();
            if !copy.is_null() {
                copy.cast::<u8>().copy_from_nonoverlapping(next.cast(), len);
                chosen.push(copy);
            }
        }
    }
    // SAFETY: it is open.
    unsafe { close(folder) };
    if let Some(compare) = compare {
        chosen.sort_by(|a, b| {
            // SAFETY: a function of the program, with pointers to entries.
            let order = unsafe {
                compare(
                    ptr::from_ref(a).cast_mut().cast(),
                    ptr::from_ref(b).cast_mut().cast(),
                )
            };
            order.cmp(&0)
        });
    }
    // SAFETY: the program frees the array, which may be empty; the contract of this function.
    unsafe {
        let array: *mut *mut libc::dirent =
            libc::malloc(chosen.len().max(1) * size_of::<usize>()).cast();
        if array.is_null() {
            chosen.iter().for_each(|entry| libc::free(entry.cast()));
            set_errno(Errno::NOMEM);
            return -1;
        }
        array.copy_from_nonoverlapping(chosen.as_ptr(), chosen.len());
        list.write(array);
    }
    chosen.len() as c_int
}

/// `glob_t` of glibc, with the functions that `GLOB_ALTDIRFUNC` makes it call.
#[repr(C)]
pub(crate) struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    close: Option<unsafe extern "C-unwind" fn(*mut c_void)>,
    read: Option<unsafe extern "C-unwind" fn(*mut c_void) -> *mut libc::dirent>,
    open: Option<unsafe extern "C-unwind" fn(*const c_char) -> *mut c_void>,
    lstat: Option<unsafe extern "C-unwind" fn(*const c_char, *mut libc::stat) -> c_int>,
    stat: Option<unsafe extern "C-unwind" fn(*const c_char, *mut libc::stat) -> c_int>,
}

/// # Safety
/// Same as glob(3).
unsafe fn expand(
    pattern: *const c_char,
    flags: c_int,
    on_error: *mut c_void,
    found: *mut Glob,
) -> c_int {
    unsafe extern "C-unwind" fn close_any(folder: *mut c_void) {
        // SAFETY: one that `open_any` returned.
        unsafe { close(folder.cast()) };
    }
    unsafe extern "C-unwind" fn read_any(folder: *mut c_void) -> *mut libc::dirent {
        // SAFETY: one that `open_any` returned.
        unsafe { read(folder.cast()) }
    }
    unsafe extern "C-unwind" fn open_any(path: *const c_char) -> *mut c_void {
        // SAFETY: a C string of the C library.
        unsafe { open(path).cast() }
    }
    unsafe extern "C-unwind" fn lstat_any(path: *const c_char, status: *mut libc::stat) -> c_int {
        // SAFETY: a C string and a structure of the C library.
        unsafe { status::lstat(path, status) }
    }
    unsafe extern "C-unwind" fn stat_any(path: *const c_char, status: *mut libc::stat) -> c_int {
        // SAFETY: as above.
        unsafe { status::stat(path, status) }
    }
    /// `GLOB_ALTDIRFUNC`.
    const OTHER_FUNCTIONS: c_int = 1 << 9;
    // SAFETY: the contract of this function.
    let is_own = unsafe { may_lead_here(libc::AT_FDCWD, CStr::from_ptr(pattern).to_bytes()) };
    if !is_own || flags & OTHER_FUNCTIONS != 0 {
        // SAFETY: the contract of this function.
        return unsafe { next::glob64(pattern, flags, on_error, found) };
    }
    // SAFETY: the contract of this function; the functions are those that the C library would call.
    unsafe {
        (*found).close = Some(close_any);
        (*found).read = Some(read_any);
        (*found).open = Some(open_any);
        (*found).lstat = Some(lstat_any);
        (*found).stat = Some(stat_any);
        next::glob64(pattern, flags | OTHER_FUNCTIONS, on_error, found)
    }
}
