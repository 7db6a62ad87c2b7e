//! Buffers: memory that stays valid during every operation on it.
//!
//! GPU memory without a CPU mapping is accessed through page-locked memory, in three places. They are not a single type
//! because room is freed by different events: in [`staged`] (received bytes, gathered by the CPU) when the copies of
//! all slots are complete; in [`read_ahead`] (bytes to send, of any length) at once, because they can be read again; in
//! gdr-rdma's `StagingRing` (registered memory, accessed by the NIC) when a slot's work request has completed. The
//! first two share [`copy_stream`]; in programs that use the GPU themselves, the copies of the second are made by
//! [`copy_thread`].

mod copy_stream;
mod copy_thread;
mod direct;
mod host;
mod on_demand;
mod read_ahead;
mod read_source;
mod staged;
pub(crate) mod volatile_copy;

use std::any::Any;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use gdr_copy::Mapping;
use gdr_cuda::{DeviceBuffer, ExportedMemory, HostBuffer};
use gdr_roce::wire::MAX_DATAGRAM;
use gdr_roce::{AtomicOp, Extent};

pub use self::copy_thread::CopyThread;
pub(crate) use self::copy_thread::{IncomingCopy, IncomingState, PeerMemory, PeerState};
use self::direct::Direct;
use self::host::HostMemory;
use self::on_demand::OnDemand;
use self::staged::Staged;
use crate::error::{Error, Result};
use crate::wire::memory::ProcessMemory;
use gdr_process::ProcessBound;

/// Where the bytes of a buffer are, and how the engine accesses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BufferKind {
    /// Host memory.
    Host,
    /// GPU memory through a `gdr-copy` mapping, into which the CPU stores received bytes directly.
    Direct,
    /// GPU memory through page-locked host memory and the GPU's copy engine.
    Staged,
}

impl fmt::Display for BufferKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host memory",
            Self::Direct => "GPU memory, direct",
            Self::Staged => "GPU memory, staged",
        })
    }
}

/// The minimum length of reads of a mapped buffer that use the GPU's copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEngineThreshold {
    /// Chosen by [`gdr_copy::plan`] from the user's profile for this machine, or else from built-in costs. Over PCIe it
    /// is about 8 KiB for a single request, and less for several. Nothing is measured.
    Planned,
    /// This many bytes.
    From(u64),
}

/// Whether other reads of the memory are announced and not yet served: their copies overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    Alone,
    AmongOthers,
}

/// Memory that can be registered for RDMA. A clone refers to the same memory.
///
/// The network, the GPU and other threads may write to it at any time, so it is never accessible as
/// `&[u8]`. [`Buffer::write_at`] and [`Buffer::read_at`] copy; [`Buffer::load_u8`], [`Buffer::load_u32`]
/// and [`Buffer::load_u64`] load single words. A copy that overlaps a transfer may be torn, except for
/// copies of 1, 2, 4 or 8 bytes at a multiple of their size.
///
/// Bytes that arrived before a completion was polled, or before the last word that the peer wrote was
/// loaded, are visible to all later copies by the same thread.
///
/// # Memory from other libraries
///
/// Memory from PyTorch, cudarc or NCCL can be used like any other: wrap GPU memory in a [`DeviceBuffer`]
/// that keeps its owner, and pass that to [`Buffer::staged`] or [`Buffer::direct_with_copies`]; wrap host
/// memory with [`Buffer::host_from_owner`]. Both can be registered with devices of every provider.
///
/// # Fork
///
/// A buffer belongs to the process that created it: in a forked child every copy fails with
/// [`Error::ForkedChild`], and dropping it frees nothing. Memory from [`Buffer::host`] is not mapped in
/// the child (`MADV_DONTFORK`), so a device continues to use the parent's pages.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<ProcessBound<Memory>>);

/// The length in bytes of the pieces in which memory of another process is copied to GPU memory by way of the host:
/// short enough to stay in the CPU's cache.
const PIECE: usize = 1 << 16;
const _: () = assert!(PIECE >= MAX_DATAGRAM);

/// Holds bytes of another process before they are copied into GPU memory.
#[derive(Debug, Default)]
pub(crate) struct BounceBuffer(Vec<u8>);

impl BounceBuffer {
    /// Returns room for `len` bytes, at most one piece.
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        self.0.resize(PIECE, 0);
        &mut self.0[..len.min(PIECE)]
    }
}

