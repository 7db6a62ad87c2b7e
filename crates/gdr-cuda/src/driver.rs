//! The seam between this workspace and a GPU: what NVIDIA's driver and the simulation both do.
//!
//! Raw addresses come in through `unsafe` methods: with unified addressing a device address may
//! name pinned host memory, so a copy to an arbitrary one could overwrite the caller's own data.
//! [`crate::Gpu`], [`crate::DeviceBuffer`] and [`crate::Stream`] are the safe owners above it.

use std::fmt;
use std::os::fd::OwnedFd;

use crate::bdf::Bdf;
use crate::error::Result;
use crate::kernel::Launch;
use crate::pointer::{DevicePtr, PointerInfo};
use crate::remote_writes::RemoteWrites;

/// A GPU's number as this process sees it (after `CUDA_VISIBLE_DEVICES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ordinal(pub u32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a driver moves real hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// NVIDIA's driver.
    Cuda,
    /// The simulation; every report built on it must say so.
    Simulated,
}

/// The CUDA version a driver offers (`cuDriverGetVersion`), e.g. 13.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CudaVersion {
    /// 13 in 13.0.
    pub major: u32,
    /// 0 in 13.0.
    pub minor: u32,
}

impl CudaVersion {
    /// From the driver's number, 1000 times major plus 10 times minor.
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

/// One GPU, as far as this workspace asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in this process.
    pub ordinal: Ordinal,
    /// Marketing name, e.g. `NVIDIA H200`.
    pub name: String,
    /// PCI address.
    pub bdf: Bdf,
    /// 16 bytes that name the GPU (or the MIG instance) everywhere.
    pub uuid: [u8; 16],
    /// Compute capability, e.g. (9, 0).
    pub compute_capability: (u32, u32),
    /// Total memory, bytes.
    pub total_memory: u64,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`: memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`.
    pub gpudirect_rdma: bool,
    /// What it promises of writes by other devices.
    pub remote_writes: RemoteWrites,
}

/// How to allocate.
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
    /// `cuMemAllocManaged`; here so that its refusal can be tested.
    Managed,
}

impl MemoryKind {
    /// Every kind that has a lasting place on a GPU.
    pub const DEVICE: [Self; 4] = [Self::Plain, Self::VmmPosixFd, Self::Vmm, Self::Pool];

    /// The CUDA function that makes it, for reports.
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
    /// The GPU it is on.
    pub device: Ordinal,
    /// How it was made, hence how it is freed.
    pub kind: MemoryKind,
    /// Its address.
    pub ptr: DevicePtr,
    /// Bytes asked for.
    pub len: u64,
    /// Bytes taken (VMM memory is rounded up to the granularity).
    pub reserved: u64,
    /// The driver's own handle of VMM memory, else 0.
    pub handle: u64,
}

/// Page-locked host memory that the GPU can reach; [`crate::HostBuffer`] owns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHostAllocation {
    /// CPU address.
    pub cpu: *mut u8,
    /// The address a kernel uses for it.
    pub gpu: DevicePtr,
    /// Bytes.
    pub len: usize,
}

/// A stream of a driver; [`crate::Stream`] owns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawStream {
    /// The GPU it runs on.
    pub device: Ordinal,
    /// The driver's handle.
    pub handle: u64,
}

/// Whether a stream has work left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// All work submitted so far is complete.
    Idle,
    /// Something is still running.
    Busy,
}

/// Device memory as a file descriptor that other devices import.
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Where in it the bytes begin that it was asked for.
    pub offset: u64,
}

