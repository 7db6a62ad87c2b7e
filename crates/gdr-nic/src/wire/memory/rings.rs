//! The rings of an engine, from and to devices of the same host.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use gdr_process::BiasedLock;
use gdr_roce::wire::{Bth, MAX_DATAGRAM};
use gdr_roce::{Extent, PayloadBy, Qpn};

use super::exports::Exports;
use super::imports::{DeviceRun, Imports, Pending};
use super::process_memory::ProcessMemory;
use super::reference::Reference;
use super::rendezvous::{ExportNumber, Welcome};
use super::ring::{Broken, Consumer, Producer, Record, RecordStart, RecordWatch};
use super::segment::Segment;
use super::stalled::{MOST_COPIED, Payload, Stalled, StalledRecord};
use crate::buffer::CopyThread;
use crate::error::Result;
use gdr_udp::ProcessFd;

/// Packets taken from one ring per poll.
const QUANTUM: usize = 64;
/// Maximum number of bytes read from senders' memory before received packets are acknowledged and other work has its
/// turn.
pub(crate) const MOST_READ: u32 = 1 << 18;

/// Identifies a ring of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingId(u32);

/// A ring for incoming packets.
struct Inbound {
    id: RingId,
    consumer: Consumer,
    sender: RingSender,
    /// Imported GPU memory of the sender.
    imports: Imports,
    /// Records that wait for payloads in that memory.
    stalled: Stalled,
    /// Wakes the sender.
    doorbell: OwnedFd,
    /// The sender is gone. The ring ends once it is empty.
    is_closing: bool,
    beginning: Beginning,
}

/// Whether records are taken. What their sender has sent by UDP before the first record is received first, because
/// networks keep the datagrams of a queue pair in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beginning {
    /// No record has been seen.
    Empty,
    /// The first record was seen this many looks at UDP ago.
    Seen(u32),
    Over,
}

/// The number of looks at UDP after which the records of a ring are taken, however much arrives by UDP.
const MOST_LOOKS: u32 = 64;

/// The device that sends on a ring.
pub(crate) struct RingSender {
    pub(crate) address: SocketAddr,
    /// The memory of its process, if it can be read.
    pub(crate) memory: Option<ProcessMemory>,
}

/// A ring for outgoing packets.
struct Outbound {
    id: RingId,
    producer: Producer,
    to: SocketAddr,
    reaches: Welcome,
    /// Wakes the receiver.
    doorbell: Arc<OwnedFd>,
    exports: Arc<Exports>,
    /// Queue pairs that wait for room.
    waiting: Vec<u32>,
    /// Packets were added since the last flush.
    is_touched: bool,
}

/// The rings of an engine.
pub(crate) struct Rings {
    inbound: Vec<Inbound>,
    /// The number of incoming rings that have not begun.
    beginnings: usize,
    outbound: Vec<Outbound>,
    next: u32,
    watches: Arc<Watches>,
    /// The ring whose room was last requested.
    at: usize,
    /// Packets were added to any ring since the last flush.
    is_touched: bool,
}

/// Shows, without the engine's lock, whether packets have arrived.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    count: AtomicUsize,
    /// The number of connections that receive by UDP.
    udp_uses: AtomicUsize,
    /// A datagram was seen at the UDP socket, but not received yet.
    readable: AtomicBool,
    rings: BiasedLock<Vec<(RingId, RecordWatch)>>,
}

impl Watches {
    /// Returns whether there are rings on which packets may arrive.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns whether there are such rings, and every connection has one. UDP then carries only datagrams, and packets
    /// of peers whose ring has just ended.
    pub(crate) fn suffice(&self) -> bool {
        self.any() && self.udp_uses.load(Ordering::Relaxed) == 0
    }

    /// Records that a datagram was seen at the UDP socket, which the next poll receives.
    pub(crate) fn set_readable(&self) {
        self.readable.store(true, Ordering::Relaxed);
    }

