//! Memory windows: keys for a part of a region, which requests begin and end.

use std::sync::Arc;

use gdr_roce::{Access, Qpn};

use crate::device_shards::DeviceShards;
use crate::error::{Error, Result};
use crate::region::{self, Region};
use crate::shard::region_table::{RegionTable, TableEntry};
use crate::shard::window_binding::{Binding, WindowState};
use crate::types::Domain;

/// What a memory window is bound to: a part of a region, for the peer of a queue pair or of all of a domain.
#[derive(Clone, Copy, Debug)]
pub struct WindowRange {
    /// The address of the first byte, as requests name it in the region and in the window.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
    /// What peers may do.
    pub access: Access,
    /// The queue pair whose peer may use it (type 2), or `None` for all of the domain (type 1).
    pub queue_pair: Option<Qpn>,
}

/// A memory window. [`MemoryWindow::prepare`] and then [`Operation::Bind`](crate::Operation::Bind) bind it.
#[derive(Debug)]
pub struct MemoryWindow {
    device: Arc<DeviceShards>,
    domain: Domain,
    state: Arc<WindowState>,
    /// Its key before it is bound for the first time.
    key: u32,
    /// Keeps that key until a request binds the window under it. No access is permitted by it.
    first: Option<TableEntry>,
    /// What it is bound to, or will be when a request is executed.
    bindings: Vec<TableEntry>,
}

impl MemoryWindow {
    pub(crate) fn new(device: &Arc<DeviceShards>, domain: Domain) -> Result<Self> {
        let first = RegionTable::insert(device.regions(), region::nothing()?)?;
        Ok(Self {
            key: first.key(),
            first: Some(first),
            device: Arc::clone(device),
            domain,
            state: Arc::default(),
            bindings: Vec::new(),
        })
    }

    /// Its key before it is bound for the first time.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Prepares that a request binds it to a part of a region, or to nothing, under this key. Until then, and after its
    /// end, no access by the key is permitted.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the region does not have the range, or another region has the key.
    ///
    /// # Safety
    /// The region belongs to this window's device, and lives until [`cancel`](Self::cancel) for this key returns true or
    /// the window is dropped.
    pub unsafe fn prepare(
        &mut self,
        key: u32,
        region: Option<&Region>,
        range: WindowRange,
    ) -> Result<()> {
        let state = &self.state;
        self.bindings.retain(|entry| state.is_in_use(entry.key()));
        let mut window = match region {
            Some(region) => region.part(range.addr, range.len)?,
            None => region::nothing()?,
        };
        window.access = range.access;
        // No queue pair belongs to this domain: the binding says what is permitted.
        window.domain = Domain::new();
        window.binding = Some(Binding {
            domain: self.domain,
            queue_pair: range.queue_pair,
            window: Arc::clone(state),
        });
        if key == self.key {
            self.first = None;
        }
        let taken = Error::OutOfRange {
            offset: key.into(),
            wanted: 1,
            len: 0,
        };
        let table = self.device.regions();
        let entry = RegionTable::insert_as(table, key, window).ok_or(taken)?;
        self.bindings.push(entry);
        state.prepare(key);
        Ok(())
    }

    /// Lets no request bind it under this key any more; returns whether it is not bound under it already.
    pub fn cancel(&self, key: u32) -> bool {
        self.state.cancel(key)
    }
}
