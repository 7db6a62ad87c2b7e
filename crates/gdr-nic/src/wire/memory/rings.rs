//! The rings of an engine: rings from and to devices of the same host.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use gdr_process::lock;
use gdr_roce::Qpn;
use gdr_roce::wire::{Bth, MAX_DATAGRAM};

use super::rendezvous::Welcome;
use super::ring::{Broken, Consumer, Producer, RecordWatch};
use super::segment::Segment;

/// How many packets of one ring a poll takes.
const QUANTUM: usize = 64;
/// The part of a ring that a poll gives back before it has taken all that there is.
const GIVE_BACK: u64 = 1 << 15;

/// Identifies a ring of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingId(u32);

/// A ring on which packets arrive.
struct Inbound {
    id: RingId,
    consumer: Consumer,
    source: SocketAddr,
    /// Wakes the sender.
    doorbell: OwnedFd,
    /// The sender is gone. The ring ends once it is empty.
    is_closing: bool,
}

/// A ring on which packets leave.
struct Outbound {
    id: RingId,
    producer: Producer,
    to: SocketAddr,
    reaches: Welcome,
    /// Wakes the receiver.
    doorbell: OwnedFd,
    /// Queue pairs that wait for room.
    waiting: Vec<u32>,
    /// Packets were added since the receiver was last woken where it sleeps.
    is_touched: bool,
}

/// The rings of an engine.
pub(crate) struct Rings {
    inbound: Vec<Inbound>,
    outbound: Vec<Outbound>,
    next: u32,
    watches: Arc<Watches>,
    /// The ring whose room was asked for last.
    at: usize,
    packet: Box<[u8; MAX_DATAGRAM]>,
}

/// What shows, without the engine's lock, whether packets have arrived.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    count: AtomicUsize,
    rings: RwLock<Vec<(RingId, RecordWatch)>>,
}

impl Watches {
    /// Whether there are rings on which packets may arrive.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether a packet has arrived.
    pub(crate) fn has_packet(&self) -> bool {
        self.any()
            && lock::read(&self.rings)
                .iter()
                .any(|(_, watch)| watch.has_record())
    }

    fn change(&self, change: impl FnOnce(&mut Vec<(RingId, RecordWatch)>)) {
        let mut rings = lock::write(&self.rings);
        change(&mut rings);
        self.count.store(rings.len(), Ordering::Relaxed);
    }
}

/// Room for a packet on a ring.
pub(crate) enum Room<'a> {
    /// It is written here, and then [`Rings::push`]ed.
    Free(&'a mut [u8]),
    /// The ring is full. The queue pair is scheduled when there is room.
    Full,
    /// The ring has ended.
    Gone,
}

/// What became of a datagram.
pub(crate) enum Sent {
    /// It is in a ring.
    Gone,
    /// The ring is full or broken: it goes by UDP.
    NoRoom,
    /// No ring leads to this queue pair.
    NoRing(Qpn),
}

impl Rings {
    pub(crate) fn new() -> Self {
        Self {
            inbound: Vec::new(),
            outbound: Vec::new(),
            next: 0,
            watches: Arc::default(),
            at: 0,
            packet: Box::new([0; MAX_DATAGRAM]),
        }
    }

