//! Copies between Rust memory and memory that a GPU, a NIC, another thread or another mapping may use at the same time.
//!
//! Such memory never belongs to a Rust allocation (the Linux kernel or the GPU driver mapped it), and no reference to
//! its bytes is ever created. Bytes are copied by volatile accesses: a concurrent writer can tear the data that is
//! read, but the compiler assumes nothing about it. A copy of 1, 2, 4 or 8 bytes at an address that is a multiple of
//! its size is a single access, so it is never torn.
//!
//! The copies are not ordered, neither among themselves nor with other accesses. A caller that publishes data needs a
//! fence or a release store after writing it; a caller that reads published data needs an acquire load first. For
//! memory of a PCIe BAR, use the routines of gdr-copy, which respect its line size and contain its fences.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};

const WORD: usize = size_of::<u64>();

/// Copies `bytes` to `dst` in ascending order, in aligned 8-byte words if `dst` permits.
///
/// # Safety
/// `dst` is valid for volatile writes of `bytes.len()` bytes, to which there are no references (so they do not overlap
/// `bytes`). If the memory lies outside every Rust allocation, other threads, processes and devices may access it at
/// the same time.
#[inline]
pub unsafe fn write(dst: *mut u8, bytes: &[u8]) {
    match *bytes {
        [a, b] if dst.cast::<u16>().is_aligned() => {
            // SAFETY: two bytes of the caller's range, aligned.
            return unsafe { ptr::write_volatile(dst.cast(), u16::from_ne_bytes([a, b])) };
        }
        [a, b, c, d] if dst.cast::<u32>().is_aligned() => {
            // SAFETY: four bytes of the caller's range, aligned.
            return unsafe { ptr::write_volatile(dst.cast(), u32::from_ne_bytes([a, b, c, d])) };
        }
        _ => {}
    }
    let (head, rest) = bytes.split_at(dst.align_offset(WORD).min(bytes.len()));
    for (i, byte) in head.iter().enumerate() {
        // SAFETY: i < head.len() <= bytes.len(), in the caller's range.
        unsafe { ptr::write_volatile(dst.add(i), *byte) };
    }
    // SAFETY: head.len() <= bytes.len(), so this is at most one past the range.
    let body = unsafe { dst.add(head.len()) };
    let (words, tail) = rest.as_chunks::<WORD>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: inside the range, and 8-byte aligned because `head` ends at an aligned address whenever anything
        // follows it.
        unsafe { ptr::write_volatile(body.cast::<u64>().add(i), u64::from_ne_bytes(*word)) };
    }
    for (i, byte) in tail.iter().enumerate() {
        // SAFETY: the last `tail.len()` bytes of the range.
        unsafe { ptr::write_volatile(body.add(words.len() * WORD + i), *byte) };
    }
}

/// Copies `bytes.len()` bytes at `src` into `bytes` in ascending order, in aligned 8-byte words if `src` permits.
///
/// # Safety
/// `src` is valid for volatile reads of `bytes.len()` bytes, to which there are no mutable references (so they do not
/// overlap `bytes`). If the memory lies outside every Rust allocation, other threads, processes and devices may access
/// it at the same time.
#[inline]
pub unsafe fn read(src: *const u8, bytes: &mut [u8]) {
    match bytes.len() {
        2 if src.cast::<u16>().is_aligned() => {
            // SAFETY: two bytes of the caller's range, aligned.
            let value = unsafe { ptr::read_volatile(src.cast::<u16>()) };
            return bytes.copy_from_slice(&value.to_ne_bytes());
        }
        4 if src.cast::<u32>().is_aligned() => {
            // SAFETY: four bytes of the caller's range, aligned.
            let value = unsafe { ptr::read_volatile(src.cast::<u32>()) };
            return bytes.copy_from_slice(&value.to_ne_bytes());
        }
        _ => {}
    }
    let (head, rest) = bytes.split_at_mut(src.align_offset(WORD).min(bytes.len()));
    for (i, byte) in head.iter_mut().enumerate() {
        // SAFETY: i < head.len() <= bytes.len(), in the caller's range.
        *byte = unsafe { ptr::read_volatile(src.add(i)) };
    }
    // SAFETY: head.len() <= bytes.len(), so this is at most one past the range.
    let body = unsafe { src.add(head.len()) };
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: inside the range, and 8-byte aligned because `head` ends at an aligned address whenever anything
        // follows it.
        *word = unsafe { ptr::read_volatile(body.cast::<u64>().add(i)) }.to_ne_bytes();
    }
    let done = words.len() * WORD;
    for (i, byte) in tail.iter_mut().enumerate() {
        // SAFETY: the last `tail.len()` bytes of the range.
        *byte = unsafe { ptr::read_volatile(body.add(done + i)) };
    }
}

/// Returns a 32-bit flag in such memory.
///
/// # Safety
/// `ptr` is 4-byte aligned and valid for reads and writes for all of `'a`.
pub(crate) unsafe fn flag<'a>(ptr: *mut u8) -> &'a AtomicU32 {
    // SAFETY: the caller's promise; an atomic tolerates other accesses to its bytes.
    unsafe { AtomicU32::from_ptr(ptr.cast()) }
}

/// Returns a 64-bit counter in such memory.
///
/// # Safety
/// `ptr` is 8-byte aligned and valid for reads and writes for all of `'a`.
pub(crate) unsafe fn counter<'a>(ptr: *mut u8) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; an atomic tolerates other accesses to its bytes.
    unsafe { AtomicU64::from_ptr(ptr.cast()) }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    #[test]
    fn every_small_range_is_copied_exactly_at_every_alignment() {
        let source: [u8; 40] = std::array::from_fn(|i| i as u8 + 1);
        for offset in 0..16 {
            for len in 0..=source.len() {
                let memory = UnsafeCell::new([0_u64; 8]);
                let start = memory.get().cast::<u8>();
                let mut back = [0; 40];
                // SAFETY: `offset + len` is at most 56 of the cell's 64 bytes. The cell stands for memory outside of
                // Rust: only this function accesses it, by its raw pointer.
                unsafe {
                    write(start.add(offset), &source[..len]);
                    read(start.add(offset), &mut back[..len]);
                }
                assert_eq!(back[..len], source[..len], "{len} bytes at {offset}");
                assert!(back[len..].iter().all(|byte| *byte == 0));
                let bytes = memory.into_inner().map(u64::to_ne_bytes).concat();
                let written = bytes.iter().filter(|byte| **byte != 0).count();
                assert_eq!(written, len, "{len} bytes at {offset}");
            }
        }
    }
}