#[derive(Debug)]
enum Memory {
    Host(HostMemory),
    Direct(Direct),
    Staged(Staged),
    OnDemand(OnDemand),
    /// Reads return zeros, and writes are discarded.
    Null,
}

impl Buffer {
    /// Allocates `len` zeroed bytes of host memory, from the start of a page.
    ///
    /// # Errors
    /// [`Error::EmptyBuffer`], [`SocketError::Os`](crate::SocketError::Os).
    pub fn host(len: usize) -> Result<Self> {
        HostMemory::new(len).map(|memory| Self::of(Memory::Host(memory)))
    }

    /// Wraps host memory from another library, and keeps `owner` until the buffer and all its regions are
    /// dropped. `owner` can be any value whose drop releases the memory, such as a reference-counted
    /// tensor. It may be dropped on a different thread.
    ///
    /// A kernel device pins the pages of the memory. Unlike memory from [`Buffer::host`], forked children
    /// inherit it: on kernels before 5.12, call `madvise(MADV_DONTFORK)` on it if the process forks while
    /// a device uses it.
    ///
    /// # Errors
    /// [`Error::EmptyBuffer`], after which `owner` has been dropped.
    ///
    /// # Safety
    /// Until `owner` is dropped:
    /// - the memory must be valid for reads and writes of `len` bytes at `address`;
    /// - there must be no references to its bytes, and Rust code may access them only through this
    ///   buffer, or with atomic or volatile accesses.
    ///
    /// ```
    /// use std::cell::UnsafeCell;
    /// use std::ptr::NonNull;
    /// use std::sync::Arc;
    ///
    /// use gdr_nic::Buffer;
    ///
    /// struct Tensor(UnsafeCell<[u8; 4096]>);
    /// // SAFETY: the bytes are accessed only through the buffer.
    /// unsafe impl Sync for Tensor {}
    ///
    /// # fn main() -> gdr_nic::Result<()> {
    /// let tensor = Arc::new(Tensor(UnsafeCell::new([0; 4096])));
    /// let address = NonNull::new(tensor.0.get().cast()).unwrap();
    /// // SAFETY: `tensor` holds the bytes, and they are accessed only through the buffer.
    /// let buffer = unsafe { Buffer::host_from_owner(address, 4096, tensor)? };
    /// buffer.write_at(0, b"hello")?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn host_from_owner(
        address: NonNull<u8>,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Self> {
        // SAFETY: the caller's promises.
        let memory = unsafe { HostMemory::from_owner(address, len, Box::new(owner)) }?;
        Ok(Self::of(Memory::Host(memory)))
    }

    /// Wraps all of the host memory that a GPU's driver has page-locked, which the GPU's copy engine reads and
    /// writes without another copy. The buffer keeps the memory alive; its bytes may also be used through
    /// `memory`. Long messages from GPU memory of another process on this host are copied into it by the GPU.
    ///
    /// # Errors
    /// [`Error::EmptyBuffer`].
    pub fn page_locked(memory: impl Into<Arc<HostBuffer>>) -> Result<Self> {
        HostMemory::page_locked(memory.into()).map(|memory| Self::of(Memory::Host(memory)))
    }

    /// Wraps GPU memory that is mapped for the CPU; the buffer keeps the mapping alive.
    ///
    /// The engine stores each packet into the mapping as it arrives, and flushes the CPU's write-combining
    /// buffers once before it acknowledges. It serves READs with loads through the mapping, which takes a PCIe
    /// round trip for every few cache lines; [`Buffer::direct_with_copies`] is faster for long READs. A kernel
    /// device cannot register this buffer, because its allocation is unknown.
    ///
    /// # Errors
    /// [`Error::EmptyBuffer`].
    pub fn direct(mapping: impl Into<Arc<Mapping>>) -> Result<Self> {
        let mapping = not_empty(mapping.into())?;
        Ok(Self::of(Memory::Direct(Direct::new(mapping))))
    }

