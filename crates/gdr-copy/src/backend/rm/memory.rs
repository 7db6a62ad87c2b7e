//! Memory objects of an RM client, and their CPU mappings.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use super::abi::{self, Handle, IndexedInfo, MapMemory, SurfaceInfo, UnmapMemory};
use super::device::{Device, Identity};
use super::status::RmStatus;
use crate::bar_mapping;
use crate::cpu::Caching;
use crate::error::{Error, Result};

/// A reference to video memory. The memory stays allocated while the reference exists, even after CUDA frees it.
#[derive(Debug)]
pub(super) struct Memory {
    device: Arc<Device>,
    parent: Handle,
    object: Handle,
    size: u64,
}

impl Memory {
    /// Duplicates an object that CUDA's client in this process owns.
    pub(super) fn dup(device: &Arc<Device>, identity: Identity) -> Result<Self> {
        let client = device.client();
        let source = (identity.client, identity.object);
        let mut parent = device.handle();
        let object = client.dup(parent, source).or_else(|error| match error {
            // The two parents must have the same class, and the parent of some objects is the subdevice.
            Error::Rm {
                status: RmStatus::INVALID_OBJECT_PARENT,
                ..
            } => {
                parent = device.subdevice();
                client.dup(parent, source)
            }
            other => Err(other),
        })?;
        // Owned before its size is queried, so that an error frees it.
        let mut memory = Self {
            device: device.clone(),
            parent,
            object,
            size: 0,
        };
        memory.size = device.size_of(identity, || memory.surface())?;
        Ok(memory)
    }

    /// Takes ownership of `object`, which was imported, and queries its size and address space.
    pub(super) fn own(device: &Arc<Device>, parent: Handle, object: Handle) -> Result<Self> {
        let mut memory = Self {
            device: device.clone(),
            parent,
            object,
            size: 0,
        };
        memory.size = memory.surface()?;
        Ok(memory)
    }

    /// Returns the size of the object in bytes, as the driver reports it.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    fn surface(&self) -> Result<u64> {
        let what = "the size of a memory object";
        let mut list = [
            IndexedInfo {
                index: abi::SURFACE_PHYS_SIZE,
                data: 0,
            },
            IndexedInfo {
                index: abi::SURFACE_ADDR_SPACE,
                data: 0,
            },
        ];
        let mut info = SurfaceInfo {
            count: 2,
            pad: 0,
            list: list.as_mut_ptr() as u64,
        };
        self.device.client().control(self.object, &mut info, what)?;
        let [size, space] = list.map(|entry| entry.data);
        if space != abi::ADDR_SPACE_VIDMEM {
            return Err(Error::Rm {
                call: "NV0041_CTRL_CMD_GET_SURFACE_INFO",
                what: "memory that should be on the GPU but is not",
                status: RmStatus::NOT_SUPPORTED,
            });
        }
        // The driver counts pages of 4 KiB.
        Ok(u64::from(size) << 12)
    }

    /// Creates the driver's part of a mapping of `len` bytes from `offset` on; both are multiples of the host page. The
    /// caller maps exactly `len` bytes of the returned file from offset 0.
    pub(super) fn map(self: &Arc<Self>, offset: u64, len: u64) -> Result<(OwnedFd, MapRecord)> {
        let file = self.device.file()?;
        let mut params = MapMemory {
            device: self.parent,
            memory: self.object,
            offset,
            length: len,
            fd: file.as_fd().as_raw_fd(),
            ..Default::default()
        };
        self.device
            .client()
            .map(&mut params)
            .map_err(|error| self.explain(error, len))?;
        let record = MapRecord {
            memory: self.clone(),
            linear_address: params.linear_address,
            caching: caching(params.flags),
        };
        Ok((file, record))
    }

    fn explain(&self, error: Error, wanted: u64) -> Error {
        let Error::Rm { status, .. } = &error else {
            return error;
        };
        // A full BAR1 causes either status.
        if ![RmStatus::NO_MEMORY, RmStatus::INSUFFICIENT_RESOURCES].contains(status) {
            return error;
        }
        let room = self.device.bar1();
        Error::Bar1Exhausted {
            gpu: self.device.bdf(),
            wanted,
            total: room.map(|room| room.total),
            free: room.map(|room| room.free),
            mapped: bar_mapping::mapped_bytes(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.device.client().free(self.parent, self.object);
    }
}

/// The driver's record of a CPU mapping; ended on drop, after the munmap.
#[derive(Debug)]
pub(super) struct MapRecord {
    memory: Arc<Memory>,
    linear_address: u64,
    caching: Caching,
}

impl MapRecord {
    pub(super) fn caching(&self) -> Caching {
        self.caching
    }
}

impl Drop for MapRecord {
    fn drop(&mut self) {
        // Dropping the last reference on the memory frees its object, which ends all its mappings.
        let freed_with_memory = Arc::strong_count(&self.memory) == 1;
        let client = self.memory.device.client();
        if freed_with_memory || !client.origin().is_current() {
            return;
        }
        let mut params = UnmapMemory {
            device: self.memory.parent,
            memory: self.memory.object,
            linear_address: self.linear_address,
            ..Default::default()
        };
        if let Err(error) = client.unmap(&mut params) {
            tracing::warn!("{error}");
        }
    }
}

/// Returns how the CPU caches the mapping: `NVOS33_FLAGS_CACHING_TYPE`, bits 25:23 of the returned flags.
fn caching(flags: u32) -> Caching {
    match flags >> 23 & 7 {
        // CACHED and WRITEBACK: coherent links.
        0 | 5 => Caching::Cached,
        // UNCACHED: write combining is off in the kernel (no PAT) or in the driver's options.
        1 => Caching::Device,
        // WRITECOMBINED, DEFAULT and UNCACHED_WEAK, which is write-combined on aarch64.
        _ => Caching::WriteCombined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caching_type_is_read_from_the_drivers_flags() {
        assert_eq!(caching(2 << 23), Caching::WriteCombined);
        assert_eq!(caching(0), Caching::Cached);
        assert_eq!(caching(5 << 23), Caching::Cached);
        assert_eq!(caching(1 << 23), Caching::Device);
    }
}
