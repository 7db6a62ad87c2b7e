//! The simulated GPU.

mod blocking;
mod heap;
mod kernel;
mod memfd;
mod push;
mod stream;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdr_pci::Bdf;

use self::blocking::Kernels;
pub use self::blocking::SimBlockingKernel;
use self::heap::{BLOCK, GPU_PAGE, Heap, Placement, Request};
use self::kernel::{Kernel, PageLocked};
use self::memfd::View;
use self::stream::Worker;
use crate::device::{CudaVersion, DeviceInfo, Ordinal};
use crate::device_export::{DeviceExport, ExportedMemory};
use crate::driver::sealed::Sealed;
use crate::driver::{
    DmaBuf, Driver, DriverKind, HostCall, HostMemoryOrigin, MemoryKind, RawAllocation,
    RawHostAllocation, RawImport, RawStream, StreamState,
};
use crate::error::{CuResult, Error, Result};
use crate::kernel::Launch;
use crate::pointer::{DevicePtr, Family, PointerInfo, PointerKind};
use crate::rdma_write_ordering::{RemoteWrites, WritesOrdering};

/// The size in bytes of the memory of each simulated GPU, and of the simulation's page-locked memory.
const TOTAL_MEMORY: u64 = 4 << 30;
/// The number of addresses of a heap. All heaps are above the addresses that Linux uses by default (2^47 on x86-64,
/// 2^48 on aarch64), so a device address that is used as a CPU address faults.
const HEAP_SPAN: u64 = 1 << 48;
/// The start of the heap of page-locked memory, in the fifth span; the GPUs' heaps follow it.
const HOST_HEAP: u64 = 5 * HEAP_SPAN;
/// The start of the heap of memory of other processes.
const IMPORT_HEAP: u64 = 4 * HEAP_SPAN;
const MOST_DEVICES: u32 = 256;
/// The handle of the legacy default stream, whose work runs before the call that queues it returns.
const DEFAULT_STREAM: u64 = 0;
const HOST_PAGE: u64 = 4 << 10;

/// A driver of simulated GPUs, which exist only in this process.
///
/// Other drivers of this process, and of other processes of the user, can open memory that a driver exports.
///
/// It has the properties of [`Driver`] that software on top of it relies on. Device addresses are not CPU addresses.
/// Small allocations share a 2 MiB block, VMM memory is rounded up to 2 MiB, and a freed address is never reused. Each
/// stream runs on its own thread, so a kernel can poll a flag. Its memory is in memfds, which [`SimDriver::share`]
/// returns instead of dma-bufs. It does not simulate PCI ordering, write combining or speed.
///
/// Each GPU has 4 GiB; a larger allocation fails with `CUDA_ERROR_OUT_OF_MEMORY`.
#[derive(Debug)]
pub struct SimDriver {
    state: Mutex<State>,
    kernels: Arc<Kernels>,
    remote_writes: RemoteWrites,
    flushes: AtomicU64,
    /// The number of copies that can still be queued.
    copies_left: AtomicU64,
    /// Whether the state of every stream is an error.
    is_destroyed: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// The heaps by ordinal.
    devices: Vec<Heap>,
    host: Heap,
    /// Memory of other processes that was opened.
    imports: Heap,
    /// The addresses of VMM memory that can be exported by a descriptor.
    posix_memory: HashSet<u64>,
    streams: HashMap<u64, Worker>,
    next_stream: u64,
}

/// The memory of a simulated device address.
#[derive(Debug)]
pub struct SimShare {
    /// A memfd of the whole block. Its memory exists as long as this descriptor or a mapping of it, even after the
    /// allocation was freed.
    pub fd: OwnedFd,
    /// The device address at file offset 0. A small allocation shares its block with others, so this can lie below the
    /// allocation.
    pub base: DevicePtr,
    /// The length of the block in bytes, a multiple of 64 KiB.
    pub size: u64,
}

