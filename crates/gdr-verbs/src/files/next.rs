//! The functions of the C library that this library replaces.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::listing::Glob;
use crate::errno::Errno;
use crate::ret::set_errno;

/// `int (*)(const struct dirent **, const struct dirent **)`.
pub(crate) type Compare = Option<
    unsafe extern "C-unwind" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int,
>;
/// `int (*)(const struct dirent *)`.
pub(crate) type Filter = Option<unsafe extern "C-unwind" fn(*const libc::dirent) -> c_int>;

/// A function that the C library does not have fails with `ENOSYS`.
fn missing<T>(result: T) -> T {
    set_errno(Errno::NOSYS);
    result
}

/// Functions by their names and what they return where the C library has none, and one that finds all of them.
/// An address is the one of a function that finds it, until it is found, so that a call needs no comparison.
macro_rules! functions {
    ($($name:ident: ($($argument:ident: $type:ty),*) -> $result:ty, $missing:expr;)*) => {
        mod first {
            use super::*;
            $(
                #[cold]
                pub(super) unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                    find_all();
                    if address::$name.load(Ordering::Relaxed) == $name as *mut c_void {
                        return $missing;
                    }
                    // SAFETY: the contract of this function.
                    unsafe { super::$name($($argument),*) }
                }
            )*
        }

        #[expect(non_upper_case_globals, reason = "the names of functions")]
        mod address {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(first::$name as *mut c_void);)*
        }

        $(
            /// Calls the function of the C library.
            ///
            /// # Safety
            /// As of that function.
            #[inline(always)]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                let address = address::$name.load(Ordering::Relaxed);
                // SAFETY: the function of this name, which has this type, or the one of `first`. `open` and `openat`
                // take their third argument as if it were not optional: on the architectures of this library an
                // integer is passed alike in both ways.
                let function = unsafe {
                    mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(address)
                };
                // SAFETY: the contract of this function.
                unsafe { function($($argument),*) }
            }
        )*

        extern "C" fn find_all() {
            static IS_DONE: AtomicBool = AtomicBool::new(false);
            // A thread that sees this flag also sees the addresses.
            if IS_DONE.load(Ordering::Acquire) {
                return;
            }
            for (address, name) in [$((&address::$name, concat!(stringify!($name), "\0"))),*] {
                // SAFETY: a C string.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
                if !found.is_null() {
                    address.store(found, Ordering::Relaxed);
                }
            }
            IS_DONE.store(true, Ordering::Release);
        }
    };
}

functions! {
    open64: (path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, missing(-1);
    openat64: (folder: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, missing(-1);
    fopen64: (path: *const c_char, mode: *const c_char) -> *mut libc::FILE, missing(ptr::null_mut());
    opendir: (path: *const c_char) -> *mut libc::DIR, missing(ptr::null_mut());
    fdopendir: (fd: c_int) -> *mut libc::DIR, missing(ptr::null_mut());
    readdir64: (folder: *mut libc::DIR) -> *mut libc::dirent, missing(ptr::null_mut());
    readdir64_r: (folder: *mut libc::DIR, entry: *mut libc::dirent, found: *mut *mut libc::dirent) -> c_int,
        libc::ENOSYS;
    closedir: (folder: *mut libc::DIR) -> c_int, missing(-1);
    dirfd: (folder: *mut libc::DIR) -> c_int, missing(-1);
    rewinddir: (folder: *mut libc::DIR) -> (), missing(());
    telldir: (folder: *mut libc::DIR) -> c_long, missing(-1);
    seekdir: (folder: *mut libc::DIR, position: c_long) -> (), missing(());
    scandir64: (path: *const c_char, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare) -> c_int, missing(-1);
    glob64: (pattern: *const c_char, flags: c_int, on_error: *mut c_void, found: *mut Glob) -> c_int,
        missing(libc::GLOB_ABORTED);
    // Older C libraries have this function under another name.
    fstatat64: (folder: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int,
        // SAFETY: the contract of this function.
        unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, status, flags) as c_int };
    access: (path: *const c_char, mode: c_int) -> c_int, missing(-1);
    faccessat: (folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, missing(-1);
    realpath: (path: *const c_char, room: *mut c_char) -> *mut c_char, missing(ptr::null_mut());
    getcwd: (room: *mut c_char, size: usize) -> *mut c_char, missing(ptr::null_mut());
    get_current_dir_name: () -> *mut c_char, missing(ptr::null_mut());
    write: (fd: c_int, bytes: *const c_void, len: usize) -> isize, missing(-1);
    read: (fd: c_int, room: *mut c_void, len: usize) -> isize, missing(-1);
    close: (fd: c_int) -> c_int, missing(-1);
    socket: (domain: c_int, kind: c_int, protocol: c_int) -> c_int, missing(-1);
    send: (fd: c_int, bytes: *const c_void, len: usize, flags: c_int) -> isize, missing(-1);
    sendto: (fd: c_int, bytes: *const c_void, len: usize, flags: c_int, to: *const libc::sockaddr, to_len: libc::socklen_t)
        -> isize, missing(-1);
    sendmsg: (fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize, missing(-1);
    dup: (fd: c_int) -> c_int, missing(-1);
    dup2: (fd: c_int, to: c_int) -> c_int, missing(-1);
    dup3: (fd: c_int, to: c_int, flags: c_int) -> c_int, missing(-1);
    __readlink_chk: (path: *const c_char, room: *mut c_char, size: usize, whole: usize) -> isize, missing(-1);
}

/// Finds all functions when this library is loaded: later calls do not ask the loader, in a signal handler and
/// in a forked child in particular. Constructors of other libraries may run before.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = find_all;
