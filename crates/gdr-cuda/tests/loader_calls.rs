//! How often the loader is called for CUDA's driver. In a test binary of its own, which counts calls of `dlopen`.

#![allow(missing_docs, reason = "a test")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::mem;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use gdr_cuda::Cuda;

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Counts the call, and calls the C library's function.
///
/// # Safety
/// As the C library's function requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the argument is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    assert!(!next.is_null());
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: the function of this name has this type.
    let next: Dlopen = unsafe { mem::transmute(next) };
    // SAFETY: passes on the caller's arguments.
    unsafe { next(file, flags) }
}

/// Returns how often a thousand queries call the loader.
fn calls_of_a_thousand_questions() -> u32 {
    let before = CALLS.load(Ordering::Relaxed);
    for _ in 0..1000 {
        assert!(matches!(Cuda::of_process(), Ok(None)));
    }
    CALLS.load(Ordering::Relaxed) - before
}

/// Returns a library with the name of CUDA's driver and none of its functions.
fn namesake() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("the map of this process");
    let library = maps
        .split_whitespace()
        .find(|it| it.contains("/libgcc_s.so"));
    let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libcuda.so.1");
    fs::copy(library.expect("a library of this program"), &copy).expect("a copy");
    copy
}

#[test]
fn the_loader_is_asked_only_where_a_library_with_the_drivers_name_was_loaded() {
    assert_eq!(calls_of_a_thousand_questions(), 0);
    let file = CString::new(namesake().into_os_string().into_vec()).expect("a path");
    // SAFETY: a library that this program has already loaded, under another name.
    assert!(!unsafe { dlopen(file.as_ptr(), libc::RTLD_NOW) }.is_null());
    assert_eq!(calls_of_a_thousand_questions(), 1);
    assert_eq!(calls_of_a_thousand_questions(), 0);
}
