//! Owned page-locked host memory.

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::Ordering;

use crate::driver::RawHostAllocation;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::pointer::DevicePtr;
use crate::volatile;

/// Page-locked host memory that the CPU and a GPU use at the same time.
///
/// 32-bit words serve as flags: data written before [`HostBuffer::store_u32`] is visible to an observer of the flag,
/// and data that the other side wrote before its flag is visible after [`HostBuffer::load_u32`] has returned that flag.
/// Other bytes are not ordered among themselves.
#[derive(Debug)]
pub struct HostBuffer {
    gpu: Gpu,
    raw: RawHostAllocation,
}

// SAFETY: this value alone owns the memory until it is dropped, on any thread, and the methods of a driver may be
// called from any thread.
unsafe impl Send for HostBuffer {}
// SAFETY: every access is atomic or volatile, so concurrent accesses are allowed; the GPU makes them, too.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    pub(crate) fn allocate(gpu: Gpu, len: usize) -> Result<Self> {
        let raw = gpu.driver().allocate_host(gpu.info().ordinal, len)?;
        Ok(Self { gpu, raw })
    }

    pub(crate) fn register(gpu: Gpu, len: usize) -> Result<Self> {
        let raw = gpu.driver().register_host(gpu.info().ordinal, len)?;
        Ok(Self { gpu, raw })
    }

    /// Gives up the allocation without freeing it.
    pub(crate) fn into_raw(self) -> (Gpu, RawHostAllocation) {
        let this = ManuallyDrop::new(self);
        // SAFETY: moved out only once, because `this` is not dropped.
        let gpu = unsafe { ptr::read(&this.gpu) };
        (gpu, this.raw)
    }

    /// Takes ownership of an allocation that [`HostBuffer::into_raw`] gave up.
    ///
    /// # Safety
    /// The allocation belongs to this driver and device, and nothing else owns or uses it.
    pub(crate) unsafe fn from_raw(gpu: Gpu, raw: RawHostAllocation) -> Self {
        Self { gpu, raw }
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no driver allocates 0 bytes")]
    pub fn len(&self) -> usize {
        self.raw.len
    }

    /// Returns the GPU whose kernels can use the memory.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the memory's address for kernels.
    pub fn gpu_ptr(&self) -> DevicePtr {
        self.raw.gpu
    }

    /// Returns the memory's address for the CPU, valid while this value exists.
    pub fn cpu_ptr(&self) -> *mut u8 {
        self.raw.cpu
    }

    /// Reads the flag at `offset`, a multiple of 4 (acquire ordering).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn load_u32(&self, offset: usize) -> Result<u32> {
        let flag = self.flag(offset)?;
        // SAFETY: in range and aligned, and mapped while `self` exists.
        Ok(unsafe { volatile::flag(flag) }.load(Ordering::Acquire))
    }

    /// Writes the flag at `offset`, a multiple of 4 (release ordering).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn store_u32(&self, offset: usize, value: u32) -> Result<()> {
        let flag = self.flag(offset)?;
        // SAFETY: in range and aligned, and mapped while `self` exists.
        unsafe { volatile::flag(flag) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is written.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let dst = self.at(offset, bytes.len())?;
        // SAFETY: in range and mapped while `self` exists; the driver allocated it, not Rust.
        unsafe { volatile::write(dst, bytes) };
        Ok(())
    }

    /// Copies from `offset` into all of `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is read.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let src = self.at(offset, bytes.len())?;
        // SAFETY: in range and mapped while `self` exists; the driver allocated it, not Rust.
        unsafe { volatile::read(src, bytes) };
        Ok(())
    }

    /// Returns the CPU address of `len` bytes at `offset`, valid while this value exists.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn part(&self, offset: usize, len: usize) -> Result<*mut u8> {
        self.at(offset, len)
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
        // SAFETY: `raw` is from this driver and device, and this value alone owns it. Queued copies of `Stream` keep an
        // `Arc` of this value until they are complete; callers of `Stream::launch` promise the same.
        if let Err(error) = unsafe { self.gpu.driver().free_host(device, &self.raw) } {
            tracing::debug!(ptr = %self.raw.gpu, %error, "freeing page-locked memory failed");
        }
    }
}
