//! Memory regions, as accessed by the protocol.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use gdr_roce::{Access, AccessError, AtomicOp, Extent, Key, Memory, PayloadBy, Qpn, Rkey, Segment};

use crate::buffer::{BounceBuffer, Buffer, Queued};
use crate::shard::announced_reads::AnnouncedReads;
use crate::shard::pending_copies::PendingCopies;
use crate::shard::region_table::{Region, Regions};
use crate::shard::window_binding::Binding;
use crate::shard::xrc_context::XrcContext;
use crate::types::Domain;
use crate::wire::memory::{DeviceRun, Exports, MOST_READ, Reference};

/// Buffers that were written and not yet flushed, each with the queue pair that wrote it.
#[derive(Debug, Default)]
pub(crate) struct Dirty(Vec<(Buffer, Qpn)>);

impl Dirty {
    fn add(&mut self, buffer: &Buffer, qpn: Qpn) {
        // Nearly always there is only one.
        if !self.0.iter().any(|(b, q)| *q == qpn && b.is_same(buffer)) {
            self.0.push((buffer.clone(), qpn));
        }
    }

    /// Returns whether this buffer was written and not yet flushed.
    fn has(&self, buffer: &Buffer) -> bool {
        self.0.iter().any(|(dirty, _)| dirty.is_same(buffer))
    }

    /// Makes all written bytes visible. Calls `failed` for each queue pair whose write failed.
    pub(crate) fn flush(&mut self, mut failed: impl FnMut(Qpn)) {
        // The order does not matter.
        while let Some((buffer, qpn)) = self.0.pop() {
            if let Err(error) = buffer.flush() {
                tracing::warn!(%error, qpn = qpn.get(), "writing to a buffer failed");
                failed(qpn);
            }
        }
    }
}

/// The region looked up last. A message's packets, and the check and copy of each packet, all use the same one. Must
/// not outlive the region table's guard.
#[derive(Default)]
pub(crate) struct RegionCache<'a>(Cell<Option<(u32, &'a Region)>>);

/// Work left over from an engine's memory accesses.
#[derive(Default)]
pub(crate) struct Unfinished {
    pub(crate) dirty: Dirty,
    /// Keys of regions already fenced for reading since the poll began.
    pub(crate) fenced: Vec<u32>,
    announced: RefCell<AnnouncedReads>,
    pub(crate) copies: PendingCopies,
    pub(crate) bounce: BounceBuffer,
}

/// Where the [`Contents::At`](gdr_roce::Contents::At) of a received packet is located.
#[derive(Debug)]
pub(crate) enum Origin<'a> {
    /// The packet carries its payload.
    Packet,
    /// In a ring record, mapped here.
    Record(Extent),
    /// In the sending process's memory.
    Sender,
    /// In GPU memory of the sending process.
    Device(DeviceRun<'a>),
}

/// A payload to send by reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    key: Key,
    /// Its location in this process's memory.
    pub(crate) payload: Extent,
}

/// The regions of a queue pair's protection domain.
pub(crate) struct DomainMemory<'a, 'r> {
    regions: &'r Regions,
    cache: &'a RegionCache<'r>,
    domain: Domain,
    pub(crate) qpn: Qpn,
    pub(crate) unfinished: &'a mut Unfinished,
    pub(crate) origin: Origin<'a>,
    /// Set if a packet's bytes are not there yet.
    pub(crate) is_too_early: bool,
    /// How payloads may be sent.
    pub(crate) payload_by: PayloadBy,
    /// The most bytes that one packet refers to.
    pub(crate) longest_reference: u32,
    /// If set, the peer can also access regions of its protection domains.
    pub(crate) xrc: Option<&'a XrcContext>,
    /// The memory that the peer may import.
    pub(crate) exports: Option<&'a Arc<Exports>>,
    /// Caches whether the peer accepts references to the GPU memory region with this key.
    device_key: Cell<Option<(u32, PayloadBy)>>,
    /// The payload reference of the packet being written.
    pub(crate) offer: Option<Offer>,
}

impl<'a, 'r> DomainMemory<'a, 'r> {
    /// Returns the memory for packets that carry their payload.
    pub(crate) fn new(
        regions: &'r Regions,
        cache: &'a RegionCache<'r>,
        domain: Domain,
        qpn: Qpn,
        unfinished: &'a mut Unfinished,
    ) -> Self {
        Self {
            regions,
            cache,
            domain,
            qpn,
            unfinished,
            origin: Origin::Packet,
            is_too_early: false,
            payload_by: PayloadBy::Copy,
            longest_reference: u32::MAX,
            xrc: None,
            exports: None,
            device_key: Cell::default(),
            offer: None,
        }
    }

