//! Memory regions as the protocol accesses them.

use std::cell::Cell;

use gdr_roce::{Access, AccessError, AtomicOp, Extent, Key, Memory, Qpn};

use super::region_table::{Region, Regions};
use crate::buffer::Buffer;
use crate::types::DomainId;

/// Buffers that were written and not yet flushed, each with the queue pair that wrote.
#[derive(Debug, Default)]
pub(super) struct Dirty(Vec<(Buffer, Qpn)>);

impl Dirty {
    fn add(&mut self, buffer: &Buffer, qpn: Qpn) {
        // Nearly always there is only one.
        if !self.0.iter().any(|(b, q)| *q == qpn && b.is_same(buffer)) {
            self.0.push((buffer.clone(), qpn));
        }
    }

    /// Makes all written bytes visible. Calls `failed` for each queue pair whose bytes were not
    /// written.
    pub(super) fn flush(&mut self, mut failed: impl FnMut(Qpn)) {
        for (buffer, qpn) in self.0.drain(..) {
            if let Err(error) = buffer.flush() {
                tracing::warn!(%error, qpn = qpn.get(), "writing to a buffer failed");
                failed(qpn);
            }
        }
    }
}

/// The region that was looked up last: the packets of a message, and the check and the copy of one
/// packet, all name the same one. It lives no longer than the guard of the region table.
#[derive(Default)]
pub(super) struct RegionCache<'a>(Cell<Option<(u32, &'a Region)>>);

/// The regions of one queue pair's domain.
pub(super) struct DomainMemory<'a, 'r> {
    pub(super) regions: &'r Regions,
    pub(super) cache: &'a RegionCache<'r>,
    pub(super) domain: DomainId,
    pub(super) qpn: Qpn,
    pub(super) dirty: &'a mut Dirty,
    /// Keys of regions behind whose reads a fence has run since the poll began.
    pub(super) fenced: &'a mut Vec<u32>,
}

impl<'r> DomainMemory<'_, 'r> {
    /// Returns the region of `key`, and the offset of `addr` in its buffer, if `access` to `len`
    /// bytes is permitted.
    fn find(
        &self,
        key: Key,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(&'r Region, u64), AccessError> {
        let region = self.lookup(number(key)).ok_or(AccessError::UnknownKey)?;
        let offset = addr
            .checked_sub(region.addr)
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= region.len))
            .ok_or(AccessError::OutOfRange)?;
        if !region.access.contains(access) {
            return Err(AccessError::Permission);
        }
        Ok((region, region.offset + offset))
    }

    /// Returns the region of this domain that has `key`.
    fn lookup(&self, key: u32) -> Option<&'r Region> {
        let region = match self.cache.0.get() {
            Some((last, region)) if last == key => region,
            _ => {
                let region = &**self.regions.get(&key)?;
                self.cache.0.set(Some((key, region)));
                region
            }
        };
        (region.domain == self.domain).then_some(region)
    }
}

impl Memory for DomainMemory<'_, '_> {
    fn check(&self, key: Key, extent: Extent, access: Access) -> Result<(), AccessError> {
        let len = u64::from(extent.len);
        let (region, offset) = self.find(key, extent.addr, len, access)?;
        let reads = match key {
            Key::Local(_) => access.is_empty(),
            Key::Remote(_) => access == Access::REMOTE_READ,
        };
        if reads && len > 0 {
            let begun = region.buffer.expect_read(offset, len);
            begun.map_err(|error| failed("reading", &error))?;
        }
        Ok(())
    }

    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let needed = match key {
            Key::Local(_) => Access::empty(),
            Key::Remote(_) => Access::REMOTE_READ,
        };
        let (region, offset) = self.find(key, addr, out.len() as u64, needed)?;
        let buffer = &region.buffer;
        let done = buffer
            .fetch_ahead(offset, out)
            .map_err(|error| failed("reading", &error))?;
        if done == out.len() {
            return Ok(());
        }
        if !self.fenced.contains(&number(key)) {
            buffer.begin_reads();
            self.fenced.push(number(key));
        }
        let read = buffer.fetch(offset + done as u64, &mut out[done..]);
        read.map_err(|error| failed("reading", &error))
    }

    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let needed = match key {
            Key::Local(_) => Access::LOCAL_WRITE,
            Key::Remote(_) => Access::REMOTE_WRITE,
        };
        let (region, offset) = self.find(key, addr, bytes.len() as u64, needed)?;
        let placed = region.buffer.place(offset, bytes);
        self.dirty.add(&region.buffer, self.qpn);
        placed.map_err(|error| failed("writing", &error))
    }

    fn atomic(&mut self, key: Key, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let (region, offset) = self.find(key, addr, 8, Access::REMOTE_ATOMIC)?;
        let buffer = &region.buffer;
        buffer
            .atomic(offset, op)
            .map_err(|error| failed("an atomic operation on", &error))
    }
}

fn number(key: Key) -> u32 {
    match key {
        Key::Local(key) => key.0,
        Key::Remote(key) => key.0,
    }
}

fn failed(what: &str, error: &crate::Error) -> AccessError {
    tracing::warn!(%error, "{what} a buffer failed");
    AccessError::Failed
}
