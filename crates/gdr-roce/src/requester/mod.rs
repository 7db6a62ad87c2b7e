//! The requester: send queue, transmission and retransmission.
//!
//! Three PSNs describe the go-back-N state. All packets before `una` are acknowledged, all packets before `next` were
//! sent since the last rewind, and all before `highest` were sent at least once. A rewind sets `next = una`. `una`
//! belongs to the request at the head of the send queue, unless nothing is outstanding.
//!
//! The retransmission timer follows the measured round-trip time. When it expires, only the first unacknowledged packet
//! is retransmitted: if merely acknowledgements were lost, or the peer was slow, the answer acknowledges the rest, too.
//! The program's timeout remains the unit of its retry count, so a connection fails as late as with a timer of that
//! length.

mod ack;
mod arrivals;
mod congestion;
mod fast_path;
mod round_trip;
mod selective;
mod send_wqe;
mod transmit;
mod unreliable;

use std::collections::VecDeque;

use arrivals::Arrivals;
use congestion::{Congestion, Payloads};
use round_trip::RoundTrip;
use selective::Missing;
use send_wqe::SendWqe;

use crate::attributes::{Capabilities, RtsAttributes, TransportConfig};
use crate::completion::WcStatus;
use crate::connection::{ConnectionFailed, LossRecovery, Notifications, Reliability};
use crate::error::PostError;
use crate::ids::{Qpn, XrcSrqn};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::request::SendRequest;
use crate::statistics::Statistics;
use crate::timer::{AckTimeout, RetryCount, RetryLimit, RnrRetry, Time};

/// The requester of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    qpn: Qpn,
    attributes: RtsAttributes,
    config: TransportConfig,
    send_queue: VecDeque<SendWqe>,
    /// Index in the send queue of the next packet's request.
    cursor: usize,
    una: Psn,
    next: Psn,
    highest: Psn,
    /// READ request packets and atomics that were sent at least once and are not complete.
    outstanding_reads: VecDeque<ReadPiece>,
    /// How many of `outstanding_reads` were sent since the last rewind.
    reads_sent: usize,
    /// Packets since the last one that requested an acknowledgement.
    since_ack_request: u32,
    /// Already rewound to `una`; further NAKs are ignored until an ACK makes progress.
    recovering: bool,
    /// Retries since the last progress.
    retries: u32,
    /// When the latest retry started, or `progress_at`.
    attempt_at: Time,
    /// Number of consecutive timer expirations; each doubles the retransmission timer.
    expirations: u32,
    /// Set while only the first unacknowledged packet has been retransmitted, after the timer expired.
    probe: Option<Probe>,
    /// When `una` last advanced, or when the first outstanding packet was sent.
    progress_at: Time,
    /// The PSN at which the latest retransmission started; a repeated READ request starts here.
    restarted_at: Option<Psn>,
    rnr_retries_left: Option<u8>,
    retransmit_at: Option<Time>,
    rnr_wait_until: Option<Time>,
    /// When the pacing allows the next packet, while it holds one back.
    paced_until: Option<Time>,
    /// The packet whose acknowledgement yields the round-trip time, and when it was sent.
    timed: Option<(Psn, Time)>,
    round_trip: RoundTrip,
    congestion: Congestion,
    pub(crate) recovery: LossRecovery,
    /// The peer runs this crate: it accepts [filled](crate::wire::Bth::filled) packets, promptly acknowledges messages
    /// that do not request it, and accepts [`ATOMICS_OF_OWN_KIND`](crate::attributes::ATOMICS_OF_OWN_KIND) outstanding
    /// atomics.
    is_of_own_kind: bool,
    /// The PSN after the last unacknowledged packet that refers to its payload. After a gap the peer keeps no such
    /// packet.
    merged_until: Option<Psn>,
    /// Packets to retransmit, with [`LossRecovery::Selective`].
    missing: Missing,
    /// Responses placed beyond a gap, with [`LossRecovery::Selective`].
    arrivals: Arrivals,
    /// The peer has executed all requests before this PSN; at least `una`.
    executed: Psn,
    /// All PSNs before this one were checked for missing responses; at least `una`.
    examined: Psn,
    /// No further request is started.
    draining: bool,
    /// The peer's process has ended and will not answer.
    peer_has_ended: bool,
    pub(crate) statistics: Statistics,
}