impl SimDriver {
    /// Creates a driver with `devices` GPUs, at most 256. Their memory is host memory, so writes by other devices are
    /// in order for every GPU.
    pub fn new(devices: u32) -> Arc<Self> {
        let remote_writes = RemoteWrites {
            ordering: WritesOrdering::AllDevices,
            host_flush: true,
        };
        Self::with_remote_writes(devices, remote_writes)
    }

    /// Like [`SimDriver::new`], with this order of writes by other devices. Without `host_flush`, flushing fails.
    pub fn with_remote_writes(devices: u32, remote_writes: RemoteWrites) -> Arc<Self> {
        let heap = |number: u64| {
            let start = HOST_HEAP + number * HEAP_SPAN;
            Heap::new(start, start + HEAP_SPAN, TOTAL_MEMORY)
        };
        let count = u64::from(devices.min(MOST_DEVICES));
        let devices = (1..=count).map(heap).collect();
        let state = State {
            devices,
            host: heap(0),
            imports: Heap::new(IMPORT_HEAP, IMPORT_HEAP + HEAP_SPAN, HEAP_SPAN),
            posix_memory: HashSet::new(),
            streams: HashMap::new(),
            next_stream: 1,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            kernels: Arc::default(),
            remote_writes,
            flushes: AtomicU64::new(0),
            copies_left: AtomicU64::new(u64::MAX),
            is_destroyed: AtomicBool::new(false),
        })
    }

    /// Runs a kernel on a blocking stream, such as one of `cudaStreamCreate`, which the default stream waits for. Until
    /// the kernel ends, copies on the default stream ([`DeviceBuffer::read`](crate::DeviceBuffer::read) and
    /// [`DeviceBuffer::write`](crate::DeviceBuffer::write)) and calls that free memory wait, for every GPU of this
    /// driver; work on a [`Stream`](crate::Stream) does not.
    pub fn blocking_kernel(&self) -> SimBlockingKernel {
        Kernels::start(&self.kernels)
    }

    /// Permits `count` more copies to be queued on streams. Later copies fail with `CUDA_ERROR_CONTEXT_IS_DESTROYED`,
    /// as if the context had been destroyed.
    pub fn destroy_context_after(&self, count: u64) {
        self.copies_left.store(count, Ordering::Relaxed);
    }

    /// Destroys the context: later copies and kernels are not queued, and the state of every stream is an error,
    /// whether its work completed or not. This cannot be undone.
    pub fn destroy_context(&self) {
        self.destroy_context_after(0);
        self.is_destroyed.store(true, Ordering::Relaxed);
    }

    /// Ends every stream, as `cudaDeviceReset` does with its context: calls with existing streams fail, and new streams
    /// work. Memory stays allocated, unlike on hardware.
    pub fn reset_context(&self) {
        // The threads complete the queued work, and end without the lock.
        let _ended = std::mem::take(&mut self.lock().streams);
    }

    /// Returns the number of open allocations of other processes.
    pub fn imports(&self) -> usize {
        self.lock().imports.allocations()
    }

    /// Returns the number of flushes of writes by other devices.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Returns the memory of `ptr`, as a driver exports device memory.
    ///
    /// # Errors
    /// [`Error::UnknownPointer`]; `CUDA_ERROR_NOT_SUPPORTED` for managed and host memory, which hardware does not
    /// export either; [`Error::Os`] if no descriptor is left.
    pub fn share(&self, ptr: DevicePtr) -> Result<SimShare> {
        let state = self.lock();
        let heap = state.heap_of(ptr).ok_or(Error::UnknownPointer { ptr })?;
        if heap
            .info(ptr)
            .is_some_and(|info| info.kind != PointerKind::Device)
        {
            let (call, result) = ("SimDriver::share", CuResult::NOT_SUPPORTED);
            return Err(Error::Call { call, result });
        }
        let (fd, base, size) = heap.share(ptr).ok_or(Error::UnknownPointer { ptr })??;
        Ok(SimShare { fd, base, size })
    }

    /// Locks the state, which stays valid even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_context(&self, call: &'static str) -> Result<()> {
        match self.is_destroyed.load(Ordering::Relaxed) {
            true => Err(Error::Call {
                call,
                result: CuResult::CONTEXT_IS_DESTROYED,
            }),
            false => Ok(()),
        }
    }

    /// Fails if no more copies can be queued.
    fn count_copy(&self, call: &'static str) -> Result<()> {
        let (order, result) = (Ordering::Relaxed, CuResult::CONTEXT_IS_DESTROYED);
        let counted = self
            .copies_left
            .fetch_update(order, order, |left| left.checked_sub(1));
        counted.map(drop).map_err(|_| Error::Call { call, result })
    }

    fn view(&self, call: &'static str, ptr: DevicePtr, len: usize) -> Result<View> {
        let view = self.lock().view(ptr, len as u64);
        view.ok_or(Error::Call {
            call,
            result: CuResult::INVALID_VALUE,
        })
    }

    fn queue_copy(
        &self,
        call: &'static str,
        stream: RawStream,
        device_side: DevicePtr,
        len: usize,
        copy: impl FnOnce(View) -> Kernel,
    ) -> Result<()> {
        self.count_copy(call)?;
        let mut state = self.lock();
        let view = state.view(device_side, len as u64).ok_or(Error::Call {
            call,
            result: CuResult::INVALID_VALUE,
        })?;
        state.worker(call, stream)?.submit(call, copy(view))
    }
}

