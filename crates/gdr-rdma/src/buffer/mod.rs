//! Buffers: memory that outlives every operation on it.

mod ahead;
mod bytes;
mod direct;
mod host;
mod staged;

use std::fmt;
use std::sync::Arc;

use gdr_copy::Mapping;
use gdr_cuda::{DeviceBuffer, HostBuffer};
use gdr_roce::AtomicOp;

use self::direct::Direct;
use self::host::HostMemory;
use self::staged::Staged;
use crate::error::{Error, Result};

/// Where a buffer's bytes are, and how the soft provider reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BufferKind {
    /// Memory of the host.
    Host,
    /// GPU memory through a mapping of `gdr-copy`: the CPU stores what arrives straight into it.
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

/// From which length on the GPU's copy engine reads what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongReads {
    /// From where it was the faster of the two when the buffer was made, which takes a fraction of
    /// a millisecond: some 8 KiB over PCIe for one request, less for one among several.
    Measured,
    /// From this many bytes on.
    From(u64),
}

/// Memory that can be registered for RDMA; a clone is the same memory.
///
/// The network, the GPU and other threads write to it at any time. There is no `&[u8]` over it:
/// [`Buffer::copy_in`] and [`Buffer::copy_out`] copy, [`Buffer::load_u8`] and its larger kin
/// watch single words. A copy that overlaps a transfer may be torn, never worse; one of 1, 2, 4 or
/// 8 bytes at a multiple of its size is whole.
///
/// What completed before a completion was polled, or before a word was seen that the peer wrote
/// last, is seen by every later copy of the same thread.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Memory>);

#[derive(Debug)]
enum Memory {
    Host(HostMemory),
    Direct(Direct),
    Staged(Staged),
}

impl Buffer {
    /// `len` zeroed bytes of host memory, from the start of a page.
    ///
    /// # Errors
    /// [`Error::EmptyBuffer`], [`Error::Os`].
    pub fn host(len: usize) -> Result<Self> {
        HostMemory::new(len).map(|memory| Self(Arc::new(Memory::Host(memory))))
    }

    /// Host memory that a GPU's driver page-locked, all of it: from here the GPU's copy engine
    /// takes bytes, and to here it brings them, without another copy. This keeps it alive; its
    /// bytes may also be used through `memory`.
    ///
    /// # Errors
    /// [`Error::EmptyBuffer`].
    pub fn page_locked(memory: impl Into<Arc<HostBuffer>>) -> Result<Self> {
        HostMemory::page_locked(memory.into()).map(|memory| Self(Arc::new(Memory::Host(memory))))
    }

    /// GPU memory behind a mapping, which this keeps alive.
    ///
    /// The soft provider stores each packet into the mapping as it arrives and flushes the CPU's
    /// write-combining buffers once before it acknowledges; it serves READs by loading through
    /// the mapping, at PCIe's latency for each few lines. [`Buffer::direct_with_copies`] is
    /// faster for long ones.
    ///
    /// # Errors
    /// [`Error::EmptyBuffer`].
    pub fn direct(mapping: impl Into<Arc<Mapping>>) -> Result<Self> {
        let mapping = not_empty(mapping.into())?;
        Ok(Self(Arc::new(Memory::Direct(Direct::new(mapping)))))
    }

    /// As [`Buffer::direct`], where long READs, and long messages that are sent from here, are
    /// copied to page-locked host memory (1 MiB) by the GPU's copy engine, a piece ahead of the
    /// packets. What arrives is stored through the mapping all the same.
    ///
    /// # Errors
    /// [`Error::MappedElsewhere`] where the mapping does not lie in `buffer`;
    /// [`Error::EmptyBuffer`], [`Error::Copy`], [`Error::Cuda`].
    pub fn direct_with_copies(
        mapping: impl Into<Arc<Mapping>>,
        buffer: impl Into<Arc<DeviceBuffer>>,
        from: LongReads,
    ) -> Result<Self> {
        let mapping = not_empty(mapping.into())?;
        Direct::with_copies(mapping, buffer.into(), from)
            .map(|direct| Self(Arc::new(Memory::Direct(direct))))
    }

