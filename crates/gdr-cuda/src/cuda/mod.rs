//! NVIDIA's driver.

mod api;
mod context;
pub(crate) mod export;
mod layout;
mod memory;
mod module;
mod pointer;
pub(crate) mod probe_alloc;

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use gdr_pci::Bdf;
use gdr_process::LoadedLibrary;
use libc::RTLD_NOLOAD;
use libloading::os::unix::{Library, RTLD_NOW};

use self::api::{Api, CUdevice, Opaque};
use self::context::PrimaryContexts;
use self::layout::{CUuuid, FLUSH_BY_HOST, device_attribute};
use self::module::Modules;
use crate::device::{CudaVersion, DeviceInfo, Ordinal};
use crate::device_export::{DeviceExport, ExportedMemory};
use crate::driver::sealed::Sealed;
use crate::driver::{
    DmaBuf, Driver, DriverKind, HostCall, MemoryKind, RawAllocation, RawHostAllocation, RawImport,
    RawStream, StreamState,
};
use crate::error::{CuResult, Error, Result};
use crate::kernel::Launch;
use crate::pointer::{DevicePtr, PointerInfo};
use crate::rdma_write_ordering::{RemoteWrites, WritesOrdering};

pub use self::context::CaptureGuard;

/// The library that every NVIDIA driver installs. Not `libcuda.so`, which may be the stub for linking.
const LIBRARY: &str = "libcuda.so.1";

/// The environment variable that names a file to load instead of `libcuda.so.1`.
const VARIABLE: &str = "GDR_LIBCUDA";

/// NVIDIA's driver, loaded at run time; CUDA 11.4 (driver 470) or later.
///
/// Loading does not initialize the driver; [`Driver::devices`] does (`cuInit`), which [`crate::Gpu`] calls. As with any
/// use of CUDA, a process has to fork before that: in the child of a later fork, every call returns
/// `CUDA_ERROR_NOT_INITIALIZED`.
///
/// Calls run in the primary context of their GPU, which the CUDA runtime uses, too. It is retained at its first use and
/// released with this value. The caller's current context is restored after each call.
#[derive(Debug)]
pub struct Cuda {
    api: Arc<Api>,
    version: CudaVersion,
    init: CodeAddress,
    contexts: PrimaryContexts,
    modules: Modules,
}

/// An address inside the library.
#[derive(Clone, Copy, Debug)]
struct CodeAddress(*const c_void);

// SAFETY: the address is never dereferenced, and the library is never unloaded.
unsafe impl Send for CodeAddress {}
// SAFETY: as above.
unsafe impl Sync for CodeAddress {}