    /// Like [`Buffer::direct`], but long READs, and long messages sent from this memory, are copied to
    /// page-locked host memory (1 MiB) by the GPU's copy engine, ahead of the packets. Received
    /// bytes are still stored through the mapping.
    ///
    /// # Errors
    /// [`Error::MappedElsewhere`] if the mapping is not part of `buffer`;
    /// [`Error::EmptyBuffer`], [`Error::Copy`], [`Error::Cuda`].
    pub fn direct_with_copies(
        mapping: impl Into<Arc<Mapping>>,
        buffer: impl Into<Arc<DeviceBuffer>>,
        from: CopyEngineThreshold,
    ) -> Result<Self> {
        let mapping = not_empty(mapping.into())?;
        Direct::with_copies(mapping, buffer.into(), from)
            .map(|direct| Self::of(Memory::Direct(direct)))
    }

    /// Like [`Buffer::direct_with_copies`], for memory that the program allocated and may free, and with the
    /// calls of the driver made by `thread` alone: in a program whose own threads hold locks of the driver
    /// while they wait for kernels, and these for the network.
    ///
    /// The engine never waits for the driver here. What `thread` has not copied within half a
    /// millisecond is loaded by the CPU through the mapping, as with [`Buffer::direct`], and for a while
    /// nothing more is asked for. All buffers of `thread` share 4 MiB of page-locked memory; a buffer has
    /// none of its own.
    ///
    /// `buffer` names the memory, and may end before the mapping, whose last page may go beyond the
    /// allocation: the rest is loaded by the CPU. Before and after each copy is queued, its allocation is
    /// compared with that at the time of this call; memory that was freed in between is loaded by the CPU
    /// from then on, through the mapping, which keeps it. [`Buffer::device_memory`] is `None`.
    ///
    /// `from` as [`CopyEngineThreshold::Planned`] counts what the hand-over to the thread costs: over PCIe
    /// reads from some 60 KiB on are long, and from some 20 KiB on if they are one of several. It is
    /// planned once for a GPU.
    ///
    /// # Errors
    /// [`Error::MappedElsewhere`] if the mapping does not begin in `buffer`; [`Error::Cuda`] if that is on
    /// another GPU than `thread`; [`Error::EmptyBuffer`], [`Error::Copy`].
    pub fn direct_with_copy_thread(
        mapping: impl Into<Arc<Mapping>>,
        buffer: impl Into<Arc<DeviceBuffer>>,
        thread: &CopyThread,
        from: CopyEngineThreshold,
    ) -> Result<Self> {
        let mapping = not_empty(mapping.into())?;
        Direct::with_copy_thread(mapping, buffer.into(), thread, from)
            .map(|direct| Self::of(Memory::Direct(direct)))
    }

