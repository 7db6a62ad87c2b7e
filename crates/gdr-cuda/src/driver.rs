//! The trait of a GPU driver, which NVIDIA's driver and the simulation implement.
//!
//! Methods that take raw addresses are `unsafe`: with unified addressing, a device address may refer to pinned host
//! memory, so a copy to an arbitrary address could overwrite the caller's own data. [`crate::Gpu`],
//! [`crate::DeviceBuffer`] and [`crate::Stream`] are the safe owners on top of it.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};

use crate::device::{CudaVersion, DeviceInfo, Ordinal};
use crate::device_export::{DeviceExport, ExportedMemory};
use crate::error::Result;
use crate::kernel::Launch;
use crate::pointer::{DevicePtr, PointerInfo};

/// Restricts [`Driver`] to the implementations of this crate.
pub(crate) mod sealed {
    /// A driver of this crate.
    pub trait Sealed {}
}

/// Whether a driver drives real hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// NVIDIA's driver.
    Cuda,
    /// The simulation, which every report must mention.
    Simulated,
}

/// How memory is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// `cuMemAlloc`.
    Plain,
    /// `cuMemCreate` + map, exportable as a POSIX file descriptor, GPUDirect RDMA capable.
    VmmPosixFd,
    /// `cuMemCreate` + map without any handle type.
    Vmm,
    /// `cuMemAllocAsync` from the device's default pool.
    Pool,
    /// `cuMemAllocManaged`, to test that it is refused.
    Managed,
}

impl MemoryKind {
    /// Every kind that does not migrate.
    pub const DEVICE: [Self; 4] = [Self::Plain, Self::VmmPosixFd, Self::Vmm, Self::Pool];

    /// Returns the CUDA function that allocates it, for reports.
    pub const fn function(self) -> &'static str {
        match self {
            Self::Plain => "cuMemAlloc",
            Self::VmmPosixFd => "cuMemCreate (POSIX fd)",
            Self::Vmm => "cuMemCreate (no handle type)",
            Self::Pool => "cuMemAllocAsync",
            Self::Managed => "cuMemAllocManaged",
        }
    }
}

/// An allocation as a driver returns it; [`crate::DeviceBuffer`] owns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawAllocation {
    /// The GPU that it is on.
    pub device: Ordinal,
    /// How it was allocated, which determines how it is freed.
    pub kind: MemoryKind,
    /// Its address.
    pub ptr: DevicePtr,
    /// The requested number of bytes.
    pub len: u64,
    /// The allocated number of bytes (VMM memory is rounded up to the granularity).
    pub reserved: u64,
    /// The driver's handle of VMM memory, otherwise 0.
    pub handle: u64,
}

/// The allocator of page-locked host memory, which determines what ends its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMemoryOrigin {
    /// The driver: the memory is freed with its context.
    Driver,
    /// This process, which registers it with the driver: the memory stays mapped until it is freed.
    Registered,
}

/// Page-locked host memory that the GPU can reach; [`crate::HostBuffer`] owns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHostAllocation {
    /// Its allocator.
    pub origin: HostMemoryOrigin,
    /// The CPU address.
    pub cpu: *mut u8,
    /// The address that kernels use for it.
    pub gpu: DevicePtr,
    /// The length in bytes.
    pub len: usize,
}

/// Memory of another process that a driver has opened; [`crate::ImportedMemory`] owns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawImport {
    /// The GPU for which it was opened.
    pub device: Ordinal,
    /// Its address in this process.
    pub ptr: DevicePtr,
    /// The number of bytes at that address.
    pub len: u64,
    /// The driver's handle of VMM memory.
    pub handle: Option<u64>,
}

/// A stream of a driver; [`crate::Stream`] owns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawStream {
    /// The GPU it runs on.
    pub device: Ordinal,
    /// The driver's handle.
    pub handle: u64,
}

/// A function that a stream calls on the CPU.
pub struct HostCall(Box<dyn FnOnce() + Send>);

impl HostCall {
    pub(crate) fn new(call: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(call))
    }

    /// Calls the function. A panic ends here: the threads of a driver cannot unwind.
    pub(crate) fn run(self) {
        if panic::catch_unwind(AssertUnwindSafe(self.0)).is_err() {
            tracing::error!("a function that a stream called panicked");
        }
    }
}

impl fmt::Debug for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCall").finish_non_exhaustive()
    }
}

/// Whether a stream has work left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// All work submitted so far is complete.
    Idle,
    /// Some work is still running.
    Busy,
}

/// Device memory as a dma-buf, which other devices import.
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor.
    pub fd: OwnedFd,
    /// The offset of the exported bytes in it.
    pub offset: u64,
}