    /// Returns the region of `key` and the offset of `addr` in its buffer, if `access` to `len` bytes is permitted.
    fn find(
        &self,
        key: Key,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(&'r Region, u64), AccessError> {
        let region = self.lookup(key).ok_or(AccessError::UnknownKey)?;
        let offset = region.offset_of(addr, len).ok_or(AccessError::OutOfRange)?;
        if !region.access.contains(access) {
            return Err(AccessError::Permission);
        }
        Ok((region, offset))
    }

    /// Returns the region with `key`: one of this domain, or a memory window of this queue pair.
    fn lookup(&self, key: Key) -> Option<&'r Region> {
        let number = number(key);
        let region = match self.cache.0.get() {
            Some((last, region)) if last == number => region,
            _ => {
                let region = &**self.regions.get(&number)?;
                self.cache.0.set(Some((number, region)));
                region
            }
        };
        let permits = |binding: &Binding| binding.permits(key, self.domain, self.qpn);
        // A key of another domain must be indistinguishable from an invalid one.
        let is_reached = region.domain == self.domain
            || region.binding.as_ref().is_some_and(permits)
            || self.xrc.is_some_and(|xrc| xrc.has(region.domain));
        is_reached.then_some(region)
    }

    /// Returns the binding of the memory window that has this key.
    fn binding(&self, rkey: Rkey) -> Result<&'r Binding, AccessError> {
        let region = self.regions.get(&rkey.0);
        region
            .and_then(|region| region.binding.as_ref())
            .ok_or(AccessError::UnknownKey)
    }

    /// Returns how a message of `len` bytes in GPU memory is sent.
    fn device_payload(&self, key: Key, region: &Region, len: u32) -> PayloadBy {
        let Some(exports) = self.exports.filter(|_| len >= DEVICE_REFERENCE_FROM) else {
            return PayloadBy::Copy;
        };
        if let Some((last, by)) = self.device_key.get()
            && last == number(key)
        {
            return by;
        }
        let by = match region.buffer.export() {
            Some(export) => {
                // Another region of the same allocation may already have offered it; the last one to end withdraws the
                // offer.
                region.references.offer(exports);
                match exports.may_refer(export) {
                    true => PayloadBy::Reference,
                    false => PayloadBy::Copy,
                }
            }
            None => PayloadBy::Copy,
        };
        // Cached per key, as every packet of a message asks.
        self.device_key.set(Some((number(key), by)));
        by
    }

    /// Records that the offered payload is now referred to by a ring.
    pub(crate) fn refer(&self, offer: &Offer, reference: Reference) {
        if let Some(region) = self.lookup(offer.key) {
            region.references.add(reference);
        }
    }
}

/// The message length from which payloads are sent by reference. The receiving process reads them with a system call,
/// which costs about as much as copying this twice.
const REFERENCE_FROM: u32 = 8 << 10;
/// Likewise for GPU memory, which the receiver's GPU copies: a thread must be woken to request the copy, which takes
/// some 10 us at any length.
const DEVICE_REFERENCE_FROM: u32 = 16 << 10;

/// Copies the bytes of a segment in host memory of this domain to `out`, for a message of that length that was posted
/// just now. Fails for all other memory.
pub(crate) fn read_host(
    regions: &Regions,
    domain: Domain,
    segment: &Segment,
    out: &mut [u8],
) -> Result<(), AccessError> {
    let region = regions.get(&segment.lkey.0);
    let region = region.filter(|region| region.domain == domain);
    let region = region.ok_or(AccessError::UnknownKey)?;
    let offset = region.offset_of(segment.addr, out.len() as u64);
    let offset = offset.ok_or(AccessError::OutOfRange)?;
    let loaded = region.buffer.load_host(offset, out);
    loaded.ok_or(AccessError::Failed)
}

