//! Descriptions of GPUs by their driver.

use std::fmt;

use gdr_pci::Bdf;

use crate::rdma_write_ordering::RemoteWrites;

/// The number of a GPU in this process (after `CUDA_VISIBLE_DEVICES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ordinal(pub u32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The CUDA version of a driver (`cuDriverGetVersion`), such as 13.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CudaVersion {
    /// The major version: 13 in 13.0.
    pub major: u32,
    /// The minor version: 0 in 13.0.
    pub minor: u32,
}

impl CudaVersion {
    /// Converts the driver's number: 1000 times major plus 10 times minor.
    pub const fn from_number(number: u32) -> Self {
        Self {
            major: number / 1000,
            minor: number % 1000 / 10,
        }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The identity of a GPU and the attributes that this workspace uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in this process.
    pub ordinal: Ordinal,
    /// The marketing name, such as `NVIDIA H200`.
    pub name: String,
    /// The PCI address.
    pub bdf: Bdf,
    /// The UUID of the GPU or the MIG instance.
    pub uuid: [u8; 16],
    /// The compute capability, such as (9, 0).
    pub compute_capability: (u32, u32),
    /// The total memory in bytes.
    pub total_memory: u64,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`: memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`.
    pub gpudirect_rdma: bool,
    /// `CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES`: the GPU and the CPU access each other's
    /// memory over a coherent link, as on GH200 and GB200.
    pub coherent: bool,
    /// The order and visibility of other devices' writes.
    pub remote_writes: RemoteWrites,
}
