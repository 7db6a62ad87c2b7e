//! Owned device memory.

use std::ops::Range;
use std::sync::Arc;

use crate::driver::{DmaBuf, MemoryKind, RawAllocation};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::pointer::DevicePtr;

/// Device memory of one allocation, freed when this value and all queued work that uses it are
/// gone.
///
/// Reads and writes are the driver's copies: synchronous, on the default stream, so they do not
/// wait for work on a [`crate::Stream`]. Two that overlap in time may interleave.
#[derive(Debug)]
pub struct DeviceBuffer {
    allocation: Arc<Allocation>,
}

/// What a [`DeviceBuffer`] owns, shared with the streams that may still be using it.
#[derive(Debug)]
pub(crate) struct Allocation {
    gpu: Gpu,
    raw: RawAllocation,
}

impl DeviceBuffer {
    pub(crate) fn allocate(gpu: Gpu, kind: MemoryKind, len: u64) -> Result<Self> {
        let raw = gpu.driver().allocate(gpu.info().ordinal, kind, len)?;
        Ok(Self {
            allocation: Arc::new(Allocation { gpu, raw }),
        })
    }

    /// Its device address.
    pub fn ptr(&self) -> DevicePtr {
        self.allocation.raw.ptr
    }

    /// Bytes asked for.
    #[expect(clippy::len_without_is_empty, reason = "no driver allocates 0 bytes")]
    pub fn len(&self) -> u64 {
        self.allocation.raw.len
    }

    /// How it was allocated.
    pub fn kind(&self) -> MemoryKind {
        self.allocation.raw.kind
    }

    /// The GPU it is on.
    pub fn gpu(&self) -> &Gpu {
        &self.allocation.gpu
    }

    /// Copies `bytes` to `offset` and returns when they are in device memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing written; the driver's.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = self.range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        // SAFETY: `bytes` is a live slice, and `range` lies in this live allocation.
        unsafe { driver.copy_to_device(device, range.start, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies from `offset` into all of `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing read; the driver's.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let range = self.range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        // SAFETY: `bytes` is an exclusive live slice, and `range` lies in this live allocation.
        unsafe { driver.copy_from_device(device, bytes.as_mut_ptr(), range.start, bytes.len()) }
    }

    /// Makes copies and fills of this memory complete before the calls return, which they need not
    /// otherwise: for memory that another device reaches ([`Driver::synchronize_copies`]).
    ///
    /// [`Driver::synchronize_copies`]: crate::Driver::synchronize_copies
    ///
    /// # Errors
    /// The driver's, where it does not do that for memory of this kind.
    pub fn synchronize_copies(&self) -> Result<()> {
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        driver.synchronize_copies(device, self.ptr())
    }

    /// Waits until what other devices wrote into this GPU's memory, and what has arrived there, is
    /// seen by whatever looks next on the GPU (`cuFlushGPUDirectRDMAWrites`). Where the GPU orders
    /// such writes itself ([`RemoteWrites`](crate::RemoteWrites)) there is nothing to wait for.
    ///
    /// # Errors
    /// The driver's, where it cannot.
    pub fn flush_remote_writes(&self) -> Result<()> {
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        driver.flush_remote_writes(device, self.ptr())
    }

    /// A dma-buf that holds `len` bytes at `offset`, for a device that imports one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; the driver's, where it exports none.
    pub fn dma_buf(&self, offset: u64, len: u64) -> Result<DmaBuf> {
        let range = self.range(offset, len)?;
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        driver.dma_buf(device, range.start, len)
    }

    /// The addresses of `wanted` bytes at `offset`, where the buffer has them.
    pub(crate) fn range(&self, offset: u64, wanted: u64) -> Result<Range<DevicePtr>> {
        let len = self.len();
        let end = offset.checked_add(wanted).filter(|end| *end <= len);
        end.and_then(|end| Some(self.ptr().checked_add(offset)?..self.ptr().checked_add(end)?))
            .ok_or(Error::OutOfRange {
                offset,
                wanted,
                len,
            })
    }

    /// What must outlive queued work on this buffer.
    pub(crate) fn allocation(&self) -> Arc<Allocation> {
        Arc::clone(&self.allocation)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `raw` came from this driver and this value alone owns it. Safe methods of
        // `Stream` keep an `Arc` of it until their work is complete, and who calls
        // `Stream::launch` vouches for the rest.
        if let Err(error) = unsafe { self.gpu.driver().free(&self.raw) } {
            tracing::debug!(ptr = %self.raw.ptr, %error, "freeing device memory failed");
        }
    }
}