impl Cuda {
    /// Returns the driver if this process has already loaded its library. Neither loads nor initializes it.
    ///
    /// If the library is not loaded, this takes well under a microsecond and does not call the loader. It may therefore
    /// be called at each registration of memory, and a child that is forked at the same time can load libraries. It
    /// takes no lock that a forked child could wait for.
    ///
    /// # Errors
    /// Same as [`Cuda::load`], for a library that is loaded. After an error the library is treated as absent until the
    /// process loads another one.
    pub fn of_process() -> Result<Option<&'static Arc<Self>>> {
        static LOADED: LoadedLibrary = LoadedLibrary::new("libcuda.so");
        static DRIVER: AtomicPtr<Arc<Cuda>> = AtomicPtr::new(ptr::null_mut());
        // SAFETY: null, or a leaked value that was complete when it was published.
        if let Some(driver) = unsafe { DRIVER.load(Ordering::Acquire).as_ref() } {
            return Ok(Some(driver));
        }
        if !LOADED.is_loaded() {
            return Ok(None);
        }
        // SAFETY: with this flag the loader only searches the loaded libraries.
        let loaded = unsafe { Library::open(Some(LIBRARY), RTLD_NOLOAD | RTLD_NOW) };
        let driver = match loaded {
            Ok(_) => Self::load().inspect_err(|_| LOADED.ignore())?,
            Err(_) => {
                LOADED.ignore();
                return Ok(None);
            }
        };
        let driver = Box::into_raw(Box::new(driver));
        let known =
            DRIVER.compare_exchange(ptr::null_mut(), driver, Ordering::AcqRel, Ordering::Acquire);
        let driver = match known {
            Ok(_) => driver,
            Err(first) => {
                // SAFETY: created above and never published.
                drop(unsafe { Box::from_raw(driver) });
                first
            }
        };
        // SAFETY: the value was leaked.
        Ok(Some(unsafe { &*driver }))
    }

    /// Loads `libcuda.so.1`, or the file that the environment variable `GDR_LIBCUDA` names. Does not initialize the
    /// driver. The variable is ignored in a process with more rights than its caller (`AT_SECURE`: setuid, setgid, file
    /// capabilities).
    ///
    /// # Errors
    /// [`Error::Library`] if it cannot be loaded, [`Error::Symbol`] if it is older than CUDA 11.4.
    pub fn load() -> Result<Arc<Self>> {
        // A library that the caller chooses is loaded only with the caller's rights.
        match gdr_process::variable(VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Self::load_from(&path),
            None => Self::load_from(OsStr::new(LIBRARY)),
        }
    }

    fn load_from(path: &OsStr) -> Result<Arc<Self>> {
        let (api, init) = api::open(path)?;
        let mut number = 0;
        // SAFETY: a place for the result; this call needs no `cuInit`.
        check("cuDriverGetVersion", unsafe {
            (api.driver_get_version)(&mut number)
        })?;
        Ok(Arc::new(Self {
            api: Arc::new(api),
            version: CudaVersion::from_number(number.unsigned_abs()),
            init: CodeAddress(init),
            contexts: PrimaryContexts::new(),
            modules: Modules::new(),
        }))
    }

    /// Returns the address of `cuInit` inside the library, which identifies the loaded object.
    pub fn symbol_address(&self) -> *const c_void {
        self.init.0
    }

    fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: a place for the result.
        check("cuDeviceGetCount", unsafe {
            (self.api.device_get_count)(&mut count)
        })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns an attribute of a device, or 0 if the driver is too old to know it.
    fn attribute(&self, device: CUdevice, attribute: c_int) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: a place for the result and a device from `cuDeviceGet`.
        let status = unsafe { (self.api.device_get_attribute)(&mut value, attribute, device) };
        if status == CuResult::INVALID_VALUE.0 {
            return Ok(0);
        }
        check("cuDeviceGetAttribute", status)?;
        Ok(value)
    }

    fn describe(&self, ordinal: Ordinal) -> Result<DeviceInfo> {
        let device = self.device(ordinal)?;
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the buffer and its length; the driver writes a NUL-terminated string.
        let status = unsafe { (self.api.device_get_name)(name.as_mut_ptr(), 256, device) };
        check("cuDeviceGetName", status)?;

        let mut bus_id: [c_char; 32] = [0; 32];
        // SAFETY: the buffer and its length; the driver writes a NUL-terminated string.
        let status = unsafe { (self.api.device_get_pci_bus_id)(bus_id.as_mut_ptr(), 32, device) };
        check("cuDeviceGetPCIBusId", status)?;
        let unreadable = || Error::Call {
            call: "cuDeviceGetPCIBusId",
            result: CuResult::INVALID_VALUE,
        };
        let bdf: Bdf = text(&bus_id).parse().map_err(|_| unreadable())?;

        let mut uuid = CUuuid::default();
        // SAFETY: a place for the result and a device from `cuDeviceGet`.
        let status = unsafe { (self.api.device_get_uuid)(&mut uuid, device) };
        check("cuDeviceGetUuid", status)?;

        let mut total_memory = 0;
        // SAFETY: a place for the result and a device from `cuDeviceGet`.
        let status = unsafe { (self.api.device_total_mem)(&mut total_memory, device) };
        check("cuDeviceTotalMem", status)?;

        let number = |attribute| self.attribute(device, attribute).map(c_int::unsigned_abs);
        Ok(DeviceInfo {
            ordinal,
            name: text(&name),
            bdf,
            uuid: uuid.bytes,
            compute_capability: (
                number(device_attribute::COMPUTE_CAPABILITY_MAJOR)?,
                number(device_attribute::COMPUTE_CAPABILITY_MINOR)?,
            ),
            total_memory: total_memory as u64,
            dma_buf: number(device_attribute::DMA_BUF)? != 0,
            gpudirect_rdma: number(device_attribute::GPU_DIRECT_RDMA)? != 0,
            coherent: number(device_attribute::USES_HOST_PAGE_TABLES)? != 0,
            remote_writes: RemoteWrites {
                ordering: WritesOrdering::from_attribute(number(
                    device_attribute::WRITES_ORDERING,
                )?),
                host_flush: number(device_attribute::FLUSH_WRITES_OPTIONS)? & FLUSH_BY_HOST != 0,
            },
        })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.contexts.release(&self.api);
    }
}

