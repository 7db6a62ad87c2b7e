//! The driver's interface: request numbers and structures.
//!
//! From NVIDIA/open-gpu-kernel-modules: `src/nvidia/arch/nvalloc/unix/include/nv-ioctl.h`, `nv_escape.h`,
//! `src/common/sdk/nvidia/inc/nvos.h` and `ctrl/ctrl0000*.h`, `ctrl0041.h`, `ctrl2080fb.h`. Sizes and offsets are the
//! same in 580.142 and 595.45.04; each is asserted below. Numbers are little-endian, as on every machine that the
//! driver supports.

use std::mem::{offset_of, size_of};

/// The handle of an RM object within a client (`NvHandle`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(super) struct Handle(pub(super) u32);

/// The number of an escape `ioctl` (`nv_escape.h`, `nv-ioctl-numbers.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Escape {
    RmFree = 0x29,
    RmControl = 0x2a,
    RmAlloc = 0x2b,
    RmDupObject = 0x34,
    RmMapMemory = 0x4e,
    RmUnmapMemory = 0x4f,
    CardInfo = 200,
    CheckVersion = 210,
}

/// `NV_ESC_IOCTL_XFER_CMD`: a wrapper for escapes with large structures.
pub(super) const XFER: u8 = 211;
/// `NV_ESC_EXPORT_TO_DMABUF_FD`.
pub(super) const EXPORT_TO_DMABUF: u8 = 217;
/// `NV_IOCTL_MAGIC`.
pub(super) const MAGIC: u8 = b'F';

/// `_IOWR('F', number, size)`.
pub(super) const fn request(escape: Escape, size: usize) -> u32 {
    0xc000_0000 | (size as u32) << 16 | (MAGIC as u32) << 8 | escape as u32
}

/// `NVOS21_PARAMETERS`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Alloc {
    pub(super) root: Handle,
    pub(super) parent: Handle,
    pub(super) object: Handle,
    pub(super) class: u32,
    pub(super) params: u64,
    pub(super) params_size: u32,
    pub(super) status: u32,
}

/// `NVOS54_PARAMETERS`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) client: Handle,
    pub(super) object: Handle,
    pub(super) cmd: u32,
    pub(super) flags: u32,
    pub(super) params: u64,
    pub(super) params_size: u32,
    pub(super) status: u32,
}

/// `NVOS00_PARAMETERS`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Free {
    pub(super) root: Handle,
    pub(super) parent: Handle,
    pub(super) object: Handle,
    pub(super) status: u32,
}

/// `NVOS55_PARAMETERS`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Dup {
    pub(super) client: Handle,
    pub(super) parent: Handle,
    pub(super) object: Handle,
    pub(super) source_client: Handle,
    pub(super) source_object: Handle,
    pub(super) flags: u32,
    pub(super) status: u32,
}

/// `nv_ioctl_nvos33_parameters_with_fd`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct MapMemory {
    pub(super) client: Handle,
    pub(super) device: Handle,
    pub(super) memory: Handle,
    pub(super) pad: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// A bus address, not a pointer: it identifies the mapping for [`UnmapMemory`].
    pub(super) linear_address: u64,
    pub(super) status: u32,
    pub(super) flags: u32,
    pub(super) fd: i32,
    pub(super) pad_end: u32,
}

/// `NVOS34_PARAMETERS`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct UnmapMemory {
    pub(super) client: Handle,
    pub(super) device: Handle,
    pub(super) memory: Handle,
    pub(super) pad: u32,
    pub(super) linear_address: u64,
    pub(super) status: u32,
    pub(super) flags: u32,
}

