//! Types and constants of `gdrapi.h`, byte for byte as in GDRCopy 2.6.
//!
//! `include/gdrapi.h` declares the same in C, and the tests compare the two.

use std::ffi::{c_int, c_uint, c_ulong};
use std::mem::{align_of, offset_of};

/// Version of the interface: 2.6.
pub const GDR_API_MAJOR_VERSION: c_int = 2;
/// Version of the interface: 2.6.
pub const GDR_API_MINOR_VERSION: c_int = 6;

/// Power of two of a GPU page.
pub const GPU_PAGE_SHIFT: u32 = 16;
/// Bytes in a GPU page: 64 KiB.
pub const GPU_PAGE_SIZE: u64 = 1 << GPU_PAGE_SHIFT;

/// Pins for the platform's own path.
pub const GDR_PIN_FLAG_DEFAULT: u32 = 0;
/// Pins for a mapping over PCIe, even if a coherent link exists.
pub const GDR_PIN_FLAG_FORCE_PCIE: u32 = 1;

/// Requests the default mapping of the backend.
pub const GDR_MAP_FLAG_DEFAULT: c_int = 0;
/// Requests a write-combined mapping.
pub const GDR_MAP_FLAG_REQ_WC_MAPPING: c_int = 1;
/// Requests a cached mapping.
pub const GDR_MAP_FLAG_REQ_CACHE_MAPPING: c_int = 2;
/// Requests a device mapping.
pub const GDR_MAP_FLAG_REQ_DEVICE_MAPPING: c_int = 3;

/// Not mapped.
pub const GDR_MAPPING_TYPE_NONE: c_uint = 0;
/// Write-combined.
pub const GDR_MAPPING_TYPE_WC: c_uint = 1;
/// Cached by the CPU.
pub const GDR_MAPPING_TYPE_CACHING: c_uint = 2;
/// Device memory: aligned accesses only.
pub const GDR_MAPPING_TYPE_DEVICE: c_uint = 3;

/// Attribute: mappings outlive the freeing of the memory.
pub const GDR_ATTR_USE_PERSISTENT_MAPPING: c_uint = 1;
/// Attribute: [`GDR_PIN_FLAG_FORCE_PCIE`] may be passed.
pub const GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE: c_uint = 2;
/// Attribute: mappings are mmaps of a dma-buf.
pub const GDR_ATTR_USING_DMA_BUF_MMAP: c_uint = 3;

/// The object of a `gdr_t`. Only `fd` is part of the interface.
///
/// Some programs read `fd` through their own copy of GDRCopy's private header, or copy that structure's 48 bytes.
/// Therefore the descriptor is valid, and the object is larger than 48 bytes.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Gdr {
    /// An open descriptor of this process, close-on-exec; -1 once closed.
    pub fd: c_int,
    reserved: [u8; 124],
}

impl Gdr {
    pub(crate) const fn new(fd: c_int) -> Self {
        Self {
            fd,
            reserved: [0; 124],
        }
    }
}

/// An open library, which [`crate::gdr_open`] returns.
#[allow(non_camel_case_types)]
pub type gdr_t = *mut Gdr;

/// The handle of a pinned buffer. Zero is never valid.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct gdr_mh_t {
    /// Opaque.
    pub h: c_ulong,
}

/// The output of [`crate::gdr_get_info`]: the structure before version 2.4.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gdr_info_v1_t {
    /// GPU address at which the pinned pages start.
    pub va: u64,
    /// Bytes pinned from `va` on.
    pub mapped_size: u64,
    /// Bytes in a page of both.
    pub page_size: u32,
    /// Deprecated; 0.
    pub tm_cycles: u64,
    /// Deprecated; 0.
    pub cycles_per_ms: u32,
    /// Bit 0: mapped. Bit 1: the mapping is write-combined.
    pub bits: u32,
}

/// The output of [`crate::gdr_get_info_v2`].
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gdr_info_v2_t {
    /// GPU address at which the pinned pages start.
    pub va: u64,
    /// Bytes pinned from `va` on.
    pub mapped_size: u64,
    /// Bytes in a page of both.
    pub page_size: u32,
    /// Deprecated; 0.
    pub tm_cycles: u64,
    /// Deprecated; 0.
    pub cycles_per_ms: u32,
    /// Bit 0: mapped. Bit 1: the mapping is write-combined.
    pub bits: u32,
    /// One of `GDR_MAPPING_TYPE_*`.
    pub mapping_type: c_uint,
}

/// Bit of `bits` in both info structures: mapped.
pub const INFO_MAPPED: u32 = 1 << 0;
/// Bit of `bits` in both info structures: the mapping is write-combined.
pub const INFO_WC_MAPPING: u32 = 1 << 1;

// C bit-fields occupy the two lowest bits of an `unsigned` on every ABI of the NVIDIA driver, all of which are
// little-endian.
const _: () = assert!(cfg!(target_endian = "little") && size_of::<c_ulong>() == 8);

const _: () = {
    assert!(size_of::<gdr_mh_t>() == 8 && align_of::<gdr_mh_t>() == 8);
    assert!(offset_of!(Gdr, fd) == 0 && size_of::<Gdr>() == 128);

    assert!(size_of::<gdr_info_v1_t>() == 40 && align_of::<gdr_info_v1_t>() == 8);
    assert!(offset_of!(gdr_info_v1_t, mapped_size) == 8);
    assert!(offset_of!(gdr_info_v1_t, page_size) == 16);
    assert!(offset_of!(gdr_info_v1_t, tm_cycles) == 24);
    assert!(offset_of!(gdr_info_v1_t, cycles_per_ms) == 32);
    assert!(offset_of!(gdr_info_v1_t, bits) == 36);

    assert!(size_of::<gdr_info_v2_t>() == 48 && align_of::<gdr_info_v2_t>() == 8);
    assert!(offset_of!(gdr_info_v2_t, bits) == 36);
    assert!(offset_of!(gdr_info_v2_t, mapping_type) == 40);
};
