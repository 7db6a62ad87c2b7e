//! The engine: queue pairs, timers and the wire. One thread at a time uses it.

mod fast_path;
mod faults;
mod left_requests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gdr_roce::wire::Packet;
use gdr_roce::{Qpn, RtrAttributes, State, StateError, Time};

use crate::chaos::QpChaos;
use crate::device_state::DeviceState;
use crate::error::{Error, Result};
use crate::os;
use crate::packet_port::{PacketPort, SentFrames};
use crate::peer::Peer;
use crate::retained::RetainedList;
use crate::shard::answers;
use crate::shard::captured_rings::CapturedRings;
use crate::shard::cq_entries::Announcement;
use crate::shard::intake::{Intake, Left};
use crate::shard::left_send::LeftSend;
use crate::shard::memory::{DomainMemory, RegionCache, Unfinished};
use crate::shard::qp_context::{Acknowledgement, IntakeUse, QpContext, Receives};
use crate::shard::qp_table::{Acceptor, QpTable, schedule, unknown_qp};
use crate::shard::region_table::Regions;
use crate::shard::ring_acceptor::RingAcceptor;
use crate::shard::transport::Transport;
use crate::shard::wakeup::Wakeup;
use crate::types::{AsyncEvent, Counters};
use crate::wire::memory::{Passed, RingId, RingSender, RingWishes, Rings, Room, Segment};
use gdr_udp::Datagram;
use gdr_udp::Socket;
use gdr_udp::UdpWire;

pub(crate) use fast_path::SentAtOnce;

/// Packets that one queue pair sends before it is the next one's turn.
const QUANTUM: usize = 64;

/// Maximum number of queue pairs of an engine. A device that shares its port has four times as many numbers, any other
/// device far more.
const MOST_QPS: usize = 1 << 16;

/// One poll in this many polls UDP while all connections have rings.
const POLLS_PER_UDP: u64 = 64;

/// Bytes that a queue pair may defer: half of what one system call sends.
const MOST_DEFERRED: usize = 32 << 10;

/// A connected queue pair and its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionId {
    qpn: Qpn,
    peer: SocketAddr,
}

/// A connection whose peer has ended.
struct Orphan {
    connection: ConnectionId,
    /// The number of the poll before the peer ended.
    since: u64,
}

/// The engine of a device.
pub(crate) struct Engine {
    wire: UdpWire,
    /// The wire to devices on this host.
    pub(crate) rings: Rings,
    wishes: RingWishes,
    orphans: Vec<Orphan>,
    pub(crate) packets: PacketPort,
    qps: QpTable,
    next_qpn: u32,
    timers: BTreeSet<(Time, u32)>,
    /// The number of the current poll, or of the last one.
    polls: u64,
    /// Connections whose acknowledgement is delayed, and the last poll that may delay it.
    held: Vec<u32>,
    held_until: u64,
    unfinished: Unfinished,
    /// When a queue pair that waits for the device's rate limit may send again.
    limited_until: Option<Time>,
    device: Arc<DeviceState>,
    /// Requests that posters hand to the thread that holds the engine's lock.
    pub(crate) intake: Arc<Intake<LeftSend>>,
    /// Number of queue pairs that accept requests through it.
    open_intakes: usize,
    /// Buffer for the requests that are taken from it, reused.
    taken: Vec<Left<LeftSend>>,
    /// Requests were taken from it but not sent yet.
    has_taken: bool,
    /// Excludes what the queue pairs and the UDP wire count themselves.
    counters: Counters,
    /// The device has failed, and every queue pair was moved to ERR.
    flushed: bool,
    /// Segments of completed requests. The polling thread releases them after it has unlocked the engine, as they may
    /// hold the last reference to a region, or to a whole GPU allocation.
    pub(crate) completed: RetainedList,
    /// What wakes the progress thread, while it sleeps.
    pub(crate) sleep: Option<Wakeup>,
}

