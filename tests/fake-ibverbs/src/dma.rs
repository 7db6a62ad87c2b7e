//! Access to memory that a real device would access by DMA.
//!
//! The program may access the same bytes at any time, as with a real device. This module creates no
//! references to them, and copies them by volatile accesses.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether all pages of this range are mapped.
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

pub(crate) fn page_size() -> usize {
    // SAFETY: the call reads a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
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
    pub(crate) fn new(fd: c_int, offset: u64, len: usize) -> Result<Self, c_int> {
        let page = page_size() as u64;
        let skip = (offset % page) as usize;
        let start = libc::off_t::try_from(offset - offset % page).map_err(|_| libc::EINVAL)?;
        let whole = len.checked_add(skip).ok_or(libc::EINVAL)?;
        // SAFETY: a place of the right type, which may be all zeros.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a writable place.
        if unsafe { libc::fstat(fd, &mut status) } != 0 {
            return Err(libc::EBADF);
        }
        let end = offset.checked_add(len as u64);
        if len == 0 || end.is_none_or(|end| end > status.st_size as u64) {
            return Err(libc::EINVAL);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                whole,
                protection,
                libc::MAP_SHARED,
                fd,
                start,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            address: base.expose_provenance(),
            len: whole,
            skip,
        })
    }

    /// The address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.address + self.skip
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: this is the mapping of `new`. Regions are looked up in each call, and no address in
        // them is kept while the state is unlocked.
        unsafe { libc::munmap(base, self.len) };
    }
}

/// Copies `bytes` to an address.
///
/// # Safety
///
/// The range is mapped and writable, and no Rust reference reaches it.
pub(crate) unsafe fn store(address: usize, bytes: &[u8]) {
    let place = ptr::with_exposed_provenance_mut::<u8>(address);
    let (head, rest) = bytes.split_at(place.align_offset(8).min(bytes.len()));
    let (words, tail) = rest.as_chunks::<8>();
    for (i, byte) in head.iter().enumerate() {
        // SAFETY: in the range.
        unsafe { place.add(i).write_volatile(*byte) };
    }
    // SAFETY: in the range or one past it.
    let place = unsafe { place.add(head.len()) };
    for (i, word) in words.iter().enumerate() {
        // SAFETY: in the range, and aligned, as anything after the head is.
        unsafe {
            place
                .cast::<u64>()
                .add(i)
                .write_volatile(u64::from_ne_bytes(*word))
        };
    }
    for (i, byte) in tail.iter().enumerate() {
        // SAFETY: the end of the range.
        unsafe { place.add(words.len() * 8 + i).write_volatile(*byte) };
    }
}

/// Copies the bytes at an address to `bytes`.
///
/// # Safety
///
/// The range is mapped and readable, and no Rust reference reaches it.
pub(crate) unsafe fn load(address: usize, bytes: &mut [u8]) {
    let place = ptr::with_exposed_provenance::<u8>(address);
    let (head, rest) = bytes.split_at_mut(place.align_offset(8).min(bytes.len()));
    let (words, tail) = rest.as_chunks_mut::<8>();
    for (i, byte) in head.iter_mut().enumerate() {
        // SAFETY: in the range.
        *byte = unsafe { place.add(i).read_volatile() };
    }
    // SAFETY: in the range or one past it.
    let place = unsafe { place.add(head.len()) };
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: in the range, and aligned, as anything after the head is.
        *word = unsafe { place.cast::<u64>().add(i).read_volatile() }.to_ne_bytes();
    }
    let done = words.len() * 8;
    for (i, byte) in tail.iter_mut().enumerate() {
        // SAFETY: the end of the range.
        *byte = unsafe { place.add(done + i).read_volatile() };
    }
}

/// Replaces the word at an address by the result of `change`, and returns the original.
///
/// # Safety
///
/// As [`store`] and [`load`]; the address is a multiple of 8.
pub(crate) unsafe fn change(address: usize, change: impl Fn(u64) -> u64) -> u64 {
    let place = ptr::with_exposed_provenance_mut::<u64>(address);
    // SAFETY: aligned and in the range; an atomic tolerates every other access to its bytes.
    let word = unsafe { AtomicU64::from_ptr(place) };
    let (Ok(before) | Err(before)) =
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            Some(change(word))
        });
    before
}
