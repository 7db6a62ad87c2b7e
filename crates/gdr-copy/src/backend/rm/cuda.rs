//! The CUDA calls of this backend, as a trait that tests implement, too.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::time::Duration;

use gdr_cuda::{
    Cuda, DeviceInfo, DevicePtr, Driver, MemoryKind, Ordinal, PointerInfo, ProbeAllocator, Result,
};

use super::extents::ObjectRange;
use super::ioctl_hook::{self, HookError};

pub(super) trait CudaCalls: Send + Sync + Debug {
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    fn pointer_info(&self, ptr: DevicePtr) -> Result<PointerInfo>;

    /// Returns the descriptor of the VMM memory that is mapped at `ptr`, or `None` if the memory was created without
    /// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
    fn posix_fd(&self, ptr: DevicePtr) -> Result<Option<OwnedFd>>;

    fn ipc_handle(&self, device: Ordinal, ptr: DevicePtr) -> Result<[u8; 64]>;

    /// Exports a range as a dma-buf, and returns the memory objects in the export call.
    fn export(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        len: u64,
    ) -> Result<(OwnedFd, Vec<ObjectRange>), HookError>;

    /// Runs `work` with probe memory on the GPU and in the context of `ptr`.
    fn with_probe_memory(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        work: &mut dyn FnMut(&mut dyn ProbeMemory),
    ) -> Result<()>;
}

/// Memory of this library that CUDA copies.
pub(super) trait ProbeMemory {
    fn allocate(&mut self, kind: MemoryKind, len: u64) -> Result<DevicePtr>;

    fn write(&self, ptr: DevicePtr, bytes: &[u8], limit: Duration) -> Result<()>;

    fn read(&self, ptr: DevicePtr, bytes: &mut [u8], limit: Duration) -> Result<()>;
}

impl CudaCalls for Cuda {
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Driver::devices(self)
    }

    fn pointer_info(&self, ptr: DevicePtr) -> Result<PointerInfo> {
        Driver::pointer_info(self, ptr)
    }

    fn posix_fd(&self, ptr: DevicePtr) -> Result<Option<OwnedFd>> {
        const POSIX_FD: u32 = 1; // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        let retained = self.retain_allocation(ptr)?;
        if retained.handle_types()? & POSIX_FD == 0 {
            return Ok(None);
        }
        retained.export_posix_fd().map(Some)
    }

    fn ipc_handle(&self, device: Ordinal, ptr: DevicePtr) -> Result<[u8; 64]> {
        Cuda::ipc_handle(self, device, ptr)
    }

    fn export(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        len: u64,
    ) -> Result<(OwnedFd, Vec<ObjectRange>), HookError> {
        ioctl_hook::export_of(self.symbol_address(), || {
            self.dma_buf_fd(device, ptr, len, 0)
        })
    }

    fn with_probe_memory(
        &self,
        device: Ordinal,
        ptr: DevicePtr,
        work: &mut dyn FnMut(&mut dyn ProbeMemory),
    ) -> Result<()> {
        Cuda::with_probe_memory(self, device, ptr, |probe| {
            work(probe);
            Ok(())
        })
    }
}

impl ProbeMemory for ProbeAllocator<'_> {
    fn allocate(&mut self, kind: MemoryKind, len: u64) -> Result<DevicePtr> {
        ProbeAllocator::allocate(self, kind, len)
    }

    fn write(&self, ptr: DevicePtr, bytes: &[u8], limit: Duration) -> Result<()> {
        ProbeAllocator::write(self, ptr, bytes, limit)
    }

    fn read(&self, ptr: DevicePtr, bytes: &mut [u8], limit: Duration) -> Result<()> {
        ProbeAllocator::read(self, ptr, bytes, limit)
    }
}