    /// Wraps GPU memory that the engine accesses through page-locked host memory (2 MiB) and
    /// copies on a separate stream.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn staged(buffer: impl Into<Arc<DeviceBuffer>>) -> Result<Self> {
        Staged::new(buffer.into()).map(|staged| Self::of(Memory::Staged(staged)))
    }

    /// Refers to `len` bytes of this process's memory that need not be mapped. The kernel copies them, and an access to
    /// unmapped pages fails with [`Error::NotMapped`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if addresses overflow.
    ///
    /// # Safety
    /// There are no references to bytes that are written.
    pub unsafe fn on_demand(address: u64, len: u64) -> Result<Self> {
        OnDemand::new(address, len).map(|memory| Self::of(Memory::OnDemand(memory)))
    }

    /// Returns a buffer that spans all addresses: reads return zeros, and writes are discarded.
    pub fn null() -> Self {
        Self::of(Memory::Null)
    }

    fn of(memory: Memory) -> Self {
        Self(Arc::new(ProcessBound::new(memory)))
    }

    /// Fails in a child of the process that made the buffer.
    fn check_process(&self) -> Result<()> {
        match self.0.is_own() {
            true => Ok(()),
            false => Err(Error::ForkedChild),
        }
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no buffer is empty")]
    pub fn len(&self) -> u64 {
        match &**self.0 {
            Memory::Host(memory) => memory.len() as u64,
            Memory::Direct(memory) => memory.len(),
            Memory::Staged(memory) => memory.len(),
            Memory::OnDemand(memory) => memory.len(),
            Memory::Null => u64::MAX,
        }
    }

    /// Returns where the bytes are, and how they are accessed.
    pub fn kind(&self) -> BufferKind {
        match &**self.0 {
            Memory::Host(_) | Memory::OnDemand(_) | Memory::Null => BufferKind::Host,
            Memory::Direct(_) => BufferKind::Direct,
            Memory::Staged(_) => BufferKind::Staged,
        }
    }

    /// Returns the address of the first byte: a CPU address for host memory, a GPU address otherwise.
    pub fn address(&self) -> u64 {
        match &**self.0 {
            Memory::Host(memory) => memory.address(),
            Memory::Direct(memory) => memory.address(),
            Memory::Staged(memory) => memory.address(),
            Memory::OnDemand(memory) => memory.address(),
            Memory::Null => 0,
        }
    }

    /// Returns the minimum length in bytes of single READs that use the GPU's copy engine instead of CPU loads; `None`
    /// if the method does not depend on the length.
    pub fn long_reads_from(&self) -> Option<u64> {
        match &**self.0 {
            Memory::Direct(memory) => memory.long_reads_from(),
            _ => None,
        }
    }

    /// Returns the GPU allocation that contains the buffer, and the buffer's offset in it; `None` for host memory, and
    /// if only the mapping is known.
    pub fn device_memory(&self) -> Option<(&Arc<DeviceBuffer>, u64)> {
        match &**self.0 {
            Memory::Direct(memory) => memory.device_memory(),
            Memory::Staged(memory) => Some((memory.device_buffer(), 0)),
            _ => None,
        }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing written; [`Error::ForkedChild`], [`Error::Copy`],
    /// [`Error::Cuda`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_process()?;
        check_range(offset, bytes.len() as u64, self.len())?;
        match &**self.0 {
            Memory::Host(memory) => {
                memory.store(offset, bytes)?;
                // Pairs with the acquire load of a thread that polls a word and then reads the bytes.
                memory.release();
                Ok(())
            }
            Memory::Direct(memory) => memory.write(offset, bytes),
            Memory::Staged(memory) => memory.write(offset, bytes),
            Memory::OnDemand(_) | Memory::Null => self.place(offset, bytes),
        }
    }

    /// Copies from `offset` into all of `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing read; [`Error::ForkedChild`], [`Error::Copy`],
    /// [`Error::Cuda`].
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check_process()?;
        check_range(offset, bytes.len() as u64, self.len())?;
        match &**self.0 {
            Memory::Host(memory) => memory.load(offset, bytes),
            Memory::Direct(memory) => memory.read(offset, bytes),
            Memory::Staged(memory) => memory.read(offset, bytes),
            Memory::OnDemand(_) | Memory::Null => self.fetch(offset, bytes),
        }
    }

    /// Loads the byte at `offset`, with acquire ordering: to poll the byte that a peer writes last.
    ///
    /// # Errors
    /// Same as [`Buffer::read_at`].
    pub fn load_u8(&self, offset: u64) -> Result<u8> {
        self.check_process()?;
        match &**self.0 {
            Memory::Host(memory) => memory.load_u8(offset),
            _ => self.load::<1>(offset).map(u8::from_ne_bytes),
        }
    }

    /// Loads the word at `offset`, a multiple of 4, as [`Buffer::load_u8`].
    ///
    /// # Errors
    /// Same as [`Buffer::read_at`]; [`Error::Misaligned`].
    pub fn load_u32(&self, offset: u64) -> Result<u32> {
        self.check_process()?;
        match &**self.0 {
            Memory::Host(memory) => memory.load_u32(offset),
            _ => self.load::<4>(offset).map(u32::from_ne_bytes),
        }
    }

    /// Loads the word at `offset`, a multiple of 8, as [`Buffer::load_u8`].
    ///
    /// # Errors
    /// Same as [`Buffer::read_at`]; [`Error::Misaligned`].
    pub fn load_u64(&self, offset: u64) -> Result<u64> {
        self.check_process()?;
        match &**self.0 {
            Memory::Host(memory) => memory.load_u64(offset),
            _ => self.load::<8>(offset).map(u64::from_ne_bytes),
        }
    }

    fn load<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let alignment = N as u64;
        if !offset.is_multiple_of(alignment) {
            return Err(Error::Misaligned { offset, alignment });
        }
        let mut word = [0; N];
        self.read_at(offset, &mut word)?;
        Ok(word)
    }
}

/// Accesses by the engine.
impl Buffer {
    /// Stores part of a message, which is in memory after [`Buffer::flush`].
    #[inline]
    pub(crate) fn place(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match &**self.0 {
            Memory::Host(memory) => memory.store(offset, bytes),
            Memory::Direct(memory) => memory.store(offset, bytes),
            Memory::Staged(memory) => memory.store(offset, bytes),
            Memory::OnDemand(memory) => memory.store(offset, bytes),
            Memory::Null => Ok(()),
        }
    }

