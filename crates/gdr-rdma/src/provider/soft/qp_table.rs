//! The queue pairs of an engine, and how received packets reach them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::ops::Add;

use gdr_roce::wire::Packet;
use gdr_roce::{FrameReceived, Qpn, State, StateError, Statistics, Time};

use super::announced_reads::AnnouncedReads;
use super::memory::{Dirty, DomainMemory, RegionCache};
use super::qp_context::QpContext;
use super::region_table::Regions;
use super::rx::Datagram;
use super::socket::Socket;
use crate::error::Error;
use crate::int_map::IntMap;
use crate::types::{Counters, PayloadBytes};

/// The queue pairs, with what is counted and scheduled over all of them.
#[derive(Default)]
pub(super) struct QpTable {
    pub(super) qps: IntMap<Box<QpContext>>,
    /// How many have [`QpContext::may_omit_checksum`].
    pub(super) may_omit_checksum: usize,
    /// Those that may have a packet, a completion or an event.
    pub(super) ready: VecDeque<u32>,
    /// What the queue pairs counted that were removed.
    pub(super) retired: Statistics,
    /// As `retired`.
    pub(super) retired_payload: PayloadBytes,
}

impl QpTable {
    /// What all queue pairs counted since the device was opened.
    pub(super) fn statistics(&self) -> Statistics {
        let counted = self.qps.values().map(|qp| qp.roce.statistics());
        counted.fold(self.retired, Statistics::add)
    }

    /// The bytes of the requests of all queue pairs since the device was opened.
    pub(super) fn payload(&self) -> PayloadBytes {
        let mut sum = self.retired_payload;
        self.qps.values().for_each(|qp| sum += qp.payload);
        sum
    }

    pub(super) fn get_mut(&mut self, qpn: u32) -> Option<&mut QpContext> {
        self.qps.get_mut(&qpn).map(Box::as_mut)
    }

    /// Lets `to_rtr` change a queue pair from INIT to RTR, in which it receives packets. `None` if
    /// there is no such queue pair, or it is of another service than `to_rtr` expects.
    pub(super) fn start(
        &mut self,
        qpn: Qpn,
        to_rtr: impl FnOnce(&mut QpContext) -> Option<Result<(), StateError>>,
    ) -> Option<Result<(), StateError>> {
        let qp = self.qps.get_mut(&qpn.get())?;
        let started = to_rtr(qp)?;
        if started.is_ok() {
            schedule(&mut self.ready, qp);
            qp.may_omit_checksum = true;
            self.may_omit_checksum += 1;
        }
        Some(started)
    }

    /// Records that the peer of a queue pair sets UDP checksums, or that the queue pair is gone.
    pub(super) fn expects_checksum(&mut self, socket: &Socket) {
        self.may_omit_checksum -= 1;
        if self.may_omit_checksum == 0 {
            socket.disable_raw();
        }
    }
}

/// Puts a queue pair on the list of those with something to do.
pub(super) fn schedule(ready: &mut VecDeque<u32>, qp: &mut QpContext) {
    if !mem::replace(&mut qp.is_ready, true) {
        ready.push_back(qp.roce.qpn().get());
    }
}

/// The error for a queue pair that the engine does not have. Handles keep theirs, so it does not
/// occur.
pub(super) fn unknown_qp(to: State) -> Error {
    StateError {
        from: State::Reset,
        to,
    }
    .into()
}

/// Passes received packets to their queue pairs.
pub(super) struct Acceptor<'a> {
    pub(super) now: Time,
    pub(super) socket: &'a Socket,
    pub(super) qps: &'a mut QpTable,
    pub(super) regions: &'a Regions,
    pub(super) cache: RegionCache<'a>,
    pub(super) dirty: &'a mut Dirty,
    pub(super) fenced: &'a mut Vec<u32>,
    pub(super) announced: &'a RefCell<AnnouncedReads>,
    pub(super) counters: &'a mut Counters,
}

impl Acceptor<'_> {
    /// Passes a datagram to its queue pair; returns whether that accepted it.
    pub(super) fn accept(&mut self, datagram: &Datagram<'_>) -> bool {
        self.counters.packets_received += 1;
        let Ok(packet) = Packet::new(datagram.payload) else {
            self.counters.malformed += 1;
            return false;
        };
        let qpn = packet.bth().dest_qpn;
        let Some(qp) = self.qps.get_mut(qpn.get()) else {
            self.counters.unknown_queue_pair += 1;
            return false;
        };
        // Before the ICRC, whose computation is the main cost of a packet.
        if !qp.accepts(datagram.source) {
            self.counters.strangers += 1;
            return false;
        }
        if !datagram.is_intact() {
            self.counters.icrc_mismatches += 1;
            return false;
        }
        // A peer that sets checksums always does; of datagrams the next may come from another one.
        let has_checksum =
            qp.peer.is_some() && datagram.came_by_udp() && mem::take(&mut qp.may_omit_checksum);
        let mut memory = DomainMemory {
            regions: self.regions,
            cache: &self.cache,
            domain: qp.domain,
            qpn,
            dirty: self.dirty,
            fenced: self.fenced,
            announced: self.announced,
        };
        let accepted = qp.receive(self.now, &packet, datagram, &mut memory, self.counters);
        if accepted && !mem::replace(&mut qp.is_ready, true) {
            self.qps.ready.push_back(qpn.get());
        }
        if has_checksum {
            self.qps.expects_checksum(self.socket);
        }
        accepted
    }

    /// Passes a frame to a queue pair; returns whether that accepted it.
    pub(super) fn accept_frame(&mut self, qpn: Qpn, frame: &[u8], checksum_ok: bool) -> bool {
        let Some(qp) = self.qps.qps.get_mut(&qpn.get()) else {
            return false;
        };
        let mut memory = DomainMemory {
            regions: self.regions,
            cache: &self.cache,
            domain: qp.domain,
            qpn,
            dirty: self.dirty,
            fenced: self.fenced,
            announced: self.announced,
        };
        let Some(pair) = qp.roce.raw_packets() else {
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
