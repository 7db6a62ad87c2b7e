//! The memory regions of a device, by key.

use std::sync::{Arc, RwLock, RwLockReadGuard};

use gdr_copy::ProcessId;
use gdr_roce::Access;

use crate::buffer::Buffer;
use crate::error::Result;
use crate::int_map::IntMap;
use crate::lock;
use crate::memory_region::MemoryRange;
use crate::os;
use crate::types::DomainId;

/// A region as the engine uses it.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) domain: DomainId,
    /// The address of its first byte, as requests name it.
    pub(super) addr: u64,
    pub(super) len: u64,
    /// The offset of its first byte in the buffer.
    pub(super) offset: u64,
    pub(super) access: Access,
    pub(super) buffer: Buffer,
}

impl Region {
    pub(super) fn new(domain: DomainId, range: &MemoryRange) -> Self {
        Self {
            domain,
            addr: range.address(),
            len: range.len,
            offset: range.offset,
            access: range.access,
            buffer: range.buffer.clone(),
        }
    }
}

/// The regions of a device, by key.
pub(super) type Regions = IntMap<Arc<Region>>;

/// The regions of a device, behind a lock.
#[derive(Debug)]
pub(crate) struct RegionTable {
    origin: ProcessId,
    regions: RwLock<Regions>,
}

impl RegionTable {
    /// Returns an empty table of the process `origin`.
    pub(super) fn new(origin: ProcessId) -> Self {
        Self {
            origin,
            regions: RwLock::default(),
        }
    }

    /// The regions. None of them ends while the guard lives.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Regions> {
        lock::read(&self.regions)
    }

    /// Adds a region under a new random key, until the returned entry is dropped.
    pub(super) fn insert(table: &Arc<Self>, region: Region) -> Result<TableEntry> {
        let region = Arc::new(region);
        loop {
            let key = os::random_number()?;
            let mut regions = lock::write(&table.regions);
            // Uninitialized key fields hold 0.
            if key != 0 && !regions.contains_key(&key) {
                regions.insert(key, region);
                let table = Arc::clone(table);
                return Ok(TableEntry { key, table });
            }
        }
    }
}

/// Keeps a region in the table.
#[derive(Debug)]
pub(super) struct TableEntry {
    key: u32,
    table: Arc<RegionTable>,
}

impl TableEntry {
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    /// Puts the region of another entry of the same table under this key, and ends the one that was
    /// there; returns whether the table is the same.
    pub(super) fn replace(&self, by: Self) -> bool {
        if !Arc::ptr_eq(&self.table, &by.table) {
            return false;
        }
        let mut regions = lock::write(&self.table.regions);
        if let (Some(old), Some(new)) = (regions.remove(&self.key), regions.remove(&by.key)) {
            regions.insert(self.key, new);
            regions.insert(by.key, old);
        }
        drop(regions);
        // Its key has the old region now, which ends.
        drop(by);
        true
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        // A forked child has a copy of the table, whose lock a thread of the parent may hold
        // permanently.
        if !self.table.origin.is_current() {
            return;
        }
        // Waits until the engine releases its read guard: from here on it does not find the
        // buffer.
        drop(lock::write(&self.table.regions).remove(&self.key));
    }
}
