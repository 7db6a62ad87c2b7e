//! Bytes that this program, the engine and the network use at the same time.
//!
//! Such memory was mapped by the kernel, belongs to no Rust allocation, and no reference to its
//! bytes is ever made. Bulk bytes move by a string instruction or by volatile words, so a
//! concurrent writer can tear what is read but the compiler can assume nothing about it. A copy
//! of 1, 2, 4 or 8 bytes to or from a multiple of its own size is never torn, and who sees the last
//! byte of one by an acquiring load sees all of it.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::ptr;
use std::sync::atomic::{Ordering, fence};

const WORD: usize = size_of::<u64>();

/// From this length on the string instruction outruns words, although it starts slowly; bytes.
#[cfg(target_arch = "x86_64")]
const STRING: usize = 256;

/// Copies `bytes` to shared memory, the last word after all others.
///
/// # Safety
/// `dst` is valid for writes of `bytes.len()` bytes and lies outside every Rust allocation.
#[inline]
pub(super) unsafe fn store(dst: *mut u8, bytes: &[u8]) {
    let end = dst.addr() + bytes.len();
    let last = (end.wrapping_sub(1) % WORD + 1).min(bytes.len());
    let (body, tail) = bytes.split_at(bytes.len() - last);
    if !body.is_empty() {
        // SAFETY: the first part of the caller's range.
        unsafe { store_body(dst, body) };
        // aarch64 keeps no stores in order. A string instruction does not keep its own in order
        // either, but a store of another instruction comes after all of them (Intel SDM volume 3,
        // "Fast-String Operation and Out-of-Order Stores"), and there the fence costs nothing.
        fence(Ordering::Release);
    }
    // SAFETY: body.len() <= bytes.len(): in range, or one past it where nothing is left.
    unsafe { store_words(dst.add(body.len()), tail) };
}

/// # Safety
/// As [`store`].
#[inline]
unsafe fn store_body(dst: *mut u8, bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING {
        // SAFETY: the caller's promise about `dst`; `bytes` is readable and, being Rust's, apart.
        unsafe { move_string(dst, bytes.as_ptr(), bytes.len()) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { store_words(dst, bytes) }
}

/// Copies shared memory into all of `bytes`.
///
/// # Safety
/// `src` is valid for reads of `bytes.len()` bytes and lies outside every Rust allocation.
#[inline]
pub(super) unsafe fn load(src: *const u8, bytes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING {
        // SAFETY: the caller's promise about `src`; `bytes` is writable and, being Rust's, apart.
        unsafe { move_string(bytes.as_mut_ptr(), src, bytes.len()) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { load_words(src, bytes) }
}

/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn move_string(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise covers what the instruction reads and writes; the ABI leaves
    // the direction flag clear. To the compiler it is opaque, as memory that others share must be.
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

/// # Safety
/// As [`store`].
unsafe fn store_words(dst: *mut u8, bytes: &[u8]) {
    if let Ok(&half) = <&[u8; 4]>::try_from(bytes)
        && dst.cast::<u32>().is_aligned()
    {
        // SAFETY: four bytes of the caller's range, aligned.
        return unsafe { ptr::write_volatile(dst.cast(), u32::from_ne_bytes(half)) };
    }
    if let Ok(&quarter) = <&[u8; 2]>::try_from(bytes)
        && dst.cast::<u16>().is_aligned()
    {
        // SAFETY: two bytes of the caller's range, aligned.
        return unsafe { ptr::write_volatile(dst.cast(), u16::from_ne_bytes(quarter)) };
    }
    let (head, rest) = bytes.split_at(dst.align_offset(WORD).min(bytes.len()));
    for (i, byte) in head.iter().enumerate() {
        // SAFETY: i < bytes.len(), inside the caller's range.
        unsafe { ptr::write_volatile(dst.add(i), *byte) };
    }
    // SAFETY: head.len() <= bytes.len(): at most one past the range.
    let body = unsafe { dst.add(head.len()) };
    let (words, tail) = rest.as_chunks::<WORD>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: inside the range, and aligned because `head` ends at an aligned address whenever
        // anything follows it.
        unsafe { ptr::write_volatile(body.cast::<u64>().add(i), u64::from_ne_bytes(*word)) };
    }
    for (i, byte) in tail.iter().enumerate() {
        // SAFETY: the last bytes of the range.
        unsafe { ptr::write_volatile(body.add(words.len() * WORD + i), *byte) };
    }
}

/// # Safety
/// As [`load`].
unsafe fn load_words(src: *const u8, bytes: &mut [u8]) {
    match bytes.len() {
        4 if src.cast::<u32>().is_aligned() => {
            // SAFETY: four bytes of the caller's range, aligned.
            let half = unsafe { ptr::read_volatile(src.cast::<u32>()) };
            return bytes.copy_from_slice(&half.to_ne_bytes());
        }
        2 if src.cast::<u16>().is_aligned() => {
            // SAFETY: two bytes of the caller's range, aligned.
            let quarter = unsafe { ptr::read_volatile(src.cast::<u16>()) };
            return bytes.copy_from_slice(&quarter.to_ne_bytes());
        }
        _ => {}
    }
    let (head, rest) = bytes.split_at_mut(src.align_offset(WORD).min(bytes.len()));
    for (i, byte) in head.iter_mut().enumerate() {
        // SAFETY: i < bytes.len(), inside the caller's range.
        *byte = unsafe { ptr::read_volatile(src.add(i)) };
    }
    // SAFETY: head.len() <= bytes.len(): at most one past the range.
    let body = unsafe { src.add(head.len()) };
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: inside the range, and aligned because `head` ends at an aligned address whenever
        // anything follows it.
        *word = unsafe { ptr::read_volatile(body.cast::<u64>().add(i)) }.to_ne_bytes();
    }
    let done = words.len() * WORD;
    for (i, byte) in tail.iter_mut().enumerate() {
        // SAFETY: the last bytes of the range.
        *byte = unsafe { ptr::read_volatile(body.add(done + i)) };
    }
}
