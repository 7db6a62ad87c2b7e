//! The memory that two processes share for one direction of a ring.

use std::arch::asm;
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::header::Header;
use super::primitives::AtomicU32;
use super::ring::{FetchedTo, LINE};

/// How many bytes of a segment are before the ring.
const HEADER: usize = 4096;
const _: () = assert!(size_of::<Header>() <= HEADER);

/// A mapping of the memory of a ring: a header, and a ring of bytes whose length is a power of two.
///
/// Both processes can write all of it at any time. So every access is through a raw pointer or an atomic, and
/// what is read is checked as bytes of a stranger.
#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<u8>,
    ring: usize,
}

// SAFETY: the mapping belongs to no thread, and every access to it is atomic or by the single producer or
// consumer of the ring, which their `&mut self` ensures within this process.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a segment with a ring of `ring` bytes, and the descriptor by which another process maps it.
    pub(super) fn create(ring: usize) -> Result<(Self, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("gdr-wire", flags)?;
        rustix::fs::ftruncate(&fd, (HEADER + ring) as u64)?;
        // A process that shortened the file would end the other one by SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok((Self::map(&fd, ring)?, fd))
    }

    /// Maps the segment of another process, if its size can never change.
    pub(super) fn open(fd: &OwnedFd) -> Result<Self, Errno> {
        // Without seals the other process could shorten the file while this one reads it.
        if !rustix::fs::fcntl_get_seals(fd)?.contains(SEALS) {
            return Err(Errno::PERM);
        }
        let len = rustix::fs::fstat(fd)?.st_size;
        let ring = usize::try_from(len).unwrap_or(0).saturating_sub(HEADER);
        // The offset of a position is its low bits, which needs a power of two.
        if !(SMALLEST..=LARGEST).contains(&ring) || !ring.is_power_of_two() {
            return Err(Errno::INVAL);
        }
        Self::map(fd, ring)
    }

    fn map(fd: impl AsFd, ring: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so the mapping replaces nothing.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                HEADER + ring,
                protection,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, ring })
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping begins with these bytes, is aligned to a page, and lives as long as `self`. All
        // fields are atomics, for which every value is valid, and which another process may write.
        unsafe { self.start.cast().as_ref() }
    }

    /// The word at a multiple of the length of a cache line; `None` if that line is not inside.
    pub(super) fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(offset, LINE)?;
        // SAFETY: the address is inside the mapping, aligned to a line, and the reference lives no longer than the
        // segment. Only atomic accesses go to it.
        Some(unsafe { at.cast().as_ref() })
    }

    /// Begins to move the cache line at `offset` to this processor, which reads or writes it soon. Nothing waits for that,
    /// while the load or the store would.
    pub(super) fn fetch(&self, offset: usize, to: FetchedTo) {
        let Some(at) = self.at(offset, LINE) else {
            return;
        };
        let at = at.as_ptr();
        // SAFETY: a hint, which changes nothing and reads nothing, whatever the address.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            match to {
                FetchedTo::Read => {
                    asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
                }
                FetchedTo::Write => {
                    asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
                }
            }
            #[cfg(target_arch = "aarch64")]
            match to {
                FetchedTo::Read => {
                    asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
                }
                FetchedTo::Write => {
                    asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
                }
            }
        }
    }

    /// How many bytes the ring has.
    pub(super) fn ring_len(&self) -> usize {
        self.ring
    }

    /// The address of the byte at `offset` of the ring, which is valid for `len` bytes; `None` if these are not
    /// inside.
    pub(super) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: the sum is within the mapping.
        (end <= self.ring).then(|| unsafe { self.start.add(HEADER + offset) })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: this mapping is only used by `self`, and no reference to it is left.
        if let Err(errno) = unsafe { rustix::mm::munmap(start, HEADER + self.ring) } {
            tracing::debug!(%errno, "a ring stays mapped");
        }
    }
}

/// What keeps the size of a segment as it is.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// The sizes of rings that a process accepts from another one.
const SMALLEST: usize = 1 << 14;
const LARGEST: usize = 1 << 26;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_could_shrink_or_has_an_odd_size_is_refused() {
        let file = |len: u64, seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&fd, len).unwrap();
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let right = (HEADER + SMALLEST) as u64;
        assert_eq!(
            Segment::open(&file(right, SealFlags::GROW)).unwrap_err(),
            Errno::PERM
        );
        for len in [0, 1, HEADER as u64, right - 1, right + 1, right << 20] {
            assert_eq!(
                Segment::open(&file(len, SEALS)).unwrap_err(),
                Errno::INVAL,
                "{len}"
            );
        }
        assert_eq!(
            Segment::open(&file(right, SEALS)).unwrap().ring_len(),
            SMALLEST
        );
        let (_, fd) = Segment::create(SMALLEST).unwrap();
        rustix::fs::ftruncate(&fd, 1).unwrap_err();
    }
}