/// A GPU driver: NVIDIA's ([`crate::Cuda`]) or the simulation ([`crate::SimDriver`]).
///
/// Every method may be called from any thread, with or without a current CUDA context: an implementation makes the
/// device's primary context current for the call and restores the caller's afterwards.
///
/// Safe code relies on the results of an implementation: [`crate::HostBuffer`] reads and writes the addresses that
/// [`Driver::allocate_host`] returns. The trait is therefore sealed, and only the two types of this crate implement it.
/// A complete implementation elsewhere does not compile:
///
/// ```compile_fail
/// mod outsider {
///     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sealed/outsider.rs"));
/// }
/// # fn main() {}
/// ```
pub trait Driver: sealed::Sealed + Any + Send + Sync + fmt::Debug {
    /// Returns whether the driver is real or simulated.
    fn kind(&self) -> DriverKind;

    /// Returns the CUDA version of the driver.
    fn cuda_version(&self) -> CudaVersion;

    /// Returns every GPU visible to this process, in ordinal order. Initializes the driver.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Returns the allocation of `ptr`. Fails with [`crate::Error::UnknownPointer`] for an address that the driver does
    /// not know (never allocated, freed, or plain host memory).
    fn pointer_info(&self, ptr: DevicePtr) -> Result<PointerInfo>;

    /// Makes later copies and fills of the allocation of `ptr` complete before their calls return
    /// (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`). Otherwise a copy may still be in progress after its call has returned,
    /// when another device reads or writes the memory. This cannot be undone.
    ///
    /// CUDA supports it for memory of `cuMemAlloc`; for other memory it may fail.
    fn synchronize_copies(&self, device: Ordinal, ptr: DevicePtr) -> Result<()>;

    /// Flushes writes of other devices: the writes that have arrived at the GPU of `ptr` are visible to later reads on
    /// that GPU when this returns (`cuFlushGPUDirectRDMAWrites` to the owner, CUDA 11.3).
    fn flush_remote_writes(&self, device: Ordinal, ptr: DevicePtr) -> Result<()>;

    /// Returns a dma-buf that contains `len` bytes of device memory at `ptr`, for import by another device
    /// (`cuMemGetHandleForAddressRange`, CUDA 11.7). The memory stays accessible through it as long as its descriptor
    /// is open.
    fn dma_buf(&self, device: Ordinal, ptr: DevicePtr, len: u64) -> Result<DmaBuf>;

    /// Exports the allocation of `ptr` to other processes: memory of `cuMemAlloc` (`cuIpcGetMemHandle`), and VMM memory
    /// created with a POSIX descriptor (`cuMemExportToShareableHandle`). Fails with [`crate::Error::NotExportable`] for
    /// other memory.
    fn export(&self, device: Ordinal, ptr: DevicePtr) -> Result<ExportedMemory>;

    /// Opens memory of another process for `device`, on whichever GPU it is. `descriptor` is a duplicate of the
    /// descriptor in the export. CUDA cannot open memory of the same process by a handle: [`crate::Error::OwnExport`].
    fn open_export(
        &self,
        device: Ordinal,
        export: &DeviceExport,
        descriptor: Option<OwnedFd>,
    ) -> Result<RawImport>;

    /// Closes memory that [`Driver::open_export`] opened.
    ///
    /// # Safety
    /// `import` came from this driver, has not been closed, and no queued work uses it.
    unsafe fn close_export(&self, import: &RawImport) -> Result<()>;

    /// Allocates `len` bytes on `device`.
    fn allocate(&self, device: Ordinal, kind: MemoryKind, len: u64) -> Result<RawAllocation>;

    /// Frees an allocation of [`Driver::allocate`].
    ///
    /// # Safety
    /// `allocation` came from this driver, has not been freed, and no queued work uses it.
    unsafe fn free(&self, allocation: &RawAllocation) -> Result<()>;