impl State {
    fn free(&mut self, allocation: &RawAllocation) -> Result<()> {
        self.posix_memory.remove(&allocation.ptr.get());
        self.device(allocation.device)?.free(allocation.ptr)
    }

    fn heap_of(&self, ptr: DevicePtr) -> Option<&Heap> {
        self.devices
            .iter()
            .chain([&self.host, &self.imports])
            .find(|heap| heap.info(ptr).is_some())
    }

    fn view(&self, ptr: DevicePtr, len: u64) -> Option<View> {
        self.heap_of(ptr)?.view(ptr, len)
    }

    fn check(&self, device: Ordinal) -> Result<()> {
        let count = self.devices.len() as u32;
        if device.0 < count {
            return Ok(());
        }
        Err(Error::NoSuchDevice {
            ordinal: device,
            count,
        })
    }

    fn device(&mut self, device: Ordinal) -> Result<&mut Heap> {
        self.check(device)?;
        let count = self.devices.len() as u32;
        let heap = usize::try_from(device.0)
            .ok()
            .and_then(|i| self.devices.get_mut(i));
        heap.ok_or(Error::NoSuchDevice {
            ordinal: device,
            count,
        })
    }

    fn worker(&mut self, call: &'static str, stream: RawStream) -> Result<&mut Worker> {
        let worker = self.streams.get_mut(&stream.handle);
        worker.ok_or(Error::Call {
            call,
            result: CuResult::INVALID_HANDLE,
        })
    }

    /// Queues a kernel. On the default stream it runs before the call returns.
    fn submit(&mut self, call: &'static str, stream: RawStream, kernel: Kernel) -> Result<()> {
        if stream.handle == DEFAULT_STREAM {
            kernel.run();
            return Ok(());
        }
        self.worker(call, stream)?.submit(call, kernel)
    }
}

impl Sealed for SimDriver {}

impl Driver for SimDriver {
    fn kind(&self) -> DriverKind {
        DriverKind::Simulated
    }

    /// Returns 0.0, because there is no CUDA.
    fn cuda_version(&self) -> CudaVersion {
        CudaVersion { major: 0, minor: 0 }
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let count = self.lock().devices.len() as u32;
        Ok((0..count)
            .map(|number| describe(Ordinal(number), self.remote_writes))
            .collect())
    }

    fn pointer_info(&self, ptr: DevicePtr) -> Result<PointerInfo> {
        let state = self.lock();
        let info = state.heap_of(ptr).and_then(|heap| heap.info(ptr));
        info.ok_or(Error::UnknownPointer { ptr })
    }