    pub(crate) fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }

    fn new_id(&mut self) -> RingId {
        self.next = self.next.wrapping_add(1);
        RingId(self.next)
    }

    /// Adds a ring on which packets of the device at `source` arrive.
    pub(crate) fn add_inbound(
        &mut self,
        segment: Arc<Segment>,
        source: SocketAddr,
        doorbell: OwnedFd,
    ) -> RingId {
        let id = self.new_id();
        let consumer = Consumer::new(segment);
        self.watches.change(|all| all.push((id, consumer.watch())));
        self.inbound.push(Inbound {
            id,
            consumer,
            source,
            doorbell,
            is_closing: false,
        });
        id
    }

    /// Adds a ring that reaches some of the queue pairs of the device at `to`.
    pub(crate) fn add_outbound(
        &mut self,
        segment: Arc<Segment>,
        to: SocketAddr,
        reaches: Welcome,
        doorbell: OwnedFd,
    ) -> RingId {
        let id = self.new_id();
        self.outbound.push(Outbound {
            id,
            producer: Producer::new(segment, MAX_DATAGRAM),
            to,
            reaches,
            doorbell,
            waiting: Vec::new(),
            is_touched: false,
        });
        id
    }

    /// The ring to a queue pair.
    pub(crate) fn to(&self, address: SocketAddr, qpn: Qpn) -> Option<RingId> {
        self.position(address, qpn).map(|at| self.outbound[at].id)
    }

    fn position(&self, address: SocketAddr, qpn: Qpn) -> Option<usize> {
        let reaches = |ring: &Outbound| {
            ring.to == address && qpn.get() & ring.reaches.mask == ring.reaches.value
        };
        self.outbound.iter().position(reaches)
    }

    /// Ends a ring whose other end is gone. Packets that have arrived are still taken. Returns the queue pairs
    /// that waited for room, and go on over UDP.
    pub(crate) fn close(&mut self, id: RingId) -> Vec<u32> {
        for ring in self.inbound.iter_mut().filter(|ring| ring.id == id) {
            ring.is_closing = true;
        }
        self.end_closed();
        match self.outbound.iter().position(|ring| ring.id == id) {
            Some(at) => self.outbound.swap_remove(at).waiting,
            None => Vec::new(),
        }
    }

    fn end_closed(&mut self) {
        let watches = &self.watches;
        self.inbound.retain(|ring| {
            let ends = ring.is_closing && !ring.consumer.has_record();
            if ends {
                watches.change(|all| all.retain(|(id, _)| *id != ring.id));
            }
            !ends
        });
    }

    /// Whether packets may leave.
    pub(crate) fn has_outbound(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// Whether packets may arrive.
    pub(crate) fn has_inbound(&self) -> bool {
        !self.inbound.is_empty()
    }

    /// Whether a packet has arrived.
    pub(crate) fn has_packet(&self) -> bool {
        self.inbound.iter().any(|ring| ring.consumer.has_record())
    }

    /// Calls `accept` with each packet that has arrived and its source, up to a quantum of each ring.
    pub(crate) fn receive(&mut self, mut accept: impl FnMut(SocketAddr, &[u8])) {
        let mut ended = false;
        for ring in &mut self.inbound {
            for _ in 0..QUANTUM {
                match ring.consumer.take(&mut self.packet[..]) {
                    Ok(Some(len)) => accept(ring.source, &self.packet[..len]),
                    Ok(None) => break,
                    Err(Broken) => {
                        tracing::warn!(source = %ring.source, "a ring is broken; packets come by UDP");
                        ring.consumer.stop();
                        ring.is_closing = true;
                        break;
                    }
                }
                if ring.consumer.give_back(GIVE_BACK) {
                    wake(&ring.doorbell);
                }
            }
            if ring.consumer.give_back(1) {
                wake(&ring.doorbell);
            }
            ended |= ring.is_closing;
        }
        if ended {
            self.end_closed();
        }
    }

    /// Room for a packet of a queue pair.
    pub(crate) fn room(&mut self, id: RingId, qpn: Qpn) -> Room<'_> {
        if self.outbound.get(self.at).is_none_or(|ring| ring.id != id) {
            match self.outbound.iter().position(|ring| ring.id == id) {
                Some(at) => self.at = at,
                None => return Room::Gone,
            }
        }
        let ring = &mut self.outbound[self.at];
        match ring.has_room() {
            Ok(true) => {}
            Ok(false) => {
                if !ring.waiting.contains(&qpn.get()) {
                    ring.waiting.push(qpn.get());
                }
                return Room::Full;
            }
            Err(Broken) => return Room::Gone,
        }
        match self.outbound[self.at].producer.room() {
            Ok(Some(room)) => Room::Free(room),
            Ok(None) => Room::Full,
            Err(Broken) => Room::Gone,
        }
    }

    /// Sends the `len` bytes just written to the last [`Room::Free`].
    pub(crate) fn push(&mut self, len: usize) {
        if let Some(ring) = self.outbound.get_mut(self.at) {
            ring.producer.push(len);
            ring.is_touched = true;
        }
    }

    /// Sends a datagram, if there is a ring to its queue pair with room.
    pub(crate) fn send(&mut self, to: SocketAddr, packet: &[u8]) -> Sent {
        let Some(header) = packet.first_chunk() else {
            return Sent::NoRoom;
        };
        let qpn = Bth::parse(header).dest_qpn;
        let Some(at) = self.position(to, qpn) else {
            return Sent::NoRing(qpn);
        };
        self.at = at;
        match self.outbound[at].producer.room() {
            Ok(Some(room)) if packet.len() <= room.len() => {
                room[..packet.len()].copy_from_slice(packet);
                self.push(packet.len());
                Sent::Gone
            }
            _ => Sent::NoRoom,
        }
    }

    /// Wakes the receivers that sleep.
    pub(crate) fn wake_receivers(&mut self) {
        for ring in &mut self.outbound {
            if std::mem::take(&mut ring.is_touched) && ring.producer.must_wake() {
                wake(&ring.doorbell);
            }
        }
    }

    /// Whether queue pairs wait for room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.outbound.iter().any(|ring| !ring.waiting.is_empty())
    }

    /// The queue pairs that waited for room where there is some now.
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

    /// Asks senders to wake the progress thread for packets; returns whether it may sleep: none has arrived.
    pub(crate) fn sleep(&self) -> bool {
        self.inbound.iter().for_each(|ring| ring.consumer.sleep());
        !self.has_packet()
    }

    /// Reverses [`Rings::sleep`].
    pub(crate) fn wake(&self) {
        self.inbound.iter().for_each(|ring| ring.consumer.wake());
    }
}

impl Outbound {
    /// Whether there is room. If not, the receiver wakes the progress thread when there is.
    fn has_room(&mut self) -> Result<bool, Broken> {
        Ok(self.producer.has_room()? || {
            self.producer.ask_for_room();
            self.producer.has_room()?
        })
    }
}

/// Wakes the progress thread of another engine.
fn wake(doorbell: &OwnedFd) {
    // The only failure is a counter at its limit, which wakes as well.
    if let Err(error) = rustix::io::write(doorbell, &1_u64.to_ne_bytes()) {
        tracing::trace!(%error, "the eventfd of a progress thread is at its limit");
    }
}
