//! `dlsym` and `dlvsym`, whose results replace the real functions by the counted ones.
//!
//! Programs such as NCCL load libibverbs by name and look its functions up, bypassing preloaded libraries. This library
//! therefore exports both functions. It passes calls on with a jump, so that the C library sees the caller's address,
//! which `RTLD_NEXT` depends on.
//!
//! The C library's own functions cannot be looked up by name, because that finds these. They are read from the symbol
//! table of the loaded C library ([`crate::c_library`]).

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use crate::exports::replacement;
use crate::nesting::{keep_errno, quietly};
use crate::next_symbol::{real_dlsym, real_dlvsym};

/// Result of a lookup.
#[repr(C)]
struct Answer {
    /// The result for the program, unless it is null.
    replacement: *const c_void,
    /// Otherwise, the function that makes the lookup.
    real: *const c_void,
}

/// Calls `$decide` with the arguments of a lookup, and returns its result or jumps to the function that it names.
macro_rules! lookup_function {
    ($name:ident, $decide:ident, ($($argument:ident: $type:ty),*)) => {
        /// # Safety
        /// As for the function of the C library.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "call {decide}",
                "mov r11, rdx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "jne 2f",
                "jmp r11",
                "2:",
                "ret",
                decide = sym $decide,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {decide}",
                "mov x9, x0",
                "mov x16, x1",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                "cbnz x9, 2f",
                "br x16",
                "2:",
                "mov x0, x9",
                "ret",
                decide = sym $decide,
            );
        }
    };
}

lookup_function!(dlsym, decide_dlsym, (handle: *mut c_void, name: *const c_char));
lookup_function!(
    dlvsym,
    decide_dlvsym,
    (handle: *mut c_void, name: *const c_char, version: *const c_char)
);

/// # Safety
/// The arguments are `dlsym`'s.
unsafe extern "C" fn decide_dlsym(handle: *mut c_void, name: *const c_char) -> Answer {
    let Some(real) = real_dlsym() else {
        return Answer::of(missing as *const c_void);
    };
    // SAFETY: the arguments of the caller.
    let find = || unsafe { real(handle, name) };
    // SAFETY: `name` is a C string by contract.
    let replacement = unsafe { replaced(handle, name, find) };
    Answer {
        replacement,
        ..Answer::of(real as *const c_void)
    }
}

/// # Safety
/// The arguments are `dlvsym`'s.
unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> Answer {
    let Some(real) = real_dlvsym() else {
        return Answer::of(missing as *const c_void);
    };
    // SAFETY: the arguments of the caller.
    let find = || unsafe { real(handle, name, version) };
    // SAFETY: `name` is a C string by contract.
    let replacement = unsafe { replaced(handle, name, find) };
    Answer {
        replacement,
        ..Answer::of(real as *const c_void)
    }
}

impl Answer {
    /// Returns the answer of another function.
    fn of(real: *const c_void) -> Self {
        Self {
            replacement: ptr::null(),
            real,
        }
    }
}

/// Stands in for a lookup function that the C library lacks, and finds nothing.
extern "C" fn missing() -> *mut c_void {
    ptr::null_mut()
}

/// Returns the replacement for a function that `find` finds; null if it is not counted.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn replaced(
    handle: *mut c_void,
    name: *const c_char,
    find: impl FnOnce() -> *mut c_void,
) -> *const c_void {
    // These two depend on the caller's address, and search preloaded libraries first.
    if handle.is_null() || handle == libc::RTLD_NEXT || name.is_null() {
        return ptr::null();
    }
    // SAFETY: a C string by contract.
    let name = unsafe { CStr::from_ptr(name) };
    let bytes = name.to_bytes();
    if !bytes.starts_with(b"ibv_") && !bytes.starts_with(b"mlx5dv_") {
        return ptr::null();
    }
    let found = find();
    if found.is_null() {
        return ptr::null();
    }
    quietly(|| keep_errno(|| replacement(name, found)))
        .flatten()
        .unwrap_or(ptr::null())
}