    /// Has no effect: copies are always complete when they return.
    fn synchronize_copies(&self, _: Ordinal, ptr: DevicePtr) -> Result<()> {
        self.pointer_info(ptr).map(drop)
    }

    fn flush_remote_writes(&self, _: Ordinal, ptr: DevicePtr) -> Result<()> {
        self.pointer_info(ptr)?;
        if !self.remote_writes.host_flush {
            return Err(Error::Call {
                call: "SimDriver::flush_remote_writes",
                result: CuResult::NOT_SUPPORTED,
            });
        }
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a memfd instead of a dma-buf.
    fn dma_buf(&self, _: Ordinal, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
        let share = self.share(ptr)?;
        let offset = ptr.get() - share.base.get();
        if len > share.size - offset {
            return Err(Error::Call {
                call: "SimDriver::dma_buf",
                result: CuResult::INVALID_VALUE,
            });
        }
        let fd = share.fd;
        Ok(DmaBuf { fd, offset })
    }

    fn export(&self, _: Ordinal, ptr: DevicePtr) -> Result<ExportedMemory> {
        let state = self.lock();
        let unknown = Error::UnknownPointer { ptr };
        let heap = state.heap_of(ptr).ok_or(unknown)?;
        let unknown = Error::UnknownPointer { ptr };
        let info = heap.info(ptr).ok_or(unknown)?;
        if state.posix_memory.contains(&info.base.get()) {
            let (descriptor, base, len) =
                heap.share(ptr).ok_or(Error::UnknownPointer { ptr })??;
            return Ok(ExportedMemory::by_descriptor(descriptor, base, len));
        }
        if info.family != Family::Plain {
            let family = info.family;
            return Err(Error::NotExportable { ptr, family });
        }
        let handle = heap.handle(ptr).ok_or(Error::UnknownPointer { ptr })??;
        Ok(ExportedMemory::by_handle(handle, info.base, info.size))
    }

    /// Also opens memory of this process, so that two devices can stand for two processes.
    fn open_export(
        &self,
        device: Ordinal,
        export: &DeviceExport,
        descriptor: Option<OwnedFd>,
    ) -> Result<RawImport> {
        let mut state = self.lock();
        state.check(device)?;
        let info = match descriptor {
            Some(descriptor) => state.imports.import(device, descriptor)?,
            None => state.imports.open(device, &export.handle)?,
        };
        Ok(RawImport {
            device,
            ptr: info.base,
            len: info.size,
            handle: None,
        })
    }

    unsafe fn close_export(&self, import: &RawImport) -> Result<()> {
        self.lock().imports.free(import.ptr)
    }

    fn allocate(&self, device: Ordinal, kind: MemoryKind, len: u64) -> Result<RawAllocation> {
        let (placement, pointer_kind) = match kind {
            MemoryKind::Plain | MemoryKind::Pool => (Placement::Packed, PointerKind::Device),
            MemoryKind::VmmPosixFd | MemoryKind::Vmm => {
                (Placement::Alone(BLOCK), PointerKind::Device)
            }
            MemoryKind::Managed => (Placement::Alone(GPU_PAGE), PointerKind::Managed),
        };
        let request = Request {
            call: kind.function(),
            device,
            kind: pointer_kind,
            family: match kind {
                MemoryKind::Plain => Family::Plain,
                MemoryKind::Pool => Family::Pool,
                MemoryKind::Vmm | MemoryKind::VmmPosixFd => Family::Vmm,
                MemoryKind::Managed => Family::Unknown,
            },
            placement,
            len,
        };
        let mut state = self.lock();
        let info = state.device(device)?.allocate(request)?;
        if kind == MemoryKind::VmmPosixFd {
            state.posix_memory.insert(info.base.get());
        }
        drop(state);
        let is_vmm = matches!(kind, MemoryKind::VmmPosixFd | MemoryKind::Vmm);
        let handle = if is_vmm { info.buffer.0 } else { 0 };
        Ok(RawAllocation {
            device,
            kind,
            ptr: info.base,
            len,
            reserved: info.size,
            handle,
        })
    }

    unsafe fn free(&self, allocation: &RawAllocation) -> Result<()> {
        self.kernels.wait();
        self.lock().free(allocation)
    }

    unsafe fn free_unwaited(&self, allocation: &RawAllocation) -> Result<()> {
        self.lock().free(allocation)
    }

    fn allocate_host(&self, device: Ordinal, len: usize) -> Result<RawHostAllocation> {
        let mut state = self.lock();
        state.check(device)?;
        let call = "cuMemHostAlloc";
        let (kind, placement) = (PointerKind::Host, Placement::Alone(HOST_PAGE));
        let request = Request {
            call,
            device,
            kind,
            family: Family::Unknown,
            placement,
            len: len as u64,
        };
        let gpu = state.host.allocate(request)?.base;
        let cpu = state
            .host
            .cpu_address(gpu)
            .ok_or(Error::UnknownPointer { ptr: gpu })?;
        let origin = HostMemoryOrigin::Driver;
        Ok(RawHostAllocation {
            origin,
            cpu,
            gpu,
            len,
        })
    }

    unsafe fn free_host(&self, _device: Ordinal, allocation: &RawHostAllocation) -> Result<()> {
        self.kernels.wait();
        self.lock().host.free(allocation.gpu)
    }

    fn create_stream(&self, device: Ordinal) -> Result<RawStream> {
        let mut state = self.lock();
        state.check(device)?;
        let handle = state.next_stream;
        state.streams.insert(handle, Worker::start()?);
        state.next_stream += 1;
        Ok(RawStream { device, handle })
    }

    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<()> {
        let worker = self.lock().streams.remove(&stream.handle);
        let missing = Error::Call {
            call: "cuStreamDestroy",
            result: CuResult::INVALID_HANDLE,
        };
        worker.map(drop).ok_or(missing)
    }

    unsafe fn stream_state(&self, stream: RawStream) -> Result<StreamState> {
        let call = "cuStreamQuery";
        self.check_context(call)?;
        if stream.handle == DEFAULT_STREAM {
            return Ok(StreamState::Idle);
        }
        self.lock()
            .worker(call, stream)
            .map(|worker| worker.state())
    }

    unsafe fn copy_to_device(
        &self,
        _device: Ordinal,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()> {
        self.kernels.wait();
        let view = self.view("cuMemcpyHtoD", dst, len)?;
        // SAFETY: the view has `len` bytes, and `src` is readable for as many.
        unsafe { view.write_from(src) };
        Ok(())
    }

    unsafe fn copy_from_device(
        &self,
        _device: Ordinal,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()> {
        self.kernels.wait();
        let view = self.view("cuMemcpyDtoH", src, len)?;
        // SAFETY: the view has `len` bytes, and `dst` is writable for as many.
        unsafe { view.read_to(dst) };
        Ok(())
    }

    unsafe fn queue_copy_to_device(
        &self,
        stream: RawStream,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()> {
        self.queue_copy("cuMemcpyHtoDAsync", stream, dst, len, |dst| {
            Kernel::Upload {
                dst,
                src: PageLocked(src.cast_mut()),
            }
        })
    }

    unsafe fn queue_copy_from_device(
        &self,
        stream: RawStream,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()> {
        self.queue_copy("cuMemcpyDtoHAsync", stream, src, len, |src| {
            Kernel::Download {
                src,
                dst: PageLocked(dst),
            }
        })
    }

    unsafe fn queue_copy_on_device(
        &self,
        stream: RawStream,
        dst: DevicePtr,
        src: DevicePtr,
        len: u64,
    ) -> Result<()> {
        let call = "cuMemcpyDtoDAsync";
        if stream.handle == DEFAULT_STREAM {
            self.kernels.wait();
        }
        self.count_copy(call)?;
        let mut state = self.lock();
        let (src, dst) = (state.view(src, len), state.view(dst, len));
        let (Some(src), Some(dst)) = (src, dst) else {
            let result = CuResult::INVALID_VALUE;
            return Err(Error::Call { call, result });
        };
        state.submit(call, stream, Kernel::Copy { src, dst })
    }

    unsafe fn queue_host_call(&self, stream: RawStream, host_call: HostCall) -> Result<()> {
        let call = "cuLaunchHostFunc";
        if stream.handle == DEFAULT_STREAM {
            self.kernels.wait();
            // Called without the lock, because it may take long.
            host_call.run();
            return Ok(());
        }
        self.lock().submit(call, stream, Kernel::Call(host_call))
    }

    unsafe fn queue_wait(&self, stream: RawStream, other: RawStream) -> Result<()> {
        if other.handle == DEFAULT_STREAM {
            // All work on the default stream has run, except for blocking kernels.
            self.kernels.wait();
            return Ok(());
        }
        let mut state = self.lock();
        let (reached, event) = channel();
        let worker = state.worker("cuEventRecord", other)?;
        worker.submit("cuEventRecord", Kernel::Record(reached))?;
        if stream.handle == DEFAULT_STREAM {
            // Waits without the lock, which the other stream may need until it reaches the event.
            drop(state);
            Kernel::Wait(event).run();
            return Ok(());
        }
        let worker = state.worker("cuStreamWaitEvent", stream)?;
        worker.submit("cuStreamWaitEvent", Kernel::Wait(event))
    }

    unsafe fn queue_write_u32(&self, stream: RawStream, dst: DevicePtr, value: u32) -> Result<()> {
        let call = "cuStreamWriteValue32";
        if stream.handle == DEFAULT_STREAM {
            self.kernels.wait();
        }
        let mut state = self.lock();
        let dst = state.view(dst, 4).filter(|dst| dst.is_aligned(4));
        let result = CuResult::INVALID_VALUE;
        let dst = dst.ok_or(Error::Call { call, result })?;
        state.submit(call, stream, Kernel::WriteWord { dst, value })
    }

    unsafe fn fill(&self, stream: RawStream, dst: DevicePtr, value: u8, len: u64) -> Result<()> {
        let call = "cuMemsetD8Async";
        let mut state = self.lock();
        let dst = state.view(dst, len);
        let dst = dst.ok_or(Error::Call {
            call,
            result: CuResult::INVALID_VALUE,
        })?;
        state
            .worker(call, stream)?
            .submit(call, Kernel::Set { dst, value })
    }

    unsafe fn launch(&self, stream: RawStream, launch: &Launch) -> Result<()> {
        let call = "cuLaunchKernel";
        self.check_context(call)?;
        if stream.handle == DEFAULT_STREAM {
            self.kernels.wait();
        }
        let mut state = self.lock();
        let kernel = Kernel::prepare(launch, |ptr, len| state.view(ptr, len))?;
        state.submit(call, stream, kernel)
    }
}

fn describe(ordinal: Ordinal, remote_writes: RemoteWrites) -> DeviceInfo {
    let mut uuid = *b"gdr-simulat\0\0\0\0\0";
    uuid[12..].copy_from_slice(&ordinal.0.to_be_bytes());
    DeviceInfo {
        ordinal,
        name: "Simulated GPU".to_owned(),
        // Linux does not assign this PCI domain to hardware; 256 GPUs are at most eight buses of 32 devices.
        bdf: Bdf {
            domain: 0xffff,
            bus: (ordinal.0 / 32) as u8,
            device: (ordinal.0 % 32) as u8,
            function: 0,
        },
        uuid,
        compute_capability: (0, 0),
        total_memory: TOTAL_MEMORY,
        dma_buf: false,
        gpudirect_rdma: false,
        coherent: false,
        remote_writes,
    }
}
