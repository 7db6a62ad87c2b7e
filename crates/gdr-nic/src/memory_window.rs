//! Memory windows: keys for parts of a region, which requests bind and invalidate.

use std::sync::Arc;

use gdr_roce::{Access, Qpn};

use crate::device_shards::DeviceShards;
use crate::error::{Error, Result};
use crate::region::{self, Region};
use crate::shard::region_table::{RegionTable, TableEntry};
use crate::shard::window_binding::{Binding, WindowState};
use crate::types::Domain;

/// What a memory window is bound to: part of a region, for the peer of one queue pair or of all in a domain.
#[derive(Clone, Copy, Debug)]
pub struct WindowRange {
    /// The address of the first byte, which is the same in the region and in the window.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
    /// What peers may do.
    pub access: Access,
    /// The queue pair whose peer may use it (type 2), or `None` for all in the domain (type 1).
    pub queue_pair: Option<Qpn>,
}

/// A memory window, which is bound by [`MemoryWindow::prepare`] followed by
/// [`Operation::Bind`](crate::Operation::Bind).
#[derive(Debug)]
pub struct MemoryWindow {
    device: Arc<DeviceShards>,
    domain: Domain,
    state: Arc<WindowState>,
    /// The key before the first bind.
    key: u32,
    /// Reserves that key until a request binds the window. It permits no access.
    first: Option<TableEntry>,
    /// The current binding, and those prepared for requests that were not executed yet.
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

    /// Returns the key before the first bind.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Prepares the window to be bound by a request to part of a region, or to nothing, under this key. Before it is
    /// bound, and after it is invalidated, the key permits no access.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range exceeds the region, or the key belongs to another region.
    ///
    /// # Safety
    /// The region must belong to this window's device, and live until [`cancel`](Self::cancel) returns true for this key
    /// or the window is dropped.
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
        // No queue pair belongs to this domain, because the binding decides what is permitted.
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

    /// Prevents requests from binding the window under this key. Returns false if it is already bound under it.
    pub fn cancel(&self, key: u32) -> bool {
        self.state.cancel(key)
    }
}
