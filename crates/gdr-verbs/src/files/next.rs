//! The functions of the C library that this library replaces.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `int (*)(const struct dirent **, const struct dirent **)`.
pub(crate) type Compare = Option<
    unsafe extern "C-unwind" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int,
>;
/// `int (*)(const struct dirent *)`.
pub(crate) type Filter = Option<unsafe extern "C-unwind" fn(*const libc::dirent) -> c_int>;

/// Functions by their names, and one that finds all of them.
macro_rules! functions {
    ($($name:ident: ($($type:ty),*) -> $result:ty;)*) => {
        $(
            /// The function of the C library; `None` if it has none.
            #[inline]
            pub(crate) fn $name() -> Option<unsafe extern "C-unwind" fn($($type),*) -> $result> {
                static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                let mut address = ADDRESS.load(Ordering::Relaxed);
                if address.is_null() {
                    address = find(&ADDRESS, NAME);
                }
                // SAFETY: null, or the function of this name, which has this type. `open` and `openat` take
                // their third argument as if it were not optional: on the architectures of this library an
                // integer is passed alike in both ways.
                unsafe { mem::transmute(address) }
            }
        )*

        extern "C" fn find_all() {
            $($name();)*
        }
    };
}

functions! {
    open64: (*const c_char, c_int, libc::mode_t) -> c_int;
    openat64: (c_int, *const c_char, c_int, libc::mode_t) -> c_int;
    fopen64: (*const c_char, *const c_char) -> *mut libc::FILE;
    opendir: (*const c_char) -> *mut libc::DIR;
    fdopendir: (c_int) -> *mut libc::DIR;
    readdir64: (*mut libc::DIR) -> *mut libc::dirent;
    readdir64_r: (*mut libc::DIR, *mut libc::dirent, *mut *mut libc::dirent) -> c_int;
    closedir: (*mut libc::DIR) -> c_int;
    dirfd: (*mut libc::DIR) -> c_int;
    rewinddir: (*mut libc::DIR) -> ();
    telldir: (*mut libc::DIR) -> c_long;
    seekdir: (*mut libc::DIR, c_long) -> ();
    scandir64: (*const c_char, *mut *mut *mut libc::dirent, Filter, Compare) -> c_int;
    glob64: (*const c_char, c_int, *mut c_void, *mut super::listing::Glob) -> c_int;
    faccessat: (c_int, *const c_char, c_int, c_int) -> c_int;
    realpath: (*const c_char, *mut c_char) -> *mut c_char;
    getcwd: (*mut c_char, usize) -> *mut c_char;
    get_current_dir_name: () -> *mut c_char;
    write: (c_int, *const c_void, usize) -> isize;
    read: (c_int, *mut c_void, usize) -> isize;
    close: (c_int) -> c_int;
    dup: (c_int) -> c_int;
    dup2: (c_int, c_int) -> c_int;
    dup3: (c_int, c_int, c_int) -> c_int;
    __readlink_chk: (*const c_char, *mut c_char, usize, usize) -> isize;
}

/// Finds all functions when this library is loaded: later calls do not ask the loader, in a signal handler and
/// in a forked child in particular. Constructors of other libraries may run before.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = find_all;

#[cold]
fn find(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    known.store(found, Ordering::Relaxed);
    found
}
