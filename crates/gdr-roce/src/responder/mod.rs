//! The responder: it executes new requests, repeats responses to duplicates, and sends NAKs.

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

/// Maximum length of a message in the specification.
const MAX_DMA_LEN: u32 = 1 << 31;

/// Maximum number of queued responses, besides those to READs and atomics up to the negotiated
/// limit. Beyond it a response is dropped, as if the network had lost it, so that a peer that
/// sends without receiving cannot grow the queue.
const MAX_QUEUED_RESPONSES: usize = 64;

/// How many missing packets are reported when a packet arrives. The others are reported with the next
/// ones, so that no packet of a peer, or in its name, brings many times as many bytes.
const MOST_REPORTED: usize = 32;

/// The message that is being received.
#[derive(Debug)]
enum Message {
    /// No message: the next packet must be a first one.
    None,
    Send {
        receive: RecvWqe,
        /// Number of bytes placed.
        placed: u32,
    },
    Write {
        key: Key,
        /// Address of the next byte.
        addr: u64,
        /// Number of bytes not yet received.
        left: u32,
        /// Length of the message.
        len: u32,
    },
}

/// A READ request that was executed.
#[derive(Debug)]
struct ReadRecord {
    psn: Psn,
    packets: u32,
    key: Key,
    extent: Extent,
}

impl ReadRecord {
    /// Returns whether a request repeats this READ: it starts at one of its packets, has the same
    /// key and the matching address, and does not extend beyond its end.
    fn includes(&self, psn: Psn, key: Key, extent: Extent, mtu: Mtu) -> bool {
        let index = psn.distance_from(self.psn);
        if index >= self.packets || key != self.key {
            return false;
        }
        // Less than the length of the READ, so this does not overflow.
        let skipped = index * mtu.bytes() as u32;
        extent.addr == self.extent.addr.wrapping_add(skipped.into())
            && extent.len <= self.extent.len - skipped
    }
}

/// Why a request is not executed.
#[derive(Debug)]
enum Nak {
    /// No receive is posted: the peer sends the request again later.
    ReceiverNotReady,
    /// Its bytes are being copied: it is passed again.
    NotYet,
    /// The connection fails; the receive in use completes with the status.
    Fatal(NakCode, WcStatus),
}

impl Nak {
    const INVALID: Self = Self::Fatal(NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest);

    /// The error of an access to memory on behalf of the peer.
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

    /// The error of an access to the segments of a receive.
    const fn local(error: AccessError) -> Self {
        match error {
            AccessError::NotYet => Self::NotYet,
            _ => Self::Fatal(NakCode::RemoteOperation, WcStatus::LocalProtection),
        }
    }
}