impl Engine {
    pub(crate) fn new(socket: Arc<Socket>, device: Arc<DeviceState>) -> Result<Self> {
        Ok(Self {
            wire: UdpWire::new(socket),
            rings: Rings::new(),
            wishes: RingWishes::default(),
            orphans: Vec::new(),
            packets: PacketPort::default(),
            qps: QpTable::default(),
            next_qpn: os::random_number()?,
            timers: BTreeSet::new(),
            polls: 0,
            held: Vec::new(),
            held_until: 0,
            unfinished: Unfinished::default(),
            limited_until: None,
            device,
            intake: Arc::new(Intake::new()),
            open_intakes: 0,
            taken: Vec::new(),
            has_taken: false,
            counters: Counters::default(),
            flushed: false,
            completed: RetainedList::new(),
            sleep: None,
        })
    }

    pub(crate) fn counters(&self) -> Counters {
        let protocol = self.qps.statistics();
        // The batch counts what it sends, so that the hot path does not count a packet twice.
        let by_udp = self.wire.batch.sent();
        Counters {
            packets_sent: self.counters.packets_sent + by_udp.packets,
            bytes_sent: self.counters.bytes_sent + by_udp.bytes,
            sent_to_groups: by_udp.to_groups,
            sends_failed: self.counters.sends_failed + by_udp.failed_calls,
            sequence_naks_sent: protocol.sequence_naks_sent,
            sequence_naks_received: protocol.sequence_naks_received,
            payload: self.qps.payload(),
            ..self.counters
        }
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.device.failure().is_some()
    }

