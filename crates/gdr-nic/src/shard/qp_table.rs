//! The queue pairs of an engine, and the delivery of received packets to them.

use std::collections::VecDeque;
use std::mem;
use std::ops::Add;
use std::sync::Arc;

use gdr_chaos::Direction;
use gdr_roce::wire::{Packet, WireError};
use gdr_roce::{FrameReceived, Qpn, State, StateError, Statistics, Time};

use crate::chaos::Verdict;
use crate::error::Error;
use crate::int_map::IntMap;
use crate::shard::memory::{DomainMemory, Origin, RegionCache, Unfinished};
use crate::shard::qp_context::QpContext;
use crate::shard::region_table::Regions;
use crate::types::{Counters, PayloadBytes};
use gdr_udp::Datagram;
use gdr_udp::Socket;

/// The queue pairs, with their common counters and schedule.
#[derive(Default)]
pub(crate) struct QpTable {
    pub(crate) qps: IntMap<Box<QpContext>>,
    /// The number with [`QpContext::may_omit_checksum`].
    pub(crate) may_omit_checksum: usize,
    /// Queue pairs that may have a packet, a completion or an event.
    pub(crate) ready: VecDeque<u32>,
    /// Counters of removed queue pairs.
    pub(crate) retired: Statistics,
    /// Likewise.
    pub(crate) retired_payload: PayloadBytes,
}

impl QpTable {
    /// Returns the counters of all queue pairs since the device was opened.
    pub(crate) fn statistics(&self) -> Statistics {
        let counted = self.qps.values().map(|qp| qp.transport.statistics());
        counted.fold(self.retired, Statistics::add)
    }

    /// Returns the payload bytes of all queue pairs' requests since the device was opened.
    pub(crate) fn payload(&self) -> PayloadBytes {
        let mut sum = self.retired_payload;
        self.qps.values().for_each(|qp| sum += qp.requests.payload);
        sum
    }

    pub(crate) fn get_mut(&mut self, qpn: u32) -> Option<&mut QpContext> {
        self.qps.get_mut(&qpn).map(Box::as_mut)
    }

    /// Calls `to_rtr` to move a queue pair from INIT to RTR, after which it receives packets. Returns `None` if the
    /// queue pair does not exist, or its service is not the one that `to_rtr` expects.
    pub(crate) fn start(
        &mut self,
        qpn: Qpn,
        to_rtr: impl FnOnce(&mut QpContext) -> Option<Result<(), StateError>>,
    ) -> Option<Result<(), StateError>> {
        let qp = self.qps.get_mut(&qpn.get())?;
        let started = to_rtr(qp)?;
        if started.is_ok() {
            schedule(&mut self.ready, qp);
            // Until a packet with a checksum arrives, packets without one must be received, too.
            qp.may_omit_checksum = true;
            self.may_omit_checksum += 1;
        }
        Some(started)
    }

    /// Records that the peer of a queue pair sets UDP checksums, or that the queue pair is gone.
    pub(crate) fn expects_checksum(&mut self, socket: &Socket) {
        self.may_omit_checksum -= 1;
        // The raw socket receives a copy of each packet, so it is disabled with the last peer that may need it.
        if self.may_omit_checksum == 0 {
            socket.disable_raw();
        }
    }

    /// Moves a queue pair to ERR, because placing bytes for it failed.
    pub(crate) fn fail(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(&qpn.get()) {
            qp.transport.fail_placement();
            schedule(&mut self.ready, qp);
        }
    }
}

/// Puts a queue pair on the ready list.
pub(crate) fn schedule(ready: &mut VecDeque<u32>, qp: &mut QpContext) {
    if !mem::replace(&mut qp.is_ready, true) {
        ready.push_back(qp.transport.qpn().get());
    }
}

/// Returns the error for an unknown queue pair. Unreachable, as handles keep their queue pairs.
pub(crate) fn unknown_qp(to: State) -> Error {
    StateError {
        from: State::Reset,
        to,
    }
    .into()
}

/// The outcome of delivering a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acceptance {
    /// No queue pair processed it.
    Ignored,
    /// A queue pair processed it.
    Accepted,
    /// Its payload is not there yet, so it must be passed in again.
    NotYet,
}

