//! Device addresses, and the allocations that they belong to.

use std::fmt;

use crate::device::Ordinal;

/// A device virtual address, as returned by `cuMemAlloc`.
///
/// It is a number, not a CPU pointer: this workspace never dereferences it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct DevicePtr(u64);

impl DevicePtr {
    /// Wraps a raw device virtual address.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// Returns the raw address.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns this address plus `offset` bytes, or `None` past the end of the address space.
    pub const fn checked_add(self, offset: u64) -> Option<Self> {
        match self.0.checked_add(offset) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }

    /// Returns the number of bytes from `base` to this address, or `None` if it is below `base`.
    pub const fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }

    /// Returns the nearest multiple of `alignment` (a power of two) at or below this address.
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
/// It is unique in the process: when an address is freed and allocated again, its number changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u64);

/// The kind of memory that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PointerKind {
    /// Memory that stays on a GPU.
    Device,
    /// Host memory that the driver knows (pinned or registered).
    Host,
    /// Managed ("unified") memory, which migrates.
    Managed,
    /// A CUDA array, or a kind that is newer than this library, with the driver's number.
    Other(u32),
}

/// The CUDA allocator of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// `cuMemAlloc`, whose memory can be shared by `cuIpcGetMemHandle`.
    Plain,
    /// A stream-ordered pool (`cuMemAllocAsync`).
    Pool,
    /// `cuMemCreate` and `cuMemMap`.
    Vmm,
    /// Another allocator, or a driver that is too old to report it.
    Unknown,
}

/// A range of device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The start.
    pub base: DevicePtr,
    /// The length in bytes.
    pub size: u64,
}

/// The allocation of an address, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// The kind of memory.
    pub kind: PointerKind,
    /// The GPU that owns it, or, for managed and host memory, the GPU on which it was allocated.
    pub device: Ordinal,
    /// The allocation's serial number.
    pub buffer: BufferId,
    /// The start of the allocation. For VMM memory, this is the start of the `cuMemMap` mapping, not of the
    /// reservation.
    pub base: DevicePtr,
    /// The length of the allocation in bytes.
    pub size: u64,
    /// The allocator.
    pub family: Family,
    /// The driver's mapping that contains the allocation, if the driver reports it
    /// (`CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR` and `_SIZE`): small allocations share a mapping of 2 MiB, and
    /// allocations of a pool a mapping of 32 MiB or more.
    pub mapping: Option<AddressRange>,
}

impl PointerInfo {
    /// Returns the number of bytes from `ptr` to the end of the allocation, or 0 if `ptr` is outside it.
    pub fn remaining(&self, ptr: DevicePtr) -> u64 {
        ptr.offset_from(self.base)
            .map_or(0, |offset| self.size.saturating_sub(offset))
    }

    /// Returns the first address past the allocation.
    pub const fn end(&self) -> DevicePtr {
        DevicePtr(self.base.0.saturating_add(self.size))
    }

    /// Returns the further allocations of a range that starts in this one and ends at `end`: adjacent VMM mappings of
    /// the same GPU, as in growing buffers. `look` is [`Driver::pointer_info`](crate::Driver::pointer_info).
    ///
    /// # Errors
    /// The end of the contiguous allocations, if it is before `end`.
    pub fn neighbours_up_to<E>(
        &self,
        end: DevicePtr,
        mut look: impl FnMut(DevicePtr) -> Result<PointerInfo, E>,
    ) -> Result<Vec<PointerInfo>, DevicePtr> {
        let mut neighbours: Vec<PointerInfo> = Vec::new();
        loop {
            let last = neighbours.last().unwrap_or(self);
            let next = last.end();
            if next >= end {
                return Ok(neighbours);
            }
            match look(next) {
                Ok(info)
                    if last.family == Family::Vmm
                        && info.family == Family::Vmm
                        && info.device == self.device
                        && info.base == next
                        && info.size > 0 =>
                {
                    neighbours.push(info);
                }
                _ => return Err(next),
            }
        }
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

    #[test]
    fn a_range_continues_into_adjacent_vmm_mappings_only() {
        let vmm = |base, device, family| PointerInfo {
            kind: PointerKind::Device,
            device: Ordinal(device),
            buffer: BufferId(base),
            base: DevicePtr::new(base),
            size: 0x100,
            family,
            mapping: None,
        };
        let first = vmm(0x1000, 0, Family::Vmm);
        let unknown = |_| Err(());
        let all_vmm = |ptr: DevicePtr| Ok::<_, ()>(vmm(ptr.get(), 0, Family::Vmm));
        let up_to = |end| DevicePtr::new(end);

        assert_eq!(first.neighbours_up_to(up_to(0x1100), unknown), Ok(vec![]));
        let two = first.neighbours_up_to(up_to(0x1201), all_vmm).unwrap();
        assert_eq!(two, [0x1100, 0x1200].map(|base| vmm(base, 0, Family::Vmm)));

        let end = Err(DevicePtr::new(0x1100));
        assert_eq!(first.neighbours_up_to(up_to(0x1101), unknown), end);
        for (device, family) in [(1, Family::Vmm), (0, Family::Plain)] {
            let other = |ptr: DevicePtr| Ok::<_, ()>(vmm(ptr.get(), device, family));
            assert_eq!(first.neighbours_up_to(up_to(0x1101), other), end);
        }
        let plain = vmm(0x1000, 0, Family::Plain);
        assert_eq!(plain.neighbours_up_to(up_to(0x1101), all_vmm), end);
        // A mapping that begins before the last one ends is not adjacent, nor is an empty one.
        let before = |_: DevicePtr| Ok::<_, ()>(vmm(0x1080, 0, Family::Vmm));
        assert_eq!(first.neighbours_up_to(up_to(0x1101), before), end);
        let empty = |ptr: DevicePtr| {
            let size = 0;
            Ok::<_, ()>(PointerInfo {
                size,
                ..vmm(ptr.get(), 0, Family::Vmm)
            })
        };
        assert_eq!(first.neighbours_up_to(up_to(0x1101), empty), end);
    }
}