impl Sealed for Cuda {}

impl Driver for Cuda {
    fn kind(&self) -> DriverKind {
        DriverKind::Cuda
    }

    fn cuda_version(&self) -> CudaVersion {
        self.version
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        // SAFETY: 0 is the only valid flag; a second call has no effect.
        check("cuInit", unsafe { (self.api.init)(0) })?;
        (0..self.device_count()?)
            .map(|number| self.describe(Ordinal(number)))
            .collect()
    }

    fn pointer_info(&self, ptr: DevicePtr) -> Result<PointerInfo> {
        self.query(ptr)
    }

    fn synchronize_copies(&self, device: Ordinal, ptr: DevicePtr) -> Result<()> {
        self.set_sync_memops(device, ptr)
    }

    fn flush_remote_writes(&self, device: Ordinal, ptr: DevicePtr) -> Result<()> {
        self.flush_writes(device, ptr)
    }

    fn dma_buf(&self, device: Ordinal, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
        self.export_dma_buf(device, ptr, len)
    }

    fn export(&self, device: Ordinal, ptr: DevicePtr) -> Result<ExportedMemory> {
        self.export_allocation(device, ptr)
    }

    fn open_export(
        &self,
        device: Ordinal,
        export: &DeviceExport,
        descriptor: Option<OwnedFd>,
    ) -> Result<RawImport> {
        match (export.descriptor, descriptor) {
            (None, _) => self.open_ipc_handle(device, export.handle),
            (Some(_), Some(descriptor)) => self.open_descriptor(device, descriptor, export.len),
            (Some(_), None) => Err(Error::Call {
                call: "cuMemImportFromShareableHandle",
                result: CuResult::INVALID_HANDLE,
            }),
        }
    }

