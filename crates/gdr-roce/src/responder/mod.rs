//! The responder: executes new requests, repeats responses to duplicates, and sends NAKs.

mod execute;
mod reassembly;
mod response;
mod unreliable;

use std::collections::VecDeque;
use std::time::Duration;

use smallvec::SmallVec;

use crate::attributes::{ATOMICS_OF_OWN_KIND, Capabilities, RtrAttributes, TransportConfig};
use crate::completion::WcStatus;
use crate::connection::{Connection, LossRecovery, Notifications};
use crate::error::PostError;
use crate::ids::{Key, Qpn};
use crate::memory::{Access, AccessError, Extent, Memory};
use crate::mtu::Mtu;
use crate::packet_budget::PacketBudget;
use crate::psn::{Msn, Psn};
use crate::receive_queue::{ReceiveQueue, RecvWqe};
use crate::request::RecvRequest;
use crate::statistics::{Served, Statistics};
use crate::timer::{RnrTimer, Time};
use crate::wire::{NakCode, Opcode, Packet, Syndrome};
use reassembly::Reassembly;
pub(crate) use response::Polled;
use response::{RequestKind, Response};

/// The longest message in the specification.
const MAX_DMA_LEN: u32 = 1 << 31;

/// The maximum number of queued responses, in addition to those to READs and atomics up to the negotiated limit. Beyond
/// it a response is dropped as if lost in the network, so that a peer that sends without receiving cannot grow the
/// queue.
const MAX_QUEUED_RESPONSES: usize = 64;

/// The maximum number of missing packets reported for one arriving packet. The rest are reported with later packets,
/// which limits the amplification of a packet from the peer, or one forged in its name.
const MOST_REPORTED: usize = 32;

/// The message in progress.
#[derive(Debug)]
enum Message {
    /// No message: the next packet must start one.
    None,
    Send {
        receive: RecvWqe,
        /// Bytes placed so far.
        placed: u32,
    },
    Write {
        key: Key,
        /// Address of the next byte.
        addr: u64,
        /// Bytes not yet received.
        left: u32,
        /// Message length in bytes.
        len: u32,
    },
}

/// An executed READ request.
#[derive(Debug)]
struct ReadRecord {
    psn: Psn,
    packets: u32,
    key: Key,
    extent: Extent,
}

impl ReadRecord {
    /// Returns whether a request repeats this READ: it starts at one of its packets, has the same key and the matching
    /// address, and does not extend beyond its end.
    fn includes(&self, psn: Psn, key: Key, extent: Extent, mtu: Mtu) -> bool {
        let index = psn.distance_from(self.psn);
        if index >= self.packets || key != self.key {
            return false;
        }
        // Cannot overflow: less than the length of the READ.
        let skipped = index * mtu.bytes() as u32;
        extent.addr == self.extent.addr.wrapping_add(skipped.into())
            && extent.len <= self.extent.len - skipped
    }
}

/// Why a request was not executed.
#[derive(Debug)]
enum Nak {
    /// No receive is posted: the peer retries later.
    ReceiverNotReady,
    /// Its bytes are still being copied; the packet is passed in again.
    NotYet,
    /// The connection fails, and the receive in use completes with the status.
    Fatal(NakCode, WcStatus),
}

impl Nak {
    const INVALID: Self = Self::Fatal(NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest);

    /// Converts an error of a memory access on behalf of the peer.
    const fn remote(error: AccessError) -> Self {
        if let AccessError::NotYet = error {
            return Self::NotYet;
        }
        let (code, status) = Self::access(error);
        Self::Fatal(code, status)
    }

