//! The CUDA calls of this backend, as a trait that tests implement, too.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gdr_cuda::{Cuda, CudaVersion, DeviceInfo, DevicePtr, Driver, Ordinal, PointerInfo};

use crate::backend::{PinRequest, range};
use crate::error::Result;

/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`.
const MAPPING_TYPE_PCIE: u64 = 1;

/// The link over which a dma-buf is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappingType {
    /// The driver's choice.
    Default,
    /// PCIe, also where there is a coherent link.
    Pcie,
}

impl MappingType {
    /// `CUmemRangeFlags` of `cuMemGetHandleForAddressRange`.
    pub(super) const fn flags(self) -> u64 {
        match self {
            Self::Default => 0,
            Self::Pcie => MAPPING_TYPE_PCIE,
        }
    }
}

pub(super) trait Exporter: Send + Sync + Debug {
    /// Must work before CUDA is initialized.
    fn cuda_version(&self) -> CudaVersion;

    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Returns the allocation that contains all of `request`.
    fn locate(&self, request: &PinRequest) -> Result<PointerInfo>;

    /// Returns a dma-buf of `len` bytes at `va`, both multiples of the host page.
    fn export(
        &self,
        device: Ordinal,
        va: DevicePtr,
        len: u64,
        mapping_type: MappingType,
    ) -> Result<OwnedFd>;
}

impl Exporter for Arc<Cuda> {
    fn cuda_version(&self) -> CudaVersion {
        Driver::cuda_version(&**self)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(Driver::devices(&**self)?)
    }

    fn locate(&self, request: &PinRequest) -> Result<PointerInfo> {
        Ok(range::locate(&|ptr| self.pointer_info(ptr), request)?.info)
    }

    fn export(
        &self,
        device: Ordinal,
        va: DevicePtr,
        len: u64,
        mapping_type: MappingType,
    ) -> Result<OwnedFd> {
        Ok(self.dma_buf_fd(device, va, len, mapping_type.flags())?)
    }
}