    unsafe fn close_export(&self, import: &RawImport) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.close_import(import) }
    }

    fn allocate(&self, device: Ordinal, kind: MemoryKind, len: u64) -> Result<RawAllocation> {
        self.allocate_memory(device, kind, len)
    }

    unsafe fn free(&self, allocation: &RawAllocation) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.free_memory(allocation) }
    }

    unsafe fn free_unwaited(&self, allocation: &RawAllocation) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.free_memory_unwaited(allocation) }
    }

    fn allocate_host(&self, device: Ordinal, len: usize) -> Result<RawHostAllocation> {
        self.allocate_host_memory(device, len)
    }

    fn register_host(&self, device: Ordinal, len: usize) -> Result<RawHostAllocation> {
        self.register_host_memory(device, len)
    }

    unsafe fn free_host(&self, device: Ordinal, allocation: &RawHostAllocation) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.free_host_memory(device, allocation) }
    }

    fn create_stream(&self, device: Ordinal) -> Result<RawStream> {
        let _current = self.enter(device)?;
        let mut stream: Opaque = ptr::null_mut();
        // SAFETY: a place for the result, in the device's context.
        let status = unsafe { (self.api.stream_create)(&mut stream, layout::STREAM_NON_BLOCKING) };
        check("cuStreamCreate", status)?;
        Ok(RawStream {
            device,
            handle: stream.expose_provenance() as u64,
        })
    }

    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<()> {
        let _current = self.enter_of(stream)?;
        // SAFETY: the caller's promise: created by `create_stream`, not destroyed yet.
        check("cuStreamDestroy", unsafe {
            (self.api.stream_destroy)(stream_of(stream))
        })
    }

    unsafe fn stream_state(&self, stream: RawStream) -> Result<StreamState> {
        let _current = self.enter_of(stream)?;
        // SAFETY: the caller's promise: created by `create_stream`, not destroyed yet.
        let status = unsafe { (self.api.stream_query)(stream_of(stream)) };
        if status == CuResult::NOT_READY.0 {
            return Ok(StreamState::Busy);
        }
        check("cuStreamQuery", status)?;
        Ok(StreamState::Idle)
    }

    unsafe fn copy_to_device(
        &self,
        device: Ordinal,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()> {
        let _current = self.enter(device)?;
        // SAFETY: the caller's promise about both ranges.
        let status = unsafe { (self.api.memcpy_htod)(dst.get(), src.cast(), len) };
        check("cuMemcpyHtoD", status)?;
        // For pageable memory the call returns once the bytes are staged, which is before they arrive.
        self.synchronize_default_stream()
    }

    unsafe fn copy_from_device(
        &self,
        device: Ordinal,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()> {
        let _current = self.enter(device)?;
        // SAFETY: the caller's promise about both ranges.
        check("cuMemcpyDtoH", unsafe {
            (self.api.memcpy_dtoh)(dst.cast(), src.get(), len)
        })
    }

    unsafe fn queue_copy_to_device(
        &self,
        stream: RawStream,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()> {
        let _current = self.enter_of(stream)?;
        let queue = stream_of(stream);
        // SAFETY: the caller's promise about both ranges and the stream.
        check("cuMemcpyHtoDAsync", unsafe {
            (self.api.memcpy_htod_async)(dst.get(), src.cast(), len, queue)
        })
    }

    unsafe fn queue_copy_from_device(
        &self,
        stream: RawStream,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()> {
        let _current = self.enter_of(stream)?;
        let queue = stream_of(stream);
        // SAFETY: the caller's promise about both ranges and the stream.
        check("cuMemcpyDtoHAsync", unsafe {
            (self.api.memcpy_dtoh_async)(dst.cast(), src.get(), len, queue)
        })
    }

    unsafe fn queue_copy_on_device(
        &self,
        stream: RawStream,
        dst: DevicePtr,
        src: DevicePtr,
        len: u64,
    ) -> Result<()> {
        let _current = self.enter_of(stream)?;
        let (call, queue) = ("cuMemcpyDtoDAsync", stream_of(stream));
        let len = size(call, len)?;
        // SAFETY: the caller's promise about both ranges and the stream.
        check(call, unsafe {
            (self.api.memcpy_dtod_async)(dst.get(), src.get(), len, queue)
        })
    }

    unsafe fn queue_host_call(&self, stream: RawStream, call: HostCall) -> Result<()> {
        let _current = self.enter_of(stream)?;
        let call = Box::into_raw(Box::new(call));
        // SAFETY: the driver calls the function at most once, with this pointer, because the streams of this crate are
        // not captured into graphs.
        let status =
            unsafe { (self.api.launch_host_func)(stream_of(stream), run_host_call, call.cast()) };
        check("cuLaunchHostFunc", status).inspect_err(|_| {
            // SAFETY: it was not queued, so this is its only owner.
            drop(unsafe { Box::from_raw(call) });
        })
    }

    unsafe fn queue_wait(&self, stream: RawStream, other: RawStream) -> Result<()> {
        let _current = self.enter(other.device)?;
        let mut event = ptr::null_mut();
        // SAFETY: a place for the new event.
        check("cuEventCreate", unsafe {
            (self.api.event_create)(&mut event, layout::EVENT_DISABLE_TIMING)
        })?;
        // SAFETY: an event of the current context, and the caller's promise about the streams.
        let recorded = check("cuEventRecord", unsafe {
            (self.api.event_record)(event, stream_of(other))
        });
        let waits = recorded.and_then(|()| {
            // SAFETY: as above.
            check("cuStreamWaitEvent", unsafe {
                (self.api.stream_wait_event)(stream_of(stream), event, 0)
            })
        });
        // SAFETY: this function owns the event. The driver keeps the event as long as queued work needs it.
        let destroyed = check("cuEventDestroy", unsafe { (self.api.event_destroy)(event) });
        waits.and(destroyed)
    }

    unsafe fn queue_write_u32(&self, stream: RawStream, dst: DevicePtr, value: u32) -> Result<()> {
        let call = "cuStreamWriteValue32";
        let result = CuResult::NOT_SUPPORTED;
        let missing = Error::Call { call, result };
        let write = self.api.stream_write_value_32.ok_or(missing)?;
        let _current = self.enter_of(stream)?;
        let (queue, flags) = (stream_of(stream), layout::WRITE_VALUE_DEFAULT);
        // SAFETY: the caller's promise about the stream and the word.
        check(call, unsafe { write(queue, dst.get(), value, flags) })
    }

    unsafe fn fill(&self, stream: RawStream, dst: DevicePtr, value: u8, len: u64) -> Result<()> {
        let _current = self.enter_of(stream)?;
        let (call, len) = ("cuMemsetD8Async", size("cuMemsetD8Async", len)?);
        // SAFETY: the caller's promise about the range and the stream.
        let status =
            unsafe { (self.api.memset_d8_async)(dst.get(), value, len, stream_of(stream)) };
        check(call, status)
    }

    unsafe fn launch(&self, stream: RawStream, launch: &Launch) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_kernel(stream, launch) }
    }
}

/// Converts a `CUresult`.
fn check(call: &'static str, status: u32) -> Result<()> {
    match CuResult(status) {
        CuResult::SUCCESS => Ok(()),
        result => Err(Error::Call { call, result }),
    }
}

/// Returns a length as the driver's type.
fn size(call: &'static str, len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::Call {
        call,
        result: CuResult::INVALID_VALUE,
    })
}

