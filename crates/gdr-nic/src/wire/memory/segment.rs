//! The shared memory of a ring, which carries packets in one direction.

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

/// The size in bytes of the area for the header, in front of the ring.
const HEADER: usize = 4096;
const _: () = assert!(size_of::<Header>() <= HEADER);

/// A mapping of a ring's memory: a header, followed by a ring of bytes whose length is a power of two.
///
/// Both processes can write all of it at any time. Every access is therefore through a raw pointer or an atomic, and
/// what is read is validated like bytes from an untrusted peer.
#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<u8>,
    ring: usize,
}

// SAFETY: the mapping is not tied to a thread, and every access to it is atomic or made by the ring's single producer
// or consumer, which their `&mut self` enforces within this process.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a segment with a ring of `ring` bytes. Returns it with the descriptor by which another process maps it.
    pub(crate) fn create(ring: usize) -> Result<(Self, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("gdr-wire", flags)?;
        rustix::fs::ftruncate(&fd, (HEADER + ring) as u64)?;
        // Otherwise one process could truncate the file, and the other would be killed by SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok((Self::map(&fd, ring)?, fd))
    }

    /// Maps another process's segment, provided that its size can never change.
    pub(super) fn open(fd: &OwnedFd) -> Result<Self, Errno> {
        // Without seals the other process could truncate the file while this one reads it.
        if !rustix::fs::fcntl_get_seals(fd)?.contains(SEALS) {
            return Err(Errno::PERM);
        }
        let len = rustix::fs::fstat(fd)?.st_size;
        let ring = usize::try_from(len).unwrap_or(0).saturating_sub(HEADER);
        // A position's offset in the ring is its low bits, which requires a power of two.
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
        // SAFETY: the mapping begins with these bytes, is page-aligned, and lives as long as `self`. All fields are
        // atomics, for which every value is valid, even while another process writes them.
        unsafe { self.start.cast().as_ref() }
    }

    /// Returns the word at `offset`, a multiple of the cache line length; `None` unless its whole line is inside the
    /// ring.
    pub(super) fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(offset, LINE)?;
        // SAFETY: the address is inside the mapping and aligned to a cache line, and the reference lives no longer than
        // the segment. The word is accessed only atomically.
        Some(unsafe { at.cast().as_ref() })
    }

    /// Prefetches the cache line at `offset`, which is accessed soon.
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

    /// Returns the length of the ring in bytes.
    pub(super) fn ring_len(&self) -> usize {
        self.ring
    }

    /// Returns the address of the byte at `offset` in the ring, valid for `len` bytes; `None` if the range exceeds the
    /// ring.
    pub(super) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset` is at most the length of the ring, so the sum is within the mapping.
        (end <= self.ring).then(|| unsafe { self.start.add(HEADER + offset) })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: only `self` uses this mapping, and no reference into it is left.
        if let Err(errno) = unsafe { rustix::mm::munmap(start, HEADER + self.ring) } {
            tracing::debug!(%errno, "a ring stays mapped");
        }
    }
}

/// The seals that fix the size of a segment.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// The smallest and the largest ring, in bytes, that a process accepts from another one.
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
