//! Page-locked host memory that stands in for GPU memory that a device cannot access.

use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, HostBuffer, Stream};
use gdr_rdma::Buffer;

use crate::error::{Result, SettingsError};

/// Deadline of a copy. Copying 1 GiB over PCIe takes about 50 ms, so a GPU that exceeds this is lost.
const LIMIT: Duration = Duration::from_secs(60);

/// Host memory that a device accesses in place of GPU memory. The GPU's copy engine copies received bytes from here to
/// the GPU, and bytes to send from the GPU to here.
pub(crate) struct StagingBuffer {
    gpu: Arc<DeviceBuffer>,
    /// Offset in the GPU buffer.
    offset: u64,
    memory: Arc<HostBuffer>,
    stream: Stream,
}

impl StagingBuffer {
    /// Allocates host memory for `size` bytes of `gpu`, starting at `offset`.
    pub(super) fn new(gpu: &Arc<DeviceBuffer>, offset: u64, size: u64) -> Result<Self> {
        let len = usize::try_from(size).map_err(|_| SettingsError::TooLarge { bytes: size })?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            offset,
            memory: Arc::new(gpu.gpu().allocate_host(len)?),
            stream: gpu.gpu().stream()?,
        })
    }

    /// Returns the host memory, to register it.
    pub(super) fn buffer(&self) -> Result<Buffer> {
        Ok(Buffer::page_locked(Arc::clone(&self.memory))?)
    }

    /// Starts a copy of `len` bytes at `at` to the GPU.
    pub(super) fn begin_in(&self, at: u64, len: u64) -> Result<()> {
        let (to, len) = (self.offset + at, len as usize);
        let (from, gpu) = (&self.memory, &self.gpu);
        Ok(self.stream.queue_write(from, at as usize, gpu, to, len)?)
    }

    /// Starts a copy of `len` bytes at `at` from the GPU.
    pub(super) fn begin_out(&self, at: u64, len: u64) -> Result<()> {
        let (from, len) = (self.offset + at, len as usize);
        let (to, gpu) = (&self.memory, &self.gpu);
        Ok(self.stream.queue_read(gpu, from, to, at as usize, len)?)
    }

    /// Waits for all started copies.
    pub(super) fn wait(&self) -> Result<()> {
        Ok(self.stream.wait(LIMIT)?)
    }

    /// Copies all of the host memory to the GPU.
    pub(crate) fn copy_in(&self) -> Result<()> {
        self.begin_in(0, self.memory.len() as u64)?;
        self.wait()
    }

    /// Copies all of the GPU memory to the host memory.
    pub(crate) fn copy_out(&self) -> Result<()> {
        self.begin_out(0, self.memory.len() as u64)?;
        self.wait()
    }
}
