//! Whether memory that a program registers can be accessed.

use std::fs;

use gdr_nic::Access;
use gdr_nic::Memory;

use crate::errno::Errno;

/// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`, since Linux 5.14.
const POPULATE_READ: i32 = 22;
const POPULATE_WRITE: i32 = 23;

/// Checks that all of the memory is mapped, and writable if `access` writes. Like the pinning of a
/// network card, it faults the pages in where Linux can.
///
/// # Errors
/// `EFAULT`; `EINVAL` for no bytes.
pub(crate) fn check(memory: Memory, access: Access) -> Result<(), Errno> {
    let rights = match access.contains(Access::LOCAL_WRITE) {
        true => Rights::ReadWrite,
        false => Rights::Read,
    };
    populate(memory, rights)
}

/// Like [`check`], for an access with these rights.
pub(crate) fn populate(memory: Memory, rights: Rights) -> Result<(), Errno> {
    let end = memory.address.checked_add(memory.len);
    let end = end
        .filter(|end| *end > memory.address)
        .ok_or(Errno::INVAL)?;
    let page = rustix::param::page_size();
    let start = memory.address & !(page - 1);
    let advice = match rights {
        Rights::ReadWrite => POPULATE_WRITE,
        Rights::Read => POPULATE_READ,
    };
    let start_ptr = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the advice changes no contents, and fails for what is not mapped.
    match unsafe { libc::madvise(start_ptr, end - start, advice) } {
        0 => Ok(()),
        // Older kernels do not support this, and device memory cannot be populated.
        _ if is_mapped(start, end, rights) => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// How memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    Read,
    ReadWrite,
}

/// Returns whether this process has mapped all of the range with these rights.
fn is_mapped(start: usize, end: usize, wanted: Rights) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut reached = start;
    for line in maps.lines() {
        let Some((from, to, rights)) = parse(line) else {
            continue;
        };
        if to <= reached {
            continue;
        }
        let fits = match wanted {
            Rights::Read => rights.starts_with('r'),
            Rights::ReadWrite => rights.starts_with("rw"),
        };
        if from > reached || !fits {
            return false;
        }
        reached = to;
        if reached >= end {
            return true;
        }
    }
    false
}

/// Addresses and rights of a line of `/proc/self/maps`.
fn parse(line: &str) -> Option<(usize, usize, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?, rest.get(..4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether all of this memory is mapped, without the help of `madvise`.
    fn mapped(address: *const u8, len: usize, wanted: Rights) -> bool {
        is_mapped(address.addr(), address.addr() + len, wanted)
    }

    #[test]
    fn the_map_of_the_process_says_what_is_readable_and_writable() {
        let heap = vec![0_u8; 1 << 20];
        assert!(mapped(heap.as_ptr(), heap.len(), Rights::ReadWrite));
        let text = "read-only text of the program";
        assert!(mapped(text.as_ptr(), text.len(), Rights::Read));
        assert!(!mapped(text.as_ptr(), text.len(), Rights::ReadWrite));
        assert!(!mapped(
            std::ptr::without_provenance(0x1000),
            1,
            Rights::Read
        ));
    }

    #[test]
    fn a_range_that_ends_beyond_its_mapping_is_not_mapped() {
        let page = rustix::param::page_size();
        let len = 2 * page;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, whose second page is unmapped again; nothing else is touched.
        let base = unsafe {
            let base = libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(
                libc::mprotect(base.byte_add(page), page, libc::PROT_NONE),
                0
            );
            base.cast::<u8>()
        };
        assert!(mapped(base, page, Rights::ReadWrite));
        assert!(!mapped(base, page + 1, Rights::Read));
        let memory = Memory {
            address: base.expose_provenance(),
            len: page + 1,
            iova: 0,
        };
        assert_eq!(check(memory, Access::LOCAL_WRITE), Err(Errno::FAULT));
        // SAFETY: the mapping from above.
        assert_eq!(unsafe { libc::munmap(base.cast(), len) }, 0);
    }
}