/// Where transmission resumes if the packets after a probe turn out not to be lost.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The retransmitted packet.
    psn: Psn,
    next: Psn,
    cursor: usize,
    reads_sent: usize,
}

/// The PSNs of the responses to one READ request packet, or the PSN of an atomic.
#[derive(Clone, Copy, Debug)]
struct ReadPiece {
    first: Psn,
    last: Psn,
    /// Part of it was requested again, so responses may start and end at any of its packets.
    repeated: bool,
}

impl Requester {
    pub(crate) fn new(qpn: Qpn, config: TransportConfig) -> Self {
        // With a window of one, every packet would wait for a round trip. 2^16 is far below half of the PSN space,
        // beyond which a new packet looks like a duplicate (IBTA 9.7.2).
        let window = config.window.clamp(2, 1 << 16);
        let max_window = config.max_window.clamp(window, 1 << 16);
        let attributes = RtsAttributes {
            sq_psn: Psn::default(),
            timeout: AckTimeout::NEVER,
            retry_limit: RetryLimit::Count(RetryCount::new(0)),
            rnr_retry: RnrRetry::new(0),
            max_rd_atomic: 0,
        };
        Self {
            qpn,
            attributes,
            config: TransportConfig {
                window,
                max_window,
                // A request for more responses than fit the window would wait until nothing else is outstanding.
                read_packets: config.read_packets.clamp(1, window),
                ..config
            },
            send_queue: VecDeque::new(),
            cursor: 0,
            una: Psn::default(),
            next: Psn::default(),
            highest: Psn::default(),
            outstanding_reads: VecDeque::new(),
            reads_sent: 0,
            since_ack_request: 0,
            recovering: false,
            retries: 0,
            attempt_at: Time::EPOCH,
            expirations: 0,
            probe: None,
            progress_at: Time::EPOCH,
            restarted_at: None,
            rnr_retries_left: None,
            retransmit_at: None,
            rnr_wait_until: None,
            paced_until: None,
            timed: None,
            round_trip: RoundTrip::default(),
            congestion: Congestion::new(window, max_window),
            recovery: LossRecovery::GoBackN,
            is_of_own_kind: false,
            merged_until: None,
            missing: Missing::default(),
            arrivals: Arrivals::default(),
            executed: Psn::default(),
            examined: Psn::default(),
            draining: false,
            peer_has_ended: false,
            statistics: Statistics::default(),
        }
    }

    pub(crate) fn connect(&mut self, attributes: &RtsAttributes, reliability: Reliability) {
        self.set_attributes(attributes, reliability);
        self.peer_has_ended = false;
        self.una = attributes.sq_psn;
        self.next = attributes.sq_psn;
        self.highest = attributes.sq_psn;
        self.executed = attributes.sq_psn;
        self.examined = attributes.sq_psn;
        self.arrivals.advance(attributes.sq_psn);
    }

    /// Updates retransmission parameters and the limit of outstanding READs.
    pub(crate) fn set_attributes(&mut self, attributes: &RtsAttributes, reliability: Reliability) {
        self.attributes = *attributes;
        if reliability == Reliability::Unreliable {
            // READs and atomics need a response, which this service lacks.
            self.attributes.max_rd_atomic = 0;
        }
        self.rnr_retries_left = attributes.rnr_retry.times();
    }

    /// Switches to carrying payloads of long messages in packets.
    pub(crate) fn send_by_network(&mut self) {
        self.congestion.follow(Payloads::Carried);
    }

    /// Stops starting requests.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// Fails unacknowledged and later requests: the peer has ended.
    pub(crate) fn end_peer(&mut self) {
        self.peer_has_ended = true;
    }

    /// Starts requests again, after [`Requester::drain`].
    pub(crate) fn resume(&mut self) {
        self.draining = false;
    }

    /// Returns whether every started request is complete.
    pub(crate) fn is_drained(&self) -> bool {
        let first = self.send_queue.front();
        first.is_none_or(|wqe| wqe.first.is_none())
    }

