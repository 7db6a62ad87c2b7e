//! Status codes of the driver's resource manager.

use std::fmt;

/// An `NV_STATUS` (`src/common/sdk/nvidia/inc/nvstatuscodes.h` of the open kernel modules).
/// Unknown numbers are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RmStatus(pub u32);

impl RmStatus {
    pub(crate) const OK: Self = Self(0);
    pub(crate) const INSUFFICIENT_RESOURCES: Self = Self(0x1a);
    pub(crate) const INVALID_OBJECT_PARENT: Self = Self(0x36);
    pub(crate) const NO_MEMORY: Self = Self(0x51);
    pub(crate) const NOT_SUPPORTED: Self = Self(0x56);
    pub(crate) const OBJECT_NOT_FOUND: Self = Self(0x57);

    /// Returns the name in the header, if this library knows it.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x00 => "NV_OK",
            0x0f => "NV_ERR_GPU_IS_LOST",
            0x17 => "NV_ERR_IN_USE",
            0x1a => "NV_ERR_INSUFFICIENT_RESOURCES",
            0x1b => "NV_ERR_INSUFFICIENT_PERMISSIONS",
            0x1e => "NV_ERR_INVALID_ADDRESS",
            0x1f => "NV_ERR_INVALID_ARGUMENT",
            0x20 => "NV_ERR_INVALID_BASE",
            0x22 => "NV_ERR_INVALID_CLASS",
            0x23 => "NV_ERR_INVALID_CLIENT",
            0x24 => "NV_ERR_INVALID_COMMAND",
            0x25 => "NV_ERR_INVALID_DATA",
            0x26 => "NV_ERR_INVALID_DEVICE",
            0x2a => "NV_ERR_INVALID_FUNCTION",
            0x2e => "NV_ERR_INVALID_LIMIT",
            0x31 => "NV_ERR_INVALID_OBJECT",
            0x33 => "NV_ERR_INVALID_OBJECT_HANDLE",
            0x36 => "NV_ERR_INVALID_OBJECT_PARENT",
            0x37 => "NV_ERR_INVALID_OFFSET",
            0x3a => "NV_ERR_INVALID_PARAM_STRUCT",
            0x3d => "NV_ERR_INVALID_POINTER",
            0x40 => "NV_ERR_INVALID_STATE",
            0x51 => "NV_ERR_NO_MEMORY",
            0x55 => "NV_ERR_NOT_READY",
            0x56 => "NV_ERR_NOT_SUPPORTED",
            0x57 => "NV_ERR_OBJECT_NOT_FOUND",
            0x59 => "NV_ERR_OPERATING_SYSTEM",
            0x5f => "NV_ERR_PROTECTION_FAULT",
            0x63 => "NV_ERR_STATE_IN_USE",
            0x65 => "NV_ERR_TIMEOUT",
            0x6a => "NV_ERR_LIB_RM_VERSION_MISMATCH",
            0x6e => "NV_ERR_RESOURCE_LOST",
            0xffff => "NV_ERR_GENERIC",
            _ => return None,
        })
    }

    /// Returns the remedy for this status, as the end of a sentence.
    pub(crate) const fn remedy(self) -> &'static str {
        match self.0 {
            0x0f | 0x6e => "; the GPU has dropped off the bus or was reset: see dmesg",
            0x1b => {
                "; the driver forbids it to this process because of a MIG instance, confidential \
                 computing, or the container's device rules"
            }
            0x23 | 0x33 | 0x57 => "; the memory was freed meanwhile, or belongs to another process",
            0x3a | 0x24 | 0x2a => "; the interface of this driver is not a known one: update gdr",
            0x56 => {
                "; this GPU or its mode (confidential computing, fabric memory, MIG) does not \
                 allow CPU mappings"
            }
            _ => "",
        }
    }
}

impl fmt::Display for RmStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x})", self.0),
            None => write!(f, "NV_STATUS {:#x}", self.0),
        }
    }
}

impl fmt::Debug for RmStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