    const fn access(error: AccessError) -> (NakCode, WcStatus) {
        match error {
            AccessError::Failed => (NakCode::RemoteOperation, WcStatus::RemoteOperation),
            _ => (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        }
    }

    /// Converts an error of an access to a receive's segments.
    const fn local(error: AccessError) -> Self {
        match error {
            AccessError::NotYet => Self::NotYet,
            _ => Self::Fatal(NakCode::RemoteOperation, WcStatus::LocalProtection),
        }
    }
}

/// How long the acknowledgement of a message that does not request one is deferred. Requesters' shortest timeout is
/// eight times as long, because the thread that handles this timer may be late.
const LATEST_ACK: Duration = Duration::from_micros(250);

/// The responder of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    qpn: Qpn,
    access: Access,
    max_rd_atomic: usize,
    rnr_timer: RnrTimer,
    ack_interval: u32,
    /// Packets ahead of the expected one, with [`LossRecovery::Selective`].
    reassembly: Option<Reassembly>,
    /// The maximum number of such packets.
    max_kept: u32,
    /// The limit on their bytes.
    budget: PacketBudget,
    /// Packets since the expected one was reported as missing.
    since_nak: u32,
    expected_psn: Psn,
    /// PSN of the latest SEND or WRITE packet, used to acknowledge duplicates.
    duplicate_ack_psn: Psn,
    msn: Msn,
    receives: ReceiveQueue,
    message: Message,
    /// A sequence error NAK or RNR NAK was sent for `expected_psn`. No other is sent until that packet arrives.
    nak_sent: bool,
    /// The latest atomics with their results, at most [`most_atomics`](Self::most_atomics).
    atomics: VecDeque<(Psn, u64)>,
    /// The latest READs, at most `max_rd_atomic`; only these can be repeated.
    reads: VecDeque<ReadRecord>,
    responses: VecDeque<Response>,
    /// A NAK that terminates the connection is queued after the responses to earlier requests. Further packets are
    /// dropped.
    fatal_nak_queued: bool,
    /// Packets since the last acknowledgement.
    unacknowledged: u32,
    /// When to acknowledge them even though none requested it.
    acknowledge_at: Option<Time>,
    pub(crate) statistics: Statistics,
    pub(crate) served: Served,
}

impl Responder {
    pub(crate) fn new(qpn: Qpn, config: &TransportConfig, receives: ReceiveQueue) -> Self {
        Self {
            qpn,
            access: Access::empty(),
            max_rd_atomic: 0,
            rnr_timer: RnrTimer::new(0),
            ack_interval: config.ack_interval,
            reassembly: None,
            // A peer with the same window never gets further ahead.
            max_kept: config.max_window.max(config.window).clamp(2, 1 << 16),
            budget: PacketBudget::default(),
            since_nak: 0,
            expected_psn: Psn::default(),
            duplicate_ack_psn: Psn::default(),
            msn: Msn::default(),
            receives,
            message: Message::None,
            nak_sent: false,
            atomics: VecDeque::new(),
            reads: VecDeque::new(),
            responses: VecDeque::new(),
            fatal_nak_queued: false,
            unacknowledged: 0,
            acknowledge_at: None,
            statistics: Statistics::default(),
            served: Served::default(),
        }
    }

    pub(crate) fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    pub(crate) fn set_rnr_timer(&mut self, timer: RnrTimer) {
        self.rnr_timer = timer;
    }

    pub(crate) fn set_recovery(&mut self, recovery: LossRecovery) {
        self.reassembly = match recovery {
            LossRecovery::GoBackN => None,
            LossRecovery::Selective => Some(Reassembly::new(self.max_kept, self.budget.clone())),
        };
    }

    /// Sets the budget that buffered packets are charged to from now on.
    pub(crate) fn set_budget(&mut self, budget: PacketBudget) {
        self.budget = budget;
    }

    /// Returns the budget that buffered packets are charged to.
    pub(crate) const fn budget(&self) -> &PacketBudget {
        &self.budget
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let kept = self.reassembly.as_ref();
        Time::earlier(
            kept.and_then(Reassembly::next_deadline),
            self.acknowledge_at,
        )
    }

    pub(crate) fn handle_deadline(&mut self, now: Time) {
        if let Some(kept) = &mut self.reassembly {
            kept.handle_deadline(now);
        }
        if self.acknowledge_at.is_some_and(|at| at <= now) {
            self.acknowledge_unrequested();
        }
    }

