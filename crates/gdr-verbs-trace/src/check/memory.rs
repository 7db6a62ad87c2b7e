//! Reads the program's memory, which the program, its peers and devices may write at the same time.

use std::cell::Cell;
use std::ffi::c_int;
use std::ops::Range;
use std::{io, ptr};

use gdr_check::{Checksum, Memory};

use crate::caller_memory;

/// Smallest page size of any system. A range within one such page is also within one page of this system.
const PAGE: u64 = 4096;

/// Memory of this process during one call of the program.
///
/// The kernel says what is mapped, which may differ from what was registered. Its answer holds for the current call
/// only, because the program may unmap anything between two calls.
#[derive(Default)]
pub(super) struct OwnMemory {
    /// Pages that were found mapped in this call.
    found: Cell<Range<u64>>,
}

impl OwnMemory {
    /// Returns whether all of a range is mapped; asks `ask` unless that is known.
    fn is_found(&self, address: u64, len: u32, ask: impl FnOnce(&Range<u64>) -> bool) -> bool {
        let end = address.checked_add(len.into());
        let Some(end) = end.and_then(|end| end.checked_next_multiple_of(PAGE)) else {
            return false;
        };
        let pages = address & !(PAGE - 1)..end;
        let found = self.found.take();
        let is_known = found.start <= pages.start && pages.end <= found.end;
        let is_found = is_known || ask(&pages);
        self.found.set(match is_found && !is_known {
            true => pages,
            false => found,
        });
        is_found
    }
}

/// Asks the kernel whether pages are mapped, without reading them: `MS_ASYNC` fails for unmapped ranges and otherwise
/// does nothing (msync(2)).
fn are_mapped(pages: &Range<u64>) -> bool {
    let begin = ptr::with_exposed_provenance_mut(pages.start as usize);
    // SAFETY: the call neither reads nor writes memory.
    unsafe { libc::msync(begin, (pages.end - pages.start) as usize, libc::MS_ASYNC) == 0 }
}

/// Like [`are_mapped`], for memory that is about to be read. For a single page, a faster call has the kernel read it:
/// sigprocmask(2) with an invalid operation changes nothing, and fails with EFAULT if the mask cannot be read, or with
/// EINVAL if it can.
fn are_readable(pages: &Range<u64>) -> bool {
    if pages.end - pages.start > PAGE {
        return are_mapped(pages);
    }
    const NO_OPERATION: c_int = -1;
    /// Size of the kernel's signal mask.
    const MASK: usize = size_of::<u64>();
    let mask = ptr::with_exposed_provenance::<u64>(pages.start as usize);
    let no_mask = ptr::null_mut::<u64>();
    // SAFETY: the kernel reads a number, or fails. It changes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, mask, no_mask, MASK) };
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EINVAL) => true,
        Some(libc::EFAULT) => false,
        // A system call filter may refuse it.
        _ => are_mapped(pages),
    }
}

/// Returns whether the first and the last byte of a range can be read. GPU memory may be in address ranges that are
/// mapped without any access.
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
        if !self.is_found(address, len, are_readable) {
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

    fn is_mapped(&self, address: u64, len: u32) -> bool {
        self.is_found(address, len, are_mapped)
    }
}

/// Adds memory to a checksum. Reads each byte once, because others may write at the same time.
///
/// # Safety
/// The range can be read.
#[inline(always)]
unsafe fn add(sum: Checksum, from: *const u8, len: usize) -> Checksum {
    const BLOCK: usize = Checksum::BLOCK;
    let (blocks, mut rest) = (len / BLOCK, [0; BLOCK]);
    let rest = &mut rest[..len % BLOCK];
    // SAFETY: the range has this many bytes after the last block.
    unsafe { ptr::copy_nonoverlapping(from.add(blocks * BLOCK), rest.as_mut_ptr(), rest.len()) };
    // SAFETY: the block is within the range, and byte arrays need no alignment.
    let block = |at| unsafe { from.add(at * BLOCK).cast::<[u8; BLOCK]>().read() };
    sum.with_blocks((0..blocks).map(block), rest)
}

/// Like [`add`], with vectors of 32 bytes.
///
/// # Safety
/// The range can be read.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn add_with_avx2(sum: Checksum, from: *const u8, len: usize) -> Checksum {
    // SAFETY: the caller's contract is the same.
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
        assert_eq!(sum(4096, 8), None);
        assert_eq!(sum(u64::MAX - 3, 8), None);
        assert!(!is_readable(4096, 8));
    }

    fn sum(address: u64, len: u32) -> Option<Checksum> {
        OwnMemory::default().sum(Checksum::new(), address, len)
    }

    /// Maps anonymous pages for this test.
    fn pages(count: usize) -> u64 {
        // SAFETY: a new mapping.
        let pages = unsafe {
            libc::mmap(
                ptr::null_mut(),
                count * PAGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(pages, libc::MAP_FAILED);
        pages.expose_provenance() as u64
    }

    #[test]
    fn a_range_is_asked_for_whole_and_again_in_each_call() {
        let first = pages(3);
        let [second, third] = [first + PAGE, first + 2 * PAGE];
        let call = OwnMemory::default();
        let has_sum = |call: &OwnMemory, at, len| call.sum(Checksum::new(), at, len).is_some();
        assert!(has_sum(&call, first, 8) && has_sum(&call, first, 2 * PAGE as u32));
        let last = ptr::with_exposed_provenance_mut(third as usize);
        // SAFETY: the last page, which nothing uses.
        assert_eq!(unsafe { libc::munmap(last, PAGE as usize) }, 0);
        for call in [call, OwnMemory::default()] {
            assert!(has_sum(&call, second, PAGE as u32));
            for (at, len) in [(third, 8), (third - 4, 8), (first, 3 * PAGE as u32)] {
                assert!(!has_sum(&call, at, len) && !call.is_mapped(at, len));
            }
        }
        let both = ptr::with_exposed_provenance_mut(first as usize);
        // SAFETY: the other pages.
        assert_eq!(unsafe { libc::munmap(both, 2 * PAGE as usize) }, 0);
        for (at, len) in [(first, 8), (second, 8), (first, 2 * PAGE as u32)] {
            assert_eq!(sum(at, len), None);
        }
    }

    #[test]
    fn memory_that_may_not_be_read_has_no_sum_and_is_mapped() {
        let page = pages(1);
        let at = ptr::with_exposed_provenance_mut(page as usize);
        // SAFETY: the page belongs to this test.
        let failed = unsafe { libc::mprotect(at, PAGE as usize, libc::PROT_NONE) };
        assert_eq!(failed, 0);
        assert_eq!(sum(page + 8, 8), None);
        assert!(OwnMemory::default().is_mapped(page + 8, 8));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(at, PAGE as usize) }, 0);
    }

    #[test]
    fn each_byte_counts_whatever_the_length() {
        for len in [1, 127, 128, 129, 4096, 65_536, 1 << 20] {
            let mut bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let address = bytes.as_mut_ptr().expose_provenance() as u64;
            let sum = || sum(address, len as u32);
            let before = sum();
            // The CPU's vector instructions do not change the result.
            assert_eq!(before, Some(Checksum::new().with(&bytes)));
            for at in (0..len).step_by(1 + len / 100).chain([len - 1]) {
                bytes[at] ^= 1;
                assert_ne!(sum(), before, "byte {at} of {len}");
                bytes[at] ^= 1;
            }
        }
    }
}