/// `nv_ioctl_card_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CardInfo {
    pub(super) valid: u8,
    pub(super) pad: [u8; 3],
    pub(super) domain: u32,
    pub(super) bus: u8,
    pub(super) slot: u8,
    pub(super) function: u8,
    pub(super) pad_pci: u8,
    pub(super) vendor: u16,
    pub(super) device: u16,
    pub(super) gpu_id: u32,
    pub(super) irq: u16,
    pub(super) pad_irq: u16,
    pub(super) reg_address: u64,
    pub(super) reg_size: u64,
    pub(super) fb_address: u64,
    pub(super) fb_size: u64,
    pub(super) minor: u32,
    pub(super) dev_name: [u8; 10],
    pub(super) pad_end: [u8; 2],
}

/// `NV_MAX_DEVICES` (`nvlimits.h`).
pub(super) const MAX_CARDS: usize = 32;

/// `nv_ioctl_rm_api_version_t`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ApiVersion {
    /// `NV_RM_API_VERSION_CMD_QUERY` is the character '2'.
    pub(super) cmd: u32,
    pub(super) reply: u32,
    pub(super) version: [u8; 64],
}

/// `NV01_ROOT_CLIENT`.
pub(super) const CLASS_ROOT_CLIENT: u32 = 0x41;
/// `NV01_DEVICE_0`.
pub(super) const CLASS_DEVICE: u32 = 0x80;
/// `NV20_SUBDEVICE_0`.
pub(super) const CLASS_SUBDEVICE: u32 = 0x2080;

/// `NV0080_ALLOC_PARAMETERS`; only the first field is set.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct DeviceParams {
    pub(super) device_id: u32,
    pub(super) client_share: Handle,
    pub(super) rest: [u64; 6],
}

/// `NV2080_ALLOC_PARAMETERS`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct SubdeviceParams {
    pub(super) subdevice_id: u32,
}

/// The parameters of a control command, with the command's number.
///
/// # Safety
/// `Self` is `repr(C)`, of the command's size, and has no references; every bit pattern that the driver may write into
/// it is valid. Pointers in it obey the command's rules.
pub(super) unsafe trait ControlParams {
    const CMD: u32;
    const NAME: &'static str;
}

/// `NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct GpuIdInfo {
    pub(super) gpu_id: u32,
    pub(super) flags: u32,
    pub(super) device_instance: u32,
    pub(super) subdevice_instance: u32,
    pub(super) sli_status: u32,
    pub(super) board_id: u32,
    pub(super) gpu_instance: u32,
    pub(super) numa_id: i32,
}

// SAFETY: plain numbers, 32 bytes as in the header.
unsafe impl ControlParams for GpuIdInfo {
    const CMD: u32 = 0x205;
    const NAME: &'static str = "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2";
}

/// `NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ExportInfo {
    pub(super) fd: i32,
    pub(super) device_instance: u32,
    pub(super) gpu_instance: u32,
    pub(super) max_objects: u16,
    pub(super) metadata: [u8; 64],
    pub(super) pad: [u8; 2],
}

// SAFETY: plain numbers, 80 bytes as in the header.
unsafe impl ControlParams for ExportInfo {
    const CMD: u32 = 0x3d08;
    const NAME: &'static str = "NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO";
}

/// The maximum number of objects in one import.
pub(super) const MAX_IMPORT: usize = 128;
/// `NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_VIDMEM`.
pub(super) const IMPORT_VIDMEM: u8 = 1;

/// `NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ImportObjects {
    pub(super) fd: i32,
    pub(super) parent: Handle,
    pub(super) objects: [Handle; MAX_IMPORT],
    pub(super) types: [u8; MAX_IMPORT],
    pub(super) count: u16,
    pub(super) index: u16,
}

// SAFETY: plain numbers, 652 bytes as in the header.
unsafe impl ControlParams for ImportObjects {
    const CMD: u32 = 0x3d0c;
    const NAME: &'static str = "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD";
}

/// `NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS` for an RM object.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct ImportObject {
    pub(super) fd: i32,
    /// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM` is 1.
    pub(super) kind: u32,
    pub(super) device: Handle,
    pub(super) parent: Handle,
    pub(super) object: Handle,
}

// SAFETY: plain numbers, 20 bytes as in the header.
unsafe impl ControlParams for ImportObject {
    const CMD: u32 = 0x3d06;
    const NAME: &'static str = "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD";
}

