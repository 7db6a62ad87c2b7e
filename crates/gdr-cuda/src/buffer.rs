//! Owned device memory.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::device_export::ExportedMemory;
use crate::driver::{DmaBuf, MemoryKind, RawAllocation};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::host_buffer::HostBuffer;
use crate::pointer::{DevicePtr, Family, PointerKind};

/// Device memory: either a separate allocation, which is freed once this value is dropped and all queued work that uses
/// it has completed, or memory that another library allocated ([`DeviceBuffer::from_owner`],
/// [`DeviceBuffer::borrowed`]).
///
/// Reads and writes use the driver's copies. These are synchronous and run on the default stream, so they do not wait
/// for work on a [`crate::Stream`]. Two copies that overlap in time may interleave.
#[derive(Debug)]
pub struct DeviceBuffer {
    allocation: Arc<Allocation>,
}

/// The memory of a [`DeviceBuffer`], shared with the streams that may still be using it.
#[derive(Debug)]
pub(crate) struct Allocation {
    gpu: Gpu,
    raw: RawAllocation,
    owner: Owner,
    /// Whether the memory is freed without waiting for kernels.
    unwaited: AtomicBool,
}

/// What frees the memory when an [`Allocation`] is dropped.
enum Owner {
    /// The driver that allocated it.
    Driver,
    /// The value that owns the memory and frees it when dropped. Never locked: the mutex makes it `Sync`.
    Other(
        #[expect(dead_code, reason = "kept only to be dropped later")] Mutex<Box<dyn Any + Send>>,
    ),
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "Driver",
            Self::Other(_) => "Other",
        })
    }
}

impl DeviceBuffer {
    pub(crate) fn allocate(gpu: Gpu, kind: MemoryKind, len: u64) -> Result<Self> {
        let raw = gpu.driver().allocate(gpu.info().ordinal, kind, len)?;
        Ok(Self {
            allocation: Arc::new(Allocation {
                gpu,
                raw,
                owner: Owner::Driver,
                unwaited: AtomicBool::new(false),
            }),
        })
    }