    /// Queues an acknowledgement of packets that did not request one, if there are any.
    pub(crate) fn acknowledge_unrequested(&mut self) {
        self.acknowledge_at = None;
        if std::mem::take(&mut self.unacknowledged) > 0 {
            self.send_ack(Syndrome::ACK, self.duplicate_ack_psn);
        }
    }

    pub(crate) fn set_max_rd_atomic(&mut self, most: u8) {
        self.max_rd_atomic = most.into();
    }

    pub(crate) fn connect(&mut self, attributes: &RtrAttributes) {
        self.expected_psn = attributes.rq_psn;
        // A duplicate before the first request is acknowledged with the preceding PSN, which belongs to no request.
        self.duplicate_ack_psn = attributes.rq_psn.wrapping_sub(1);
        self.max_rd_atomic = attributes.max_dest_rd_atomic.into();
        self.rnr_timer = attributes.min_rnr_timer;
    }

    pub(crate) fn post(
        &mut self,
        request: &RecvRequest<'_>,
        caps: &Capabilities,
    ) -> Result<(), PostError> {
        // A receive used by a message in progress occupies its queue entry until it completes.
        let in_use = usize::from(matches!(self.message, Message::Send { .. }));
        self.receives.post(request, in_use, caps.max_recv_wr)
    }

    /// Returns the receive queue.
    pub(crate) const fn receives(&self) -> &ReceiveQueue {
        &self.receives
    }

    /// Returns the receive in use, if any, to its queue.
    pub(crate) fn put_back(&mut self) {
        if let Message::Send { receive, .. } = std::mem::replace(&mut self.message, Message::None) {
            self.receives.put_back(receive);
        }
    }

    /// Completes the receive in use, and every receive of the queue pair's own queue, as flushed. Drops queued
    /// responses: in ERR nothing is sent (IBTA 10.3.1.7).
    pub(crate) fn flush(&mut self, notifications: &mut Notifications) {
        self.responses.clear();
        (self.unacknowledged, self.acknowledge_at) = (0, None);
        if let Some(kept) = &mut self.reassembly {
            kept.clear();
        }
        // First the receive in use, because receives complete in the order of posting.
        self.end_message(WcStatus::WrFlushed, notifications);
        for receive in self.receives.take_own() {
            let flushed = receive.failed(WcStatus::WrFlushed, self.qpn);
            notifications.completions.push_back(flushed);
        }
    }