/// `NVXXXX_CTRL_XXX_INFO`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IndexedInfo {
    pub(super) index: u32,
    pub(super) data: u32,
}

/// `NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE`: the data are 4 KiB units.
pub(super) const SURFACE_PHYS_SIZE: u32 = 7;
/// `NV0041_CTRL_SURFACE_INFO_INDEX_ADDR_SPACE_TYPE`.
pub(super) const SURFACE_ADDR_SPACE: u32 = 9;
/// `NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE_VIDMEM`.
pub(super) const ADDR_SPACE_VIDMEM: u32 = 2;

/// `NV0041_CTRL_GET_SURFACE_INFO_PARAMS`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SurfaceInfo {
    pub(super) count: u32,
    pub(super) pad: u32,
    pub(super) list: u64,
}

// SAFETY: 16 bytes as in the header; `Memory::surface` sets `list` to `count` entries that are writable during the
// call.
unsafe impl ControlParams for SurfaceInfo {
    const CMD: u32 = 0x41_0110;
    const NAME: &'static str = "NV0041_CTRL_CMD_GET_SURFACE_INFO";
}

/// `NV2080_CTRL_FB_INFO_INDEX_BAR1_SIZE`, KiB.
pub(super) const FB_BAR1_SIZE: u32 = 0x05;
/// `NV2080_CTRL_FB_INFO_INDEX_BAR1_AVAIL_SIZE`, KiB.
pub(super) const FB_BAR1_AVAILABLE: u32 = 0x1d;

/// `NV2080_CTRL_FB_GET_INFO_V2_PARAMS`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FbInfo {
    pub(super) count: u32,
    pub(super) list: [IndexedInfo; 0x80],
}

// SAFETY: plain numbers, 1028 bytes as in the header.
unsafe impl ControlParams for FbInfo {
    const CMD: u32 = 0x2080_1303;
    const NAME: &'static str = "NV2080_CTRL_CMD_FB_GET_INFO_V2";
}

const _: () = {
    assert!(size_of::<Alloc>() == 32);
    assert!(size_of::<Control>() == 32);
    assert!(size_of::<Free>() == 16);
    assert!(size_of::<Dup>() == 28);
    assert!(size_of::<MapMemory>() == 56);
    assert!(offset_of!(MapMemory, offset) == 16);
    assert!(offset_of!(MapMemory, status) == 40);
    assert!(offset_of!(MapMemory, fd) == 48);
    assert!(size_of::<UnmapMemory>() == 32);
    assert!(size_of::<CardInfo>() == 72);
    assert!(offset_of!(CardInfo, domain) == 4);
    assert!(offset_of!(CardInfo, vendor) == 12);
    assert!(offset_of!(CardInfo, gpu_id) == 16);
    assert!(offset_of!(CardInfo, reg_address) == 24);
    assert!(offset_of!(CardInfo, fb_size) == 48);
    assert!(offset_of!(CardInfo, minor) == 56);
    assert!(size_of::<ApiVersion>() == 72);
    assert!(size_of::<DeviceParams>() == 56);
    assert!(size_of::<SubdeviceParams>() == 4);
    assert!(size_of::<GpuIdInfo>() == 32);
    assert!(size_of::<ExportInfo>() == 80);
    assert!(offset_of!(ExportInfo, max_objects) == 12);
    assert!(size_of::<ImportObjects>() == 652);
    assert!(offset_of!(ImportObjects, types) == 520);
    assert!(offset_of!(ImportObjects, count) == 648);
    assert!(size_of::<ImportObject>() == 20);
    assert!(size_of::<SurfaceInfo>() == 16);
    assert!(size_of::<FbInfo>() == 1028);
    assert!(request(Escape::RmMapMemory, size_of::<MapMemory>()) == 0xc038_464e);
    assert!(request(Escape::CardInfo, size_of::<[CardInfo; MAX_CARDS]>()) == 0xc900_46c8);
};