impl Memory for DomainMemory<'_, '_> {
    fn check(&self, key: Key, extent: Extent, access: Access) -> Result<(), AccessError> {
        let len = u64::from(extent.len);
        // Checked before the first byte is copied, so that a message is refused as a whole.
        let (region, offset) = self.find(key, extent.addr, len, access)?;
        let reads = match key {
            Key::Local(_) => access.is_empty(),
            Key::Remote(_) => access == Access::REMOTE_READ,
        };
        if reads && len > 0 {
            // A copy that starts now includes what arrived before, as PCIe keeps posted writes in order, and what the
            // program stored before posting: a NIC's doorbell flushes the CPU's stores, too.
            let posts = matches!(key, Key::Local(_)) && region.buffer.queues_reads();
            let flushed = match posts || self.unfinished.dirty.has(&region.buffer) {
                true => region.buffer.flush(),
                false => Ok(()),
            };
            let by = self.device_payload(key, region, extent.len);
            if by == PayloadBy::Reference {
                // Retransmitted bytes must not be older than these.
                region.buffer.forget_reads(offset, len);
                return flushed.map_err(|error| failed("reading", &error));
            }
            let queued = match region.buffer.queues_reads() {
                true => {
                    let mut announced = self.unfinished.announced.borrow_mut();
                    announced.announce(number(key), offset + len)
                }
                false => Queued::Alone,
            };
            let begun = flushed.and_then(|()| region.buffer.expect_read(offset, len, queued));
            begun.map_err(|error| failed("reading", &error))?;
        }
        Ok(())
    }

    fn check_region(&self, key: Key, access: Access) -> Result<(), AccessError> {
        let region = self.lookup(key).ok_or(AccessError::UnknownKey)?;
        match region.access.contains(access) {
            true => Ok(()),
            false => Err(AccessError::Permission),
        }
    }

    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let (region, offset) = self.find(key, addr, out.len() as u64, reading(key))?;
        let buffer = &region.buffer;
        if buffer.queues_reads() {
            let end = offset + out.len() as u64;
            self.unfinished
                .announced
                .borrow_mut()
                .serve(number(key), end);
        }
        let done = buffer
            .fetch_ahead(offset, out)
            .map_err(|error| failed("reading", &error))?;
        if done == out.len() {
            return Ok(());
        }
        // One fence per poll covers all reads from a region: what the device wrote before the poll is visible
        // afterwards.
        if !self.unfinished.fenced.contains(&number(key)) {
            buffer.begin_reads();
            self.unfinished.fenced.push(number(key));
        }
        let read = buffer.fetch(offset + done as u64, &mut out[done..]);
        read.map_err(|error| failed("reading", &error))
    }

    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let (region, offset) = self.find(key, addr, bytes.len() as u64, writing(key))?;
        let placed = region.buffer.place(offset, bytes);
        // Even after a failure, as some bytes may have been written and must be flushed.
        self.unfinished.dirty.add(&region.buffer, self.qpn);
        placed.map_err(|error| failed("writing", &error))
    }

    fn write_from(
        &mut self,
        key: Key,
        addr: u64,
        from: Extent,
        room: u32,
    ) -> Result<(), AccessError> {
        let (region, offset) = self.find(key, addr, from.len.into(), writing(key))?;
        let placed = match &mut self.origin {
            Origin::Packet => return Err(AccessError::Failed),
            Origin::Device(run) => {
                let in_region = region.offset + region.len - offset;
                // The copy may go beyond this packet, but never beyond the region.
                let room = u32::try_from(in_region).map_or(room, |most| most.min(room));
                let placed = run.place(&region.buffer, offset, from, room);
                self.is_too_early |= placed == Err(AccessError::NotYet);
                return placed;
            }
            Origin::Record(record) => {
                // The peer wrote the reference, so it may point anywhere.
                let before = from.addr.checked_sub(record.addr);
                let is_inside = before
                    .and_then(|before| before.checked_add(from.len.into()))
                    .is_some_and(|end| end <= record.len.into());
                if !is_inside {
                    return Err(AccessError::Failed);
                }
                // SAFETY: the range is inside the record, whose ring space is returned only after the packet was
                // processed.
                unsafe {
                    let bounce = &mut self.unfinished.bounce;
                    region.buffer.place_shared(offset, from, bounce)
                }
            }
            Origin::Sender => {
                let copies = &mut self.unfinished.copies;
                copies.add(from, &region.buffer, offset, self.qpn);
                Ok(())
            }
        };
        self.unfinished.dirty.add(&region.buffer, self.qpn);
        placed.map_err(|error| failed("writing", &error))
    }

    fn choose_payload(
        &mut self,
        key: Key,
        extent: Extent,
        message: u32,
    ) -> Result<u32, AccessError> {
        // Short messages are copied, as a reference costs the receiver a system call.
        if message < REFERENCE_FROM {
            return Ok(0);
        }
        let (region, offset) = self.find(key, extent.addr, extent.len.into(), reading(key))?;
        let (addr, len) = match region.buffer.shared_address(offset) {
            Some(_) if self.payload_by == PayloadBy::Copy => return Ok(0),
            Some(addr) => (addr, extent.len.min(MOST_READ)),
            None if self.device_payload(key, region, message) == PayloadBy::Reference => {
                (region.buffer.address() + offset, extent.len)
            }
            None => return Ok(0),
        };
        let len = len.min(self.longest_reference);
        let payload = Extent { addr, len };
        self.offer = Some(Offer { key, payload });
        Ok(len)
    }

    fn atomic(&mut self, key: Key, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let (region, offset) = self.find(key, addr, 8, Access::REMOTE_ATOMIC)?;
        let buffer = &region.buffer;
        buffer
            .atomic(offset, op)
            .map_err(|error| failed("an atomic operation on", &error))
    }

    fn bind(&mut self, rkey: Rkey) -> Result<(), AccessError> {
        self.binding(rkey)?.begin(rkey.0, self.domain, self.qpn)
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), AccessError> {
        self.binding(rkey)?.end(rkey.0, self.domain, self.qpn)
    }
}