    /// Processes a request packet.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        connection: &Connection,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) {
        if self.fatal_nak_queued {
            return;
        }
        let psn = packet.bth().psn;
        if psn != self.expected_psn {
            // Half of the PSN space is before the expected one, and half after it (IBTA 9.7.2).
            if psn.compare(self.expected_psn).is_lt() {
                self.duplicate(packet, connection);
            } else if self.reassembly.is_some() {
                self.keep(now, packet);
            } else if !self.nak_sent {
                self.send_nak(Syndrome::Nak(NakCode::SequenceError));
            }
            return;
        }
        let executed = self.execute_expected(packet, connection, memory, notifications);
        if executed && self.reassembly.is_some() {
            self.execute_kept(now, psn, connection, memory, notifications);
        }
        // Within a message more packets follow immediately, and their acknowledgement covers this one.
        let is_owed = self.unacknowledged > 0 && matches!(self.message, Message::None);
        // The oldest message sets the deadline: later ones must not postpone it.
        self.acknowledge_at = is_owed.then(|| self.acknowledge_at.unwrap_or(now + LATEST_ACK));
    }

    /// Executes buffered packets from the one at `psn` on, up to the next gap.
    fn execute_kept(
        &mut self,
        now: Time,
        psn: Psn,
        connection: &Connection,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) {
        let mut before = psn;
        let mut any = false;
        while let Some(kept) = &mut self.reassembly {
            kept.advance(now, self.expected_psn.distance_from(before));
            before = self.expected_psn;
            let Some(datagram) = kept.take_expected() else {
                break;
            };
            // Unreachable: the packet was valid when it was buffered.
            let Ok(packet) = Packet::new(&datagram) else {
                break;
            };
            if !self.execute_expected(&packet, connection, memory, notifications) {
                // The packet was consumed, and the peer retransmits it; the ones after it stay buffered.
                return;
            }
            any = true;
        }
        if any {
            // The peer waits for the gap to close, so the acknowledgement does not wait for the interval.
            self.since_nak = 0;
            self.unacknowledged = 0;
            self.send_ack(Syndrome::ACK, self.duplicate_ack_psn);
        }
    }

    /// Buffers a packet beyond a gap, and reports the packets missing in front of it: each one once, and the first gap
    /// again as packets keep arriving without it. A fault may drop the packets of a gap together, and so the report or
    /// the retransmission.
    fn keep(&mut self, now: Time, packet: &Packet<'_>) {
        let ahead = packet.bth().psn.distance_from(self.expected_psn);
        // The rest is reported when the next packet arrives.
        let most = MOST_REPORTED.min(self.response_room());
        let Some(kept) = &mut self.reassembly else {
            return;
        };
        // A payload stored elsewhere may be gone by the time it is needed, so the packet is retransmitted instead.
        if let Some(datagram) = packet.datagram() {
            kept.keep(now, ahead, datagram);
        }
        self.since_nak += 1;
        let again = self.since_nak >= self.ack_interval || packet.bth().ack_request;
        let mut missing = SmallVec::<[u32; MOST_REPORTED]>::new();
        if again {
            // Includes the expected packet even if this one is too far ahead to be buffered.
            missing.extend((0..kept.first_gap().max(1)).take(most));
            kept.report(missing.len() as u32);
        }
        while missing.len() < most
            && let Some(ahead) = kept.next_unreported()
        {
            missing.push(ahead);
        }
        if again || missing.first() == Some(&0) {
            self.since_nak = 0;
        }
        for ahead in missing {
            let psn = self.expected_psn.wrapping_add(ahead);
            self.send_ack(Syndrome::Nak(NakCode::SequenceError), psn);
        }
    }

    /// Sends an RNR NAK for the packet at `psn` if it is the expected one. Returns whether it is.
    pub(crate) fn refuse_not_ready(&mut self, psn: Psn) -> bool {
        let is_expected = psn == self.expected_psn;
        if is_expected {
            self.send_nak(Syndrome::ReceiverNotReady(self.rnr_timer));
        }
        is_expected
    }

    /// Responds to a duplicate request, whose first response may be lost. Memory is not changed again.
    fn duplicate(&mut self, packet: &Packet<'_>, connection: &Connection) {
        // A peer that repeats a request for ever must not let the queue grow.
        if self.is_response_queue_full() {
            return;
        }
        let psn = packet.bth().psn;
        if let Some(reth) = packet.reth().filter(|_| !packet.opcode().is_write()) {
            let len = match packet.opcode() {
                Opcode::ReadRequest => reth.dma_len,
                // Answered like an empty READ.
                _ => 0,
            };
            let packets = connection.mtu.packets(len);
            let extent = Extent {
                addr: reth.addr,
                len,
            };
            let key = Key::Remote(reth.rkey);
            let known = self
                .reads
                .iter()
                .any(|read| read.includes(psn, key, extent, connection.mtu));
            // A response that is still queued also answers the duplicate.
            let coming = self
                .responses
                .iter()
                .any(|response| response.will_send(psn));
            // Whether the region still exists is checked when a response is built.
            if !known || coming {
                return;
            }
            self.responses.push_back(Response::read(
                psn,
                key,
                extent,
                packets,
                self.msn,
                RequestKind::Duplicate,
            ));
        } else if packet.opcode().has_atomic() {
            if let Some((_, original)) = self.atomics.iter().rev().find(|(done, _)| *done == psn) {
                let (original, msn) = (*original, self.msn);
                self.responses.push_back(Response::Atomic {
                    psn,
                    original,
                    msn,
                    request: RequestKind::Duplicate,
                });
            }
        } else {
            // The PSN must not belong to a later READ or atomic, which only its own response may complete: rxe would
            // complete a READ on an acknowledgement with its PSN, without placing any bytes.
            self.send_ack(Syndrome::ACK, self.duplicate_ack_psn);
        }
    }

    /// Returns the number of queued responses to new READs and atomics, duplicates excluded.
    fn outstanding_reads(&self) -> usize {
        self.responses
            .iter()
            .filter(|response| response.counts_as_outstanding())
            .count()
    }

    /// Returns how many atomic results are kept, for as many atomics as the peer may have outstanding.
    fn most_atomics(&self) -> usize {
        match self.max_rd_atomic {
            // The program permits none.
            0 => 0,
            most => most.max(ATOMICS_OF_OWN_KIND),
        }
    }

    /// Returns whether responses to a READ through this key are still queued.
    fn is_read_by(&self, wanted: Key) -> bool {
        let reads =
            |response: &Response| matches!(response, Response::Read { key, .. } if *key == wanted);
        self.responses.iter().any(reads)
    }

    /// Returns whether expendable responses are to be dropped.
    fn is_response_queue_full(&self) -> bool {
        self.response_room() == 0
    }

    /// Returns how many more expendable responses fit the queue.
    fn response_room(&self) -> usize {
        // Each READ or atomic may have one response and one repetition queued.
        let most = MAX_QUEUED_RESPONSES + 2 * self.max_rd_atomic;
        most.saturating_sub(self.responses.len())
    }

    /// Queues a NAK of the expected packet. If the queue is full, the next packet triggers it again.
    fn send_nak(&mut self, syndrome: Syndrome) {
        self.nak_sent = !self.is_response_queue_full();
        self.send_ack(syndrome, self.expected_psn);
    }

    /// Queues an ACK or NAK. An ACK replaces a queued ACK, which it covers.
    fn send_ack(&mut self, syndrome: Syndrome, psn: Psn) {
        let ack = Response::Acknowledge {
            psn,
            syndrome,
            msn: self.msn,
        };
        let positive = matches!(syndrome, Syndrome::Ack { .. });
        let full = self.is_response_queue_full();
        match self.responses.back_mut() {
            Some(
                last @ Response::Acknowledge {
                    syndrome: Syndrome::Ack { .. },
                    ..
                },
            ) if positive => {
                *last = ack;
            }
            // The peer's timer brings the packet again, when there may be room.
            _ if full => {}
            _ => self.responses.push_back(ack),
        }
    }

    /// Queues a response to a READ or atomic. It acknowledges all earlier requests and replaces a queued ACK: Linux's
    /// rxe (since 5.19) fails a READ whose first response overtakes such an ACK.
    fn queue_response(&mut self, response: Response) {
        let positive = matches!(
            self.responses.back(),
            Some(Response::Acknowledge {
                syndrome: Syndrome::Ack { .. },
                ..
            })
        );
        if positive {
            self.responses.pop_back();
        }
        self.responses.push_back(response);
        self.unacknowledged = 0;
    }

    /// Completes the receive in use, if any, with an error.
    fn end_message(&mut self, status: WcStatus, notifications: &mut Notifications) {
        if let Message::Send { receive, .. } = std::mem::replace(&mut self.message, Message::None) {
            let failed = receive.failed(status, self.qpn);
            notifications.completions.push_back(failed);
        }
    }
}

/// Checks access to a range. An empty range needs no valid key (IBTA C9-88).
fn check(memory: &dyn Memory, key: Key, extent: Extent, access: Access) -> Result<(), AccessError> {
    if extent.len == 0 {
        Ok(())
    } else {
        memory.check(key, extent, access)
    }
}