    /// Like [`Driver::free`], but without waiting for running kernels, if CUDA supports that. While one thread waits in
    /// `cuMemFree` or `cuMemFreeHost`, most calls of all other threads wait, too (observed with driver 580.159.04).
    ///
    /// # Safety
    /// Same as [`Driver::free`]; no running kernel uses the allocation either.
    unsafe fn free_unwaited(&self, allocation: &RawAllocation) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.free(allocation) }
    }

    /// Allocates page-locked host memory that kernels on `device` can read and write.
    fn allocate_host(&self, device: Ordinal, len: usize) -> Result<RawHostAllocation>;

    /// Like [`Driver::allocate_host`], but the CPU can access the memory until it is freed, even after the context was
    /// destroyed (`cudaDeviceReset`) or the driver was deinitialized: it is memory of this process, registered with the
    /// driver (`cuMemHostRegister`). `len` is rounded up to pages.
    fn register_host(&self, device: Ordinal, len: usize) -> Result<RawHostAllocation> {
        self.allocate_host(device, len)
    }

    /// Frees an allocation of [`Driver::allocate_host`] or [`Driver::register_host`].
    ///
    /// # Safety
    /// `allocation` came from this driver and `device`, has not been freed, and neither the CPU nor queued work uses
    /// it.
    unsafe fn free_host(&self, device: Ordinal, allocation: &RawHostAllocation) -> Result<()>;

    /// Creates a stream that does not synchronize with the default stream.
    fn create_stream(&self, device: Ordinal) -> Result<RawStream>;

    /// Destroys a stream; queued work still completes.
    ///
    /// # Safety
    /// `stream` came from this driver and has not been destroyed.
    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<()>;

    /// Returns whether `stream` has work left, or the error of past work.
    ///
    /// # Safety
    /// `stream` came from this driver and has not been destroyed.
    unsafe fn stream_state(&self, stream: RawStream) -> Result<StreamState>;

    /// Copies host memory to the device and returns when the copy is complete (`cuMemcpyHtoD`).
    ///
    /// # Safety
    /// `src` is readable for `len` bytes; `dst..dst+len` lies in one allocation that the caller may overwrite.
    unsafe fn copy_to_device(
        &self,
        device: Ordinal,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()>;

    /// Copies device memory to the host and returns when the copy is complete (`cuMemcpyDtoH`).
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes; `src..src+len` lies in one allocation.
    unsafe fn copy_from_device(
        &self,
        device: Ordinal,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()>;

    /// Queues a copy of page-locked host memory to the device (`cuMemcpyHtoDAsync`).
    ///
    /// # Safety
    /// `src` is readable for `len` bytes of page-locked memory and `dst..dst+len` lies in one allocation that the
    /// caller may overwrite; both exist until the stream is idle.
    unsafe fn queue_copy_to_device(
        &self,
        stream: RawStream,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()>;

    /// Queues a copy of device memory to page-locked host memory (`cuMemcpyDtoHAsync`).
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes of page-locked memory and `src..src+len` lies in one allocation; both exist
    /// until the stream is idle.
    unsafe fn queue_copy_from_device(
        &self,
        stream: RawStream,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()>;

    /// Queues a copy from device memory to device memory (`cuMemcpyDtoDAsync`).
    ///
    /// # Safety
    /// `dst..dst+len` and `src..src+len` lie in one allocation each, on the stream's device or opened for it, exist
    /// until the stream is idle and do not overlap; the caller may overwrite the former.
    unsafe fn queue_copy_on_device(
        &self,
        stream: RawStream,
        dst: DevicePtr,
        src: DevicePtr,
        len: u64,
    ) -> Result<()>;

    /// Queues a call of a function on the CPU (`cuLaunchHostFunc`). It runs after the previously queued work, on a
    /// thread of the driver, and later work waits for it. It must not call the driver. If earlier work fails, the
    /// function is not called, and is leaked.
    ///
    /// # Safety
    /// `stream` came from this driver and has not been destroyed.
    unsafe fn queue_host_call(&self, stream: RawStream, call: HostCall) -> Result<()>;

    /// Makes later work on `stream` wait for everything that was queued on `other` (`cuEventRecord`,
    /// `cuStreamWaitEvent`).
    ///
    /// # Safety
    /// Both streams came from this driver and have not been destroyed.
    unsafe fn queue_wait(&self, stream: RawStream, other: RawStream) -> Result<()>;

    /// Queues a write of one 32-bit word (`cuStreamWriteValue32`, CUDA 11.7). The word becomes visible after all writes
    /// of the previously queued work. On real hardware the stream may belong to another library, and may be captured
    /// into a graph; the handle 0 is the legacy default stream.
    ///
    /// # Safety
    /// `stream` is an existing stream of this driver's device. `dst` is a multiple of 4, in memory that exists until
    /// the word is written, also by every launch of a graph, and that the caller may overwrite.
    unsafe fn queue_write_u32(&self, stream: RawStream, dst: DevicePtr, value: u32) -> Result<()>;

    /// Queues a fill of `len` bytes with `value` (`cuMemsetD8Async`).
    ///
    /// # Safety
    /// `dst..dst+len` lies in one allocation that exists until the stream is idle and that the caller may overwrite.
    unsafe fn fill(&self, stream: RawStream, dst: DevicePtr, value: u8, len: u64) -> Result<()>;

    /// Queues a kernel.
    ///
    /// # Safety
    /// Every address in `launch` lies, with the length that the kernel's documentation states, in memory that exists
    /// until the stream is idle and that the caller may overwrite where the kernel writes.
    unsafe fn launch(&self, stream: RawStream, launch: &Launch) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::sealed::Sealed;

    // The source of the compile-fail example of `Driver`. It compiles here, so the example fails only because the trait
    // is sealed.
    include!("../tests/sealed/outsider.rs");

    impl Sealed for Outsider {}

    #[test]
    fn an_implementation_compiles_where_the_seal_can_be_implemented() {
        let driver: Arc<dyn Driver> = Arc::new(Outsider(SimDriver::new(1)));
        assert_eq!(driver.kind(), DriverKind::Simulated);
    }
}
