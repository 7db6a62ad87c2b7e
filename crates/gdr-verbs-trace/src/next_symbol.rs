//! Finds functions of the real library, and the C library's `dlsym` and `dlvsym`.

use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::c_library;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Returns the function that linked programs would call without this library; null if there is none.
pub(crate) fn behind_this_library(name: &CStr, version: &CStr) -> *mut c_void {
    let versioned = real_dlvsym().map(|find| {
        // SAFETY: C strings.
        unsafe { find(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
    });
    if let Some(found) = versioned
        && !found.is_null()
    {
        return found;
    }
    // Accept another version: all versions known to this library have the same function.
    let found = real_dlsym().map_or(ptr::null_mut(), |find| {
        // SAFETY: a C string.
        unsafe { find(libc::RTLD_NEXT, name.as_ptr()) }
    });
    // The program must not find this error when it asks for its own.
    // SAFETY: it returns a text of this thread, which is not used.
    unsafe { libc::dlerror() };
    found
}

/// Returns the C library's `dlsym`.
pub(crate) fn real_dlsym() -> Option<Dlsym> {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: null or the address of a function of this type.
    unsafe { mem::transmute(of_c_library(&REAL, c"dlsym")) }
}

/// Returns the C library's `dlvsym`.
pub(crate) fn real_dlvsym() -> Option<Dlvsym> {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: null or the address of a function of this type.
    unsafe { mem::transmute(of_c_library(&REAL, c"dlvsym")) }
}

/// Finds both when this library is loaded, so that later lookups of the program, particularly in a forked child, do not
/// involve the loader.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = find_both;

extern "C" fn find_both() {
    let _found = (real_dlsym(), real_dlvsym());
}

fn of_c_library(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let address = known.load(Ordering::Acquire);
    if !address.is_null() {
        return address;
    }
    let found = c_library::function(name);
    known.store(found, Ordering::Release);
    found
}
