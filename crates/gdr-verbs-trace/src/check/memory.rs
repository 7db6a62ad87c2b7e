//! The program's memory, read as it is: the program, its peers and devices may write to it meanwhile.

use std::ptr;

use gdr_check::{Checksum, Memory};

use crate::caller_memory;

/// The memory of this process.
pub(super) struct OwnMemory;

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
    fn sum(&self, sum: Checksum, address: u64, len: u32) -> Option<Checksum> {
        if !self.is_mapped(address, len) {
            return None;
        }
        let from = ptr::with_exposed_provenance::<u8>(address as usize);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2; the range is mapped, and was readable when it was registered.
            return Some(unsafe { add_with_avx2(sum, from, len as usize) });
        }
        // SAFETY: the range is mapped, and was readable when it was registered.
        Some(unsafe { add(sum, from, len as usize) })
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

/// Adds memory to a sum. Each byte is read once, as others may write to it meanwhile.
///
/// # Safety
/// The range can be read.
#[inline(always)]
unsafe fn add(sum: Checksum, from: *const u8, len: usize) -> Checksum {
    const BLOCK: usize = Checksum::BLOCK;
    let (blocks, mut rest) = (len / BLOCK, [0; BLOCK]);
    let rest = &mut rest[..len % BLOCK];
    // SAFETY: the range ends after these bytes.
    unsafe { ptr::copy_nonoverlapping(from.add(blocks * BLOCK), rest.as_mut_ptr(), rest.len()) };
    // SAFETY: a block of the range; bytes have no alignment.
    let block = |at| unsafe { from.add(at * BLOCK).cast::<[u8; BLOCK]>().read() };
    sum.with_blocks((0..blocks).map(block), rest)
}

/// As [`add`], with vectors of 32 bytes.
///
/// # Safety
/// The range can be read.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn add_with_avx2(sum: Checksum, from: *const u8, len: usize) -> Checksum {
    // SAFETY: the contract of this function.
    unsafe { add(sum, from, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_mapped_has_no_sum() {
        let bytes = [7_u8; 10_000];
        let address = bytes.as_ptr().expose_provenance() as u64;
        assert!(is_readable(address, 10_000));
        assert_eq!(OwnMemory.sum(Checksum::new(), 4096, 8), None);
        assert!(!is_readable(4096, 8));
    }

    #[test]
    fn each_byte_counts_whatever_the_length() {
        for len in [1, 127, 128, 129, 4096, 65_536, 1 << 20] {
            let mut bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let address = bytes.as_mut_ptr().expose_provenance() as u64;
            let sum = || OwnMemory.sum(Checksum::new(), address, len as u32);
            let before = sum();
            // The vectors of the CPU make no difference.
            assert_eq!(before, Some(Checksum::new().with(&bytes)));
            for at in (0..len).step_by(1 + len / 100).chain([len - 1]) {
                bytes[at] ^= 1;
                assert_ne!(sum(), before, "byte {at} of {len}");
                bytes[at] ^= 1;
            }
        }
    }
}