    /// Returns how many more requests the queue can take.
    pub(crate) fn room(&self, caps: &Capabilities) -> u32 {
        // Posting is refused when the queue is full, so this does not saturate.
        caps.max_send_wr
            .saturating_sub(self.send_queue.len() as u32)
    }

    /// Returns whether READs and atomics may be posted.
    pub(crate) const fn takes_reads(&self) -> bool {
        self.attributes.max_rd_atomic > 0
    }

    /// Validates and queues a request.
    pub(crate) fn post(
        &mut self,
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
    ) -> Result<(), PostError> {
        if self.room(caps) == 0 {
            return Err(PostError::Full(caps.max_send_wr));
        }
        let wqe = SendWqe::new(request, caps, mtu)?;
        if wqe.expects_response() && !self.takes_reads() {
            return Err(PostError::NoReads);
        }
        self.send_queue.push_back(wqe);
        Ok(())
    }

    /// Withdraws the `count` requests posted last, none of which has been sent.
    pub(crate) fn withdraw(&mut self, count: usize) {
        let left = self.send_queue.len().saturating_sub(count);
        self.send_queue.truncate(left);
    }

    /// Validates a request posted in ERR, and completes it as flushed.
    pub(crate) fn post_flushed(
        &self,
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
        notifications: &mut Notifications,
    ) -> Result<(), PostError> {
        // An invalid request is refused in ERR just as in RTS.
        let wqe = SendWqe::new(request, caps, mtu)?;
        notifications
            .completions
            .push_back(wqe.completion(WcStatus::WrFlushed, self.qpn));
        Ok(())
    }

    /// Sets the peer's shared receive queue for the request posted last. In ERR that request has already completed.
    pub(crate) fn name_receives(&mut self, receives: XrcSrqn) {
        if let Some(last) = self.send_queue.back_mut() {
            last.receives = receives;
        }
    }

    /// Completes every queued request as flushed.
    pub(crate) fn flush(&mut self, notifications: &mut Notifications) {
        for wqe in self.send_queue.drain(..) {
            notifications
                .completions
                .push_back(wqe.completion(WcStatus::WrFlushed, self.qpn));
        }
        self.cursor = 0;
        self.outstanding_reads.clear();
        self.reads_sent = 0;
        self.missing.clear();
        self.merged_until = None;
        self.arrivals.clear();
        self.retransmit_at = None;
        self.rnr_wait_until = None;
        self.paced_until = None;
    }