    /// Like [`Buffer::place`], for bytes that another process may change meanwhile.
    ///
    /// # Safety
    /// `from` is memory of this process, valid for reads of its length, to which there are no references.
    pub(crate) unsafe fn place_shared(
        &self,
        offset: u64,
        from: Extent,
        bounce: &mut BounceBuffer,
    ) -> Result<()> {
        let (address, len) = (from.addr as usize, from.len as usize);
        let bytes = ptr::with_exposed_provenance(address);
        match &**self.0 {
            // SAFETY: the caller's promise.
            Memory::Host(memory) => unsafe { memory.store_shared(offset, bytes, len) },
            _ => {
                // Both kinds store from a reference, and no reference may point to bytes that
                // another process may change.
                let copy = bounce.bytes(len);
                // SAFETY: the caller's promise, for at most `len` bytes.
                unsafe { volatile_copy::load(bytes, copy) };
                self.place(offset, copy)
            }
        }
    }

    /// Copies `len` bytes at `from` of another process to `offset`; they are in memory after [`Buffer::flush`].
    pub(crate) fn copy_from(
        &self,
        offset: u64,
        process: &ProcessMemory,
        from: u64,
        len: usize,
        bounce: &mut BounceBuffer,
    ) -> Result<()> {
        if let Memory::Host(memory) = &**self.0 {
            return memory.copy_from(offset, process, from, len);
        }
        for done in (0..len).step_by(PIECE) {
            let piece = bounce.bytes(len - done);
            // SAFETY: an own buffer.
            let copied = unsafe {
                process.read(
                    from.wrapping_add(done as u64),
                    piece.as_mut_ptr(),
                    piece.len(),
                )
            };
            copied.map_err(|errno| Error::os("process_vm_readv", errno))?;
            self.place(offset + done as u64, piece)?;
        }
        Ok(())
    }

    /// Returns the address at which another process of the user can read the bytes from `offset` on, if it may.
    pub(crate) fn shared_address(&self, offset: u64) -> Option<u64> {
        match &**self.0 {
            Memory::Host(memory) => memory.can_be_read().then(|| memory.address() + offset),
            _ => None,
        }
    }

    /// Returns the thread that copies memory of other processes into this memory, if it has one.
    pub(crate) fn copy_thread(&self) -> Option<&CopyThread> {
        match &**self.0 {
            Memory::Direct(memory) => memory.copy_thread(),
            Memory::Host(memory) => memory.copy_thread(),
            _ => None,
        }
    }

    /// Returns the allocation in the form in which copy threads of other processes can open it, if it can be exported.
    pub(crate) fn export(&self) -> Option<&Arc<ExportedMemory>> {
        match &**self.0 {
            Memory::Direct(memory) => memory.export(),
            _ => None,
        }
    }

    /// Hands over a copy of `len` bytes at `from_addr`, an address of another process, to `offset`. `None` if that is
    /// not possible now: `peer` was opened by another thread or is not open yet, a range is outside its memory, too
    /// many copies are in progress, one of them is late, or the memory was freed.
    pub(crate) fn begin_copy_from(
        &self,
        offset: u64,
        peer: &PeerMemory,
        from_addr: u64,
        len: u64,
    ) -> Option<IncomingCopy> {
        match &**self.0 {
            Memory::Direct(memory) => memory.begin_copy_from(offset, peer, from_addr, len),
            Memory::Host(memory) => memory.begin_copy_from(offset, peer, from_addr, len),
            _ => None,
        }
    }

    /// Returns once all placed bytes may be acknowledged and completed.
    pub(crate) fn flush(&self) -> Result<()> {
        match &**self.0 {
            Memory::Host(memory) => memory.release(),
            Memory::Direct(memory) => memory.flush(),
            Memory::Staged(memory) => memory.flush()?,
            Memory::OnDemand(_) | Memory::Null => {}
        }
        Ok(())
    }

    /// Returns whether [`Buffer::expect_read`] depends on other reads of the memory.
    pub(crate) fn queues_reads(&self) -> bool {
        match &**self.0 {
            Memory::Direct(memory) => memory.has_copies(),
            _ => false,
        }
    }