/// How long a message that does not request an acknowledgement waits for one. The shortest timeout of requesters is
/// eight times as long: the thread that handles the timer may be late.
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
    /// How many packets it keeps.
    max_kept: u32,
    /// How many bytes of them.
    budget: PacketBudget,
    /// Number of packets since the expected one was reported as missing.
    since_nak: u32,
    expected_psn: Psn,
    /// PSN of the latest packet of a SEND or WRITE, with which duplicates are acknowledged.
    duplicate_ack_psn: Psn,
    msn: Msn,
    receives: ReceiveQueue,
    message: Message,
    /// A sequence error NAK or RNR NAK for `expected_psn` was sent. No other is sent before a packet
    /// with this PSN arrives.
    nak_sent: bool,
    /// The latest atomics and their results, at most [`most_atomics`](Self::most_atomics).
    atomics: VecDeque<(Psn, u64)>,
    /// The latest READs, at most `max_rd_atomic`; only these can be repeated.
    reads: VecDeque<ReadRecord>,
    responses: VecDeque<Response>,
    /// A NAK that ends the connection is queued, after the responses to the requests before it.
    /// Further packets are dropped.
    fatal_nak_queued: bool,
    /// Number of packets since the last acknowledgement.
    unacknowledged: u32,
    /// When they are acknowledged although none requested it.
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
            // No packet of a peer with the same window is too far ahead.
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

    /// Counts the packets that it keeps from here on against `budget`.
    pub(crate) fn set_budget(&mut self, budget: PacketBudget) {
        self.budget = budget;
    }

    /// What the packets that it keeps count against.
    pub(crate) const fn budget(&self) -> &PacketBudget {
        &self.budget
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let kept = self.reassembly.as_ref();
        let deadlines = [
            kept.and_then(Reassembly::next_deadline),
            self.acknowledge_at,
        ];
        deadlines.into_iter().flatten().min()
    }

    pub(crate) fn handle_deadline(&mut self, now: Time) {
        if let Some(kept) = &mut self.reassembly {
            kept.handle_deadline(now);
        }
        if self.acknowledge_at.is_some_and(|at| at <= now) {
            self.acknowledge_unrequested();
        }
    }

    /// Queues an acknowledgement of the packets that did not request it, if there are any.
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
        // A duplicate before the first request is acknowledged with the PSN before it, which no
        // request has.
        self.duplicate_ack_psn = attributes.rq_psn.wrapping_sub(1);
        self.max_rd_atomic = attributes.max_dest_rd_atomic.into();
        self.rnr_timer = attributes.min_rnr_timer;
    }

    pub(crate) fn post(
        &mut self,
        request: &RecvRequest<'_>,
        caps: &Capabilities,
    ) -> Result<(), PostError> {
        // A receive that a message has taken occupies its place in the queue until it completes.
        let in_use = usize::from(matches!(self.message, Message::Send { .. }));
        self.receives.post(request, in_use, caps.max_recv_wr)
    }

    /// Where its receives come from.
    pub(crate) const fn receives(&self) -> &ReceiveQueue {
        &self.receives
    }

    /// Puts the receive in use, if any, back on its queue.
    pub(crate) fn put_back(&mut self) {
        if let Message::Send { receive, .. } = std::mem::replace(&mut self.message, Message::None) {
            self.receives.put_back(receive);
        }
    }

    /// Completes the receive in use and every receive of its own queue as flushed. Queued responses
    /// are dropped: in ERR nothing is sent (IBTA 10.3.1.7).
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
        // Within a message more packets follow at once, and their acknowledgement includes this
        // one.
        let is_owed = self.unacknowledged > 0 && matches!(self.message, Message::None);
        // The oldest one decides: later messages must not postpone it.
        self.acknowledge_at = is_owed.then(|| self.acknowledge_at.unwrap_or(now + LATEST_ACK));
    }

    /// Executes the packets that were kept after the one at `psn`, up to the next gap.
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
            // Not reached: it was a valid packet when it was kept.
            let Ok(packet) = Packet::new(&datagram) else {
                break;
            };
            if !self.execute_expected(&packet, connection, memory, notifications) {
                // This packet is gone, and the peer sends it again; those after it are still kept.
                return;
            }
            any = true;
        }
        if any {
            // The peer waits for the end of the gap, so the acknowledgement does not wait for the
            // interval.
            self.since_nak = 0;
            self.unacknowledged = 0;
            self.send_ack(Syndrome::ACK, self.duplicate_ack_psn);
        }
    }

    /// Keeps a packet after a gap, and reports the packets of the gap as missing: each once, and the first gap
    /// again as long as packets come without it. A fault may take a gap's packets together, and so its report,
    /// or what is sent again.
    fn keep(&mut self, now: Time, packet: &Packet<'_>) {
        let ahead = packet.bth().psn.distance_from(self.expected_psn);
        // What finds no room is reported when the next packet arrives.
        let most = MOST_REPORTED.min(self.response_room());
        let Some(kept) = &mut self.reassembly else {
            return;
        };
        // What is elsewhere may not be there any more when its turn comes: it is sent again.
        if let Some(datagram) = packet.datagram() {
            kept.keep(now, ahead, datagram);
        }
        self.since_nak += 1;
        let again = self.since_nak >= self.ack_interval || packet.bth().ack_request;
        let mut missing = SmallVec::<[u32; MOST_REPORTED]>::new();
        if again {
            // The expected one also if this packet is too far ahead to be kept.
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

    /// Sends an RNR NAK for the packet with this number, if it is the expected one; returns whether it is.
    pub(crate) fn refuse_not_ready(&mut self, psn: Psn) -> bool {
        let is_expected = psn == self.expected_psn;
        if is_expected {
            self.send_nak(Syndrome::ReceiverNotReady(self.rnr_timer));
        }
        is_expected
    }

    /// Responds to a duplicate request, because the first response may be lost. Memory is not
    /// changed again.
    fn duplicate(&mut self, packet: &Packet<'_>, connection: &Connection) {
        // A peer that repeats a request for ever must not let the queue grow.
        if self.is_response_queue_full() {
            return;
        }
        let psn = packet.bth().psn;
        if let Some(reth) = packet.reth().filter(|_| !packet.opcode().is_write()) {
            let len = match packet.opcode() {
                Opcode::ReadRequest => reth.dma_len,
                // Answered like a READ of no bytes.
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
            // A response that is still queued answers the repetition, too.
            let coming = self
                .responses
                .iter()
                .any(|response| response.will_send(psn));
            // Whether the region still exists is seen when a response is made.
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
            // The PSN must not belong to a later READ or atomic, which only its own response can
            // complete: rxe would complete a READ by an acknowledgement with its PSN, without
            // placing any bytes.
            self.send_ack(Syndrome::ACK, self.duplicate_ack_psn);
        }
    }

    /// Number of queued responses to READs and atomics, without those to duplicates.
    fn outstanding_reads(&self) -> usize {
        self.responses
            .iter()
            .filter(|response| response.counts_as_outstanding())
            .count()
    }

    /// How many results of atomics are kept, for a peer that has them outstanding.
    fn most_atomics(&self) -> usize {
        match self.max_rd_atomic {
            // The program permits none.
            0 => 0,
            most => most.max(ATOMICS_OF_OWN_KIND),
        }
    }

    /// Returns whether responses to a READ by this key are still to be sent.
    fn is_read_by(&self, wanted: Key) -> bool {
        let reads =
            |response: &Response| matches!(response, Response::Read { key, .. } if *key == wanted);
        self.responses.iter().any(reads)
    }

    /// Returns whether responses that the peer can do without are dropped.
    fn is_response_queue_full(&self) -> bool {
        self.response_room() == 0
    }

    /// How many more of them are queued at most.
    fn response_room(&self) -> usize {
        // A response to each of them, and one to its repetition.
        let most = MAX_QUEUED_RESPONSES + 2 * self.max_rd_atomic;
        most.saturating_sub(self.responses.len())
    }

    /// Queues a NAK of the expected packet. Where there is no room, the next packet brings it again.
    fn send_nak(&mut self, syndrome: Syndrome) {
        self.nak_sent = !self.is_response_queue_full();
        self.send_ack(syndrome, self.expected_psn);
    }

    /// Queues an ACK or NAK. An ACK replaces a queued ACK, which it includes.
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
            // The timer of the peer brings the packet again, and then there may be room.
            _ if full => {}
            _ => self.responses.push_back(ack),
        }
    }

    /// Queues a response to a READ or atomic. It acknowledges all earlier requests and replaces a
    /// queued ACK: Linux rxe (since 5.19) fails a READ whose first response overtakes such an ACK.
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

/// Checks a range of memory. An empty range needs no valid key (IBTA C9-88).
fn check(memory: &dyn Memory, key: Key, extent: Extent, access: Access) -> Result<(), AccessError> {
    if extent.len == 0 {
        Ok(())
    } else {
        memory.check(key, extent, access)
    }
}
