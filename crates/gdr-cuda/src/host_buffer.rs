//! Owned page-locked host memory.

use std::sync::atomic::Ordering;

use crate::driver::RawHostAllocation;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::pointer::DevicePtr;
use crate::shared_memory;

/// Page-locked host memory that the CPU and a GPU use at the same time.
///
/// Words are flags: what was written before [`HostBuffer::store_u32`] is visible to whoever sees
/// the flag, and what the other side wrote before its flag is visible after
/// [`HostBuffer::load_u32`] returned it. Bulk bytes have no order among themselves.
#[derive(Debug)]
pub struct HostBuffer {
    gpu: Gpu,
    raw: RawHostAllocation,
}

// SAFETY: the memory belongs to this value alone until drop, whichever thread that is on, and a
// driver's methods may be called from any thread.
unsafe impl Send for HostBuffer {}
// SAFETY: every access is atomic or volatile (`shared_memory`), made for concurrent writers: the
// GPU is one in any case.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    pub(crate) fn allocate(gpu: Gpu, len: usize) -> Result<Self> {
        let raw = gpu.driver().allocate_host(gpu.info().ordinal, len)?;
        Ok(Self { gpu, raw })
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "no driver allocates 0 bytes")]
    pub fn len(&self) -> usize {
        self.raw.len
    }

    /// The address a kernel uses for it.
    pub fn gpu_ptr(&self) -> DevicePtr {
        self.raw.gpu
    }

    /// The address the CPU uses for it, valid while this value lives.
    pub fn cpu_ptr(&self) -> *mut u8 {
        self.raw.cpu
    }

    /// Reads the flag at `offset`, a multiple of 4 (acquire ordering).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn load_u32(&self, offset: usize) -> Result<u32> {
        let flag = self.flag(offset)?;
        // SAFETY: in range and aligned, and mapped while `self` lives.
        Ok(unsafe { shared_memory::flag(flag) }.load(Ordering::Acquire))
    }

    /// Writes the flag at `offset`, a multiple of 4 (release ordering).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn store_u32(&self, offset: usize, value: u32) -> Result<()> {
        let flag = self.flag(offset)?;
        // SAFETY: in range and aligned, and mapped while `self` lives.
        unsafe { shared_memory::flag(flag) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing written.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let dst = self.at(offset, bytes.len())?;
        // SAFETY: in range and mapped while `self` lives; the driver allocated it, not Rust.
        unsafe { shared_memory::store(dst, bytes) };
        Ok(())
    }

    /// Copies from `offset` into all of `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing read.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let src = self.at(offset, bytes.len())?;
        // SAFETY: in range and mapped while `self` lives; the driver allocated it, not Rust.
        unsafe { shared_memory::load(src, bytes) };
        Ok(())
    }

    fn flag(&self, offset: usize) -> Result<*mut u8> {
        let flag = self.at(offset, 4)?;
        if flag.cast::<u32>().is_aligned() {
            return Ok(flag);
        }
        Err(Error::Misaligned {
            offset: offset as u64,
            alignment: 4,
        })
    }

    pub(crate) fn at(&self, offset: usize, wanted: usize) -> Result<*mut u8> {
        let len = self.raw.len;
        if offset.checked_add(wanted).is_none_or(|end| end > len) {
            let (offset, wanted, len) = (offset as u64, wanted as u64, len as u64);
            return Err(Error::OutOfRange {
                offset,
                wanted,
                len,
            });
        }
        Ok(self.raw.cpu.wrapping_add(offset))
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let device = self.gpu.info().ordinal;
        // SAFETY: `raw` came from this driver and device and this value alone owns it. Queued copies
        // of `Stream` keep an `Arc` of this value until they are complete, and who calls
        // `Stream::launch` vouches for the rest.
        if let Err(error) = unsafe { self.gpu.driver().free_host(device, &self.raw) } {
            tracing::debug!(ptr = %self.raw.gpu, %error, "freeing page-locked memory failed");
        }
    }
}
