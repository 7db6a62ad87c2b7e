//! Memory regions as the protocol asks for them.

use std::sync::Arc;

use gdr_roce::{Access, AccessError, AtomicOp, Extent, Key, Memory, Qpn};

use crate::buffer::Buffer;
use crate::region::{DomainId, Region, Regions};

/// Buffers that were written and not yet flushed, each with the queue pair that wrote.
#[derive(Debug, Default)]
pub(super) struct Dirty(Vec<(Buffer, Qpn)>);

impl Dirty {
    fn add(&mut self, buffer: &Buffer, qpn: Qpn) {
        // Nearly always there is one.
        if !self.0.iter().any(|(b, q)| *q == qpn && b.is_same(buffer)) {
            self.0.push((buffer.clone(), qpn));
        }
    }

    /// Makes everything written visible to whoever is told of it; `failed` hears of queue pairs
    /// whose bytes did not arrive.
    pub(super) fn flush(&mut self, mut failed: impl FnMut(Qpn)) {
        for (buffer, qpn) in self.0.drain(..) {
            if let Err(error) = buffer.flush() {
                tracing::warn!(%error, qpn = qpn.get(), "writing to a buffer failed");
                failed(qpn);
            }
        }
    }
}

/// The regions of one queue pair's domain.
pub(super) struct DomainMemory<'a> {
    pub(super) regions: &'a Regions,
    pub(super) domain: DomainId,
    pub(super) qpn: Qpn,
    pub(super) dirty: &'a mut Dirty,
    /// Keys of regions whose reads were made fresh in this turn.
    pub(super) fresh: &'a mut Vec<u32>,
}

impl<'a> DomainMemory<'a> {
    /// The region of `key` and where in its buffer `addr` is, for `len` bytes with `access`.
    fn find(
        &self,
        key: Key,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(&'a Region, u64), AccessError> {
        let region = self
            .regions
            .get(&number(key))
            .filter(|region| region.domain == self.domain)
            .map(Arc::as_ref)
            .ok_or(AccessError::UnknownKey)?;
        let offset = addr
            .checked_sub(region.addr)
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= region.len))
            .ok_or(AccessError::OutOfRange)?;
        if !region.access.contains(access) {
            return Err(AccessError::Permission);
        }
        Ok((region, region.skip + offset))
    }
}

impl Memory for DomainMemory<'_> {
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
        let first = !self.fresh.contains(&number(key));
        if first {
            region.buffer.begin_reads();
        }
        let read = region.buffer.fetch(offset, out);
        if first {
            self.fresh.push(number(key));
        }
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
