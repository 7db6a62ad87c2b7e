//! Access to memory that a GPU, another thread or another mapping may use at the same time.
//!
//! Such memory never belongs to a Rust allocation (the kernel or the GPU driver mapped it) and no
//! reference to its bytes is ever made. Bulk bytes move by volatile accesses, so a concurrent
//! writer can tear what is read but the compiler can assume nothing about it; flags are atomics,
//! so what was written before a flag is seen after it.

use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};

const WORD: usize = size_of::<u64>();

/// Copies `bytes` to `dst`, in whole aligned words where `dst` allows.
///
/// # Safety
/// `dst` is valid for writes of `bytes.len()` bytes and lies outside every Rust allocation.
pub(crate) unsafe fn store(dst: *mut u8, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(dst.align_offset(WORD).min(bytes.len()));
    for (i, byte) in head.iter().enumerate() {
        // SAFETY: i < head.len() <= bytes.len(), inside what the caller vouches for.
        unsafe { ptr::write_volatile(dst.add(i), *byte) };
    }
    // SAFETY: head.len() <= bytes.len(): at most one past the range.
    let body = unsafe { dst.add(head.len()) };
    let (words, tail) = rest.as_chunks::<WORD>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: inside the range, and 8-byte aligned because `head` ends at an aligned address
        // whenever anything follows it.
        unsafe { ptr::write_volatile(body.cast::<u64>().add(i), u64::from_ne_bytes(*word)) };
    }
    for (i, byte) in tail.iter().enumerate() {
        // SAFETY: the last `tail.len()` bytes of the range.
        unsafe { ptr::write_volatile(body.add(words.len() * WORD + i), *byte) };
    }
}

/// Copies `bytes.len()` bytes at `src` into `bytes`, in whole aligned words where `src` allows.
///
/// # Safety
/// `src` is valid for reads of `bytes.len()` bytes and lies outside every Rust allocation.
pub(crate) unsafe fn load(src: *const u8, bytes: &mut [u8]) {
    let (head, rest) = bytes.split_at_mut(src.align_offset(WORD).min(bytes.len()));
    for (i, byte) in head.iter_mut().enumerate() {
        // SAFETY: i < head.len() <= bytes.len(), inside what the caller vouches for.
        *byte = unsafe { ptr::read_volatile(src.add(i)) };
    }
    // SAFETY: head.len() <= bytes.len(): at most one past the range.
    let body = unsafe { src.add(head.len()) };
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: inside the range, and 8-byte aligned because `head` ends at an aligned address
        // whenever anything follows it.
        *word = unsafe { ptr::read_volatile(body.cast::<u64>().add(i)) }.to_ne_bytes();
    }
    let done = words.len() * WORD;
    for (i, byte) in tail.iter_mut().enumerate() {
        // SAFETY: the last `tail.len()` bytes of the range.
        *byte = unsafe { ptr::read_volatile(body.add(done + i)) };
    }
}

/// A 32-bit flag in such memory.
///
/// # Safety
/// `ptr` is 4-byte aligned and valid for reads and writes for all of `'a`.
pub(crate) unsafe fn flag<'a>(ptr: *mut u8) -> &'a AtomicU32 {
    // SAFETY: the caller's promise; an atomic tolerates other accesses to its bytes.
    unsafe { AtomicU32::from_ptr(ptr.cast()) }
}

/// A 64-bit counter in such memory.
///
/// # Safety
/// `ptr` is 8-byte aligned and valid for reads and writes for all of `'a`.
pub(crate) unsafe fn counter<'a>(ptr: *mut u8) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; an atomic tolerates other accesses to its bytes.
    unsafe { AtomicU64::from_ptr(ptr.cast()) }
}
