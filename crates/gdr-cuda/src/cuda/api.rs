//! The table of driver functions, and the look-up of their addresses.
//!
//! Types and values follow `cuda.h` (CUDA 13). A version, as a parameter of `cuGetProcAddress`, is the first one in
//! which a function has the signature declared here.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::mem;
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::layout::{CUmemAccessDesc, CUmemAllocationProp, CUuuid};
use crate::error::{Error, Result};

/// `CUresult`, as a raw number, because any number may be returned.
pub(super) type Status = c_uint;
/// `CUdevice`.
pub(super) type CUdevice = c_int;
/// `CUdeviceptr`.
pub(super) type CUdeviceptr = u64;
/// `CUmemGenericAllocationHandle`.
pub(super) type CUmemHandle = u64;
/// `CUcontext`, `CUstream`, `CUmodule` and `CUfunction`: opaque pointers.
pub(super) type Opaque = *mut c_void;
/// `CUhostFn`.
pub(super) type HostFn = unsafe extern "C" fn(*mut c_void);
/// `CUipcMemHandle`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct CUipcMemHandle(pub(super) [u8; 64]);

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> Status;

/// Declares [`Api`] by entries `field: "name" @ version or "exported name", fn(...)`: first the required functions,
/// then those that older drivers lack.
macro_rules! api {
    (
        required { $($(#[$doc:meta])* $field:ident: $name:literal @ $version:literal or $export:literal, ($($arg:ty),*);)* }
        optional { $($(#[$odoc:meta])* $ofield:ident: $oname:literal @ $oversion:literal or $oexport:literal, ($($oarg:ty),*);)* }
    ) => {
        /// Functions of libcuda, which is never unloaded.
        #[derive(Debug)]
        pub(super) struct Api {
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($arg),*) -> Status,)*
            $($(#[$odoc])* pub(super) $ofield: Option<unsafe extern "C" fn($($oarg),*) -> Status>,)*
        }

        impl Api {
            fn fill(source: &Source) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let address = source.find($name, $version, $export);
                        let address = address.ok_or(Error::Symbol { symbol: $export })?;
                        // SAFETY: a non-null function pointer of libcuda; cuda.h declares this type for this name in
                        // this version.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> Status,
                            >(address)
                        }
                    },)*
                    $($ofield: source.find($oname, $oversion, $oexport).map(|address| {
                        // SAFETY: as for the required functions.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($oarg),*) -> Status,
                            >(address)
                        }
                    }),)*
                })
            }
        }
    };
}