/// Calls the function that [`Driver::queue_host_call`] queued.
///
/// # Safety
/// `call` is the pointer that was queued with this function, and this is its only call.
unsafe extern "C" fn run_host_call(call: *mut c_void) {
    // SAFETY: the caller's promise.
    let call = unsafe { Box::from_raw(call.cast::<HostCall>()) };
    call.run();
}

/// Returns the `CUstream` of a handle.
fn stream_of(stream: RawStream) -> Opaque {
    ptr::with_exposed_provenance_mut(stream.handle as usize)
}

/// Returns a string that the driver wrote into `buffer`.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|unit| unit.to_ne_bytes()[0]).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_an_error_that_names_the_file() {
        let error = Cuda::load_from("/nonexistent/libcuda.so.1".as_ref()).unwrap_err();
        assert!(matches!(&error, Error::Library { reason, .. } if reason.contains("open")));
        assert!(
            error.to_string().contains("/nonexistent/libcuda.so.1"),
            "{error}"
        );
    }

    #[test]
    fn a_library_without_the_drivers_functions_is_an_error_that_names_the_function() {
        for library in ["libc.so.6", "libm.so.6"] {
            let error = Cuda::load_from(library.as_ref()).unwrap_err();
            assert!(
                matches!(error, Error::Symbol { symbol: "cuInit" }),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_a_library_is_an_error_of_the_loader() {
        let error = Cuda::load_from("/proc/self/status".as_ref()).unwrap_err();
        assert!(matches!(error, Error::Library { .. }), "{error}");
    }

    #[test]
    fn a_string_without_a_nul_ends_with_its_buffer() {
        assert_eq!(text(&[65, 66, 0, 67]), "AB");
        assert_eq!(text(&[65, 66]), "AB");
    }
}
