//! Host memory: anonymous pages of this process, or memory that a driver page-locked.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use gdr_cuda::HostBuffer;
use rustix::mm::{MapFlags, ProtFlags};

use super::bytes;
use crate::error::{Error, Result};
use gdr_roce::AtomicOp;

/// Memory of the host.
#[derive(Debug)]
pub(crate) struct HostMemory {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Whose the memory is.
#[derive(Debug)]
enum Owner {
    /// Pages that this value mapped and unmaps.
    Pages,
    /// A GPU's driver.
    Driver(#[expect(dead_code, reason = "kept alive, no more")] Arc<HostBuffer>),
}

// SAFETY: the pages belong to this value alone, or it holds what owns them, whichever thread drops
// it.
unsafe impl Send for HostMemory {}
// SAFETY: every access is atomic, volatile or opaque to the compiler (`bytes`); no reference to
// the bytes is handed out.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `len` bytes, from the start of a page.
    pub(super) fn new(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::EmptyBuffer);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice touches no memory
        // that anything else uses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE)
        }
        .map_err(|errno| Error::os("mmap of a buffer", errno))?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| Error::os("mmap of a buffer", rustix::io::Errno::NOMEM))?;
        Ok(Self {
            base,
            len,
            owner: Owner::Pages,
        })
    }

    /// Memory that a driver page-locked, all of it.
    pub(super) fn page_locked(memory: Arc<HostBuffer>) -> Result<Self> {
        let base = NonNull::new(memory.cpu_ptr()).ok_or(Error::EmptyBuffer)?;
        Ok(Self {
            base,
            len: memory.len(),
            owner: Owner::Driver(memory),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// The address of `len` bytes at `offset`.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8> {
        super::check_range(offset, len as u64, self.len as u64)?;
        // SAFETY: `offset + len <= self.len`, so this is in the memory or one past it.
        Ok(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    #[inline]
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let dst = self.at(offset, bytes.len())?;
        // SAFETY: in the memory, which is no Rust allocation and lives as long as `self`.
        unsafe { bytes::store(dst, bytes) };
        Ok(())
    }

    #[inline]
    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let src = self.at(offset, bytes.len())?;
        // SAFETY: in the memory, which is no Rust allocation and lives as long as `self`.
        unsafe { bytes::load(src, bytes) };
        Ok(())
    }

    /// Everything stored before is visible to whoever sees what is stored after.
    pub(super) fn release(&self) {
        fence(Ordering::Release);
    }

    pub(super) fn load_u8(&self, offset: u64) -> Result<u8> {
        let at = self.at(offset, 1)?;
        // SAFETY: in the memory; an atomic tolerates every other access to its byte.
        Ok(unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire))
    }

    pub(super) fn load_u32(&self, offset: u64) -> Result<u32> {
        let at = self.aligned::<u32>(offset)?;
        // SAFETY: in the memory and aligned; an atomic tolerates every other access to its bytes.
        Ok(unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Acquire))
    }

    pub(super) fn load_u64(&self, offset: u64) -> Result<u64> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// One atomic operation on the word at `offset`; returns what was there before.
    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        let word = self.word(offset)?;
        Ok(match operation {
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
            AtomicOp::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(before) | Err(before) => before,
                }
            }
        })
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64> {
        let at = self.aligned::<u64>(offset)?;
        // SAFETY: in the memory, which lives as long as `self`, and aligned; an atomic tolerates
        // every other access to its bytes.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }

    fn aligned<T>(&self, offset: u64) -> Result<*mut T> {
        let at = self.at(offset, size_of::<T>())?.cast::<T>();
        if at.is_aligned() {
            return Ok(at);
        }
        let alignment = align_of::<T>() as u64;
        Err(Error::Misaligned { offset, alignment })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Owner::Driver(_) = self.owner {
            return;
        }
        // SAFETY: this is the mapping that `new` made; whoever uses it holds this value.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::debug!(%error, "munmap of a buffer failed");
        }
    }
}
