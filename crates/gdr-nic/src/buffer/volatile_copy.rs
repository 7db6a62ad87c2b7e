//! Copies to and from memory that the program, the engine and the network access at the same time.
//!
//! There are no references to the bytes of such memory. They are copied by a string instruction or
//! by volatile words, so a concurrent writer can tear what is read, but the compiler assumes nothing
//! about it. A copy of 1, 2, 4 or 8 bytes to or from a multiple of its own size is never torn, and a
//! thread that sees the last byte of one by an acquiring load sees all of it.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::sync::atomic::{Ordering, fence};

use gdr_cuda::volatile;

const WORD: usize = size_of::<u64>();

/// The length in bytes from which on the string instruction is faster than words, although its
/// start-up is slow.
#[cfg(target_arch = "x86_64")]
const STRING: usize = 256;

/// Copies `bytes` to shared memory, the last word after all others.
///
/// # Safety
/// `dst` is valid for writes of `bytes.len()` bytes, to which there are no references.
#[inline]
pub(super) unsafe fn store(dst: *mut u8, bytes: &[u8]) {
    let (body, tail) = bytes.split_at(bytes.len() - last_word(dst, bytes.len()));
    if !body.is_empty() {
        // SAFETY: the first part of the caller's range.
        unsafe { store_body(dst, body) };
        // aarch64 does not order stores. A string instruction does not order its own stores either,
        // but a store of a later instruction comes after all of them (Intel SDM volume 3,
        // "Fast-String Operation and Out-of-Order Stores"), and there the fence costs nothing.
        fence(Ordering::Release);
    }
    // SAFETY: body.len() <= bytes.len(): in range, or one past it where nothing is left.
    unsafe { volatile::write(dst.add(body.len()), tail) };
}

/// Returns how many of `len` bytes lie in the last memory word that they reach.
#[inline]
pub(crate) fn last_word(dst: *mut u8, len: usize) -> usize {
    let end = dst.addr() + len;
    (end.wrapping_sub(1) % WORD + 1).min(len)
}

/// # Safety
/// Same as [`store`].
#[inline]
unsafe fn store_body(dst: *mut u8, bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING {
        // SAFETY: the caller's promise about `dst`; `bytes` is readable and does not overlap it, as
        // there is no reference to the latter.
        unsafe { move_string(dst, bytes.as_ptr(), bytes.len()) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { volatile::write(dst, bytes) }
}

/// Copies shared memory into all of `bytes`.
///
/// # Safety
/// `src` is valid for reads of `bytes.len()` bytes, to which there are no mutable references.
#[inline]
pub(crate) unsafe fn load(src: *const u8, bytes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING {
        // SAFETY: the caller's promise about `src`; `bytes` is writable and does not overlap it, as
        // there is a mutable reference to the former.
        unsafe { move_string(bytes.as_mut_ptr(), src, bytes.len()) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { volatile::read(src, bytes) }
}

/// Copies memory that is shared at both ends, the last word after all others.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, to which there are no references, and they do not
/// overlap.
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let last = last_word(dst, len);
    let body = len - last;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first part of the caller's ranges.
    unsafe {
        move_string(dst, src, body);
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in (0..body).step_by(256) {
        let mut piece = [0; 256];
        let piece = &mut piece[..(body - at).min(256)];
        // SAFETY: inside the first part of the caller's ranges.
        unsafe {
            volatile::read(src.add(at), piece);
            volatile::write(dst.add(at), piece);
        }
    }
    // As in `store`.
    fence(Ordering::Release);
    let mut word = [0; WORD];
    // SAFETY: the rest of the caller's ranges.
    unsafe {
        volatile::read(src.add(body), &mut word[..last]);
        volatile::write(dst.add(body), &word[..last]);
    }
}

/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn move_string(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise covers what the instruction reads and writes; the ABI keeps
    // the direction flag clear. To the compiler it is opaque, as accesses to shared memory must be.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags)
        );
    }
}
