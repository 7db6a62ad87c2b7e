//! GPUs as a driver describes them.

use std::fmt;

use gdr_pci::Bdf;

use crate::rdma_write_ordering::RemoteWrites;

/// A GPU's number as seen by this process (after `CUDA_VISIBLE_DEVICES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ordinal(pub u32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The CUDA version of a driver (`cuDriverGetVersion`), e.g. 13.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CudaVersion {
    /// 13 in 13.0.
    pub major: u32,
    /// 0 in 13.0.
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

/// A GPU: its identity and the attributes that this workspace uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in this process.
    pub ordinal: Ordinal,
    /// Marketing name, e.g. `NVIDIA H200`.
    pub name: String,
    /// PCI address.
    pub bdf: Bdf,
    /// The UUID of the GPU or the MIG instance.
    pub uuid: [u8; 16],
    /// Compute capability, e.g. (9, 0).
    pub compute_capability: (u32, u32),
    /// Total memory, bytes.
    pub total_memory: u64,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`: memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`.
    pub gpudirect_rdma: bool,
    /// `CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES`: the GPU and the CPU see
    /// each other's memory over a coherent link, as on GH200 and GB200.
    pub coherent: bool,
    /// The order and visibility of other devices' writes.
    pub remote_writes: RemoteWrites,
}