api! {
    required {
        init: "cuInit" @ 2000 or "cuInit", (c_uint);
        driver_get_version: "cuDriverGetVersion" @ 2020 or "cuDriverGetVersion", (*mut c_int);

        device_get: "cuDeviceGet" @ 2000 or "cuDeviceGet", (*mut CUdevice, c_int);
        device_get_count: "cuDeviceGetCount" @ 2000 or "cuDeviceGetCount", (*mut c_int);
        device_get_name: "cuDeviceGetName" @ 2000 or "cuDeviceGetName",
            (*mut c_char, c_int, CUdevice);
        /// Since CUDA 11.4 the UUID identifies a MIG instance, not the GPU that contains it.
        device_get_uuid: "cuDeviceGetUuid" @ 11040 or "cuDeviceGetUuid_v2",
            (*mut CUuuid, CUdevice);
        device_get_attribute: "cuDeviceGetAttribute" @ 2000 or "cuDeviceGetAttribute",
            (*mut c_int, c_int, CUdevice);
        device_get_pci_bus_id: "cuDeviceGetPCIBusId" @ 4010 or "cuDeviceGetPCIBusId",
            (*mut c_char, c_int, CUdevice);
        device_total_mem: "cuDeviceTotalMem" @ 3020 or "cuDeviceTotalMem_v2",
            (*mut usize, CUdevice);

        primary_ctx_retain: "cuDevicePrimaryCtxRetain" @ 7000 or "cuDevicePrimaryCtxRetain",
            (*mut Opaque, CUdevice);
        primary_ctx_release:
            "cuDevicePrimaryCtxRelease" @ 11000 or "cuDevicePrimaryCtxRelease_v2", (CUdevice);
        primary_ctx_get_state:
            "cuDevicePrimaryCtxGetState" @ 7000 or "cuDevicePrimaryCtxGetState",
            (CUdevice, *mut u32, *mut i32);
        ctx_get_current: "cuCtxGetCurrent" @ 4000 or "cuCtxGetCurrent", (*mut Opaque);
        ctx_get_device: "cuCtxGetDevice" @ 2000 or "cuCtxGetDevice", (*mut CUdevice);
        ctx_push_current: "cuCtxPushCurrent" @ 4000 or "cuCtxPushCurrent_v2", (Opaque);
        ctx_pop_current: "cuCtxPopCurrent" @ 4000 or "cuCtxPopCurrent_v2", (*mut Opaque);

        pointer_get_attributes: "cuPointerGetAttributes" @ 7000 or "cuPointerGetAttributes",
            (c_uint, *mut c_uint, *mut *mut c_void, CUdeviceptr);
        mem_get_address_range: "cuMemGetAddressRange" @ 3020 or "cuMemGetAddressRange_v2",
            (*mut CUdeviceptr, *mut usize, CUdeviceptr);

        mem_alloc: "cuMemAlloc" @ 3020 or "cuMemAlloc_v2", (*mut CUdeviceptr, usize);
        mem_free: "cuMemFree" @ 3020 or "cuMemFree_v2", (CUdeviceptr);
        mem_alloc_managed: "cuMemAllocManaged" @ 6000 or "cuMemAllocManaged",
            (*mut CUdeviceptr, usize, c_uint);
        mem_alloc_async: "cuMemAllocAsync" @ 11020 or "cuMemAllocAsync",
            (*mut CUdeviceptr, usize, Opaque);
        mem_free_async: "cuMemFreeAsync" @ 11020 or "cuMemFreeAsync", (CUdeviceptr, Opaque);
        mem_host_alloc: "cuMemHostAlloc" @ 2020 or "cuMemHostAlloc",
            (*mut *mut c_void, usize, c_uint);
        mem_host_get_device_pointer:
            "cuMemHostGetDevicePointer" @ 3020 or "cuMemHostGetDevicePointer_v2",
            (*mut CUdeviceptr, *mut c_void, c_uint);
        mem_free_host: "cuMemFreeHost" @ 2000 or "cuMemFreeHost", (*mut c_void);
        mem_host_register: "cuMemHostRegister" @ 6050 or "cuMemHostRegister_v2",
            (*mut c_void, usize, c_uint);
        mem_host_unregister: "cuMemHostUnregister" @ 4000 or "cuMemHostUnregister", (*mut c_void);

        mem_get_allocation_granularity:
            "cuMemGetAllocationGranularity" @ 10020 or "cuMemGetAllocationGranularity",
            (*mut usize, *const CUmemAllocationProp, c_uint);
        mem_create: "cuMemCreate" @ 10020 or "cuMemCreate",
            (*mut CUmemHandle, usize, *const CUmemAllocationProp, u64);
        mem_release: "cuMemRelease" @ 10020 or "cuMemRelease", (CUmemHandle);
        mem_address_reserve: "cuMemAddressReserve" @ 10020 or "cuMemAddressReserve",
            (*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
        mem_address_free: "cuMemAddressFree" @ 10020 or "cuMemAddressFree", (CUdeviceptr, usize);
        mem_map: "cuMemMap" @ 10020 or "cuMemMap", (CUdeviceptr, usize, usize, CUmemHandle, u64);
        mem_unmap: "cuMemUnmap" @ 10020 or "cuMemUnmap", (CUdeviceptr, usize);
        mem_set_access: "cuMemSetAccess" @ 10020 or "cuMemSetAccess",
            (CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        mem_retain_allocation_handle:
            "cuMemRetainAllocationHandle" @ 11000 or "cuMemRetainAllocationHandle",
            (*mut CUmemHandle, *mut c_void);
        mem_get_allocation_properties:
            "cuMemGetAllocationPropertiesFromHandle" @ 10020
            or "cuMemGetAllocationPropertiesFromHandle",
            (*mut CUmemAllocationProp, CUmemHandle);
        mem_export_to_shareable_handle:
            "cuMemExportToShareableHandle" @ 10020 or "cuMemExportToShareableHandle",
            (*mut c_void, CUmemHandle, c_uint, u64);
        ipc_get_mem_handle: "cuIpcGetMemHandle" @ 4010 or "cuIpcGetMemHandle",
            (*mut CUipcMemHandle, CUdeviceptr);
        ipc_open_mem_handle: "cuIpcOpenMemHandle" @ 11000 or "cuIpcOpenMemHandle_v2",
            (*mut CUdeviceptr, CUipcMemHandle, c_uint);
        mem_import_from_shareable_handle:
            "cuMemImportFromShareableHandle" @ 10020 or "cuMemImportFromShareableHandle",
            (*mut CUmemHandle, *mut c_void, c_uint);
        ipc_close_mem_handle: "cuIpcCloseMemHandle" @ 4010 or "cuIpcCloseMemHandle",
            (CUdeviceptr);

        memcpy_htod: "cuMemcpyHtoD" @ 3020 or "cuMemcpyHtoD_v2",
            (CUdeviceptr, *const c_void, usize);
        memcpy_dtoh: "cuMemcpyDtoH" @ 3020 or "cuMemcpyDtoH_v2",
            (*mut c_void, CUdeviceptr, usize);
        memcpy_htod_async: "cuMemcpyHtoDAsync" @ 3020 or "cuMemcpyHtoDAsync_v2",
            (CUdeviceptr, *const c_void, usize, Opaque);
        memcpy_dtoh_async: "cuMemcpyDtoHAsync" @ 3020 or "cuMemcpyDtoHAsync_v2",
            (*mut c_void, CUdeviceptr, usize, Opaque);
        memcpy_dtod_async: "cuMemcpyDtoDAsync" @ 3020 or "cuMemcpyDtoDAsync_v2",
            (CUdeviceptr, CUdeviceptr, usize, Opaque);
        memset_d8_async: "cuMemsetD8Async" @ 3020 or "cuMemsetD8Async",
            (CUdeviceptr, c_uchar, usize, Opaque);

        stream_create: "cuStreamCreate" @ 2000 or "cuStreamCreate", (*mut Opaque, c_uint);
        stream_destroy: "cuStreamDestroy" @ 4000 or "cuStreamDestroy_v2", (Opaque);
        stream_query: "cuStreamQuery" @ 2000 or "cuStreamQuery", (Opaque);
        stream_synchronize: "cuStreamSynchronize" @ 2000 or "cuStreamSynchronize", (Opaque);
        stream_wait_event: "cuStreamWaitEvent" @ 3020 or "cuStreamWaitEvent",
            (Opaque, Opaque, c_uint);
        event_create: "cuEventCreate" @ 2000 or "cuEventCreate", (*mut Opaque, c_uint);
        event_record: "cuEventRecord" @ 2000 or "cuEventRecord", (Opaque, Opaque);
        event_destroy: "cuEventDestroy" @ 4000 or "cuEventDestroy_v2", (Opaque);
        launch_host_func: "cuLaunchHostFunc" @ 10000 or "cuLaunchHostFunc",
            (Opaque, HostFn, *mut c_void);
        thread_exchange_stream_capture_mode:
            "cuThreadExchangeStreamCaptureMode" @ 10010 or "cuThreadExchangeStreamCaptureMode",
            (*mut c_uint);

        module_load_data: "cuModuleLoadData" @ 2000 or "cuModuleLoadData",
            (*mut Opaque, *const c_void);
        module_get_function: "cuModuleGetFunction" @ 2000 or "cuModuleGetFunction",
            (*mut Opaque, Opaque, *const c_char);
        launch_kernel: "cuLaunchKernel" @ 4000 or "cuLaunchKernel",
            (Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Opaque,
             *mut *mut c_void, *mut *mut c_void);
    }
    optional {
        /// Since CUDA 11.7.
        mem_get_handle_for_address_range:
            "cuMemGetHandleForAddressRange" @ 11070 or "cuMemGetHandleForAddressRange",
            (*mut c_void, CUdeviceptr, usize, c_uint, u64);
        /// Since CUDA 11.3.
        flush_gpu_direct_rdma_writes:
            "cuFlushGPUDirectRDMAWrites" @ 11030 or "cuFlushGPUDirectRDMAWrites",
            (c_uint, c_uint);
        /// Since CUDA 11.7, no option of the kernel module is needed for it.
        stream_write_value_32: "cuStreamWriteValue32" @ 11070 or "cuStreamWriteValue32_v2",
            (Opaque, CUdeviceptr, c_uint, c_uint);
        /// Since CUDA 6.0.
        pointer_set_attribute: "cuPointerSetAttribute" @ 6000 or "cuPointerSetAttribute",
            (*const c_void, c_uint, CUdeviceptr);
    }
}

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`: the default stream is the legacy one, which synchronizes with other streams,
/// however this process was compiled.
const LEGACY_STREAM: u64 = 1;

/// Finds the addresses of functions.
struct Source {
    library: Library,
    get_proc_address: Option<GetProcAddress>,
}

impl Source {
    fn open(path: &OsStr) -> Result<Self> {
        let unloadable = |reason: String| Error::Library {
            library: path.to_string_lossy().into_owned(),
            reason,
        };
        // SAFETY: libcuda.so.1 supports being opened at run time. Any other file is named by the user whose rights this
        // process has (`library_path`), so its code can do only what this user can do.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| unloadable(reason(&error)))?;
        let mut source = Self {
            library,
            get_proc_address: None,
        };
        source.get_proc_address = source.exported("cuGetProcAddress_v2").map(|address| {
            // SAFETY: this is the type that cuda.h declares for the name.
            unsafe { mem::transmute::<*mut c_void, GetProcAddress>(address) }
        });
        Ok(source)
    }

    fn find(&self, name: &str, version: c_int, export: &str) -> Option<*mut c_void> {
        self.versioned(name, version)
            .or_else(|| self.exported(export))
    }

    fn versioned(&self, name: &str, version: c_int) -> Option<*mut c_void> {
        let get_proc_address = self.get_proc_address?;
        let name = CString::new(name).ok()?;
        let (mut address, mut found) = (ptr::null_mut(), 0);
        // SAFETY: a NUL-terminated name and two places for the results; the call needs no `cuInit`.
        let status = unsafe {
            get_proc_address(
                name.as_ptr(),
                &mut address,
                version,
                LEGACY_STREAM,
                &mut found,
            )
        };
        (status == 0 && !address.is_null()).then_some(address)
    }

    fn exported(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        let name: &CStr = &name;
        // SAFETY: only the address of the symbol is used.
        let symbol = unsafe { self.library.get::<*mut c_void>(name) }.ok()?;
        Some(symbol.as_raw_ptr()).filter(|address| !address.is_null())
    }
}

/// Opens the library at `path`; also returns the address of `cuInit` inside it.
pub(super) fn open(path: &OsStr) -> Result<(Api, *const c_void)> {
    let source = Source::open(path)?;
    let init = source
        .exported("cuInit")
        .ok_or(Error::Symbol { symbol: "cuInit" })?;
    let api = Api::fill(&source)?;
    // libcuda starts threads and registers exit handlers, so it is never unloaded.
    mem::forget(source.library);
    Ok((api, init))
}

/// Returns the message of the loader (`dlerror`), which libloading keeps as the source of its error.
fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
