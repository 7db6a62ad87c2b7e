//! A CPU address range that shows GPU memory.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::fork::Origin;

/// Host pages are the unit of a window. Every platform with an NVIDIA GPU has pages of 4 KiB or
/// more; GPU pages of 64 KiB are a multiple of all of them.
pub(crate) fn host_page() -> u64 {
    rustix::param::page_size() as u64
}

/// Bytes mapped by this process through this library, for the report when BAR1 is full.
static MAPPED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn mapped_bytes() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

/// A stretch of a window: `len` bytes of `fd` from `offset`.
pub(crate) struct Stretch<'fd> {
    pub(crate) fd: BorrowedFd<'fd>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A CPU address range that shows GPU memory; unmapped on drop.
///
/// The range is a device mapping made by this type: it is no allocation of any Rust allocator,
/// and no reference into it exists anywhere.
#[derive(Debug)]
pub(crate) struct Window {
    base: NonNull<u8>,
    len: usize,
    caching: Caching,
    origin: Origin,
    /// What must outlive the mapping and end after it (the driver's own record of it).
    held: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: the range belongs to this value alone, and no thread-bound state hangs on it.
unsafe impl Send for Window {}
// SAFETY: a shared window hands out its address and length only.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `stretches` side by side, shared, readable and writable, and keeps the range out of
    /// forked children. Each stretch's length is a multiple of the host page.
    pub(crate) fn map(stretches: &[Stretch<'_>], caching: Caching) -> Result<Self> {
        let total = stretches
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
        let mut window = if let [only] = stretches {
            // SAFETY: a new mapping at an address of the kernel's choice disturbs no other.
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
            // SAFETY: as above; the reservation is ours to map over.
            let at = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            };
            let window = Self::own(
                at.map_err(|e| Error::os("mmap of an address range", e))?,
                len,
                caching,
            )?;
            let mut done = 0;
            for stretch in stretches {
                let part = stretch.len as usize;
                // SAFETY: `done + part <= len` (their sum), so the fixed mapping replaces part of
                // our own reservation and nothing else.
                let mapped = unsafe {
                    rustix::mm::mmap(
                        window.base.as_ptr().add(done).cast(),
                        part,
                        rw,
                        MapFlags::SHARED | MapFlags::FIXED,
                        stretch.fd,
                        stretch.offset,
                    )
                };
                mapped.map_err(|e| Error::os("mmap of GPU memory", e))?;
                done += part;
            }
            window
        };
        // SAFETY: the range is ours. A driver's VM_IO mapping allows this advice (mm/madvise.c
        // refuses only MADV_DOFORK on it).
        unsafe { rustix::mm::madvise(window.base.as_ptr().cast(), len, Advice::LinuxDontFork) }
            .map_err(|e| Error::os("madvise(MADV_DONTFORK)", e))?;
        window.origin = Origin::current();
        Ok(window)
    }

    fn own(at: *mut std::ffi::c_void, len: usize, caching: Caching) -> Result<Self> {
        let base = NonNull::new(at.cast())
            .ok_or_else(|| Error::os("mmap", std::io::Error::from_raw_os_error(libc::ENOMEM)))?;
        MAPPED.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Self {
            base,
            len,
            caching,
            origin: Origin::current(),
            held: None,
        })
    }

    /// Keeps `held` until the range is unmapped.
    pub(crate) fn holding(mut self, held: impl Any + Send + Sync) -> Self {
        self.held = Some(Box::new(held));
        self
    }

    /// For drivers that tell the kind of mapping only once it is made.
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

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A child inherits none of the range, so whatever lies there now is not ours.
        if self.origin.is_current() {
            // SAFETY: the range is ours and, as we are being dropped, nobody else's any more.
            if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
                tracing::error!("munmap of {} bytes failed: {error}", self.len);
            }
            MAPPED.fetch_sub(self.len as u64, Ordering::Relaxed);
        }
    }
}
