//! The memory regions of a device, by key.

use std::sync::{Arc, RwLock, RwLockReadGuard};

use gdr_copy::ProcessId;
use gdr_process::lock;
use gdr_roce::Access;

use crate::buffer::Buffer;
use crate::error::Result;
use crate::int_map::IntMap;
use crate::os;
use crate::shard::window_binding::Binding;
use crate::types::Domain;
use crate::wire::memory::References;

/// A region as the engine uses it.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) domain: Domain,
    /// The address of its first byte, as requests name it.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The offset of its first byte in the buffer.
    pub(crate) offset: u64,
    pub(crate) access: Access,
    pub(crate) buffer: Buffer,
    /// To its bytes, in rings.
    pub(crate) references: References,
    /// What a memory window is bound to, if the key is a window's.
    pub(crate) binding: Option<Binding>,
}

/// The regions of a device, by key.
pub(crate) type Regions = IntMap<Arc<Region>>;

/// The regions of a device: one table for each shard, with a lock of its own, and all with the same
/// regions. An engine reads its own table only, so engines never wait for each other, nor share a cache
/// line that one of them writes.
#[derive(Debug)]
pub(crate) struct RegionTable {
    origin: ProcessId,
    tables: Box<[CacheLine<RwLock<Regions>>]>,
}

/// A value in cache lines of its own: two, as processors fetch pairs of them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CacheLine<T>(T);

impl RegionTable {
    /// Returns empty tables of the process `origin` for this many shards.
    pub(crate) fn new(origin: ProcessId, shards: usize) -> Self {
        Self {
            origin,
            tables: (0..shards).map(|_| CacheLine::default()).collect(),
        }
    }

    /// The regions, in the table of a shard. None of them ends while the guard lives.
    pub(crate) fn read(&self, shard: usize) -> RwLockReadGuard<'_, Regions> {
        lock::read(&self.tables[shard].0)
    }

    /// Like [`RegionTable::read`], unless a thread changes the table.
    pub(crate) fn try_read(&self, shard: usize) -> Option<RwLockReadGuard<'_, Regions>> {
        self.tables[shard].0.try_read().ok()
    }

    /// Adds a region under a new random key, until the returned entry is dropped.
    pub(crate) fn insert(table: &Arc<Self>, region: Region) -> Result<TableEntry> {
        let region = Arc::new(region);
        loop {
            let key = os::random_number()?;
            // 0 is not used as a key, because it is the value of uninitialized key fields.
            if key != 0 && table.insert_at(key, &region) {
                let table = Arc::clone(table);
                return Ok(TableEntry { key, table });
            }
        }
    }

    /// Adds a region under this key, unless another one has it.
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
            let mut regions = lock::write(&table.0);
            // The first table decides: a key is added there first, and removed there last.
            if shard == 0 && regions.contains_key(&key) {
                return false;
            }
            regions.insert(key, Arc::clone(region));
        }
        true
    }
}

/// Keeps a region in the table.
#[derive(Debug)]
pub(crate) struct TableEntry {
    key: u32,
    table: Arc<RegionTable>,
}

impl TableEntry {
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The region.
    pub(crate) fn region(&self) -> Option<Arc<Region>> {
        self.table.read(0).get(&self.key).cloned()
    }

    /// Puts the region of another entry of the same table under this key, and ends the one that was
    /// there; returns whether the table is the same.
    pub(crate) fn replace(&self, by: Self) -> bool {
        if !Arc::ptr_eq(&self.table, &by.table) {
            return false;
        }
        for table in &self.table.tables {
            let mut regions = lock::write(&table.0);
            if let (Some(old), Some(new)) = (regions.remove(&self.key), regions.remove(&by.key)) {
                regions.insert(self.key, new);
                regions.insert(by.key, old);
            }
        }
        // `by` now holds the old region, which ends here.
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
        // Wait until each engine has released its read guard, after which none can find the buffer.
        let mut region = None;
        // This is the reverse of the order in `insert_at`, because the key is free once the first table has
        // lost it.
        for table in self.table.tables.iter().rev() {
            region = lock::write(&table.0).remove(&self.key);
        }
        // The program may free the memory now.
        if let Some(region) = region {
            region.references.end(region.buffer.export());
            region.buffer.end_reads();
        }
    }
}