    /// Wraps `len` bytes at `ptr` that another library allocated (the CUDA runtime, PyTorch, cudarc, NCCL), and keeps
    /// `owner` until the memory is no longer used. Such a buffer is copied, exported, pinned and registered like any
    /// other. It never frees the memory itself; dropping `owner` does.
    ///
    /// `owner` is any value whose drop releases the memory: a reference-counted tensor, a cudarc `CudaSlice`, a guard
    /// that calls `ncclMemFree`. It is dropped after this value, the streams with work queued on it, and the memory
    /// regions and pins made from it, on the thread that drops the last of them.
    ///
    /// The range is checked only here: it must lie in one allocation on `gpu`, or in adjacent VMM mappings. The context
    /// in which it was allocated does not matter.
    ///
    /// # Streams
    /// Nothing here waits for the library's own streams, and they do not wait for operations on this buffer. Before
    /// another device or a CPU mapping reads the memory, wait for the kernels that write it (`cudaStreamSynchronize`);
    /// before a kernel reads transferred data, wait for the transfer to complete. Memory of a stream-ordered pool must
    /// already be allocated: synchronize with the stream of `cudaMallocAsync` first. An allocator that reuses memory
    /// per stream (PyTorch's) takes it back when `owner` is dropped: drop it only after all work on it has completed,
    /// or register that work with the allocator (`record_stream`).
    ///
    /// # Errors
    /// [`Error::UnknownPointer`], [`Error::NotDeviceMemory`], [`Error::OtherDevice`], [`Error::PastAllocation`]; the
    /// driver's errors. In these cases `owner` is dropped.
    ///
    /// # Safety
    /// - The memory stays allocated, and mapped at these addresses, until `owner` is dropped.
    /// - The program permits reads and writes of the memory through this value, and by devices that it is registered
    ///   with, even while its own kernels use it.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
    ///
    /// # fn main() -> gdr_cuda::Result<()> {
    /// let gpu = Gpu::open(SimDriver::new(1), Ordinal(0))?;
    /// // Stands for a tensor: `tensor.data_ptr()`, `tensor.nbytes()`, and its reference count.
    /// let tensor = Arc::new(gpu.allocate(MemoryKind::Plain, 1 << 20)?);
    /// let (ptr, len) = (tensor.ptr(), tensor.len());
    ///
    /// // SAFETY: a reference to the tensor keeps its memory, and nothing else uses it.
    /// let buffer = unsafe { DeviceBuffer::from_owner(&gpu, ptr, len, tensor.clone())? };
    /// drop(tensor);
    /// buffer.write(0, b"hello")?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn from_owner(
        gpu: &Gpu,
        ptr: DevicePtr,
        len: u64,
        owner: impl Any + Send,
    ) -> Result<Self> {
        let raw = locate(gpu, ptr, len)?;
        Ok(Self {
            allocation: Arc::new(Allocation {
                gpu: gpu.clone(),
                raw,
                owner: Owner::Other(Mutex::new(Box::new(owner))),
                unwaited: AtomicBool::new(false),
            }),
        })
    }

    /// Like [`DeviceBuffer::from_owner`], for memory that the caller keeps allocated by other means.
    ///
    /// # Errors
    /// Same as [`DeviceBuffer::from_owner`].
    ///
    /// # Safety
    /// - The memory stays allocated, and mapped at these addresses, until this value and everything that keeps it have
    ///   been dropped: streams with work queued on it, and the buffers, memory regions and pins created from it.
    /// - The second promise of [`DeviceBuffer::from_owner`].
    ///
    /// ```
    /// use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
    ///
    /// # fn main() -> gdr_cuda::Result<()> {
    /// let gpu = Gpu::open(SimDriver::new(1), Ordinal(0))?;
    /// let tensor = gpu.allocate(MemoryKind::Plain, 1 << 20)?; // stands for `tensor.data_ptr()`
    ///
    /// // SAFETY: `tensor` outlives `buffer`, and nothing else uses it.
    /// let buffer = unsafe { DeviceBuffer::borrowed(&gpu, tensor.ptr(), tensor.len())? };
    /// buffer.write(0, b"hello")?;
    /// drop(buffer);
    /// # let mut seen = [0; 5];
    /// # tensor.read(0, &mut seen)?;
    /// # assert_eq!(&seen, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn borrowed(gpu: &Gpu, ptr: DevicePtr, len: u64) -> Result<Self> {
        // SAFETY: the caller's promise; the owner is the caller.
        unsafe { Self::from_owner(gpu, ptr, len, ()) }
    }

    /// Like [`DeviceBuffer::borrowed`], but limited to the allocation in which the range begins: a range that was
    /// rounded up to whole pages may extend past it.
    ///
    /// # Safety
    /// Same as [`DeviceBuffer::borrowed`], for that part.
    ///
    /// # Errors
    /// Same as [`DeviceBuffer::borrowed`], if the range does not begin in an allocation.
    pub unsafe fn borrowed_part(gpu: &Gpu, ptr: DevicePtr, len: u64) -> Result<Self> {
        // SAFETY: the caller's promise.
        match unsafe { Self::borrowed(gpu, ptr, len) } {
            Err(Error::PastAllocation { available, .. }) if available > 0 => {
                // SAFETY: as above.
                unsafe { Self::borrowed(gpu, ptr, available.min(len)) }
            }
            whole => whole,
        }
    }

    /// Returns the buffer's device address.
    pub fn ptr(&self) -> DevicePtr {
        self.allocation.raw.ptr
    }

    /// Returns the number of bytes requested.
    #[expect(clippy::len_without_is_empty, reason = "no driver allocates 0 bytes")]
    pub fn len(&self) -> u64 {
        self.allocation.raw.len
    }

    /// Returns how the memory was allocated. For another library's memory the driver reports only the allocator: VMM
    /// memory counts as [`MemoryKind::Vmm`] even if it has handle types.
    pub fn kind(&self) -> MemoryKind {
        self.allocation.raw.kind
    }

    /// Returns whether this value allocated the memory, which then exists as long as the value does. Another library's
    /// memory exists as long as that library's promise holds.
    pub fn is_allocation(&self) -> bool {
        matches!(self.allocation.owner, Owner::Driver)
    }

    /// Returns the GPU that holds the memory.
    pub fn gpu(&self) -> &Gpu {
        &self.allocation.gpu
    }

    /// Copies `bytes` to `offset`; returns once they are in device memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is written; the driver's errors.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = self.range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        // SAFETY: `bytes` is a live slice, and `range` lies in this allocation.
        unsafe { driver.copy_to_device(device, range.start, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies from `offset` into all of `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is read; the driver's errors.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let range = self.range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        // SAFETY: `bytes` is an exclusive live slice, and `range` lies in this allocation.
        unsafe { driver.copy_from_device(device, bytes.as_mut_ptr(), range.start, bytes.len()) }
    }

    /// Copies `len` bytes at `from_offset` of page-locked memory to `offset`; returns once they are in device memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is written; the driver's errors.
    pub fn write_from_host(
        &self,
        offset: u64,
        from: &HostBuffer,
        from_offset: usize,
        len: usize,
    ) -> Result<()> {
        let range = self.range(offset, len as u64)?;
        let src = from.at(from_offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        // SAFETY: both ranges were checked, and both sides exist during the call. The host side is shared memory, which
        // others may write at the same time.
        unsafe { driver.copy_to_device(device, range.start, src, len) }
    }

    /// Copies `len` bytes at `offset` to `to_offset` of page-locked memory; returns once they are there.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is read; the driver's errors.
    pub fn read_to_host(
        &self,
        offset: u64,
        to: &HostBuffer,
        to_offset: usize,
        len: usize,
    ) -> Result<()> {
        let range = self.range(offset, len as u64)?;
        let dst = to.at(to_offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        // SAFETY: as in `write_from_host`.
        unsafe { driver.copy_from_device(device, dst, range.start, len) }
    }

    /// Makes later copies and fills of this memory complete before their calls return, for memory that another device
    /// accesses ([`Driver::synchronize_copies`]).
    ///
    /// [`Driver::synchronize_copies`]: crate::Driver::synchronize_copies
    ///
    /// # Errors
    /// The driver's errors, if it does not support this for memory of this kind.
    pub fn synchronize_copies(&self) -> Result<()> {
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        driver.synchronize_copies(device, self.ptr())
    }

    /// Flushes other devices' writes: writes that have arrived in this GPU's memory are visible to later reads on the
    /// GPU when this returns (`cuFlushGPUDirectRDMAWrites`). Not required if the GPU orders such writes itself
    /// ([`RemoteWrites`](crate::RemoteWrites)).
    ///
    /// # Errors
    /// The driver's errors, if it does not support this.
    pub fn flush_remote_writes(&self) -> Result<()> {
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        driver.flush_remote_writes(device, self.ptr())
    }

    /// Exports a dma-buf that contains `len` bytes at `offset`, for import by another device.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; the driver's errors, if it does not export dma-bufs.
    pub fn dma_buf(&self, offset: u64, len: u64) -> Result<DmaBuf> {
        let range = self.range(offset, len)?;
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        driver.dma_buf(device, range.start, len)
    }

    /// Exports the whole allocation that contains this buffer to another process, which opens it with [`Gpu::import`].
    /// The allocation must stay allocated until that process has closed it.
    ///
    /// # Errors
    /// [`Error::NotExportable`] unless it is memory of `cuMemAlloc`, or VMM memory with a POSIX descriptor;
    /// [`Error::UnknownPointer`]; the driver's errors.
    pub fn export(&self) -> Result<ExportedMemory> {
        let (driver, device) = (self.gpu().driver(), self.gpu().info().ordinal);
        driver.export(device, self.ptr())
    }

    /// Returns the addresses of `wanted` bytes at `offset`, if they lie in the buffer.
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

    /// Frees this memory without waiting for running kernels when it is dropped, if the driver supports that: for
    /// memory of `cuMemAlloc` and of pools. A kernel that still uses the memory then faults.
    pub fn free_unwaited(&self) {
        self.allocation.unwaited.store(true, Ordering::Relaxed);
    }

    /// Keeps the memory allocated while queued work uses this buffer.
    pub(crate) fn allocation(&self) -> Arc<Allocation> {
        Arc::clone(&self.allocation)
    }
}

/// Describes memory that another library allocated as an allocation: `len` bytes at `ptr` on `gpu`, in one allocation
/// or in adjacent VMM mappings.
fn locate(gpu: &Gpu, ptr: DevicePtr, len: u64) -> Result<RawAllocation> {
    let driver = gpu.driver();
    let info = driver.pointer_info(ptr)?;
    if info.kind != PointerKind::Device {
        let kind = info.kind;
        return Err(Error::NotDeviceMemory { ptr, kind });
    }
    if info.device != gpu.info().ordinal {
        let (owner, gpu) = (info.device, gpu.info().ordinal);
        return Err(Error::OtherDevice { ptr, owner, gpu });
    }
    // A length past the end of the address space is also past every allocation.
    let end = ptr.checked_add(len).unwrap_or(DevicePtr::new(u64::MAX));
    let allocated = info.neighbours_up_to(end, |next| driver.pointer_info(next));
    let past = |end: DevicePtr| Error::PastAllocation {
        ptr,
        len,
        available: end.offset_from(ptr).unwrap_or(0),
    };
    let neighbours = allocated.map_err(past)?;
    if len == 0 {
        return Err(past(info.end()));
    }
    let raw = RawAllocation {
        device: info.device,
        kind: match info.family {
            Family::Pool => MemoryKind::Pool,
            Family::Vmm => MemoryKind::Vmm,
            Family::Plain | Family::Unknown => MemoryKind::Plain,
        },
        ptr,
        len,
        reserved: len,
        handle: 0,
    };
    tracing::debug!(%ptr, len, parts = neighbours.len() + 1, "memory of another library");
    Ok(raw)
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Owner::Other(_) = self.owner {
            // Dropping the field releases the memory.
            return;
        }
        let driver = self.gpu.driver();
        // SAFETY: `raw` is from this driver, and this value alone owns it. Safe methods of `Stream` keep an `Arc` of it
        // until their work is complete; callers of `Stream::launch` promise the same.
        let freed = unsafe {
            if *self.unwaited.get_mut() {
                driver.free_unwaited(&self.raw)
            } else {
                driver.free(&self.raw)
            }
        };
        if let Err(error) = freed {
            tracing::debug!(ptr = %self.raw.ptr, %error, "freeing device memory failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryKind, Ordinal, SimDriver};

    #[test]
    fn a_part_is_what_the_allocation_has_of_a_range() {
        const LEN: u64 = (64 << 10) + 8;
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let memory = gpu.allocate(MemoryKind::Plain, LEN).unwrap();
        let at = |offset| memory.ptr().checked_add(offset).unwrap();
        // SAFETY: `memory` outlives each part.
        let part = |offset, len| unsafe { DeviceBuffer::borrowed_part(&gpu, at(offset), len) };
        for (offset, len, inside) in [(0, 100, 100), (0, 2 * LEN, LEN), (LEN - 8, 4096, 8)] {
            let part = part(offset, len).unwrap();
            assert_eq!((part.ptr(), part.len()), (at(offset), inside));
        }
        assert!(part(LEN, 8).is_err());
    }
}