    /// Returns whether a datagram was seen since the last call.
    pub(crate) fn take_readable(&self) -> bool {
        // Load first: a swap in each poll would take the cache line from the other threads.
        self.readable.load(Ordering::Relaxed) && self.readable.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a packet has arrived.
    pub(crate) fn has_packet(&self) -> bool {
        self.any()
            && self
                .rings
                .read()
                .iter()
                .any(|(_, watch)| watch.has_record())
    }

    /// Changes the list.
    fn change(&self, change: impl FnOnce(&mut Vec<(RingId, RecordWatch)>)) {
        let mut rings = self.rings.write();
        change(&mut rings);
        self.count.store(rings.len(), Ordering::Relaxed);
    }
}

/// Counts a connection that receives by UDP, while it lives.
pub(crate) struct UdpUse(Arc<Watches>);

impl Drop for UdpUse {
    fn drop(&mut self) {
        self.0.udp_uses.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A packet in a ring.
pub(crate) enum RingPacket<'a> {
    /// The whole packet.
    Whole(&'a [u8]),
    /// The start of the packet with all headers, and its address in this process until [`PacketSink::read_sender`].
    Long(&'a [u8], Extent),
    /// The packet without its payload, and the location of the payload in the sender's memory.
    Referring(&'a [u8], Extent),
    /// Like `Referring`, with the payload in imported GPU memory.
    InDevice(&'a [u8], Extent, DeviceRun<'a>),
}

/// What a sink has done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The packet was processed.
    Done,
    /// Its payload has not arrived. The packet has changed nothing, and is passed again.
    NotYet,
}

/// Takes arriving packets.
pub(crate) trait PacketSink {
    /// Takes a packet. Fails like `read_sender`, which may have to come first.
    fn take(&mut self, sender: &RingSender, packet: RingPacket<'_>) -> (Taken, Result<()>);

    /// Copies the payloads referred to by the packets taken since the last call. Fails if something could not be read.
    fn read_sender(&mut self, sender: &RingSender) -> Result<()>;

    /// Returns the threads that import senders' GPU memory: one for each GPU with registered memory.
    fn copy_threads(&self) -> Vec<CopyThread>;
}

/// Room for a packet on a ring.
pub(crate) enum Room<'a> {
    /// The packet is written here, and then [`Rings::push`]ed.
    Free {
        bytes: &'a mut [u8],
        /// How the payload may be sent.
        payload: PayloadBy,
    },
    /// The ring is full. The queue pair is scheduled when there is room.
    Full,
    /// The ring has ended, or is broken.
    Ended,
}

/// The fate of a datagram.
pub(crate) enum Passed {
    /// It is in the receiver's ring.
    InRing,
    /// The ring is full or broken, so it goes by UDP.
    NoRoom,
    /// No ring leads to this queue pair.
    NoRing(Qpn),
}

impl Rings {
    pub(crate) fn new() -> Self {
        Self {
            inbound: Vec::new(),
            beginnings: 0,
            outbound: Vec::new(),
            next: 0,
            watches: Arc::default(),
            at: 0,
            is_touched: false,
        }
    }

    pub(crate) fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }

    /// Counts a connection that receives by UDP.
    pub(crate) fn udp_use(&self) -> UdpUse {
        self.watches.udp_uses.fetch_add(1, Ordering::Relaxed);
        UdpUse(Arc::clone(&self.watches))
    }

    fn new_id(&mut self) -> RingId {
        self.next = self.next.wrapping_add(1);
        RingId(self.next)
    }

    /// Adds a ring for packets from a device.
    pub(crate) fn add_inbound(
        &mut self,
        segment: Arc<Segment>,
        sender: RingSender,
        doorbell: OwnedFd,
    ) -> RingId {
        let id = self.new_id();
        let imports = Imports::new(Arc::clone(&segment));
        let consumer = Consumer::new(segment, MAX_DATAGRAM);
        self.watches.change(|all| all.push((id, consumer.watch())));
        self.inbound.push(Inbound {
            id,
            consumer,
            sender,
            imports,
            stalled: Stalled::default(),
            doorbell,
            is_closing: false,
            beginning: Beginning::Empty,
        });
        self.beginnings += 1;
        id
    }

    /// Stores the descriptor by which an export of a ring's sender is opened.
    pub(crate) fn add_descriptor(
        &mut self,
        id: RingId,
        number: ExportNumber,
        descriptor: Option<OwnedFd>,
    ) {
        if let Some(ring) = self.inbound.iter_mut().find(|ring| ring.id == id) {
            ring.imports.add_descriptor(number, descriptor);
        }
    }

    /// Returns whether UDP must be polled, because a new ring has a record.
    pub(crate) fn is_beginning(&mut self) -> bool {
        if self.beginnings == 0 {
            return false;
        }
        let mut any = false;
        for ring in &mut self.inbound {
            if ring.beginning == Beginning::Empty && ring.consumer.has_record() {
                ring.beginning = Beginning::Seen(0);
            }
            any |= matches!(ring.beginning, Beginning::Seen(_));
        }
        any
    }

    /// Starts to take the records of new rings, unless the poll that [`Rings::is_beginning`] asked for has found
    /// datagrams.
    pub(crate) fn begin(&mut self, found: bool) {
        for ring in &mut self.inbound {
            if let Beginning::Seen(looks) = &mut ring.beginning {
                *looks += 1;
                if !found || *looks == MOST_LOOKS {
                    ring.beginning = Beginning::Over;
                    self.beginnings -= 1;
                }
            }
        }
    }

    /// Adds a ring that reaches some of the queue pairs of the device at `to`. Its `socket` stays open as long as the
    /// ring exists.
    pub(crate) fn add_outbound(
        &mut self,
        segment: Arc<Segment>,
        to: SocketAddr,
        reaches: Welcome,
        doorbell: OwnedFd,
        socket: Weak<ProcessFd>,
    ) -> RingId {
        let id = self.new_id();
        let doorbell = Arc::new(doorbell);
        let exports = Exports::new(Arc::clone(&segment), Arc::clone(&doorbell), socket);
        self.outbound.push(Outbound {
            id,
            exports: Arc::new(exports),
            producer: Producer::new(segment, MAX_DATAGRAM),
            to,
            reaches,
            doorbell,
            waiting: Vec::new(),
            is_touched: false,
        });
        id
    }

    /// Returns the ring to a queue pair.
    pub(crate) fn to(&self, address: SocketAddr, qpn: Qpn) -> Option<RingId> {
        self.position(address, qpn).map(|at| self.outbound[at].id)
    }

    /// Returns the GPU memory that the receiver of a ring may import.
    pub(crate) fn exports(&self, id: RingId) -> Option<&Arc<Exports>> {
        let ring = self.outbound.iter().find(|ring| ring.id == id)?;
        Some(&ring.exports)
    }

    fn position(&self, address: SocketAddr, qpn: Qpn) -> Option<usize> {
        let reaches = |ring: &Outbound| {
            ring.to == address && qpn.get() & ring.reaches.mask == ring.reaches.value
        };
        self.outbound.iter().position(reaches)
    }

    /// Closes a ring whose other end is gone. Packets that have arrived are still taken. Returns the queue pairs that
    /// waited for room, which continue over UDP.
    pub(crate) fn close(&mut self, id: RingId) -> Vec<u32> {
        for ring in self.inbound.iter_mut().filter(|ring| ring.id == id) {
            ring.is_closing = true;
        }
        self.end_closed();
        match self.outbound.iter().position(|ring| ring.id == id) {
            Some(at) => {
                let ring = self.outbound.swap_remove(at);
                // The receiver may be about to read memory of this process that the program is now getting back.
                ring.producer.void_references();
                ring.waiting
            }
            None => Vec::new(),
        }
    }

    fn end_closed(&mut self) {
        let (watches, beginnings) = (&self.watches, &mut self.beginnings);
        self.inbound.retain(|ring| {
            // Records that have arrived are still taken, so the ring ends only when it is empty.
            let ends = ring.is_closing && !ring.consumer.has_record();
            if ends {
                watches.change(|all| all.retain(|(id, _)| *id != ring.id));
                *beginnings -= usize::from(ring.beginning != Beginning::Over);
            }
            !ends
        });
    }

    /// Returns whether there are rings for outgoing packets.
    pub(crate) fn has_outbound(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// Returns whether a packet has arrived from a device.
    pub(crate) fn has_packet_from(&self, source: SocketAddr) -> bool {
        let mut inbound = self.inbound.iter();
        inbound.any(|ring| ring.sender.address == source && ring.consumer.has_record())
    }

    /// Returns whether a packet has arrived, or a sender has changed its exports.
    pub(crate) fn has_packet(&self) -> bool {
        let mut inbound = self.inbound.iter();
        inbound.any(|ring| ring.consumer.has_record() || ring.imports.have_changed())
    }

    /// Passes each arrived packet to `sink`, up to a quantum per ring.
    pub(crate) fn receive(&mut self, sink: &mut impl PacketSink) {
        let mut ended = false;
        for ring in &mut self.inbound {
            if ring.beginning == Beginning::Over {
                ring.receive(sink);
            }
            ended |= ring.is_closing;
        }
        if ended {
            self.end_closed();
        }
    }

    /// Returns room for a packet of a queue pair.
    pub(crate) fn room(&mut self, id: RingId, qpn: Qpn) -> Room<'_> {
        let Some(ring) = self.select(id) else {
            return Room::Ended;
        };
        match ring.has_room() {
            Ok(true) => {}
            Ok(false) => {
                if !ring.waiting.contains(&qpn.get()) {
                    ring.waiting.push(qpn.get());
                }
                return Room::Full;
            }
            Err(Broken) => return Room::Ended,
        }
        let producer = &mut self.outbound[self.at].producer;
        // The receiver decides: it refuses references once it could not read this process's memory.
        let payload = match producer.segment().header().takes_references() {
            true => PayloadBy::Reference,
            false => PayloadBy::Copy,
        };
        match producer.room() {
            Ok(Some(bytes)) => Room::Free { bytes, payload },
            Ok(None) => Room::Full,
            Err(Broken) => Room::Ended,
        }
    }

    /// Returns room for a packet that carries its payload, to be [`Rings::push`]ed, if there is any. Unlike
    /// [`Rings::room`], asks for none.
    pub(crate) fn room_to_copy(&mut self, id: RingId) -> Option<&mut [u8]> {
        // A broken ring is noticed by the queue pair that asks for room.
        self.select(id)?.producer.room().ok().flatten()
    }

    /// Returns a ring, to which packets are pushed from then on.
    fn select(&mut self, id: RingId) -> Option<&mut Outbound> {
        // Nearly always the ring of the last call, because a queue pair sends several packets at a time.
        if self.outbound.get(self.at).is_none_or(|ring| ring.id != id) {
            self.at = self.outbound.iter().position(|ring| ring.id == id)?;
        }
        self.outbound.get_mut(self.at)
    }

    /// Returns the producer of that ring, which the next flush publishes.
    fn touched(&mut self) -> Option<&mut Producer> {
        let ring = self.outbound.get_mut(self.at)?;
        ring.is_touched = true;
        self.is_touched = true;
        Some(&mut ring.producer)
    }

    /// Returns whether packets were pushed and not flushed.
    pub(crate) const fn has_hidden(&self) -> bool {
        self.is_touched
    }

    /// Sends the `len` bytes just written to the last [`Room::Free`], with [`Rings::flush`] at the latest.
    pub(crate) fn push(&mut self, len: usize) {
        if let Some(producer) = self.touched() {
            producer.push(len);
        }
    }

    /// Like [`Rings::push`], for a packet that is published together with the next one.
    pub(crate) fn push_with_next(&mut self, len: usize) {
        if let Some(producer) = self.touched() {
            producer.push_with_next(len);
        }
    }

    /// Sends the `len` bytes just written to the last [`Room::Free`], and the location of their payload in this
    /// process's memory.
    pub(crate) fn push_reference(&mut self, len: usize, payload: Extent) -> Option<Reference> {
        let producer = self.touched()?;
        let end = producer.push_reference(len, payload);
        Some(Reference::new(producer.segment(), end))
    }

    /// Sends a datagram, if there is a ring with room to its queue pair.
    pub(crate) fn pass(&mut self, to: SocketAddr, packet: &[u8]) -> Passed {
        let Some(header) = packet.first_chunk() else {
            return Passed::NoRoom;
        };
        let qpn = Bth::parse(header).dest_qpn;
        let Some(at) = self.position(to, qpn) else {
            return Passed::NoRing(qpn);
        };
        self.at = at;
        match self.outbound[at].producer.room() {
            Ok(Some(room)) if packet.len() <= room.len() => {
                room[..packet.len()].copy_from_slice(packet);
                self.push(packet.len());
                Passed::InRing
            }
            _ => Passed::NoRoom,
        }
    }

    /// Publishes pushed packets, and wakes sleeping receivers.
    pub(crate) fn flush(&mut self) {
        if !std::mem::take(&mut self.is_touched) {
            return;
        }
        for ring in &mut self.outbound {
            // Once after all packets of a poll, because a wake-up is a system call.
            if std::mem::take(&mut ring.is_touched) && ring.producer.flush() {
                wake(&ring.doorbell);
            }
        }
    }

    /// Returns whether queue pairs wait for room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.outbound.iter().any(|ring| !ring.waiting.is_empty())
    }

    /// Returns the queue pairs that waited for room, on rings that have some now.
    pub(crate) fn unblocked(&mut self) -> Vec<u32> {
        let mut all = Vec::new();
        for ring in &mut self.outbound {
            // A broken ring is noticed when one of them asks for room.
            if !ring.waiting.is_empty() && ring.producer.has_room() != Ok(false) {
                all.append(&mut ring.waiting);
            }
        }
        all
    }

    /// Asks senders to wake the progress thread for packets. Returns whether it may sleep, as none has arrived.
    pub(crate) fn sleep(&self) -> bool {
        // Request first, then check: a sender that adds a packet in between sees the request.
        self.inbound.iter().for_each(|ring| ring.consumer.sleep());
        !self.has_packet()
    }

    /// Reverses [`Rings::sleep`].
    pub(crate) fn wake(&self) {
        self.inbound.iter().for_each(|ring| ring.consumer.wake());
    }
}

impl Inbound {
    /// Passes a quantum of packets to `sink`.
    fn receive(&mut self, sink: &mut impl PacketSink) {
        self.imports.follow(|| sink.copy_threads());
        if self.is_closing {
            // Their payloads were in the memory of the sender, which is gone.
            self.stalled.clear();
        }
        // First, because the packets of a queue pair must be passed in order.
        self.stalled.pass(&mut self.imports, &self.sender, sink);
        let mut start = [0; _];
        let mut referred = 0;
        for _ in 0..QUANTUM {
            let position = self.consumer.position();
            let imports = &self.imports;
            let record = match self
                .consumer
                .take(&mut start, |payload| imports.have(payload))
            {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(Broken) => {
                    tracing::warn!(source = %self.sender.address, "a ring is broken; packets come by UDP");
                    // The other end has violated the rules, so nothing more is read from it.
                    self.consumer.stop();
                    self.is_closing = true;
                    break;
                }
            };
            let Some(header) = start.first_chunk().map(Bth::parse) else {
                continue;
            };
            let qpn = header.dest_qpn;
            // An earlier record of the same queue pair waits, so this one must wait as well.
            if self.stalled.has(qpn) {
                if !self.stall(qpn, position, record, &start) {
                    // It stays in the ring with all records after it, and is taken again by a later poll.
                    self.consumer.go_back(position);
                    break;
                }
                continue;
            }
            let records;
            let packet = match record {
                Record::Whole(len) => RingPacket::Whole(&start[..len]),
                Record::Long(extent) => RingPacket::Long(&start, extent),
                // The sender is gone.
                Record::Referring(..) | Record::InDevice(..) if self.is_closing => continue,
                // It has violated the rules.
                Record::Referring(..) if self.sender.memory.is_none() => continue,
                Record::Referring(len, extent) => RingPacket::Referring(&start[..len], extent),
                Record::InDevice(len, payload) => {
                    let consumer = &self.consumer;
                    records = move || consumer.continuation(header, payload, MOST_COPIED);
                    let run = self.imports.run(header, position, payload.addr, &records);
                    RingPacket::InDevice(&start[..len], payload, run)
                }
                Record::Void => continue,
            };
            let (taken, read) = sink.take(&self.sender, packet);
            self.refuse_if_failed(read);
            if let Record::InDevice(_, payload) = record {
                let waits = taken == Taken::NotYet
                    && self.imports.wait(position, Instant::now(), payload) == Pending::Waits;
                if !waits {
                    self.imports.pass(header);
                } else if !self.stall(qpn, position, record, &start) {
                    // As above: too many records wait.
                    self.consumer.go_back(position);
                    break;
                }
            }
            if let Record::Referring(_, payload) = record {
                referred = payload.len.saturating_add(referred);
                if referred >= MOST_READ {
                    break;
                }
            }
            // Returns room early, so that the sender can use it while the rest is taken.
            if self.consumer.owes_room() {
                self.give_back(sink);
            }
        }
        self.give_back(sink);
    }

