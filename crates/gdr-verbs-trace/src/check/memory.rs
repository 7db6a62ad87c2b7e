//! The program's memory, read as it is: the program, its peers and devices may write to it meanwhile.

use std::ptr;

use gdr_check::{Checksum, Memory};

use crate::caller_memory;

/// The memory of this process.
pub(super) struct OwnMemory;

/// The bytes that are summed at once.
const BLOCK: usize = 4096;
/// Of longer segments one block of four is summed: a program that reuses a buffer writes to most of it.
const ALL_BLOCKS: u32 = 32 << 10;

/// Whether the first and the last byte of a range can be read. Memory of a GPU may be in ranges of addresses
/// that are mapped without any right.
pub(super) fn is_readable(address: u64, len: u64) -> bool {
    let Some(last) = len.checked_sub(1) else {
        return false;
    };
    [address, address.wrapping_add(last)].iter().all(|at| {
        let byte = ptr::with_exposed_provenance::<u8>(*at as usize);
        // SAFETY: a number.
        unsafe { caller_memory::read(byte) }.is_some()
    })
}

impl Memory for OwnMemory {
    fn sum(&self, mut sum: Checksum, address: u64, len: u32) -> Option<Checksum> {
        if !self.is_mapped(address, len) {
            return None;
        }
        let mut copy = [0_u8; BLOCK];
        let from = ptr::with_exposed_provenance::<u8>(address as usize);
        let mut done = 0;
        while done < len as usize {
            let part = copy.len().min(len as usize - done);
            // SAFETY: the range is mapped, and was readable when it was registered.
            unsafe { ptr::copy_nonoverlapping(from.wrapping_add(done), copy.as_mut_ptr(), part) };
            sum = sum.with(&copy[..part]);
            done += if len > ALL_BLOCKS { 4 * BLOCK } else { BLOCK };
        }
        Some(sum)
    }

    /// Asks the kernel, which reads nothing: `MS_ASYNC` fails for ranges that are not mapped, and does nothing
    /// else (msync(2)).
    fn is_mapped(&self, address: u64, len: u32) -> bool {
        const PAGE: u64 = 4096;
        let begin = address & !(PAGE - 1);
        let bytes = address.wrapping_add(len.into()).wrapping_sub(begin);
        let begin = ptr::with_exposed_provenance_mut(begin as usize);
        // SAFETY: no memory is read or written.
        unsafe { libc::msync(begin, bytes as usize, libc::MS_ASYNC) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_mapped_has_no_sum() {
        let bytes = [7_u8; 10_000];
        let address = bytes.as_ptr().expose_provenance() as u64;
        let sum = |len| OwnMemory.sum(Checksum::new(), address, len);
        assert!(sum(10_000).is_some() && sum(10_000) != sum(9_999));
        assert!(is_readable(address, 10_000));
        assert_eq!(OwnMemory.sum(Checksum::new(), 4096, 8), None);
        assert!(!is_readable(4096, 8));
    }
}