    /// Announces that a request will fetch this range, which is not empty. The bytes fetched are no older than this
    /// call, and include what this thread placed before the last [`Buffer::flush`].
    pub(crate) fn expect_read(&self, offset: u64, len: u64, queued: Queued) -> Result<()> {
        match &**self.0 {
            Memory::Direct(memory) => memory.expect_read(offset, len, queued),
            Memory::Staged(memory) => memory.expect_read(offset, len),
            Memory::Host(_) | Memory::OnDemand(_) | Memory::Null => Ok(()),
        }
    }

    /// Like [`Buffer::expect_read`], for a request that most likely fetches nothing: nothing is copied for it.
    pub(crate) fn forget_reads(&self, offset: u64, len: u64) {
        if let Memory::Direct(memory) = &**self.0 {
            memory.forget_reads(offset, len);
        }
    }

    /// Orders later loads of this thread after this call, so that they return bytes no older than it.
    pub(crate) fn begin_reads(&self) {
        if let Memory::Direct(memory) = &**self.0 {
            memory.begin_reads();
        }
    }

    /// Ends announced reads that were not fetched, and copies into the memory. When this returns, no copy uses the
    /// memory any more, unless the driver is blocked; called when a registration of the memory has ended.
    pub(crate) fn end_reads(&self) {
        match &**self.0 {
            Memory::Direct(memory) => memory.end_reads(),
            Memory::Host(memory) => memory.end_copies(),
            _ => {}
        }
    }

    /// Returns how many fences [`Buffer::begin_reads`] has run.
    #[cfg(test)]
    pub(crate) fn fences(&self) -> u32 {
        match &**self.0 {
            Memory::Direct(memory) => memory.fences(),
            _ => 0,
        }
    }

    /// Returns how many times [`Buffer::flush`] flushed mapped GPU memory.
    #[cfg(test)]
    pub(crate) fn flushes(&self) -> u32 {
        match &**self.0 {
            Memory::Direct(memory) => memory.flushes(),
            _ => 0,
        }
    }

    /// Returns whether dropping the buffer may wait for GPU work.
    pub fn is_of_driver(&self) -> bool {
        match &**self.0 {
            Memory::Host(memory) => memory.is_of_driver(),
            Memory::Direct(_) | Memory::Staged(_) => true,
            Memory::OnDemand(_) | Memory::Null => false,
        }
    }

    /// Returns whether both are clones of one buffer.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Copies the part of a message that was read ahead into the start of `bytes`; returns its length. It needs no
    /// fence.
    #[inline]
    pub(crate) fn fetch_ahead(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        match &**self.0 {
            Memory::Direct(memory) => memory.load_ahead(offset, bytes),
            _ => Ok(0),
        }
    }

    /// Loads part of a message, after [`Buffer::begin_reads`].
    #[inline]
    pub(crate) fn fetch(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match &**self.0 {
            Memory::Host(memory) => memory.load(offset, bytes),
            Memory::Direct(memory) => memory.load(offset, bytes),
            Memory::Staged(memory) => memory.load(offset, bytes),
            Memory::OnDemand(memory) => memory.load(offset, bytes),
            Memory::Null => {
                bytes.fill(0);
                Ok(())
            }
        }
    }

    /// Like [`Buffer::fetch`]; `None` for memory other than host memory, and outside of the buffer.
    #[inline]
    pub(crate) fn load_host(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        match &**self.0 {
            Memory::Host(memory) => memory.load(offset, bytes).ok(),
            _ => None,
        }
    }

    /// Applies an atomic operation; returns the previous value.
    pub(crate) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        match &**self.0 {
            Memory::Host(memory) => memory.atomic(offset, operation),
            Memory::Direct(memory) => memory.atomic(offset, operation),
            Memory::Staged(memory) => memory.atomic(offset, operation),
            Memory::OnDemand(memory) => memory.atomic(offset, operation),
            Memory::Null => Ok(0),
        }
    }
}

fn not_empty(mapping: Arc<Mapping>) -> Result<Arc<Mapping>> {
    if mapping.is_empty() {
        return Err(Error::EmptyBuffer);
    }
    Ok(mapping)
}

/// Fails unless `wanted` bytes at `offset` lie within `len` bytes.
pub fn check_range(offset: u64, wanted: u64, len: u64) -> Result<()> {
    if offset.checked_add(wanted).is_some_and(|end| end <= len) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        offset,
        wanted,
        len,
    })
}
