//! GPUs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::buffer::DeviceBuffer;
use crate::device::{DeviceInfo, Ordinal};
use crate::device_export::DeviceExport;
use crate::driver::{Driver, MemoryKind};
use crate::error::{Error, Result};
use crate::host_buffer::HostBuffer;
use crate::imported_memory::ImportedMemory;
use crate::stream::Stream;

/// A GPU and its driver. Clones refer to the same GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn Driver>,
    info: DeviceInfo,
}

impl Gpu {
    /// Opens the GPU with this number. Initializes the driver.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`]; the driver's errors, if it cannot be initialized (`CUDA_ERROR_NO_DEVICE` if there is no
    /// GPU).
    pub fn open(driver: Arc<dyn Driver>, ordinal: Ordinal) -> Result<Self> {
        let devices = driver.devices()?;
        let count = devices.len() as u32;
        let info = devices.into_iter().find(|info| info.ordinal == ordinal);
        let info = info.ok_or(Error::NoSuchDevice { ordinal, count })?;
        Ok(Self {
            inner: Arc::new(Inner { driver, info }),
        })
    }

    /// Returns every GPU that is visible to this process, in ordinal order. Initializes the driver.
    ///
    /// # Errors
    /// The driver's errors, if it cannot be initialized.
    pub fn all(driver: Arc<dyn Driver>) -> Result<Vec<Self>> {
        let gpu = |info| Self {
            inner: Arc::new(Inner {
                driver: Arc::clone(&driver),
                info,
            }),
        };
        Ok(driver.devices()?.into_iter().map(gpu).collect())
    }

    /// Returns the GPU's identity and attributes.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Returns the GPU's driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.inner.driver
    }

    /// Allocates `len` bytes of device memory with undefined contents.
    ///
    /// # Errors
    /// The driver's errors: `CUDA_ERROR_OUT_OF_MEMORY`; `CUDA_ERROR_INVALID_VALUE` for 0 bytes.
    pub fn allocate(&self, kind: MemoryKind, len: u64) -> Result<DeviceBuffer> {
        DeviceBuffer::allocate(self.clone(), kind, len)
    }

    /// Allocates `len` bytes of page-locked host memory, with undefined contents, that this GPU can read and write.
    ///
    /// # Errors
    /// The driver's errors: `CUDA_ERROR_OUT_OF_MEMORY`; `CUDA_ERROR_INVALID_VALUE` for 0 bytes.
    pub fn allocate_host(&self, len: usize) -> Result<HostBuffer> {
        HostBuffer::allocate(self.clone(), len)
    }

    /// Like [`Gpu::allocate_host`], but the CPU can access the memory until the value is dropped, even after the
    /// program has destroyed the context (`cudaDeviceReset`). This is for threads that read it while another library
    /// owns the GPU. The length is rounded up to pages.
    ///
    /// # Errors
    /// Same as [`Gpu::allocate_host`]; [`Error::Os`](crate::Error::Os).
    pub fn register_host(&self, len: usize) -> Result<HostBuffer> {
        HostBuffer::register(self.clone(), len)
    }

    /// Opens another process's memory, on whichever GPU, for copies to this GPU. The other process must keep it
    /// allocated until the returned value is dropped and the work queued with it has completed.
    ///
    /// # Errors
    /// [`Error::OwnExport`] for memory of this process, except in the simulation; [`Error::FalseExport`] if the memory
    /// is shorter than `export` specifies; the driver's errors: `CUDA_ERROR_INVALID_VALUE` for an invalid handle.
    pub fn import(
        &self,
        export: &DeviceExport,
        descriptor: Option<OwnedFd>,
    ) -> Result<ImportedMemory> {
        ImportedMemory::open(self.clone(), export, descriptor)
    }

    /// Creates a stream that does not synchronize with the default stream.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn stream(&self) -> Result<Stream> {
        Stream::create(self.clone())
    }

    /// Returns whether both are the same GPU of the same driver.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner.driver, &other.inner.driver)
            && self.inner.info.ordinal == other.inner.info.ordinal
    }
}
