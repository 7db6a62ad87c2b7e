//! The module's calls as bytes: request numbers, structures, versions.
//!
//! From GDRCopy 2.6, `src/gdrdrv/gdrdrv.h`. All fields are in the host's byte order. Most request numbers were declared
//! with a pointer instead of the structure, so the size encoded in them is 8 and not the structure's; the module
//! compares the whole number.

use std::mem::{offset_of, size_of};

use crate::cpu::Caching;
use crate::report::ModuleVersion;

/// The API version of this client; a module may require a newer one.
pub(super) const API: ModuleVersion = (2, 6);
/// The oldest supported module.
pub(super) const OLDEST: ModuleVersion = (2, 0);
/// `GDRDRV_MINIMUM_VERSION_WITH_GET_INFO_V2`.
pub(super) const WITH_INFO_V2: ModuleVersion = (2, 4);
/// `GDRDRV_MINIMUM_VERSION_WITH_GET_ATTR`, `..._WITH_PIN_BUFFER_V2` and `..._WITH_REQ_MAPPING_TYPE`.
pub(super) const WITH_ATTRIBUTES: ModuleVersion = (2, 5);

/// Returns a version as the module packs it: major << 16 | minor.
pub(super) const fn version(packed: u32) -> ModuleVersion {
    ((packed >> 16) as u16, packed as u16)
}

/// A call to the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Request {
    PinBuffer = 0xC028_DA01,
    UnpinBuffer = 0xC008_DA02,
    GetCallbackFlag = 0xC008_DA03,
    GetInfo = 0xC008_DA04,
    GetInfoV2 = 0xC008_DA05,
    GetAttribute = 0xC008_DA06,
    PinBufferV2 = 0xC020_DA07,
    ChooseMapping = 0xC008_DA08,
    GetVersion = 0xC008_DAFF,
}

impl Request {
    /// Returns the number of bytes that the module reads and writes at the argument's address.
    pub(super) const fn size(self) -> usize {
        match self {
            Self::PinBuffer => size_of::<PinBuffer>(),
            Self::UnpinBuffer => size_of::<UnpinBuffer>(),
            Self::GetCallbackFlag => size_of::<CallbackFlag>(),
            Self::GetInfo => size_of::<Info>(),
            Self::GetInfoV2 => size_of::<InfoV2>(),
            Self::GetAttribute => size_of::<Attribute>(),
            Self::PinBufferV2 => size_of::<PinBufferV2>(),
            Self::ChooseMapping => size_of::<MappingRequest>(),
            Self::GetVersion => size_of::<Versions>(),
        }
    }

    /// Returns the name in the module's header.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PinBuffer => "GDRDRV_IOC_PIN_BUFFER",
            Self::UnpinBuffer => "GDRDRV_IOC_UNPIN_BUFFER",
            Self::GetCallbackFlag => "GDRDRV_IOC_GET_CB_FLAG",
            Self::GetInfo => "GDRDRV_IOC_GET_INFO",
            Self::GetInfoV2 => "GDRDRV_IOC_GET_INFO_V2",
            Self::GetAttribute => "GDRDRV_IOC_GET_ATTR",
            Self::PinBufferV2 => "GDRDRV_IOC_PIN_BUFFER_V2",
            Self::ChooseMapping => "GDRDRV_IOC_REQ_MAPPING_TYPE",
            Self::GetVersion => "GDRDRV_IOC_GET_VERSION",
        }
    }
}

/// The argument of one request.
///
/// # Safety
/// `repr(C)`, of integers only, without padding; every bit pattern is a value.
pub(super) unsafe trait Argument: Sized {
    const REQUEST: Request;

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the implementor promises initialized bytes, valid in any pattern, and the slice borrows them for as
        // long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut((&raw mut *self).cast(), size_of::<Self>()) }
    }
}