    /// Returns whether any packet sent since the last rewind is unacknowledged.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.next != self.una
    }

    /// Returns whether a packet may become due without a further call by the program. If not, polling does nothing.
    pub(crate) fn has_unsent(&self) -> bool {
        self.cursor < self.send_queue.len()
            || !self.missing.is_empty()
            // Polling fails these requests, although it sends nothing.
            || self.peer_has_ended && !self.send_queue.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        // Nothing is outstanding during the wait after an RNR NAK.
        self.rnr_wait_until
            .or_else(|| Time::earlier(self.retransmit_at, self.paced_until))
    }

    pub(crate) fn handle_deadline(
        &mut self,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        if self.rnr_wait_until.is_some_and(|until| until <= now) {
            self.rnr_wait_until = None;
        }
        if self.paced_until.is_some_and(|until| until <= now) {
            self.paced_until = None;
        }
        if self.retransmit_at.is_some_and(|at| at <= now) {
            self.statistics.timeouts += 1;
            return self.expire(now, notifications);
        }
        Ok(())
    }

    /// Retransmits the first unacknowledged packet after the timer expired.
    fn expire(
        &mut self,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        // The program's timeout is the unit of its retry count. The measured timer is shorter, and expires several
        // times per attempt.
        let attempt_ends = self.attributes.timeout.duration();
        if attempt_ends.is_some_and(|wait| now >= self.attempt_at + wait) {
            self.count_retry(now, notifications)?;
        } else if self.is_out_of_time(now) {
            return self.fail(WcStatus::RetryExceeded, notifications);
        }
        self.expirations = self.expirations.saturating_add(1);
        if self.recovery_now() == LossRecovery::Selective && self.has_outstanding() {
            self.resend_ends(now);
            return Ok(());
        }
        self.statistics.retransmissions += 1;
        // While a probe is outstanding, the resume point remains the one before the first probe.
        let probe = self.probe.unwrap_or(Probe {
            psn: self.una,
            next: self.next,
            cursor: self.cursor,
            reads_sent: self.reads_sent,
        });
        // Only the probe itself may be acknowledged for either of two transmissions.
        let timed = self.timed.filter(|(psn, _)| *psn != self.una);
        self.rewind();
        // Set after `rewind`, which resets both.
        self.timed = timed;
        self.probe = Some(probe);
        Ok(())
    }

    /// Returns how a packet lost now is recovered. Later packets that refer to their payload are lost with it.
    fn recovery_now(&self) -> LossRecovery {
        match self.merged_until {
            Some(_) => LossRecovery::GoBackN,
            None => self.recovery,
        }
    }

    /// Rewinds to `una`, because the peer misses a packet or a response is missing.
    fn retry(
        &mut self,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        self.count_retry(now, notifications)?;
        self.statistics.retransmissions += 1;
        let outstanding = self.next.distance_from(self.una);
        self.congestion
            .lose(now, outstanding, self.recovery, &self.round_trip);
        self.rewind();
        Ok(())
    }

    /// Counts a retry. Fails the request at the head once the retry limit is reached.
    fn count_retry(
        &mut self,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let exhausted = match self.attributes.retry_limit {
            RetryLimit::Count(count) => self.retries >= count.get().into(),
            RetryLimit::NoProgressFor(_) => self.is_out_of_time(now),
        };
        if exhausted {
            return self.fail(WcStatus::RetryExceeded, notifications);
        }
        self.retries = self.retries.saturating_add(1);
        self.attempt_at = now;
        Ok(())
    }

    /// Returns whether the time allowed without progress is over.
    fn is_out_of_time(&self, now: Time) -> bool {
        match self.attributes.retry_limit {
            RetryLimit::Count(_) => false,
            RetryLimit::NoProgressFor(limit) => now >= self.progress_at + limit,
        }
    }

    /// Returns when to retransmit a packet sent at `now`; `None` means never.
    fn retransmit_time(&self, now: Time) -> Option<Time> {
        // Exponent 0 disables the timer: nothing is retransmitted without an answer (IBTA 9.7.6.1.3).
        let wait = self.attributes.timeout.duration()?;
        let measured = self.round_trip.timeout();
        // Capped at the program's timeout, so that the connection fails as early as the program expects.
        let first = measured.map_or(wait, |measured| measured.min(wait));
        // The timer doubles with each expiration (RFC 6298, 5.5). 2^16 exceeds every limit below, and the shift cannot
        // overflow.
        let backoff = first.saturating_mul(1 << self.expirations.min(16));
        let at = match self.attributes.retry_limit {
            // No later than the end of the attempt, when a retry is counted.
            RetryLimit::Count(_) => (now + backoff.min(wait)).min(self.attempt_at + wait),
            RetryLimit::NoProgressFor(limit) => {
                let longest = wait.max(RetryLimit::MAX_BACKOFF);
                // No later than the end of the time without progress, when the connection fails.
                (now + backoff.min(longest)).min(self.progress_at + limit)
            }
        };
        // These limits may lie in the past: the timer then expires at once.
        Some(at.max(now))
    }

    fn rewind(&mut self) {
        self.next = self.una;
        self.restarted_at = Some(self.una);
        self.cursor = 0;
        self.reads_sent = 0;
        self.since_ack_request = 0;
        self.recovering = true;
        // Everything from `una` on is retransmitted anyway.
        self.missing.clear();
        self.examined = self.una;
        self.probe = None;
        // The acknowledgement of a packet sent twice may answer either transmission.
        self.timed = None;
        self.retransmit_at = None;
    }

    /// Completes the request at the head of the send queue with an error.
    fn fail(
        &mut self,
        status: WcStatus,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        if let Some(wqe) = self.send_queue.pop_front() {
            notifications
                .completions
                .push_back(wqe.completion(status, self.qpn));
        }
        Err(ConnectionFailed)
    }
}
