//! Device addresses and what the driver knows about them.

use std::fmt;

use crate::driver::Ordinal;

/// A device virtual address, as `cuMemAlloc` and friends return it.
///
/// It is a number, never a CPU pointer: nothing in this workspace dereferences it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct DevicePtr(u64);

impl DevicePtr {
    /// Wraps a raw device virtual address.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The raw address.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This address plus `offset` bytes, or `None` past the end of the address space.
    pub const fn checked_add(self, offset: u64) -> Option<Self> {
        match self.0.checked_add(offset) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }

    /// Bytes from `base` up to this address, or `None` when it lies below `base`.
    pub const fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }

    /// The nearest multiple of `alignment` (a power of two) at or below this address.
    pub const fn align_down(self, alignment: u64) -> Self {
        Self(self.0 & !(alignment - 1))
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePtr({:#x})", self.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The driver's serial number of an allocation (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
///
/// Unique for the life of the process: an address that was freed and handed out again has
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u64);

/// What kind of memory an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PointerKind {
    /// Memory on a GPU that the driver placed there for good.
    Device,
    /// Host memory that the driver knows (pinned or registered).
    Host,
    /// Managed ("unified") memory: it migrates, so no mapping of it can last.
    Managed,
    /// A CUDA array or something newer than this library; the driver's own number.
    Other(u32),
}

/// Which of CUDA's allocators memory came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// `cuMemAlloc`: it can be shared by `cuIpcGetMemHandle`.
    Plain,
    /// A stream-ordered pool (`cuMemAllocAsync`).
    Pool,
    /// `cuMemCreate` and `cuMemMap`.
    Vmm,
    /// The driver is too old to tell, or it is something else.
    Unknown,
}

/// A range of device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// Where it starts.
    pub base: DevicePtr,
    /// How many bytes it has.
    pub size: u64,
}

/// What the driver says about one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// The kind of memory.
    pub kind: PointerKind,
    /// The GPU that owns it. For managed and host memory: the one it was made on.
    pub device: Ordinal,
    /// The allocation's serial number.
    pub buffer: BufferId,
    /// Where the allocation starts. For VMM memory: the `cuMemMap` mapping, not the reservation.
    pub base: DevicePtr,
    /// How many bytes the allocation has, counted from `base`.
    pub size: u64,
    /// Which allocator it came from.
    pub family: Family,
    /// The driver's own mapping that the allocation lies in, where the driver tells
    /// (`CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR` and `_SIZE`): small allocations share one of
    /// 2 MiB, those of a pool one of 32 MiB or more.
    pub mapping: Option<AddressRange>,
}

impl PointerInfo {
    /// Bytes from `ptr` to the end of the allocation; 0 when `ptr` lies outside it.
    pub fn remaining(&self, ptr: DevicePtr) -> u64 {
        ptr.offset_from(self.base)
            .map_or(0, |offset| self.size.saturating_sub(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_counts_to_the_end_of_the_allocation() {
        let info = PointerInfo {
            kind: PointerKind::Device,
            device: Ordinal(0),
            buffer: BufferId(1),
            base: DevicePtr::new(0x1000),
            size: 0x100,
            family: Family::Plain,
            mapping: None,
        };
        assert_eq!(info.remaining(DevicePtr::new(0x1000)), 0x100);
        assert_eq!(info.remaining(DevicePtr::new(0x10ff)), 1);
        assert_eq!(info.remaining(DevicePtr::new(0x1100)), 0);
        assert_eq!(info.remaining(DevicePtr::new(0xfff)), 0);
    }
}
