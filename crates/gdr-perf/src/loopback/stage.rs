//! Page-locked host memory in the place of GPU memory that a device does not reach.

use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, HostBuffer, Stream};
use gdr_rdma::Buffer;

use crate::error::{Error, Result};

/// A copy of 1 GiB takes some 50 ms over PCIe; a GPU that takes this long is lost.
const LIMIT: Duration = Duration::from_secs(60);

/// Host memory that a device reaches in the place of GPU memory. The device moves bytes here
/// alone; the GPU's copy engine takes them on from here when they have come, and brings them here
/// before they go.
pub(super) struct Stage {
    gpu: Arc<DeviceBuffer>,
    /// Where it begins in the GPU's memory.
    offset: u64,
    memory: Arc<HostBuffer>,
    stream: Stream,
}

impl Stage {
    /// For `size` bytes of `gpu` from `offset` on.
    pub(super) fn new(gpu: &Arc<DeviceBuffer>, offset: u64, size: u64) -> Result<Self> {
        let len = usize::try_from(size)
            .map_err(|_| Error::Settings("too large for this process; give less".into()))?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            offset,
            memory: Arc::new(gpu.gpu().allocate_host(len)?),
            stream: gpu.gpu().stream()?,
        })
    }

    /// What is to be registered.
    pub(super) fn buffer(&self) -> Result<Buffer> {
        Ok(Buffer::page_locked(Arc::clone(&self.memory))?)
    }

    /// Begins to copy `len` bytes at `at` to the GPU.
    pub(super) fn begin_in(&self, at: u64, len: u64) -> Result<()> {
        let (to, len) = (self.offset + at, len as usize);
        let (from, gpu) = (&self.memory, &self.gpu);
        Ok(self.stream.queue_write(from, at as usize, gpu, to, len)?)
    }

    /// Begins to copy `len` bytes at `at` from the GPU.
    pub(super) fn begin_out(&self, at: u64, len: u64) -> Result<()> {
        let (from, len) = (self.offset + at, len as usize);
        let (to, gpu) = (&self.memory, &self.gpu);
        Ok(self.stream.queue_read(gpu, from, to, at as usize, len)?)
    }

    /// Waits for all copies that were begun.
    pub(super) fn wait(&self) -> Result<()> {
        Ok(self.stream.wait(LIMIT)?)
    }

    /// Copies all that has arrived to the GPU.
    pub(super) fn copy_in(&self) -> Result<()> {
        self.begin_in(0, self.memory.len() as u64)?;
        self.wait()
    }

    /// Copies all that the GPU has to where the device reads it.
    pub(super) fn copy_out(&self) -> Result<()> {
        self.begin_out(0, self.memory.len() as u64)?;
        self.wait()
    }
}
