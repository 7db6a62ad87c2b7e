//! Memory of a simulated GPU.

use std::os::fd::AsFd;
use std::sync::Arc;

use conformance::Side;
use fake_ibverbs::Fake;
use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_rdma::{Access, Buffer, Error, MemoryRegion};

/// Simulated GPU memory that is known to the fake Linux kernel's peer-memory module.
pub(crate) struct GpuMemory {
    pub(crate) device: Arc<DeviceBuffer>,
    pub(crate) buffer: Buffer,
}

impl GpuMemory {
    pub(crate) fn new(fake: &Fake, driver: &Arc<SimDriver>, len: u64) -> Self {
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let device = Arc::new(gpu.allocate(MemoryKind::Plain, len).unwrap());
        let share = driver.share(device.ptr()).unwrap();
        fake.add_gpu_memory(share.base.get(), share.size, share.fd.as_fd());
        let buffer = Buffer::staged(Arc::clone(&device)).unwrap();
        Self { device, buffer }
    }

    pub(crate) fn register(&self, side: &Side) -> Result<MemoryRegion, Error> {
        side.domain.register(&self.buffer, Access::all())
    }

    /// Returns what cudaMemcpy reads.
    pub(crate) fn as_cuda_sees_it(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.device.read(offset, &mut bytes).unwrap();
        bytes
    }
}
