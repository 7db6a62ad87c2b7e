//! The memory regions of a device, by key.

use std::sync::Arc;

use gdr_copy::ProcessId;
use gdr_process::{BiasedLock, BiasedReadGuard};
use gdr_roce::Access;

use crate::buffer::Buffer;
use crate::cache_line::CacheLine;
use crate::error::Result;
use crate::int_map::IntMap;
use crate::os;
use crate::shard::window_binding::Binding;
use crate::types::Domain;
use crate::wire::memory::References;

/// A region, as the engine uses it.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) domain: Domain,
    /// The address of its first byte in requests.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The offset of its first byte in the buffer.
    pub(crate) offset: u64,
    pub(crate) access: Access,
    pub(crate) buffer: Buffer,
    /// References to its bytes in rings.
    pub(crate) references: References,
    /// The binding of a memory window, if the key belongs to one.
    pub(crate) binding: Option<Binding>,
}

impl Region {
    /// Returns the offset in the buffer of `len` bytes at `addr`, if they are in the region.
    pub(crate) fn offset_of(&self, addr: u64, len: u64) -> Option<u64> {
        // The peer may have chosen the address, and its end may overflow, so it is checked before anything is added.
        let offset = addr.checked_sub(self.addr)?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.offset + offset)
    }
}

/// The regions of a device, by key.
pub(crate) type Regions = IntMap<Arc<Region>>;

/// The regions of a device. Each shard has its own table and lock, and all tables have the same content. An engine
/// reads only its own table, so engines neither wait for one another nor share a cache line that one of them writes.
#[derive(Debug)]
pub(crate) struct RegionTable {
    origin: ProcessId,
    tables: Box<[CacheLine<BiasedLock<Regions>>]>,
}

impl RegionTable {
    /// Returns empty tables of the process `origin` for this many shards.
    pub(crate) fn new(origin: ProcessId, shards: usize) -> Self {
        Self {
            origin,
            tables: (0..shards).map(|_| CacheLine::default()).collect(),
        }
    }

    /// Returns a shard's table of regions. No region ends while the guard is held.
    pub(crate) fn read(&self, shard: usize) -> BiasedReadGuard<'_, Regions> {
        self.tables[shard].0.read()
    }

    /// Like [`RegionTable::read`], but returns `None` if a thread is changing the table.
    pub(crate) fn try_read(&self, shard: usize) -> Option<BiasedReadGuard<'_, Regions>> {
        self.tables[shard].0.try_read()
    }

    /// Keeps all others from a shard's table.
    #[cfg(test)]
    pub(crate) fn write(&self, shard: usize) -> gdr_process::BiasedWriteGuard<'_, Regions> {
        self.tables[shard].0.write()
    }

    /// Adds a region under a random new key, until the returned entry is dropped.
    pub(crate) fn insert(table: &Arc<Self>, region: Region) -> Result<TableEntry> {
        let region = Arc::new(region);
        loop {
            let key = os::random_number()?;
            // 0 is not used as a key, because uninitialized key fields have this value.
            if key != 0 && table.insert_at(key, &region) {
                let table = Arc::clone(table);
                return Ok(TableEntry { key, table });
            }
        }
    }

    /// Adds a region under a given key, unless it is taken.
    pub(crate) fn insert_as(table: &Arc<Self>, key: u32, region: Region) -> Option<TableEntry> {
        let is_new = key != 0 && table.insert_at(key, &Arc::new(region));
        is_new.then(|| TableEntry {
            key,
            table: Arc::clone(table),
        })
    }

    /// Adds a region to all tables, unless the key is taken.
    fn insert_at(&self, key: u32, region: &Arc<Region>) -> bool {
        for (shard, table) in self.tables.iter().enumerate() {
            let mut regions = table.0.write();
            // The first table is authoritative: keys are added there first and removed there last.
            if shard == 0 && regions.contains_key(&key) {
                return false;
            }
            regions.insert(key, Arc::clone(region));
        }
        true
    }
}

/// Keeps a region in the table until dropped.
#[derive(Debug)]
pub(crate) struct TableEntry {
    key: u32,
    table: Arc<RegionTable>,
}

impl TableEntry {
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Returns the region.
    pub(crate) fn region(&self) -> Option<Arc<Region>> {
        self.table.read(0).get(&self.key).cloned()
    }

    /// Moves the region of another entry of the same table under this key, and ends the previous one. Returns whether
    /// both use the same table.
    pub(crate) fn replace(&self, by: Self) -> bool {
        if !Arc::ptr_eq(&self.table, &by.table) {
            return false;
        }
        for table in &self.table.tables {
            let mut regions = table.0.write();
            if let (Some(old), Some(new)) = (regions.remove(&self.key), regions.remove(&by.key)) {
                regions.insert(self.key, new);
                regions.insert(by.key, old);
            }
        }
        // `by` now owns the old region, which ends here.
        drop(by);
        true
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may hold the copied lock forever.
        if !self.table.origin.is_current() {
            return;
        }
        // Waits until each engine has released its read guard, after which none can find the buffer.
        let mut region = None;
        // In the reverse order of `insert_at`, because the key is free once the first table has lost it.
        for table in self.table.tables.iter().rev() {
            region = table.0.write().remove(&self.key);
        }
        // The program may free the memory now.
        if let Some(region) = region {
            region.references.end(region.buffer.export());
            region.buffer.end_reads();
        }
    }
}
