//! Memory regions by address.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use gdr_roce::Access;

use crate::buffer::{Buffer, BufferKind, check_range};
use crate::device_shards::DeviceShards;
use crate::error::{Error, Foreign, Result};
use crate::shard::region_table::{self, RegionTable, TableEntry};
use crate::types::Domain;
use crate::wire::memory::References;

/// Memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The address of its first byte.
    pub address: usize,
    /// The length in bytes.
    pub len: usize,
    /// The address of its first byte in requests.
    pub iova: u64,
}

/// A registration, which ends when it is dropped; requests in progress then fail.
#[derive(Debug)]
pub struct Region(TableEntry);

impl Region {
    /// # Safety
    /// As for [`Device::register`](super::Device::register).
    pub(crate) unsafe fn of_memory(
        device: &Arc<DeviceShards>,
        domain: Domain,
        memory: Memory,
        access: Access,
    ) -> Result<Self> {
        let out_of_range = Error::OutOfRange {
            offset: memory.address as u64,
            wanted: memory.len as u64,
            len: usize::MAX as u64,
        };
        if memory.len == 0 {
            return Self::without_bytes(device, domain, memory.iova, access);
        }
        let address = std::ptr::with_exposed_provenance_mut(memory.address);
        let address = NonNull::new(address)
            .filter(|_| memory.address.checked_add(memory.len).is_some())
            .ok_or(out_of_range)?;
        // SAFETY: the caller's promises, which last until the region is dropped. The buffer may live
        // on in the engine's list of buffers to flush, which accesses none of its bytes.
        let buffer = unsafe { Buffer::host_from_owner(address, memory.len, ()) }?;
        let whole = (buffer, 0, memory.len as u64);
        Self::of_buffer(device, domain, whole, memory.iova, access)
    }

    /// Creates an empty region, which has a key like any other.
    fn without_bytes(
        device: &Arc<DeviceShards>,
        domain: Domain,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        Self::of_buffer(device, domain, (untouched()?, 0, 0), iova, access)
    }

    pub(crate) fn of_buffer(
        device: &Arc<DeviceShards>,
        domain: Domain,
        (buffer, offset, len): (Buffer, u64, u64),
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        check_range(offset, len, buffer.len())?;
        check_range(iova, len, u64::MAX)?;
        if let Some(faults) = &device.state().chaos {
            let memory = match buffer.kind() {
                BufferKind::Host => gdr_chaos::Memory::Host,
                BufferKind::Direct | BufferKind::Staged => gdr_chaos::Memory::Gpu,
            };
            faults.chaos.register(memory, len)?;
        }
        let region = region_table::Region {
            domain,
            addr: iova,
            len,
            offset,
            access,
            buffer,
            references: References::default(),
            binding: None,
        };
        RegionTable::insert(device.regions(), region).map(Self)
    }

    /// Takes over the memory, domain and access rights of another registration, whose key becomes invalid. Requests in
    /// progress on the old memory fail.
    ///
    /// # Errors
    /// [`Error::Foreign`] if the other registration belongs to another device.
    pub fn replace(&self, by: Self) -> Result<()> {
        match self.0.replace(by.0) {
            true => Ok(()),
            false => Err(Error::Foreign(Foreign::MemoryRegion)),
        }
    }

    /// Returns the part of the region that a memory window exposes.
    pub(crate) fn part(&self, addr: u64, len: u64) -> Result<region_table::Region> {
        let whole = self.0.region().ok_or(Error::ForkedChild)?;
        let before = addr.wrapping_sub(whole.addr);
        check_range(before, len, whole.len)?;
        Ok(region_table::Region {
            domain: whole.domain,
            addr,
            len,
            offset: whole.offset + before,
            access: whole.access,
            buffer: whole.buffer.clone(),
            references: References::default(),
            binding: None,
        })
    }

    /// Returns the key that requests of both sides use: random, and never 0.
    pub fn key(&self) -> u32 {
        self.0.key()
    }
}

/// Returns a buffer for empty regions, in which nothing is ever accessed.
fn untouched() -> Result<Buffer> {
    static BYTE: AtomicU8 = AtomicU8::new(0);
    let address = NonNull::from(&BYTE).cast();
    // SAFETY: the byte lives as long as the process.
    unsafe { Buffer::host_from_owner(address, 1, ()) }
}

/// Returns an empty region, in a domain without queue pairs.
pub(crate) fn nothing() -> Result<region_table::Region> {
    Ok(region_table::Region {
        domain: Domain::new(),
        addr: 0,
        len: 0,
        offset: 0,
        access: Access::empty(),
        buffer: untouched()?,
        references: References::default(),
        binding: None,
    })
}