    /// Queues the record taken last behind others of its queue pair. Returns whether that is possible.
    fn stall(&mut self, qpn: Qpn, position: u64, record: Record, start: &RecordStart) -> bool {
        let (len, payload) = match record {
            Record::Whole(len) => (len, Payload::Copied),
            Record::Long(extent) => (start.len(), Payload::InRing(extent)),
            Record::InDevice(len, payload) => (len, Payload::InDevice(payload)),
            // The record is gone.
            Record::Void => return true,
            // Its payload would have to be read now.
            Record::Referring(..) => return false,
        };
        if self.stalled.is_full() {
            return false;
        }
        let range = (position, self.consumer.position());
        let record = StalledRecord::new(range, &start[..len], payload);
        self.stalled.add(qpn, record);
        true
    }

    /// Returns the room of taken records, once nothing of it is needed.
    fn give_back(&mut self, sink: &mut impl PacketSink) {
        // Read before returning the room, after which the sender may give away the memory that its records refer to.
        let copied = sink.read_sender(&self.sender);
        self.refuse_if_failed(copied);
        self.consumer.end_reads();
        if self.consumer.give_back(self.stalled.first()) {
            wake(&self.doorbell);
        }
    }

    fn refuse_if_failed(&self, copied: Result<()>) {
        if let Err(error) = copied {
            let source = self.sender.address;
            tracing::warn!(%error, %source, "the memory of a sender cannot be read; it sends copies");
            self.consumer.refuse_references();
        }
    }
}

impl Outbound {
    /// Returns whether there is room. If not, the receiver wakes the progress thread when there is.
    fn has_room(&mut self) -> std::result::Result<bool, Broken> {
        Ok(self.producer.has_room()? || {
            // Request first, then check again: a receiver that returns room in between sees the request.
            self.producer.ask_for_room();
            self.producer.has_room()?
        })
    }
}

/// Wakes the progress thread of another engine.
pub(super) fn wake(doorbell: &OwnedFd) {
    // Fails only if the counter is at its limit, which wakes the thread as well.
    if let Err(error) = rustix::io::write(doorbell, &1_u64.to_ne_bytes()) {
        tracing::trace!(%error, "the eventfd of a progress thread is at its limit");
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const QPN: Qpn = Qpn::new(7);

    fn here() -> SocketAddr {
        "127.0.0.1:4791".parse().unwrap()
    }

    fn doorbell() -> OwnedFd {
        eventfd(0, EventfdFlags::NONBLOCK).unwrap()
    }

    fn segment() -> Arc<Segment> {
        Arc::new(Segment::create(1 << 14).unwrap().0)
    }

    /// Two engines, and the ring from the first one to the second.
    fn pair() -> (Rings, RingId, Rings) {
        let (mut from, mut to) = (Rings::new(), Rings::new());
        let segment = segment();
        let all = Welcome { mask: 0, value: 0 };
        let id = from.add_outbound(Arc::clone(&segment), here(), all, doorbell(), Weak::new());
        to.add_inbound(segment, sender(), doorbell());
        (from, id, to)
    }

    fn sender() -> RingSender {
        RingSender {
            address: here(),
            memory: None,
        }
    }

    /// Counts packets.
    struct Count(usize);

    impl PacketSink for Count {
        fn take(&mut self, sender: &RingSender, packet: RingPacket<'_>) -> (Taken, Result<()>) {
            assert_eq!(sender.address, here());
            match packet {
                RingPacket::Long(start, extent) => {
                    assert_eq!((start[0], extent.len as usize), (1, MAX_DATAGRAM));
                }
                RingPacket::Whole(_) | RingPacket::Referring(..) | RingPacket::InDevice(..) => {
                    panic!("it is long")
                }
            }
            self.0 += 1;
            (Taken::Done, Ok(()))
        }

        fn copy_threads(&self) -> Vec<CopyThread> {
            Vec::new()
        }

        fn read_sender(&mut self, _: &RingSender) -> Result<()> {
            Ok(())
        }
    }

    /// How many packets arrive.
    fn receive(rings: &mut Rings) -> usize {
        let mut count = Count(0);
        rings.receive(&mut count);
        count.0
    }

    /// Like [`receive`], after a look at UDP that has found nothing.
    fn receive_begun(rings: &mut Rings) -> usize {
        assert!(rings.is_beginning());
        rings.begin(false);
        receive(rings)
    }

    /// Fills a ring; returns how many packets it holds.
    fn fill(rings: &mut Rings, id: RingId) -> usize {
        let mut count = 0;
        while let Room::Free { bytes, .. } = rings.room(id, QPN) {
            bytes.fill(1);
            rings.push(MAX_DATAGRAM);
            count += 1;
        }
        count
    }

    #[test]
    fn a_queue_pair_that_found_a_ring_full_is_scheduled_when_there_is_room() {
        let (mut from, id, mut to) = pair();
        let packets = fill(&mut from, id);
        assert!(packets > 1 && from.is_blocked());
        assert!(from.unblocked().is_empty(), "nothing was taken");
        assert_eq!(receive_begun(&mut to), packets);
        assert_eq!(from.unblocked(), [QPN.get()]);
        assert!(!from.is_blocked());
    }

    #[test]
    fn a_ring_whose_sender_is_gone_ends_when_its_packets_are_taken() {
        let (mut from, id, mut to) = pair();
        let packets = fill(&mut from, id);
        let inbound = to.inbound[0].id;
        to.close(inbound);
        assert_eq!(receive_begun(&mut to), packets);
        assert!(!to.watches().any());
        assert_eq!(from.close(id), [QPN.get()], "it goes on over UDP");
        assert!(matches!(from.room(id, QPN), Room::Ended));
    }

    #[test]
    fn a_ring_that_breaks_the_rules_ends_and_the_others_go_on() {
        let (mut from, id, mut to) = pair();
        let broken = segment();
        let word = broken.at(0, 4).unwrap();
        to.add_inbound(broken, sender(), doorbell());
        // SAFETY: four bytes of the mapping, aligned; no other thread uses it.
        unsafe { word.cast::<u32>().write(MAX_DATAGRAM as u32 + 1) };
        let packets = fill(&mut from, id);
        assert_eq!((receive_begun(&mut to), to.inbound.len()), (packets, 1));
    }

    #[test]
    fn a_new_ring_begins_after_what_its_sender_has_sent_by_udp() {
        let (mut from, id, mut to) = pair();
        assert!(!to.is_beginning(), "it has no record");
        to.begin(false);
        let packets = fill(&mut from, id);
        assert_eq!(receive(&mut to), 0, "UDP was looked at before them");
        assert!(to.is_beginning());
        to.begin(true);
        assert_eq!(receive(&mut to), 0, "there was something");
        assert_eq!(receive_begun(&mut to), packets);
        let packets = fill(&mut from, id);
        assert!(!to.is_beginning());
        assert_eq!(receive(&mut to), packets);
    }

    #[test]
    fn a_new_ring_begins_however_much_arrives_by_udp() {
        let (mut from, id, mut to) = pair();
        let packets = fill(&mut from, id);
        for _ in 0..MOST_LOOKS {
            assert_eq!(receive(&mut to), 0);
            assert!(to.is_beginning());
            to.begin(true);
        }
        assert_eq!(receive(&mut to), packets);
    }

    #[test]
    fn rings_suffice_unless_a_connection_receives_by_udp() {
        let (_, _, to) = pair();
        assert!(to.watches().suffice());
        let uses = [to.udp_use(), to.udp_use()];
        assert!(!to.watches().suffice());
        drop(uses);
        assert!(to.watches().suffice());
        assert!(!Rings::new().watches().suffice(), "there is no ring");
    }
}