    /// GPU memory reached through page-locked host memory (2 MiB) and copies on a stream of its
    /// own.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn staged(buffer: impl Into<Arc<DeviceBuffer>>) -> Result<Self> {
        Staged::new(buffer.into()).map(|staged| Self(Arc::new(Memory::Staged(staged))))
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "no buffer is empty")]
    pub fn len(&self) -> u64 {
        match &*self.0 {
            Memory::Host(memory) => memory.len() as u64,
            Memory::Direct(memory) => memory.len(),
            Memory::Staged(memory) => memory.len(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> BufferKind {
        match &*self.0 {
            Memory::Host(_) => BufferKind::Host,
            Memory::Direct(_) => BufferKind::Direct,
            Memory::Staged(_) => BufferKind::Staged,
        }
    }

    /// The address of its first byte: of the CPU for host memory, of the GPU otherwise.
    pub fn address(&self) -> u64 {
        match &*self.0 {
            Memory::Host(memory) => memory.address(),
            Memory::Direct(memory) => memory.address(),
            Memory::Staged(memory) => memory.address(),
        }
    }

    /// The length from which on single READs go by the GPU's copy engine instead of CPU loads,
    /// bytes; `None` where this buffer has no such choice.
    pub fn long_reads_from(&self) -> Option<u64> {
        match &*self.0 {
            Memory::Direct(memory) => memory.long_reads_from(),
            Memory::Host(_) | Memory::Staged(_) => None,
        }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing written; [`Error::Copy`], [`Error::Cuda`].
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_range(offset, bytes.len() as u64, self.len())?;
        match &*self.0 {
            Memory::Host(memory) => {
                memory.store(offset, bytes)?;
                memory.release();
                Ok(())
            }
            Memory::Direct(memory) => memory.write(offset, bytes),
            Memory::Staged(memory) => memory.write(offset, bytes),
        }
    }

    /// Copies from `offset` into all of `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing read; [`Error::Copy`], [`Error::Cuda`].
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        check_range(offset, bytes.len() as u64, self.len())?;
        match &*self.0 {
            Memory::Host(memory) => memory.load(offset, bytes),
            Memory::Direct(memory) => memory.read(offset, bytes),
            Memory::Staged(memory) => memory.read(offset, bytes),
        }
    }

    /// The byte at `offset`, with acquire ordering: for watching what a peer writes last.
    ///
    /// # Errors
    /// As [`Buffer::copy_out`].
    pub fn load_u8(&self, offset: u64) -> Result<u8> {
        match &*self.0 {
            Memory::Host(memory) => memory.load_u8(offset),
            _ => self.load::<1>(offset).map(u8::from_ne_bytes),
        }
    }

    /// The word at `offset`, a multiple of 4, as [`Buffer::load_u8`].
    ///
    /// # Errors
    /// As [`Buffer::copy_out`]; [`Error::Misaligned`].
    pub fn load_u32(&self, offset: u64) -> Result<u32> {
        match &*self.0 {
            Memory::Host(memory) => memory.load_u32(offset),
            _ => self.load::<4>(offset).map(u32::from_ne_bytes),
        }
    }

    /// The word at `offset`, a multiple of 8, as [`Buffer::load_u8`].
    ///
    /// # Errors
    /// As [`Buffer::copy_out`]; [`Error::Misaligned`].
    pub fn load_u64(&self, offset: u64) -> Result<u64> {
        match &*self.0 {
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
        self.copy_out(offset, &mut word)?;
        Ok(word)
    }
}

/// What the engine does with a buffer.
impl Buffer {
    /// Takes part of a message; it is where it belongs after [`Buffer::flush`].
    #[inline]
    pub(crate) fn place(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match &*self.0 {
            Memory::Host(memory) => memory.store(offset, bytes),
            Memory::Direct(memory) => memory.store(offset, bytes),
            Memory::Staged(memory) => memory.store(offset, bytes),
        }
    }

    /// Returns when everything placed can be told to the peer and to the program.
    pub(crate) fn flush(&self) -> Result<()> {
        match &*self.0 {
            Memory::Host(memory) => memory.release(),
            Memory::Direct(memory) => memory.flush(),
            Memory::Staged(memory) => memory.flush()?,
        }
        Ok(())
    }

    /// A request is about to fetch this range, which is not empty: what it fetches is no older
    /// than now.
    pub(crate) fn expect_read(&self, offset: u64, len: u64) -> Result<()> {
        match &*self.0 {
            Memory::Host(_) => Ok(()),
            Memory::Direct(memory) => memory.expect_read(offset, len),
            Memory::Staged(memory) => memory.expect_read(offset, len),
        }
    }

    /// What this thread fetches by loads from here on is no older than now.
    pub(crate) fn begin_reads(&self) {
        match &*self.0 {
            Memory::Direct(memory) => memory.begin_reads(),
            Memory::Host(_) | Memory::Staged(_) => {}
        }
    }

    /// The allocation of GPU memory that it is part of, and where in it it begins; `None` where
    /// it is none, or only its mapping is known.
    pub(crate) fn device_memory(&self) -> Option<(&Arc<DeviceBuffer>, u64)> {
        match &*self.0 {
            Memory::Host(_) => None,
            Memory::Direct(memory) => memory.device_memory(),
            Memory::Staged(memory) => Some((memory.device_buffer(), 0)),
        }
    }

    /// Whether both are the same memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Copies part of a message out.
    #[inline]
    pub(crate) fn fetch(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match &*self.0 {
            Memory::Host(memory) => memory.load(offset, bytes),
            Memory::Direct(memory) => memory.load(offset, bytes),
            Memory::Staged(memory) => memory.load(offset, bytes),
        }
    }

    /// One atomic operation; returns what was there before.
    pub(crate) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        match &*self.0 {
            Memory::Host(memory) => memory.atomic(offset, operation),
            Memory::Direct(memory) => memory.atomic(offset, operation),
            Memory::Staged(memory) => memory.atomic(offset, operation),
        }
    }
}

fn not_empty(mapping: Arc<Mapping>) -> Result<Arc<Mapping>> {
    if mapping.is_empty() {
        return Err(Error::EmptyBuffer);
    }
    Ok(mapping)
}

/// Whether `wanted` bytes at `offset` lie in `len`.
pub(crate) fn check_range(offset: u64, wanted: u64, len: u64) -> Result<()> {
    if offset.checked_add(wanted).is_some_and(|end| end <= len) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        offset,
        wanted,
        len,
    })
}
