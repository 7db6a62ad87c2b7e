//! Host memory: anonymous pages of this process, page-locked memory of a driver, or memory of another library.

use std::any::Any;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gdr_cuda::HostBuffer;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::copy_thread::{CopyThread, IncomingCopy, IncomingTarget, PeerMemory};
use super::direct::END_LIMIT;
use super::read_source::SourceId;
use super::volatile_copy;
use crate::error::{Error, Result};
use crate::wire::memory::{self, ProcessMemory};
use gdr_roce::AtomicOp;

/// Host memory.
#[derive(Debug)]
pub(crate) struct HostMemory {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// See [`HostMemory::can_be_read`].
    can_be_read: OnceLock<bool>,
}

/// The owner of the memory.
enum Owner {
    /// This value mapped the pages and unmaps them.
    Pages,
    /// A GPU driver page-locked them.
    Driver(PageLocked),
    /// Another library allocated them.
    Other(#[expect(dead_code, reason = "kept only to be dropped")] Box<dyn Any + Send + Sync>),
}

/// Memory that a GPU uses.
struct PageLocked {
    memory: Arc<HostBuffer>,
    id: SourceId,
    /// Copies memory of other processes.
    thread: CopyThread,
    /// Set once a copy has been handed to the thread.
    is_used: AtomicBool,
}

impl PageLocked {
    fn end_copies(&self, limit: Duration) {
        if self.is_used.load(Ordering::SeqCst) {
            self.thread.end_copies(self.id, limit);
        }
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        self.end_copies(Duration::ZERO);
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pages => "Pages",
            Self::Driver(_) => "Driver",
            Self::Other(_) => "Other",
        })
    }
}