/// A GPU driver: NVIDIA's ([`crate::Cuda`]) or the simulation ([`crate::SimDriver`]).
///
/// Every method may be called from any thread, with or without a current CUDA context: an
/// implementation makes the device's primary context current for the call and restores the
/// caller's afterwards.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Real or simulated.
    fn kind(&self) -> DriverKind;

    /// The CUDA version the driver offers.
    fn cuda_version(&self) -> CudaVersion;

    /// Every GPU visible to this process, in ordinal order. Initializes the driver.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// What `ptr` belongs to. An address the driver does not know (never allocated, freed, plain
    /// host memory) is [`crate::Error::UnknownPointer`].
    fn pointer_info(&self, ptr: DevicePtr) -> Result<PointerInfo>;

    /// Makes copies and fills of the allocation that `ptr` is in complete before the calls return
    /// (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`). Without it a copy that returned may still be under way
    /// when another device reads or writes the memory. It cannot be undone.
    ///
    /// CUDA has it for memory of `cuMemAlloc`; for others it may refuse.
    fn synchronize_copies(&self, device: Ordinal, ptr: DevicePtr) -> Result<()>;

    /// Waits until what other devices wrote into memory of the GPU of `ptr`, and what has arrived
    /// there, is seen by whatever looks next on that GPU (`cuFlushGPUDirectRDMAWrites` to the
    /// owner, CUDA 11.3).
    fn flush_remote_writes(&self, device: Ordinal, ptr: DevicePtr) -> Result<()>;

    /// A dma-buf that holds `len` bytes of device memory at `ptr`, for a device that imports one
    /// (`cuMemGetHandleForAddressRange`, CUDA 11.7). It keeps the memory reachable as long as its
    /// descriptor is open.
    fn dma_buf(&self, device: Ordinal, ptr: DevicePtr, len: u64) -> Result<DmaBuf>;

    /// Allocates `len` bytes on `device`.
    fn allocate(&self, device: Ordinal, kind: MemoryKind, len: u64) -> Result<RawAllocation>;

    /// Frees what [`Driver::allocate`] returned.
    ///
    /// # Safety
    /// `allocation` came from this driver, has not been freed, and no queued work uses it.
    unsafe fn free(&self, allocation: &RawAllocation) -> Result<()>;

    /// Allocates page-locked host memory that kernels on `device` can read and write.
    fn allocate_host(&self, device: Ordinal, len: usize) -> Result<RawHostAllocation>;

    /// Frees what [`Driver::allocate_host`] returned.
    ///
    /// # Safety
    /// `allocation` came from this driver and `device`, has not been freed, and neither the CPU
    /// nor queued work uses it.
    unsafe fn free_host(&self, device: Ordinal, allocation: &RawHostAllocation) -> Result<()>;

    /// Makes a stream that does not synchronize with the default stream.
    fn create_stream(&self, device: Ordinal) -> Result<RawStream>;

    /// Destroys a stream; work already submitted still completes.
    ///
    /// # Safety
    /// `stream` came from this driver and has not been destroyed.
    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<()>;

    /// Whether `stream` has work left; errors of past work surface here.
    fn stream_state(&self, stream: RawStream) -> Result<StreamState>;

    /// Copies host memory to the device and returns when it is there (`cuMemcpyHtoD`).
    ///
    /// # Safety
    /// `src` is readable for `len` bytes; `dst..dst+len` lies in one live allocation that the
    /// caller may overwrite.
    unsafe fn copy_to_device(
        &self,
        device: Ordinal,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()>;

    /// Copies device memory to the host and returns when it is there (`cuMemcpyDtoH`).
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes; `src..src+len` lies in one live allocation.
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
    /// `src` is readable for `len` bytes of page-locked memory and `dst..dst+len` lies in one
    /// allocation that the caller may overwrite; both live until the stream is idle.
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
    /// `dst` is writable for `len` bytes of page-locked memory and `src..src+len` lies in one
    /// allocation; both live until the stream is idle.
    unsafe fn queue_copy_from_device(
        &self,
        stream: RawStream,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()>;

    /// Queues a fill of `len` bytes with `value` (`cuMemsetD8Async`).
    ///
    /// # Safety
    /// `dst..dst+len` lies in one allocation that lives until the stream is idle and that the
    /// caller may overwrite.
    unsafe fn fill(&self, stream: RawStream, dst: DevicePtr, value: u8, len: u64) -> Result<()>;

    /// Queues a kernel.
    ///
    /// # Safety
    /// Every address in `launch` lies, with the length that the kernel's documentation states,
    /// in memory that lives until the stream is idle and that the caller may overwrite where the
    /// kernel writes.
    unsafe fn launch(&self, stream: RawStream, launch: &Launch) -> Result<()>;
}