/// Delivers received packets to their queue pairs.
pub(crate) struct Acceptor<'a> {
    pub(crate) now: Time,
    pub(crate) socket: &'a Socket,
    pub(crate) qps: &'a mut QpTable,
    pub(crate) regions: &'a Regions,
    pub(crate) cache: RegionCache<'a>,
    pub(crate) unfinished: &'a mut Unfinished,
    pub(crate) counters: &'a mut Counters,
}

impl<'a> Acceptor<'a> {
    /// Returns an acceptor with an empty region cache.
    pub(crate) fn new(
        now: Time,
        socket: &'a Socket,
        qps: &'a mut QpTable,
        regions: &'a Regions,
        unfinished: &'a mut Unfinished,
        counters: &'a mut Counters,
    ) -> Self {
        let cache = RegionCache::default();
        Self {
            now,
            socket,
            qps,
            regions,
            cache,
            unfinished,
            counters,
        }
    }

    /// Delivers a datagram to its queue pair. Returns whether it was accepted.
    pub(crate) fn accept(&mut self, datagram: &Datagram<'_>) -> bool {
        let packet = Packet::new(datagram.payload);
        self.accept_packet(packet, datagram, Origin::Packet) == Acceptance::Accepted
    }

    /// Like [`Acceptor::accept`] for each of these, through the queue pairs' faults.
    #[cold]
    #[inline(never)]
    pub(crate) fn accept_by_chaos<'d>(
        &mut self,
        datagrams: impl Iterator<Item = Datagram<'d>>,
    ) -> bool {
        let mut accepted = false;
        for datagram in datagrams {
            let met = Packet::new(datagram.payload)
                .is_ok_and(|packet| self.meet_faults(&packet, &datagram));
            accepted |= met || self.accept(&datagram);
        }
        accepted
    }

    /// Passes a datagram to its queue pair's faults. Returns whether they have taken it.
    fn meet_faults(&mut self, packet: &Packet<'_>, datagram: &Datagram<'_>) -> bool {
        let qpn = packet.bth().dest_qpn.get();
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        if !qp.accepts(datagram.source) || !datagram.is_intact() {
            return false;
        }
        let Some(faults) = &mut qp.chaos else {
            return false;
        };
        // Faults see the packet as the network delivered it, before the queue pair does.
        faults.arrive(self.now, datagram);
        let has_checksum =
            qp.peer.is_some() && datagram.shows_checksums() && mem::take(&mut qp.may_omit_checksum);
        if has_checksum {
            self.qps.expects_checksum(self.socket);
        }
        self.accept_due(qpn);
        true
    }

    /// Processes the packets of a queue pair that its faults release now.
    pub(crate) fn accept_due(&mut self, qpn: u32) {
        let Some(qp) = self.qps.qps.get_mut(&qpn) else {
            return;
        };
        let Some(mut faults) = qp.chaos.take() else {
            return;
        };
        while let Some(held) = faults.take_inbound(self.now) {
            // A multicast packet was already counted, once for the whole group.
            if held.group.is_none() {
                self.counters.packets_received += 1;
                self.counters.bytes_received += held.bytes.len() as u64;
            }
            faults.capture(Direction::In, &held, self.socket);
            if held.is_corrupt {
                self.counters.icrc_mismatches += 1;
                continue;
            }
            let Ok(packet) = Packet::new(&held.bytes) else {
                continue;
            };
            let unfinished = &mut *self.unfinished;
            let number = Qpn::new(qpn);
            let mut memory =
                DomainMemory::new(self.regions, &self.cache, qp.domain, number, unfinished);
            let Some(roce) = qp.transport.connection() else {
                let (source, bytes) = (held.address, &held.bytes);
                let datagram = match held.group {
                    Some(group) => Datagram::of_group(source, bytes, group),
                    None => Datagram::by_memory(source, bytes, bytes.len(), self.socket),
                };
                qp.receive(self.now, &packet, &datagram, memory, self.counters);
                continue;
            };
            memory.xrc = qp.receives.xrc().map(Arc::as_ref);
            if let Verdict::NotReady(psn) = faults.judge(&held)
                && roce.refuse_not_ready(psn)
            {
                continue;
            }
            // The faults sit between protocol and memory, and so decide when bytes are placed.
            roce.receive(self.now, &packet, &mut faults.memory(&held, &mut memory));
            faults.processed(self.now, &held);
            faults.place(self.now, &mut memory);
        }
        qp.chaos = Some(faults);
        schedule(&mut self.qps.ready, qp);
    }

    /// Like [`Acceptor::accept`], for an already parsed packet.
    pub(crate) fn accept_packet(
        &mut self,
        packet: Result<Packet<'_>, WireError>,
        datagram: &Datagram<'_>,
        origin: Origin<'_>,
    ) -> Acceptance {
        self.counters.packets_received += 1;
        self.counters.bytes_received += datagram.len() as u64;
        let Ok(packet) = packet else {
            self.counters.malformed += 1;
            return Acceptance::Ignored;
        };
        let qpn = packet.bth().dest_qpn;
        let Some(qp) = self.qps.get_mut(qpn.get()) else {
            // Normal after a queue pair has ended, and any host can send one, so they are only counted and dropped.
            self.counters.unknown_queue_pair += 1;
            return Acceptance::Ignored;
        };
        // Checked before the ICRC, whose computation is the main cost of a packet.
        if !qp.accepts(datagram.source) {
            self.counters.wrong_source += 1;
            return Acceptance::Ignored;
        }
        if !datagram.is_intact() {
            self.counters.icrc_mismatches += 1;
            return Acceptance::Ignored;
        }
        // A peer that sets checksums always does, but the next datagram may come from another peer.
        let has_checksum =
            qp.peer.is_some() && datagram.shows_checksums() && mem::take(&mut qp.may_omit_checksum);
        let mut memory =
            DomainMemory::new(self.regions, &self.cache, qp.domain, qpn, self.unfinished);
        memory.origin = origin;
        let acceptance = qp.receive(self.now, &packet, datagram, memory, self.counters);
        if acceptance != Acceptance::Ignored && !mem::replace(&mut qp.is_ready, true) {
            self.qps.ready.push_back(qpn.get());
        }
        if acceptance == Acceptance::NotYet {
            // Counted when it is passed in again.
            self.counters.packets_received -= 1;
            self.counters.bytes_received -= datagram.len() as u64;
        }
        if has_checksum {
            self.qps.expects_checksum(self.socket);
        }
        acceptance
    }

    /// Delivers a multicast datagram to the queue pairs attached to its group.
    pub(crate) fn accept_multicast(
        &mut self,
        qpns: &[Qpn],
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
    ) {
        for qpn in qpns {
            let Some(qp) = self.qps.qps.get_mut(&qpn.get()) else {
                continue;
            };
            if let Some(faults) = &mut qp.chaos {
                faults.arrive(self.now, datagram);
                self.accept_due(qpn.get());
                continue;
            }
            let memory =
                DomainMemory::new(self.regions, &self.cache, qp.domain, *qpn, self.unfinished);
            let acceptance = qp.receive(self.now, packet, datagram, memory, self.counters);
            if acceptance == Acceptance::Accepted {
                schedule(&mut self.qps.ready, qp);
            }
        }
    }

    /// Delivers a frame to a queue pair. Returns whether it was accepted.
    pub(crate) fn accept_frame(&mut self, qpn: Qpn, frame: &[u8], checksum_ok: bool) -> bool {
        let Some(qp) = self.qps.qps.get_mut(&qpn.get()) else {
            return false;
        };
        let mut memory =
            DomainMemory::new(self.regions, &self.cache, qp.domain, qpn, self.unfinished);
        let Some(pair) = qp.transport.raw_packets() else {
            return false;
        };
        let received = pair.receive(frame, checksum_ok, &mut memory);
        match received {
            FrameReceived::Completed => {
                self.counters.frames_received += 1;
                schedule(&mut self.qps.ready, qp);
            }
            FrameReceived::NoReceive => self.counters.no_receive += 1,
            FrameReceived::Ignored => {}
        }
        received == FrameReceived::Completed
    }
}