// SAFETY: the pages belong only to this value, or it holds their owner, which is `Send`.
unsafe impl Send for HostMemory {}
// SAFETY: every access is atomic, volatile or opaque to the compiler (`volatile_copy`), there is no
// reference to the bytes, and the owner is `Sync`.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps `len` bytes, from the start of a page, which forked children do not inherit: kernels
    /// before 5.12 would move the parent to a copy at its next write, and leave a device that
    /// writes there with the old page (`ibv_fork_init(3)`).
    pub(super) fn new(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::EmptyBuffer);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address that the kernel chooses overlaps no other.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE)
        }
        .map_err(|errno| Error::os("mmap of a buffer", errno))?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| Error::os("mmap of a buffer", rustix::io::Errno::NOMEM))?;
        // Take ownership before the advice, so that an error unmaps the pages.
        let pages = Self {
            base,
            len,
            owner: Owner::Pages,
            can_be_read: OnceLock::new(),
        };
        // SAFETY: the mapping from above; the advice affects only forked children, where no method of
        // a buffer accesses it.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }
            .map_err(|errno| Error::os("madvise(MADV_DONTFORK) of a buffer", errno))?;
        Ok(pages)
    }

    /// Wraps all of the memory that a driver page-locked.
    pub(super) fn page_locked(memory: Arc<HostBuffer>) -> Result<Self> {
        let base = NonNull::new(memory.cpu_ptr()).ok_or(Error::EmptyBuffer)?;
        Ok(Self {
            base,
            len: memory.len(),
            owner: Owner::Driver(PageLocked {
                id: SourceId::next(),
                thread: CopyThread::shared(memory.gpu()),
                memory,
                is_used: AtomicBool::new(false),
            }),
            can_be_read: OnceLock::new(),
        })
    }

    /// Wraps memory of another library.
    ///
    /// # Safety
    /// As for [`Buffer::host_from_owner`](super::Buffer::host_from_owner).
    pub(super) unsafe fn from_owner(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        if len == 0 {
            return Err(Error::EmptyBuffer);
        }
        Ok(Self {
            base,
            len,
            owner: Owner::Other(owner),
            can_be_read: OnceLock::new(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether dropping it may wait for a GPU, because a driver frees it, or a library that may call one.
    pub(super) fn is_of_driver(&self) -> bool {
        matches!(self.owner, Owner::Driver(_) | Owner::Other(_))
    }

    fn page_locked_memory(&self) -> Option<&PageLocked> {
        match &self.owner {
            Owner::Driver(memory) => Some(memory),
            Owner::Pages | Owner::Other(_) => None,
        }
    }

    /// Returns the thread that copies memory of other processes into this memory, if it has one.
    pub(super) fn copy_thread(&self) -> Option<&CopyThread> {
        let thread = &self.page_locked_memory()?.thread;
        thread.copies_peers().then_some(thread)
    }

    /// Like [`Buffer::begin_copy_from`](super::Buffer::begin_copy_from).
    pub(super) fn begin_copy_from(
        &self,
        offset: u64,
        peer: &PeerMemory,
        from_addr: u64,
        len: u64,
    ) -> Option<IncomingCopy> {
        super::check_range(offset, len, self.len as u64).ok()?;
        let locked = self.page_locked_memory()?;
        // Set this before handing the copy over, so that the end of the registration waits for it.
        locked.is_used.store(true, Ordering::SeqCst);
        let into = IncomingTarget::Host(locked.id, Arc::clone(&locked.memory));
        let thread = &locked.thread;
        thread.begin_incoming(peer, from_addr, into, offset, len)
    }

    /// Ends the copies into it.
    pub(super) fn end_copies(&self) {
        if let Some(locked) = self.page_locked_memory() {
            locked.end_copies(END_LIMIT);
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Returns the address of `len` bytes at `offset`.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8> {
        super::check_range(offset, len as u64, self.len as u64)?;
        // SAFETY: `offset + len <= self.len`, so this is in the memory or one past it.
        Ok(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    #[inline]
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let dst = self.at(offset, bytes.len())?;
        // SAFETY: in the memory, which is valid as long as `self` and has no references.
        unsafe { volatile_copy::store(dst, bytes) };
        Ok(())
    }

    #[inline]
    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let src = self.at(offset, bytes.len())?;
        // SAFETY: in the memory, which is valid as long as `self` and has no references.
        unsafe { volatile_copy::load(src, bytes) };
        Ok(())
    }

    /// Copies `len` bytes that another process may change meanwhile.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, to which there are no references.
    pub(super) unsafe fn store_shared(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        let dst = self.at(offset, len)?;
        // SAFETY: in the memory, which is valid as long as `self` and has no references; and the caller's promise.
        unsafe { volatile_copy::copy(dst, from, len) };
        Ok(())
    }

    /// Copies `len` bytes at `from` of another process.
    pub(super) fn copy_from(
        &self,
        offset: u64,
        process: &ProcessMemory,
        from: u64,
        len: usize,
    ) -> Result<()> {
        let dst = self.at(offset, len)?;
        // SAFETY: in the memory, which is valid as long as `self` and has no references.
        unsafe { process.read(from, dst, len) }
            .map_err(|errno| Error::os("process_vm_readv", errno))
    }

    /// Returns whether other processes of the user may read the memory.
    pub(super) fn can_be_read(&self) -> bool {
        *self
            .can_be_read
            .get_or_init(|| memory::can_be_read(self.address(), self.len))
    }

    /// Makes earlier stores visible to a thread that sees a later one.
    pub(super) fn release(&self) {
        fence(Ordering::Release);
    }

    pub(super) fn load_u8(&self, offset: u64) -> Result<u8> {
        let at = self.at(offset, 1)?;
        // SAFETY: in the memory; other accesses to the byte are atomic, volatile or not by Rust code.
        Ok(unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire))
    }

    pub(super) fn load_u32(&self, offset: u64) -> Result<u32> {
        let at = self.aligned::<u32>(offset)?;
        // SAFETY: in the memory and aligned; other accesses to the bytes as for `load_u8`.
        Ok(unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Acquire))
    }

    pub(super) fn load_u64(&self, offset: u64) -> Result<u64> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Applies an atomic operation to the word at `offset`; returns its previous value.
    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        Ok(apply(self.word(offset)?, operation))
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64> {
        let at = self.aligned::<u64>(offset)?;
        // SAFETY: in the memory, which is valid as long as `self`, and aligned; other accesses to the
        // bytes as for `load_u8`.
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

/// Applies an atomic operation to a word; returns its previous value.
pub(super) fn apply(word: &AtomicU64, operation: AtomicOp) -> u64 {
    match operation {
        AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
        AtomicOp::CompareSwap { compare, swap } => {
            match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                Ok(before) | Err(before) => before,
            }
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::Pages) {
            return;
        }
        // SAFETY: `new` made this mapping; every user of it holds this value.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::debug!(%error, "munmap of a buffer failed");
        }
    }
}