    /// Returns an error if the engine has failed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.device.failure() {
            None => Ok(()),
            Some(why) => Err(Error::DeviceFailed { why: why.into() }),
        }
    }

    /// Returns what the progress thread has to wait for, besides packets.
    pub(crate) fn wakeup(&self) -> Wakeup {
        Wakeup {
            at: [
                self.timers.first().map(|(time, _)| *time),
                self.limited_until,
            ]
            .into_iter()
            .flatten()
            .min(),
            when_writable: self.wire.batch.is_blocked(),
            when_frames_fit: self.packets.is_blocked(),
        }
    }

    /// Returns whether the caller must wake the progress thread, because it sleeps on without what has happened since.
    /// From then on it counts as awake, so that no other caller wakes it again before it runs.
    pub(crate) fn take_wake_up(&mut self) -> bool {
        let Some(sleep) = self.sleep else {
            return false;
        };
        let must_wake = self.wakeup().needs_more_than(&sleep) || self.has_work();
        if must_wake {
            self.wake_up();
        }
        must_wake
    }

    /// Returns whether a poll would do something even if nothing arrives.
    pub(crate) fn has_work(&self) -> bool {
        let has_ready = !(self.qps.ready.is_empty() && self.held.is_empty());
        // While the socket is full, a ready queue pair can send nothing, unless it sends on a ring.
        let may_send = (!self.wire.batch.is_blocked() || self.rings.has_outbound())
            && self.limited_until.is_none_or(|until| until <= self.now());
        may_send && has_ready
            || self.packets.has_looped()
            || self.rings.has_packet()
            || self.rings.has_hidden()
            || !self.orphans.is_empty()
    }

    pub(crate) fn now(&self) -> Time {
        time(self.device.clock.now())
    }

    /// Returns an unused queue pair number. The caller must use it before asking for another.
    pub(crate) fn new_qpn(&mut self) -> Result<Qpn> {
        if self.qps.qps.len() >= MOST_QPS {
            return Err(Error::TooManyQueuePairs { most: MOST_QPS });
        }
        loop {
            let qpn = self.wire.socket.own_qpn(self.next_qpn);
            self.next_qpn = self.next_qpn.wrapping_add(1);
            // 0 and 1 are the management queue pairs.
            if qpn.get() > 1 && qpn != Qpn::MULTICAST && !self.qps.qps.contains_key(&qpn.get()) {
                return Ok(qpn);
            }
        }
    }

    /// Adds a new queue pair.
    pub(crate) fn add(&mut self, mut qp: QpContext) {
        if let Some(faults) = &self.device.chaos {
            let qpn = qp.transport.qpn();
            qp.add_chaos(QpChaos::new(faults, &self.device, qpn));
        }
        self.insert(qp);
    }

    fn insert(&mut self, qp: QpContext) {
        self.qps.qps.insert(qp.transport.qpn().get(), Box::new(qp));
    }

    /// Removes a queue pair. Its number stays on the ready list until its turn comes.
    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Box<QpContext>> {
        let mut qp = self.qps.qps.remove(&qpn.get())?;
        if qp.intake != IntakeUse::Closed {
            self.intake.discard(qpn.get());
            self.open_intakes -= 1;
        }
        // The device's counters start when it is opened, so they must outlive the queue pair.
        self.qps.retired += qp.transport.statistics();
        self.qps.retired_payload += mem::take(&mut qp.requests.payload);
        if let Some(time) = qp.timer {
            self.timers.remove(&(time, qpn.get()));
        }
        if qp.may_omit_checksum {
            self.qps.expects_checksum(&self.wire.socket);
        }
        if let Some(peer) = qp.peer {
            self.wire.peers.remove_peer(peer.address.ip());
        }
        self.wire.peers.close_to_all(qpn);
        // The peer may still read by reference memory that the program is about to free.
        qp.end_references();
        let served = qp.transport.served();
        if let Some(counting) = qp.requests.counting() {
            counting.end_serving(served);
        }
        // Returns a receive taken from a shared queue to it.
        qp.transport.enter_reset();
        Some(qp)
    }

    /// Moves a queue pair to RESET, as newly created. Returns the segments of its requests.
    pub(crate) fn reset(&mut self, qpn: Qpn) -> RetainedList {
        let Some(qp) = self.remove(qpn) else {
            return RetainedList::new();
        };
        let (fresh, segments) = (*qp).into_fresh();
        self.insert(fresh);
        segments
    }

    /// Connects a queue pair in INIT to its peer, whose packets are accepted from then on.
    pub(crate) fn connect(
        &mut self,
        qpn: Qpn,
        peer: Peer,
        attributes: &RtrAttributes,
    ) -> Result<()> {
        self.wire.socket.open_flow(qpn, attributes.dest_qpn);
        // Before the transition, so that the kernel drops no packet that is meant for the new state.
        self.wire.peers.add_peer(peer.address.ip())?;
        let ring = self.rings.to(peer.address, attributes.dest_qpn);
        let exports = ring.and_then(|ring| self.rings.exports(ring).cloned());
        // A connection without a ring needs the polls of UDP.
        let udp_use = ring.is_none().then(|| self.rings.udp_use());
        let connected = self.start(qpn, |qp| {
            let roce = qp.transport.connection()?;
            let connected = roce
                .set_loss_recovery(peer.loss_recovery)
                .and_then(|()| roce.to_rtr(attributes));
            if connected.is_ok() {
                qp.peer = Some(peer);
                (qp.ring, qp.exports) = (ring, exports);
                qp.udp_use = udp_use;
                if let Some(faults) = &mut qp.chaos {
                    faults.connect(attributes);
                }
            }
            Some(connected)
        });
        if connected.is_err() {
            // Undoes the addition above: a failed connection must leave no peer behind.
            self.wire.peers.remove_peer(peer.address.ip());
        }
        connected
    }

    /// Moves a connection to another peer address, from which packets are accepted then.
    pub(crate) fn move_peer(&mut self, qpn: Qpn, peer: Peer) -> Result<()> {
        self.wire.peers.add_peer(peer.address.ip())?;
        let qp = self.qps.get_mut(qpn.get());
        let moved = qp.and_then(|qp| {
            qp.leave_ring(&self.rings);
            qp.peer.replace(peer)
        });
        let left = moved.unwrap_or(peer);
        self.wire.peers.remove_peer(left.address.ip());
        Ok(())
    }

    /// Lets a queue pair in INIT receive datagrams, from any address.
    pub(crate) fn open_to_all(&mut self, qpn: Qpn) -> Result<()> {
        // Before the transition, as in `connect`.
        let is_new = self.wire.peers.open_to_all(qpn)?;
        let opened = self.start(qpn, |qp| Some(qp.transport.datagrams()?.to_rtr()));
        if opened.is_err() && is_new {
            self.wire.peers.close_to_all(qpn);
        }
        opened
    }

    /// Moves a queue pair to RTR by `to_rtr`, and enables the reception of packets whatever their UDP checksum.
    fn start(
        &mut self,
        qpn: Qpn,
        to_rtr: impl FnOnce(&mut QpContext) -> Option<std::result::Result<(), StateError>>,
    ) -> Result<()> {
        let started = self.qps.start(qpn, to_rtr);
        started.ok_or_else(|| unknown_qp(State::ReadyToReceive))??;
        self.wire.socket.enable_raw();
        Ok(())
    }

    /// Returns a queue pair, and schedules it for the next poll.
    pub(crate) fn schedule(&mut self, qpn: Qpn) -> Option<&mut QpContext> {
        let qp = self.qps.qps.get_mut(&qpn.get())?;
        schedule(&mut self.qps.ready, qp);
        Some(qp)
    }

    /// Returns whether the request just posted may wait for a later poll, which the acknowledgement of outstanding
    /// requests will soon require anyway. The messages of several posts then share a system call, and so do their
    /// acknowledgements.
    pub(crate) fn may_defer(&self, qpn: Qpn) -> bool {
        // A sleeping progress thread would have to be woken, which takes as long as sending. A failed engine is not
        // polled.
        self.sleep.is_none()
            && !self.is_failed()
            && !self.has_taken
            && self.qps.qps.get(&qpn.get()).is_some_and(|qp| {
                qp.requests.deferred < MOST_DEFERRED && qp.transport.has_outstanding()
            })
    }

    pub(crate) fn state(&self, qpn: Qpn) -> Option<State> {
        self.qps.qps.get(&qpn.get()).map(|qp| qp.transport.state())
    }

    /// Receives what has arrived, handles timers and sends what is due, without waiting. Returns whether there was
    /// anything to do. Packets that no queue pair accepts do not count, or a stranger could keep threads awake. `now`,
    /// a time of the device's clock, is when the poll begins.
    pub(crate) fn poll(&mut self, regions: &Regions, now: u64) -> bool {
        if self.is_failed() {
            // Once per shard: another shard may have failed first, which leaves this one's queue pairs to be flushed.
            return !self.flushed && self.flush_all(regions);
        }
        let received = self.receive();
        // The arrival time of the packets, from which round trips are measured.
        let now = match received {
            Ok(true) => self.now(),
            Ok(false) | Err(_) => time(now),
        };
        // The fences of the previous poll do not order the reads of this one.
        self.unfinished.fenced.clear();
        self.polls += 1;
        // A packet is likely to give the program a completion to answer, so delayed acknowledgements are sent first.
        let is_over = self.polls > self.held_until || self.wire.rx.has_any();
        if is_over {
            self.release_held(regions);
        }
        let accepted = match received {
            Ok(any) => {
                let any = any || self.rings.has_packet() || self.packets.has_flows();
                any && self.process(now, regions)
            }
            Err(error) => {
                self.fail(&error);
                true
            }
        };
        // After the packets, so that everything a peer sent before it ended is received.
        if !self.orphans.is_empty() {
            self.end_orphans();
        }
        let due = self.expire(now, regions);
        let unblocked = self.wire.batch.unblock();
        for qpn in self.packets.take_waiting() {
            self.schedule(Qpn::new(qpn));
        }
        for qpn in self.rings.unblocked() {
            self.schedule(Qpn::new(qpn));
        }
        let sent = self.transmit(regions, now);
        accepted || due || unblocked || sent
    }

    /// Dispatches the received packets to their queue pairs. Returns whether any was accepted.
    fn process(&mut self, now: Time, regions: &Regions) -> bool {
        // One acceptor for all packets of a poll, so that they share its cache of the last region.
        let mut acceptor = Acceptor::new(
            now,
            &self.wire.socket,
            &mut self.qps,
            regions,
            &mut self.unfinished,
            &mut self.counters,
        );
        let mut accepted = false;
        if let Some(device) = &self.device.chaos {
            accepted = acceptor.accept_by_chaos(self.wire.rx.datagrams());
            let mut of_rings = CapturedRings {
                rings: RingAcceptor::new(&mut acceptor),
                chaos: &device.chaos,
            };
            self.rings.receive(&mut of_rings);
            accepted |= of_rings.rings.accepted;
        } else {
            for datagram in self.wire.rx.datagrams() {
                accepted |= acceptor.accept(&datagram);
            }
            let mut of_rings = RingAcceptor::new(&mut acceptor);
            self.rings.receive(&mut of_rings);
            accepted |= of_rings.accepted;
        }
        if let Some(socket) = self.wire.socket.packets() {
            accepted |= self.packets.receive(socket, &mut acceptor);
        }
        // Before anything is acknowledged or completed: the peer, and the program, rely on the
        // bytes from then on.
        self.flush();
        accepted
    }

    /// Dispatches a datagram of a multicast group to the attached queue pairs.
    pub(crate) fn receive_multicast(
        &mut self,
        qpns: &[Qpn],
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
        regions: &Regions,
    ) {
        if self.is_failed() {
            return;
        }
        let now = self.now();
        self.unfinished.fenced.clear();
        let mut acceptor = Acceptor::new(
            now,
            &self.wire.socket,
            &mut self.qps,
            regions,
            &mut self.unfinished,
            &mut self.counters,
        );
        acceptor.accept_multicast(qpns, packet, datagram);
        self.flush();
        self.transmit(regions, now);
    }

    /// Makes placed bytes visible, before they are acknowledged or completed.
    // Inlined for its hottest caller.
    #[inline(always)]
    fn flush(&mut self) {
        let qps = &mut self.qps;
        self.unfinished.dirty.flush(|qpn| qps.fail(qpn));
    }

    /// Handles expired timers.
    fn expire(&mut self, now: Time, regions: &Regions) -> bool {
        let mut any = false;
        while let Some(&(time, qpn)) = self.timers.first()
            && time <= now
        {
            // Removed before it is handled, as the queue pair may set an earlier timer.
            self.timers.pop_first();
            let Some(qp) = self.qps.qps.get_mut(&qpn) else {
                any |= self.expire_fault(qpn, now, regions);
                continue;
            };
            qp.timer = qp.transport.next_deadline();
            match qp.timer {
                Some(later) if later > now => {
                    self.timers.insert((later, qpn));
                }
                Some(_) => {
                    any = true;
                    qp.timer = None;
                    qp.transport.handle_deadline(now);
                    // The queue pair may now have a packet or a completion, which leave with the next transmission.
                    schedule(&mut self.qps.ready, qp);
                }
                None => {}
            }
        }
        any
    }

    /// Sends what was just posted, outside a poll. `now` is a time of the device's clock.
    pub(crate) fn send(&mut self, regions: &Regions, now: u64) {
        // The last poll may have run on another thread, whose fences order only that thread's reads.
        self.unfinished.fenced.clear();
        self.transmit(regions, time(now));
    }

    /// Sends the delayed acknowledgements.
    fn release_held(&mut self, regions: &Regions) {
        if self.held.is_empty() {
            return;
        }
        while let Some(qpn) = self.held.pop() {
            if let Some(qp) = self.qps.qps.get_mut(&qpn)
                && qp.acknowledgement == Acknowledgement::Kept
            {
                qp.acknowledgement = Acknowledgement::Released;
                schedule(&mut self.qps.ready, qp);
            }
        }
        self.transmit(regions, self.now());
    }

    /// Sends the outstanding acknowledgement of a queue pair that is about to end. A network card would have sent it
    /// before the program got the message.
    pub(crate) fn acknowledge(&mut self, qpn: Qpn, regions: &Regions) {
        if let Some(qp) = self.qps.qps.get_mut(&qpn.get())
            && qp.transport.acknowledge()
        {
            qp.acknowledgement = Acknowledgement::Released;
            schedule(&mut self.qps.ready, qp);
            self.transmit(regions, self.now());
        }
    }

    /// Like [`Engine::acknowledge`], for all queue pairs.
    pub(crate) fn acknowledge_all(&mut self, regions: &Regions) {
        // A closing device does not wait for the program's answers.
        for qp in self.qps.qps.values_mut() {
            if qp.transport.acknowledge() {
                qp.acknowledgement = Acknowledgement::Released;
                schedule(&mut self.qps.ready, qp);
            }
        }
        self.transmit(regions, self.now());
    }

    /// Delays the acknowledgement of a queue pair if nothing else is to be sent and the program is likely to answer the
    /// message. Returns whether it is delayed.
    fn hold(&mut self, qp: &mut QpContext) -> bool {
        if !qp.transport.owes_only_acknowledgement() {
            if qp.transport.has_unsent_requests() {
                qp.answers.send(self.polls);
            }
            // The acknowledgement is sent along with the requests.
            if mem::replace(&mut qp.acknowledgement, Acknowledgement::Due) == Acknowledgement::Kept
            {
                let qpn = qp.transport.qpn().get();
                self.held.retain(|held| *held != qpn);
            }
            return false;
        }
        // Completes the receive before the system call, so that the program does not wait for it.
        let announced = self.settle(qp);
        match qp.acknowledgement {
            Acknowledgement::Due => {}
            Acknowledgement::Kept => return true,
            Acknowledgement::Released => {
                qp.acknowledgement = Acknowledgement::Due;
                return false;
            }
        }
        qp.answers.give(self.polls);
        // A sleeping thread would have to be woken to send it later. A program that waits for completion events answers
        // late, and may rely on the order in which network cards announce the completions of sends and receives.
        let is_late = self.sleep.is_some() || announced == Announcement::Sent;
        if is_late || !qp.answers.are_expected() {
            return false;
        }
        qp.acknowledgement = Acknowledgement::Kept;
        self.held.push(qp.transport.qpn().get());
        self.held_until = self.polls + answers::POLLS;
        true
    }

    /// Sends for each ready queue pair in turn, and delivers its completions.
    fn transmit(&mut self, regions: &Regions, now: Time) -> bool {
        let mut any = false;
        self.has_taken = false;
        self.limited_until = None;
        if self.qps.ready.is_empty() {
            self.flush_wires();
            return any;
        }
        let mut now = Some(now);
        // The packets of several ready queue pairs leave together by one system call.
        let alone = self.qps.ready.len() == 1;
        // No queue pair is added or removed meanwhile, and nothing looks until they are put back.
        let mut qps = mem::take(&mut self.qps.qps);
        // Also while the socket is blocked: completions need no room in it.
        for _ in 0..self.qps.ready.len() {
            let Some(qpn) = self.qps.ready.pop_front() else {
                break;
            };
            let Some(qp) = qps.get_mut(&qpn) else {
                continue;
            };
            qp.is_ready = false;
            qp.requests.deferred = 0;
            if self.hold(qp) {
                continue;
            }
            // Sending for one queue pair may take as long as a round trip, so read the clock again.
            let now = now.take().unwrap_or_else(|| self.now());
            let more = self.transmit_one(qp, regions, now, &mut any);
            if alone {
                // The peer can work while this thread delivers completions.
                self.flush_wires();
            }
            self.settle(qp);
            if more {
                schedule(&mut self.qps.ready, qp);
            }
        }
        self.qps.qps = qps;
        // For the last queue pair, or for all if there were several.
        self.flush_wires();
        any
    }

    /// Flushes both wires.
    fn flush_wires(&mut self) {
        // The rings first: they need no system call.
        self.rings.flush();
        self.wire.batch.send();
    }

    /// Sends up to [`QUANTUM`] packets. Returns whether there may be more.
    fn transmit_one(
        &mut self,
        qp: &mut QpContext,
        regions: &Regions,
        now: Time,
        any: &mut bool,
    ) -> bool {
        if qp.has_nothing_to_send() {
            return false;
        }
        let cache = RegionCache::default();
        let (exports, xrc) = (qp.exports.clone(), qp.receives.xrc().cloned());
        let number = qp.transport.qpn();
        let mut memory =
            DomainMemory::new(regions, &cache, qp.domain, number, &mut self.unfinished);
        memory.exports = exports.as_ref();
        memory.xrc = xrc.as_deref();
        if let Transport::RawPackets(pair) = &mut qp.transport {
            let (socket, counters) = (self.wire.socket.packets(), &mut self.counters);
            let sent = self.packets.transmit(socket, pair, &mut memory, counters);
            *any |= sent != SentFrames::Blocked;
            return sent == SentFrames::More;
        }
        // Checked once, not for each packet.
        if qp.chaos.is_some() {
            return self.transmit_by_chaos(qp, regions, now, any);
        }
        let limit = self.device.send_limit.rate();
        if let Some(rate) = limit {
            memory.longest_reference = rate.longest_reference();
        }
        for _ in 0..QUANTUM {
            if !qp.may_transmit() {
                return false;
            }
            if let Some(until) = qp.limited_until(&self.device.send_limit, limit, now) {
                self.limited_until = Some(until);
                return true;
            }
            if let Some(ring) = qp.ring {
                // The room is for one packet. Ask again for each, as the receiver may have taken some meanwhile.
                let room = match self.rings.room(ring, memory.qpn) {
                    Room::Free { bytes, payload } => {
                        memory.payload_by = payload;
                        bytes
                    }
                    Room::Full => return false,
                    // The receiver of the ring is gone. Outstanding packets are retransmitted by UDP, which the peer
                    // may still answer.
                    Room::Ended => {
                        memory.exports = None;
                        qp.leave_ring(&self.rings);
                        continue;
                    }
                };
                let Some((len, _)) = qp.poll_transmit(now, &mut memory, room) else {
                    return false;
                };
                *any = true;
                let mut bytes = len as u64;
                match memory.offer.take() {
                    Some(offer) => {
                        bytes += u64::from(offer.payload.len);
                        let reference = self.rings.push_reference(len, offer.payload);
                        self.counters.sent_by_reference += 1;
                        if let Some(reference) = reference {
                            memory.refer(&offer, reference.clone());
                            qp.reference = Some(reference);
                        }
                    }
                    None => self.rings.push(len),
                }
                self.counters.count_sent_by_memory(bytes);
                self.device.send_limit.count(limit, now, bytes);
                continue;
            }
            if self.wire.batch.is_blocked() {
                // Still ready: the socket may accept packets at the next poll.
                return true;
            }
            let room = self.wire.batch.room();
            let Some((len, to)) = qp.poll_transmit(now, &mut memory, room) else {
                return false;
            };
            *any = true;
            self.device.send_limit.count(limit, now, len as u64);
            if matches!(qp.transport, Transport::Datagrams(_)) && !to.ip().is_multicast() {
                match self.rings.pass(to, &room[..len]) {
                    Passed::InRing => {
                        self.counters.count_sent_by_memory(len as u64);
                        continue;
                    }
                    Passed::NoRoom => {}
                    Passed::NoRing(qpn) => {
                        if let Some(requests) = self.device.ring_requests.get()
                            && self.wishes.is_due(to, qpn, now)
                        {
                            requests.ask(self.wire.socket.range(), to, qpn);
                        }
                    }
                }
            }
            self.wire.batch.push(to, len);
        }
        true
    }

    /// Receives what has arrived by UDP. Returns whether there was anything. Polling UDP is a system call, so most
    /// polls skip it while all connections have rings.
    fn receive(&mut self) -> Result<bool> {
        let is_beginning = self.rings.is_beginning();
        let watches = self.rings.watches();
        let is_due = watches.take_readable() || self.polls.is_multiple_of(POLLS_PER_UDP);
        if watches.suffice() && !is_due && !is_beginning {
            self.wire.rx.clear();
            return Ok(false);
        }
        let any = self.wire.rx.receive(&self.wire.peers)?;
        if is_beginning {
            self.rings.begin(any);
        }
        Ok(any)
    }

    /// Adds a ring for packets from another device.
    pub(crate) fn add_inbound(
        &mut self,
        segment: Arc<Segment>,
        sender: RingSender,
        doorbell: OwnedFd,
    ) -> RingId {
        let ring = self.rings.add_inbound(segment, sender, doorbell);
        // The lock is held, so the thread cannot begin its sleep in between.
        if self.sleep.is_some() {
            // Asks the sender to wake the progress thread, which sleeps already. Nothing has been sent yet.
            self.rings.sleep();
        }
        ring
    }

    /// Ends connections whose peers have ended, once everything that these sent is received.
    pub(crate) fn end_peers(&mut self, connections: Vec<ConnectionId>) {
        let since = self.polls;
        let orphans = connections.into_iter();
        self.orphans
            .extend(orphans.map(|connection| Orphan { connection, since }));
        self.rings.watches().set_readable();
    }

    fn end_orphans(&mut self) {
        let (rings, qps, polls) = (&self.rings, &mut self.qps, self.polls);
        self.orphans.retain(|Orphan { connection, since }| {
            // After two whole polls, at least one has received from the socket and from the rings since the peer ended.
            if polls < since + 2 || rings.has_packet_from(connection.peer) {
                return true;
            }
            if let Some(qp) = qps.qps.get_mut(&connection.qpn.get())
                // The number may have been reused by another connection.
                && qp.peer.is_some_and(|peer| peer.address == connection.peer)
                && let Some(transport) = qp.transport.connection()
            {
                transport.end_peer();
                schedule(&mut qps.ready, qp);
            }
            false
        });
    }

    /// Closes a ring. Returns the connections that sent on it, which continue over UDP.
    pub(crate) fn close_ring(&mut self, ring: RingId) -> Vec<ConnectionId> {
        // The ring may have been a requested one, and a new one may be requested at once.
        self.wishes.clear();
        let of_ring = self.qps.qps.values().filter(|qp| qp.ring == Some(ring));
        let connections = of_ring.filter_map(|qp| {
            let (qpn, peer) = (qp.transport.qpn(), qp.peer?.address);
            Some(ConnectionId { qpn, peer })
        });
        let connections = connections.collect();
        for qpn in self.rings.close(ring) {
            self.schedule(Qpn::new(qpn));
        }
        connections
    }

    /// Records that the progress thread sleeps until `wakeup`. Returns whether it may.
    pub(crate) fn sleep(&mut self, wakeup: Wakeup) -> bool {
        // A packet arrived after the last poll. Its sender saw no request for a wake-up, so the thread must not sleep.
        if !self.rings.sleep() {
            self.rings.wake();
            return false;
        }
        self.sleep = Some(wakeup);
        true
    }

    /// Reverses [`Engine::sleep`].
    pub(crate) fn wake_up(&mut self) {
        if self.sleep.take().is_some() {
            self.rings.wake();
        }
    }

    /// Delivers completions and events, and advances the timer if the new deadline is earlier. Returns whether a
    /// completion event was sent.
    fn settle(&mut self, qp: &mut QpContext) -> Announcement {
        if qp.transport.state() == State::Error {
            // The program may now free the memory, although the peer could still read it.
            qp.end_references();
        }
        let (device, qpn) = (&self.device, qp.transport.qpn());
        let (completed, timers) = (&mut self.completed, &mut self.timers);
        let announced = qp.complete(completed, timers, &mut |queue| {
            device.raise(AsyncEvent::CompletionQueueOverrun {
                queue: queue.number(),
                qpn,
                capacity: queue.capacity(),
            });
        });
        while let Some(event) = qp.transport.poll_event() {
            device.raise(AsyncEvent::QueuePair { qpn, event });
        }
        match &qp.receives {
            Receives::Own => {}
            Receives::Shared(srq) => device.raise_limit(srq),
            Receives::Named(xrc, _) => xrc.for_each(|srq| device.raise_limit(srq)),
        }
        start_timer(&mut self.timers, qp);
        announced
    }

    /// Fails the device permanently: every queue pair enters ERR, and none can be connected.
    pub(crate) fn fail(&mut self, error: &Error) {
        tracing::error!(%error, local = %self.wire.socket.local(), "the engine cannot go on");
        self.device.fail(error);
        // One failure ends the whole device. The other shards notice at their next poll.
        self.enter_error();
    }

    /// Moves every queue pair to ERR.
    fn enter_error(&mut self) {
        self.flushed = true;
        for qp in self.qps.qps.values_mut() {
            qp.transport.enter_error();
            schedule(&mut self.qps.ready, qp);
        }
    }

    /// Flushes every queue pair, because another shard of the device has failed.
    fn flush_all(&mut self, regions: &Regions) -> bool {
        self.enter_error();
        self.transmit(regions, self.now());
        true
    }
}

/// Advances the timer of a queue pair if its new deadline is earlier. Nearly every timer is cancelled or moved before it
/// expires. A stale entry that fires too early is moved when its time comes, which is rarer than a packet.
fn start_timer(timers: &mut BTreeSet<(Time, u32)>, qp: &mut QpContext) {
    let qpn = qp.transport.qpn().get();
    if let Some(new) = qp.transport.next_deadline()
        && qp.timer.is_none_or(|old| new < old)
    {
        if let Some(old) = qp.timer.replace(new) {
            timers.remove(&(old, qpn));
        }
        timers.insert((new, qpn));
    }
}

/// Converts a time of the device's clock to the protocol's type.
fn time(nanoseconds: u64) -> Time {
    Time::since_epoch(Duration::from_nanos(nanoseconds))
}