macro_rules! argument {
    ($type:ident of $request:ident, $size:literal, { $($field:ident @ $offset:literal),+ }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(offset_of!($type, $field) == $offset);)+
        };
        // SAFETY: the structure is `repr(C)`, has integer fields only, and they fill it to its last byte, as the
        // offsets and the size above show.
        unsafe impl Argument for $type {
            const REQUEST: Request = Request::$request;
        }
    };
}

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct PinBuffer {
    pub(super) address: u64,
    pub(super) size: u64,
    /// Deprecated; the module refuses anything but 0 in its persistent mode.
    pub(super) p2p_token: u64,
    /// Deprecated, like the token.
    pub(super) va_space: u32,
    pub(super) pad: u32,
    pub(super) handle: u64,
}
argument!(PinBuffer of PinBuffer, 40, {
    address @ 0, size @ 8, p2p_token @ 16, va_space @ 24, pad @ 28, handle @ 32
});

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct PinBufferV2 {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) flags: u32,
    pub(super) pad: u32,
    pub(super) handle: u64,
}
argument!(PinBufferV2 of PinBufferV2, 32, { address @ 0, size @ 8, flags @ 16, pad @ 20, handle @ 24 });

/// `GDRDRV_PIN_BUFFER_FLAG_FORCE_PCIE`.
pub(super) const FORCE_PCIE: u32 = 1;

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct UnpinBuffer {
    pub(super) handle: u64,
}
argument!(UnpinBuffer of UnpinBuffer, 8, { handle @ 0 });

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct CallbackFlag {
    pub(super) handle: u64,
    pub(super) flag: u32,
    pub(super) pad: u32,
}
argument!(CallbackFlag of GetCallbackFlag, 16, { handle @ 0, flag @ 8, pad @ 12 });

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Info {
    pub(super) handle: u64,
    pub(super) va: u64,
    pub(super) mapped_size: u64,
    pub(super) page_size: u32,
    pub(super) tsc_khz: u32,
    pub(super) tm_cycles: u64,
    pub(super) mapped: u32,
    pub(super) wc_mapping: u32,
}
argument!(Info of GetInfo, 48, {
    handle @ 0, va @ 8, mapped_size @ 16, page_size @ 24, tsc_khz @ 28, tm_cycles @ 32,
    mapped @ 40, wc_mapping @ 44
});

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct InfoV2 {
    pub(super) handle: u64,
    pub(super) va: u64,
    pub(super) mapped_size: u64,
    pub(super) page_size: u32,
    pub(super) tsc_khz: u32,
    pub(super) tm_cycles: u64,
    pub(super) mapping_type: u32,
    pub(super) pad: u32,
}
argument!(InfoV2 of GetInfoV2, 48, {
    handle @ 0, va @ 8, mapped_size @ 16, page_size @ 24, tsc_khz @ 28, tm_cycles @ 32,
    mapping_type @ 40, pad @ 44
});

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Attribute {
    pub(super) attribute: u32,
    pub(super) value: u32,
}
argument!(Attribute of GetAttribute, 8, { attribute @ 0, value @ 4 });

/// `GDRDRV_ATTR_USE_PERSISTENT_MAPPING`.
pub(super) const PERSISTENT: u32 = 1;
/// `GDRDRV_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE`.
pub(super) const SUPPORTS_FORCE_PCIE: u32 = 2;

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct MappingRequest {
    pub(super) handle: u64,
    pub(super) mapping_type: u32,
    pub(super) pad: u32,
}
argument!(MappingRequest of ChooseMapping, 16, { handle @ 0, mapping_type @ 8, pad @ 12 });

/// `gdr_mr_type_t`: how a range is mapped, or is to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappingType(pub(super) u32);

impl MappingType {
    pub(super) const NONE: Self = Self(0);
    pub(super) const WRITE_COMBINED: Self = Self(1);
    pub(super) const CACHED: Self = Self(2);
    pub(super) const DEVICE: Self = Self(3);

    /// Returns the kind of mapping, or `None` for no mapping and for kinds newer than this library.
    pub(super) fn caching(self) -> Option<Caching> {
        match self {
            Self::WRITE_COMBINED => Some(Caching::WriteCombined),
            Self::CACHED => Some(Caching::Cached),
            Self::DEVICE => Some(Caching::Device),
            _ => None,
        }
    }
}

impl From<Option<Caching>> for MappingType {
    fn from(caching: Option<Caching>) -> Self {
        match caching {
            None => Self::NONE,
            Some(Caching::WriteCombined) => Self::WRITE_COMBINED,
            Some(Caching::Cached) => Self::CACHED,
            Some(Caching::Device) => Self::DEVICE,
        }
    }
}

#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Versions {
    pub(super) module: u32,
    pub(super) minimum_api: u32,
}
argument!(Versions of GetVersion, 8, { module @ 0, minimum_api @ 4 });
