//! Whether memory that a program registers can be accessed.

use std::fs;

use gdr_rdma::Access;
use gdr_rdma::raw::Memory;

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
    let end = memory.address.checked_add(memory.len);
    let end = end
        .filter(|end| *end > memory.address)
        .ok_or(Errno::INVAL)?;
    let page = rustix::param::page_size();
    let start = memory.address & !(page - 1);
    let writes = access.contains(Access::LOCAL_WRITE);
    let advice = if writes {
        POPULATE_WRITE
    } else {
        POPULATE_READ
    };
    let start_ptr = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the advice changes no contents, and fails for what is not mapped.
    match unsafe { libc::madvise(start_ptr, end - start, advice) } {
        0 => Ok(()),
        // Older kernels do not know it, and memory of devices cannot be populated.
        _ if is_mapped(start, end, writes) => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Whether this process has mapped all of the range with these rights.
fn is_mapped(start: usize, end: usize, writes: bool) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut reached = start;
    for line in maps.lines() {
        let Some((from, to, rights)) = parse(line) else {
            continue;
        };
        if to <= reached {
            continue;
        }
        let fits = rights.starts_with('r') && (!writes || rights[1..].starts_with('w'));
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
