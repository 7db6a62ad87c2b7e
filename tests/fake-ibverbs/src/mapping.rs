//! Memory that a real device would access by DMA.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::param::page_size;

use crate::verb::Outcome;

/// Returns whether all pages of this range are mapped.
pub(crate) fn is_mapped(address: usize, len: usize) -> bool {
    let page = page_size();
    let first = address & !(page - 1);
    let Some(end) = address.checked_add(len) else {
        return false;
    };
    let pages = (end - first).div_ceil(page).max(1);
    let mut resident = vec![0_u8; pages];
    let first = ptr::with_exposed_provenance_mut(first);
    // SAFETY: the kernel looks at the range's pages, whatever they are, and writes one byte for
    // each.
    let answer = unsafe { libc::mincore(first, pages * page, resident.as_mut_ptr()) };
    answer == 0
}

/// The identity of a file, independent of its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) fd: c_int,
    device: u64,
    inode: u64,
    size: u64,
}

impl File {
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        // SAFETY: only the kernel looks at the number, which is no negative one.
        let fd_at = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
        let status = rustix::fs::fstat(fd_at).ok()?;
        Some(Self {
            fd,
            device: status.st_dev,
            inode: status.st_ino,
            size: status.st_size as u64,
        })
    }
}

/// A mapping of the memory of a descriptor. Like the mapping of a device, it remains valid after the
/// descriptor is closed.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: usize,
    len: usize,
    /// Offset of the first byte in the mapping.
    skip: usize,
}

impl Mapping {
    /// Maps `len` bytes of the file at `offset`, which need not be a multiple of the page size.
    pub(crate) fn new(fd: c_int, offset: u64, len: usize) -> Outcome<Self> {
        let skip = (offset % page_size() as u64) as usize;
        let start = offset - skip as u64;
        let file = File::of(fd).ok_or(libc::EBADF)?;
        let end = offset.checked_add(len as u64);
        if len == 0 || end.is_none_or(|end| end > file.size) {
            return Err(libc::EINVAL);
        }
        let whole = len.checked_add(skip).ok_or(libc::EINVAL)?;
        Self::map(whole, skip, libc::MAP_SHARED, fd, start)
    }

    /// Memory of `len` bytes that nothing else has.
    pub(crate) fn anonymous(len: usize) -> Outcome<Self> {
        Self::map(len, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn map(len: usize, skip: usize, flags: c_int, fd: c_int, start: u64) -> Outcome<Self> {
        let start = libc::off_t::try_from(start).map_err(|_| libc::EINVAL)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, start) };
        if base == libc::MAP_FAILED {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            address: base.expose_provenance(),
            len,
            skip,
        })
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.address + self.skip
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: this is the mapping of `map`. Its region is deregistered, so the NIC does not access it.
        unsafe { libc::munmap(base, self.len) };
    }
}
