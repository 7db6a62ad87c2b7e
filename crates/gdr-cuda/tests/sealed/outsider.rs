// A complete implementation of `Driver` in safe code. It does not compile in other crates, because the trait is sealed:
// an example in the documentation of `Driver` shows that. The tests of this crate, which can implement the seal, show
// that the code is otherwise correct.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gdr_cuda::{
    CudaVersion, DeviceExport, DeviceInfo, DevicePtr, DmaBuf, Driver, DriverKind, ExportedMemory, HostCall, HostMemoryOrigin, Launch, MemoryKind, Ordinal,
    PointerInfo, RawAllocation, RawHostAllocation, RawImport, RawStream, Result, SimDriver, StreamState,
};

#[derive(Debug)]
struct Outsider(Arc<SimDriver>);

impl Driver for Outsider {
    fn kind(&self) -> DriverKind {
        self.0.kind()
    }

    fn cuda_version(&self) -> CudaVersion {
        self.0.cuda_version()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        self.0.devices()
    }

    fn pointer_info(&self, ptr: DevicePtr) -> Result<PointerInfo> {
        self.0.pointer_info(ptr)
    }

    fn synchronize_copies(&self, _: Ordinal, _: DevicePtr) -> Result<()> {
        unimplemented!()
    }

    fn flush_remote_writes(&self, _: Ordinal, _: DevicePtr) -> Result<()> {
        unimplemented!()
    }

    fn dma_buf(&self, _: Ordinal, _: DevicePtr, _: u64) -> Result<DmaBuf> {
        unimplemented!()
    }

    fn export(&self, _: Ordinal, _: DevicePtr) -> Result<ExportedMemory> {
        unimplemented!()
    }

    fn open_export(&self, _: Ordinal, _: &DeviceExport, _: Option<OwnedFd>) -> Result<RawImport> {
        unimplemented!()
    }

    unsafe fn close_export(&self, _: &RawImport) -> Result<()> {
        unimplemented!()
    }

    fn allocate(&self, _: Ordinal, _: MemoryKind, _: u64) -> Result<RawAllocation> {
        unimplemented!()
    }

    unsafe fn free(&self, _: &RawAllocation) -> Result<()> {
        unimplemented!()
    }

    /// The reason for the seal: `HostBuffer` would access this address.
    fn allocate_host(&self, _: Ordinal, len: usize) -> Result<RawHostAllocation> {
        let (cpu, gpu) = (std::ptr::without_provenance_mut(0x10), DevicePtr::new(0x10));
        let origin = HostMemoryOrigin::Driver;
        Ok(RawHostAllocation { origin, cpu, gpu, len })
    }

    unsafe fn free_host(&self, _: Ordinal, _: &RawHostAllocation) -> Result<()> {
        unimplemented!()
    }

    fn create_stream(&self, _: Ordinal) -> Result<RawStream> {
        unimplemented!()
    }

    unsafe fn destroy_stream(&self, _: RawStream) -> Result<()> {
        unimplemented!()
    }

    unsafe fn stream_state(&self, _: RawStream) -> Result<StreamState> {
        unimplemented!()
    }

    unsafe fn copy_to_device(
        &self,
        _: Ordinal,
        _: DevicePtr,
        _: *const u8,
        _: usize,
    ) -> Result<()> {
        unimplemented!()
    }

    unsafe fn copy_from_device(
        &self,
        _: Ordinal,
        _: *mut u8,
        _: DevicePtr,
        _: usize,
    ) -> Result<()> {
        unimplemented!()
    }

    unsafe fn queue_copy_to_device(
        &self,
        _: RawStream,
        _: DevicePtr,
        _: *const u8,
        _: usize,
    ) -> Result<()> {
        unimplemented!()
    }

    unsafe fn queue_copy_from_device(
        &self,
        _: RawStream,
        _: *mut u8,
        _: DevicePtr,
        _: usize,
    ) -> Result<()> {
        unimplemented!()
    }

    unsafe fn queue_copy_on_device(
        &self,
        _: RawStream,
        _: DevicePtr,
        _: DevicePtr,
        _: u64,
    ) -> Result<()> {
        unimplemented!()
    }

    unsafe fn queue_host_call(&self, _: RawStream, _: HostCall) -> Result<()> {
        unimplemented!()
    }

    unsafe fn queue_wait(&self, _: RawStream, _: RawStream) -> Result<()> {
        unimplemented!()
    }

    unsafe fn queue_write_u32(&self, _: RawStream, _: DevicePtr, _: u32) -> Result<()> {
        unimplemented!()
    }

    unsafe fn fill(&self, _: RawStream, _: DevicePtr, _: u8, _: u64) -> Result<()> {
        unimplemented!()
    }

    unsafe fn launch(&self, _: RawStream, _: &Launch) -> Result<()> {
        unimplemented!()
    }
}
