//! CPU mappings of GPU memory.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::cpu::Caching;
use crate::error::{Error, Result};
use gdr_process::ProcessId;

/// Returns the size of a host page, the unit of a mapping. Every platform with an NVIDIA GPU has pages of at least 4
/// KiB; a GPU page of 64 KiB is a multiple of every host page size.
pub(crate) fn host_page() -> u64 {
    rustix::param::page_size() as u64
}

/// The bytes that this process has mapped through this library, reported in the error when BAR1 is full.
static MAPPED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn mapped_bytes() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

/// A part of a mapping: `len` bytes of `fd`, starting at `offset`.
pub(crate) struct FdRange<'fd> {
    pub(crate) fd: BorrowedFd<'fd>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A CPU mapping of GPU memory, unmapped on drop.
///
/// The address range is a device mapping that this type created: it belongs to no Rust allocation, and no reference
/// points into it.
#[derive(Debug)]
pub(crate) struct BarMapping {
    base: NonNull<u8>,
    len: usize,
    caching: Caching,
    origin: ProcessId,
    /// The driver's record of the mapping, dropped after the munmap.
    keep: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: this value alone owns the range, and the range is not bound to a thread.
unsafe impl Send for BarMapping {}
// SAFETY: methods of a shared mapping return only its address and its length.
unsafe impl Sync for BarMapping {}

impl BarMapping {
    /// Maps `ranges` next to each other: shared, readable, writable, and not inherited by forked children. The length
    /// of each range is a multiple of the host page.
    pub(crate) fn map(ranges: &[FdRange<'_>], caching: Caching) -> Result<Self> {
        let total = ranges
            .iter()
            .try_fold(0u64, |sum, s| sum.checked_add(s.len));
        let len = total
            .and_then(|total| usize::try_from(total).ok())
            .filter(|&len| len > 0)
            .ok_or(Error::MapLength {
                wanted: total.unwrap_or(u64::MAX),
                available: 0,
            })?;
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = if let [only] = ranges {
            // SAFETY: the kernel chooses the address, so no other mapping is replaced.
            let at = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    len,
                    rw,
                    MapFlags::SHARED,
                    only.fd,
                    only.offset,
                )
            };
            Self::own(
                at.map_err(|e| Error::os("mmap of GPU memory", e))?,
                len,
                caching,
            )?
        } else {
            // The whole range is reserved first, without access, so that no other mapping gets between the parts.
            // SAFETY: as above.
            let at = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            };
            let mapping = Self::own(
                at.map_err(|e| Error::os("mmap of an address range", e))?,
                len,
                caching,
            )?;
            let mut done = 0;
            for range in ranges {
                let part = range.len as usize;
                // SAFETY: `done + part <= len` (their sum), so the fixed mapping replaces a part of the reservation
                // above and nothing else.
                let mapped = unsafe {
                    rustix::mm::mmap(
                        mapping.base.as_ptr().add(done).cast(),
                        part,
                        rw,
                        MapFlags::SHARED | MapFlags::FIXED,
                        range.fd,
                        range.offset,
                    )
                };
                mapped.map_err(|e| Error::os("mmap of GPU memory", e))?;
                done += part;
            }
            mapping
        };
        // SAFETY: the range was mapped above. A driver's VM_IO mapping allows this advice (mm/madvise.c refuses only
        // MADV_DOFORK on it).
        unsafe { rustix::mm::madvise(mapping.base.as_ptr().cast(), len, Advice::LinuxDontFork) }
            .map_err(|e| Error::os("madvise(MADV_DONTFORK)", e))?;
        Ok(mapping)
    }

    fn own(at: *mut std::ffi::c_void, len: usize, caching: Caching) -> Result<Self> {
        let base = NonNull::new(at.cast())
            .ok_or_else(|| Error::os("mmap", std::io::Error::from_raw_os_error(libc::ENOMEM)))?;
        // The sum is used only in an error text, so it needs no ordering.
        MAPPED.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Self {
            base,
            len,
            caching,
            origin: ProcessId::current(),
            keep: None,
        })
    }

    /// Keeps `value` until the range is unmapped.
    pub(crate) fn keeping(mut self, value: impl Any + Send + Sync) -> Self {
        self.keep = Some(Box::new(value));
        self
    }

    /// Sets the kind of mapping, for drivers that report it only after the mmap.
    pub(crate) fn with_caching(mut self, caching: Caching) -> Self {
        self.caching = caching;
        self
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn caching(&self) -> Caching {
        self.caching
    }

    pub(crate) fn origin(&self) -> ProcessId {
        self.origin
    }
}

impl Drop for BarMapping {
    fn drop(&mut self) {
        // A child does not inherit the range, and may have mapped other memory there.
        if self.origin.is_current() {
            // SAFETY: this value owns the range, and no borrow of it is left.
            if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
                tracing::error!("munmap of {} bytes failed: {error}", self.len);
            }
            MAPPED.fetch_sub(self.len as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use forked::{check, in_child};
    use rustix::fs::MemfdFlags;

    use super::*;

    fn memory(len: u64) -> OwnedFd {
        let memory = rustix::fs::memfd_create("mapping", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, len).unwrap();
        memory
    }

    fn is_mapped(at: *mut u8) -> bool {
        let mut resident = 0;
        // SAFETY: mincore(2) reads and writes no byte of the page.
        unsafe { libc::mincore(at.cast(), 1, &mut resident) == 0 }
    }

    #[test]
    fn no_part_of_a_mapping_of_several_ranges_is_inherited() {
        let page = host_page();
        let files = [1, 2, 1].map(|pages| (memory(pages * page), pages * page));
        let ranges: Vec<_> = (files.iter())
            .map(|(file, len)| FdRange {
                fd: file.as_fd(),
                offset: 0,
                len: *len,
            })
            .collect();
        let mapping = BarMapping::map(&ranges, Caching::WriteCombined).unwrap();
        assert_eq!(mapping.len() as u64, 4 * page);
        let pages = [0, 1, 2, 3].map(|n| mapping.as_ptr().wrapping_add(n * page as usize));
        assert!(pages.into_iter().all(is_mapped));
        in_child(|| check(!pages.into_iter().any(is_mapped), "the child has a page"));
    }

    #[test]
    fn a_mapping_that_fails_half_way_leaves_nothing_mapped() {
        let page = host_page();
        let (good, bad) = (
            memory(page),
            std::os::unix::net::UnixStream::pair().unwrap(),
        );
        let range = |fd| FdRange {
            fd,
            offset: 0,
            len: page,
        };
        let count = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .matches("memfd:half-way")
                .count()
        };
        let named = rustix::fs::memfd_create("half-way", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&named, page).unwrap();
        let ranges = [
            range(named.as_fd()),
            range(good.as_fd()),
            range(bad.0.as_fd()),
        ];
        assert!(BarMapping::map(&ranges, Caching::WriteCombined).is_err());
        assert_eq!(count(), 0);
        let whole = BarMapping::map(&ranges[..2], Caching::WriteCombined).unwrap();
        assert_eq!(count(), 1);
        drop(whole);
        assert_eq!(count(), 0);
    }
}