/// Returns the right that a read of the bytes at a key needs.
fn reading(key: Key) -> Access {
    match key {
        Key::Local(_) => Access::empty(),
        Key::Remote(_) => Access::REMOTE_READ,
    }
}

/// Returns the right that a write to the bytes at a key needs.
fn writing(key: Key) -> Access {
    match key {
        Key::Local(_) => Access::LOCAL_WRITE,
        Key::Remote(_) => Access::REMOTE_WRITE,
    }
}

fn number(key: Key) -> u32 {
    match key {
        Key::Local(key) => key.0,
        Key::Remote(key) => key.0,
    }
}

fn failed(what: &str, error: &crate::Error) -> AccessError {
    if let crate::Error::NotMapped { .. } = error {
        return AccessError::OutOfRange;
    }
    tracing::warn!(%error, "{what} a buffer failed");
    AccessError::Failed
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};
    use gdr_roce::Lkey;

    use super::*;
    use crate::buffer::CopyEngineThreshold;
    use crate::wire::memory::References;

    /// Otherwise the copy engine would read what was there before the CPU's write-combined stores.
    #[test]
    fn a_read_behind_a_write_that_is_not_flushed_flushes_it() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let memory = gpu.allocate(MemoryKind::Plain, 1 << 16).unwrap();
        let context = gdr_copy::Context::builder().simulated(driver);
        let context = context.backend(gdr_copy::BackendKind::Sim).open().unwrap();
        let pinned = context.pin(memory.ptr(), memory.len()).unwrap();
        let from = CopyEngineThreshold::From(1 << 15);
        let buffer = Buffer::direct_with_copies(pinned.map().unwrap(), memory, from).unwrap();
        let (addr, len) = (buffer.address(), buffer.len());
        let region = Region {
            domain: Domain::TEST,
            addr,
            len,
            offset: 0,
            access: Access::all(),
            buffer: buffer.clone(),
            references: References::default(),
            binding: None,
        };
        let regions = Regions::from_iter([(77, Arc::new(region))]);
        let mut unfinished = Unfinished::default();
        let cache = RegionCache::default();
        let mut memory =
            DomainMemory::new(&regions, &cache, Domain::TEST, Qpn::new(3), &mut unfinished);
        let (local, remote) = (Key::Local(Lkey(77)), Key::Remote(Rkey(77)));
        let all = Extent { addr, len: 64 };
        memory.check(remote, all, Access::REMOTE_READ).unwrap();
        assert_eq!(buffer.flushes(), 0, "nothing was written");
        memory.write(remote, addr, &[1; 64]).unwrap();
        memory.check(remote, all, Access::REMOTE_WRITE).unwrap();
        assert_eq!(buffer.flushes(), 0, "nothing is to be read");
        memory.check(remote, all, Access::REMOTE_READ).unwrap();
        assert_eq!(buffer.flushes(), 1);
        unfinished.dirty.flush(|_| panic!("it is written"));
        assert_eq!(buffer.flushes(), 2);
        let memory = DomainMemory {
            regions: &regions,
            cache: &RegionCache::default(),
            domain: Domain::TEST,
            qpn: Qpn::new(3),
            unfinished: &mut unfinished,
            origin: Origin::Packet,
            is_too_early: false,
            payload_by: PayloadBy::Copy,
            longest_reference: u32::MAX,
            xrc: None,
            exports: None,
            device_key: Cell::default(),
            offer: None,
        };
        memory.check(local, all, Access::empty()).unwrap();
        assert_eq!(buffer.flushes(), 3, "the program may have stored");
    }
}
