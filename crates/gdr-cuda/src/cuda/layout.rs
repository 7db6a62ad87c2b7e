//! Structures and numbers of `cuda.h` that are passed to libcuda (CUDA 13, unchanged since 10.2).

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use super::api::CUdevice;

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CUuuid {
    pub(super) bytes: [u8; 16],
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CUmemLocation {
    pub(super) kind: c_uint,
    pub(super) id: c_int,
}

/// `CUmemAllocationProp.allocFlags`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AllocFlags {
    pub(super) compression_type: c_uchar,
    pub(super) gpu_direct_rdma_capable: c_uchar,
    pub(super) usage: c_ushort,
    pub(super) reserved: [c_uchar; 4],
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CUmemAllocationProp {
    pub(super) kind: c_uint,
    pub(super) requested_handle_types: c_uint,
    pub(super) location: CUmemLocation,
    pub(super) win32_handle_meta_data: *mut c_void,
    pub(super) alloc_flags: AllocFlags,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CUmemAccessDesc {
    pub(super) location: CUmemLocation,
    pub(super) flags: c_uint,
}

const _: () = {
    assert!(size_of::<CUuuid>() == 16);
    assert!(size_of::<CUmemLocation>() == 8);
    assert!(size_of::<AllocFlags>() == 8);
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(offset_of!(CUmemAllocationProp, location) == 8);
    assert!(offset_of!(CUmemAllocationProp, win32_handle_meta_data) == 16);
    assert!(offset_of!(CUmemAllocationProp, alloc_flags) == 24);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(offset_of!(CUmemAccessDesc, flags) == 8);
    assert!(size_of::<usize>() == 8, "the driver's interface is 64-bit");
};

/// `CU_MEM_HANDLE_TYPE_NONE`.
pub(super) const HANDLE_TYPE_NONE: c_uint = 0;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const HANDLE_TYPE_POSIX_FD: c_uint = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub(super) const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(super) const RANGE_HANDLE_TYPE_DMA_BUF_FD: c_uint = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(super) const GRANULARITY_MINIMUM: c_uint = 0;
/// `CU_MEM_ATTACH_GLOBAL`.
pub(super) const MEM_ATTACH_GLOBAL: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
pub(super) const HOST_ALLOC_PORTABLE_AND_MAPPED: c_uint = 1 | 2;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
pub(super) const HOST_REGISTER_PORTABLE_AND_MAPPED: c_uint = 1 | 2;
/// `CU_STREAM_NON_BLOCKING`.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`: earlier writes of the stream become visible before the value.
pub(super) const WRITE_VALUE_DEFAULT: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(super) const CAPTURE_MODE_RELAXED: c_uint = 2;

/// `CUdevice_attribute`.
pub(super) mod device_attribute {
    use std::ffi::c_int;

    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
    pub(in crate::cuda) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
    pub(in crate::cuda) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    /// `CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES`.
    pub(in crate::cuda) const USES_HOST_PAGE_TABLES: c_int = 100;
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
    pub(in crate::cuda) const GPU_DIRECT_RDMA_WITH_VMM: c_int = 110;
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`.
    pub(in crate::cuda) const GPU_DIRECT_RDMA: c_int = 116;
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`.
    pub(in crate::cuda) const FLUSH_WRITES_OPTIONS: c_int = 117;
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`.
    pub(in crate::cuda) const WRITES_ORDERING: c_int = 118;
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
    pub(in crate::cuda) const DMA_BUF: c_int = 124;
}

/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`, a bit of the options.
pub(super) const FLUSH_BY_HOST: c_uint = 1;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`.
pub(super) const FLUSH_CURRENT_CONTEXT: c_uint = 0;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`.
pub(super) const FLUSH_TO_OWNER: c_uint = 100;

/// `CUpointer_attribute`.
pub(super) mod pointer_attribute {
    use std::ffi::c_uint;

    /// `CU_POINTER_ATTRIBUTE_CONTEXT`: `CUcontext`.
    pub(in crate::cuda) const CONTEXT: c_uint = 1;
    /// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`: `CUmemorytype`.
    pub(in crate::cuda) const MEMORY_TYPE: c_uint = 2;
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`: a boolean of four bytes, which can be set.
    pub(in crate::cuda) const SYNC_MEMOPS: c_uint = 6;
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: 64 bits.
    pub(in crate::cuda) const BUFFER_ID: c_uint = 7;
    /// `CU_POINTER_ATTRIBUTE_IS_MANAGED`: a boolean of one or four bytes, depending on the release.
    pub(in crate::cuda) const IS_MANAGED: c_uint = 8;
    /// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`: `int`.
    pub(in crate::cuda) const DEVICE_ORDINAL: c_uint = 9;
    /// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`: a boolean of one or four bytes.
    pub(in crate::cuda) const IS_IPC_CAPABLE: c_uint = 10;
    /// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`: `CUdeviceptr`.
    pub(in crate::cuda) const RANGE_START_ADDR: c_uint = 11;
    /// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`: `size_t`.
    pub(in crate::cuda) const RANGE_SIZE: c_uint = 12;
    /// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`: `CUmemoryPool`, null for other memory.
    pub(in crate::cuda) const MEMPOOL_HANDLE: c_uint = 17;
    /// `CU_POINTER_ATTRIBUTE_MAPPING_SIZE`: `size_t`.
    pub(in crate::cuda) const MAPPING_SIZE: c_uint = 18;
    /// `CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR`: `CUdeviceptr`.
    pub(in crate::cuda) const MAPPING_BASE_ADDR: c_uint = 19;
}

/// `CUmemorytype`.
pub(super) mod memory_type {
    use std::ffi::c_uint;

    /// The type of unknown addresses.
    pub(in crate::cuda) const NONE: c_uint = 0;
    /// `CU_MEMORYTYPE_HOST`.
    pub(in crate::cuda) const HOST: c_uint = 1;
    /// `CU_MEMORYTYPE_DEVICE`.
    pub(in crate::cuda) const DEVICE: c_uint = 2;
}

/// Returns the location of memory on a device (`CU_MEM_LOCATION_TYPE_DEVICE`).
pub(super) const fn on_device(device: CUdevice) -> CUmemLocation {
    CUmemLocation {
        kind: 1,
        id: device,
    }
}

/// Returns the properties of uncompressed memory that does not migrate (`CU_MEM_ALLOCATION_TYPE_PINNED`).
pub(super) const fn allocation_prop(
    device: CUdevice,
    handle_types: c_uint,
    gpudirect_rdma: bool,
) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: 1,
        requested_handle_types: handle_types,
        location: on_device(device),
        win32_handle_meta_data: ptr::null_mut(),
        alloc_flags: AllocFlags {
            compression_type: 0,
            gpu_direct_rdma_capable: gpudirect_rdma as c_uchar,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns read and write access by a device (`CU_MEM_ACCESS_FLAGS_PROT_READWRITE`).
pub(super) const fn read_write(device: CUdevice) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: on_device(device),
        flags: 3,
    }
}
