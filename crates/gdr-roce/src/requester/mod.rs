//! The requester: the send queue, transmission and retransmission.
//!
//! Three PSNs describe the state of a go-back-N sender. All packets before `una` are acknowledged.
//! All packets before `next` were sent since the last rewind, and all before `highest` were sent
//! at least once. A rewind sets `next = una`. `una` is a PSN of the first request of the send
//! queue, or no packet is outstanding.
//!
//! The retransmission timer follows the measured round-trip time. When it expires, only the first
//! unacknowledged packet is sent again: if acknowledgements were lost, or the peer was only slow, the
//! answer acknowledges the others, too. The timeout of the program stays the unit of its retry count:
//! a connection fails as late as with a timer of that length.

mod ack;
mod arrivals;
mod congestion;
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
    /// Index in the send queue of the request that the next packet belongs to.
    cursor: usize,
    una: Psn,
    next: Psn,
    highest: Psn,
    /// The READ request packets and atomics that were ever sent and are not complete.
    outstanding_reads: VecDeque<ReadPiece>,
    /// How many of them were sent since the last rewind.
    reads_sent: usize,
    /// Number of packets since the last one that requested an acknowledgement.
    since_ack_request: u32,
    /// Already rewound to `una`; further NAKs are ignored until an ACK makes progress.
    recovering: bool,
    /// Number of retries since the last progress.
    retries: u32,
    /// When the latest of them was, or `progress_at`.
    attempt_at: Time,
    /// By how many powers of two the retransmission timer is longer than the round-trip time suggests,
    /// because it expired.
    expirations: u32,
    /// Set while only the first unacknowledged packet was sent again, because the timer expired.
    probe: Option<Probe>,
    /// When `una` last advanced, or when the first outstanding packet was sent.
    progress_at: Time,
    /// PSN at which the latest retransmission began; a repeated READ request starts here.
    restarted_at: Option<Psn>,
    rnr_retries_left: Option<u8>,
    retransmit_at: Option<Time>,
    rnr_wait_until: Option<Time>,
    /// When the next packet may be sent, while the pacing keeps one back.
    paced_until: Option<Time>,
    /// A packet whose acknowledgement shows the round-trip time, and when it was sent.
    timed: Option<(Psn, Time)>,
    round_trip: RoundTrip,
    congestion: Congestion,
    pub(crate) recovery: LossRecovery,
    /// The peer runs this crate: it takes [filled](crate::wire::Bth::filled) packets, soon acknowledges
    /// messages that do not request it, and takes [`ATOMICS_OF_OWN_KIND`](crate::attributes::ATOMICS_OF_OWN_KIND).
    is_of_own_kind: bool,
    /// The PSN after the last packet that refers to its payload and is not acknowledged. The peer keeps none of them
    /// after a gap.
    merged_until: Option<Psn>,
    /// With [`LossRecovery::Selective`], what is to be sent again.
    missing: Missing,
    /// Likewise, the responses that are placed after a missing one.
    arrivals: Arrivals,
    /// All requests before it were executed by the peer, or it is `una`.
    executed: Psn,
    /// All PSNs before it were looked at for missing responses, or it is `una`.
    examined: Psn,
    /// No request is begun.
    draining: bool,
    /// The peer has ended, and answers nothing.
    peer_has_ended: bool,
    pub(crate) statistics: Statistics,
}

/// Where transmission goes on if the packets after a probe were not lost.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The packet that was sent again.
    psn: Psn,
    next: Psn,
    cursor: usize,
    reads_sent: usize,
}

/// The PSNs of the responses to one READ request packet, or of an atomic.
#[derive(Clone, Copy, Debug)]
struct ReadPiece {
    first: Psn,
    last: Psn,
    /// A part of it was requested again: responses may begin and end with any of its packets.
    repeated: bool,
}

impl Requester {
    pub(crate) fn new(qpn: Qpn, config: TransportConfig) -> Self {
        // With a window of one packet each would wait for a round trip. 2^16 is far below half of
        // the PSN space: from there on a new packet looks like a duplicate (IBTA 9.7.2).
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
                // A request for more responses than the window has would wait until nothing else is
                // outstanding.
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

    /// Changes how often and when packets are sent again, and how many READs may be outstanding.
    pub(crate) fn set_attributes(&mut self, attributes: &RtsAttributes, reliability: Reliability) {
        self.attributes = *attributes;
        if reliability == Reliability::Unreliable {
            // READs and atomics need a response.
            self.attributes.max_rd_atomic = 0;
        }
        self.rnr_retries_left = attributes.rnr_retry.times();
    }

    /// The payloads of long messages are in packets from here on.
    pub(crate) fn send_by_network(&mut self) {
        self.congestion.follow(Payloads::Carried);
    }

    /// Begins no request from here on.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// Fails what is not acknowledged, and each later request: the peer has ended.
    pub(crate) fn end_peer(&mut self) {
        self.peer_has_ended = true;
    }

    /// Begins requests again.
    pub(crate) fn resume(&mut self) {
        self.draining = false;
    }

    /// Returns whether every request that was begun is complete.
    pub(crate) fn is_drained(&self) -> bool {
        let first = self.send_queue.front();
        first.is_none_or(|wqe| wqe.first.is_none())
    }

    /// How many more requests the queue takes.
    pub(crate) fn room(&self, caps: &Capabilities) -> u32 {
        // At most as many as fit were posted.
        caps.max_send_wr
            .saturating_sub(self.send_queue.len() as u32)
    }

    /// Whether READs and atomics may be posted.
    pub(crate) const fn takes_reads(&self) -> bool {
        self.attributes.max_rd_atomic > 0
    }

    /// Checks and queues a request.
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

    /// Takes back the requests that were posted last, before anything of them was sent.
    pub(crate) fn withdraw(&mut self, count: usize) {
        let left = self.send_queue.len().saturating_sub(count);
        self.send_queue.truncate(left);
    }

    /// Checks a request that is posted in ERR, and completes it as flushed.
    pub(crate) fn post_flushed(
        &self,
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
        notifications: &mut Notifications,
    ) -> Result<(), PostError> {
        // An invalid request is refused in ERR as it is in RTS.
        let wqe = SendWqe::new(request, caps, mtu)?;
        notifications
            .completions
            .push_back(wqe.completion(WcStatus::WrFlushed, self.qpn));
        Ok(())
    }

    /// Lets the request that was posted last name the peer's shared receive queue. In ERR it is complete.
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

    /// Returns whether packets were sent that are not acknowledged.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.next != self.una
    }

    /// Returns whether a packet may be sent now or later without a call of the program. If not, a
    /// poll does nothing.
    pub(crate) fn has_unsent(&self) -> bool {
        self.cursor < self.send_queue.len()
            || !self.missing.is_empty()
            // A poll fails these, although it sends nothing.
            || self.peer_has_ended && !self.send_queue.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        // No packet is outstanding during the wait after an RNR NAK.
        let timers = [self.retransmit_at, self.paced_until];
        let next = timers.into_iter().flatten().min();
        self.rnr_wait_until.or(next)
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

    /// Sends the first unacknowledged packet again because the retransmission timer has expired.
    fn expire(
        &mut self,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        // The timeout of the program is the unit of its retry count. The measured timer is shorter:
        // it expires several times in one attempt.
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
        // While a probe is outstanding, transmission still goes on where it stopped before the
        // first one.
        let probe = self.probe.unwrap_or(Probe {
            psn: self.una,
            next: self.next,
            cursor: self.cursor,
            reads_sent: self.reads_sent,
        });
        // Only the packet that is sent again may be acknowledged for either of its transmissions.
        let timed = self.timed.filter(|(psn, _)| *psn != self.una);
        self.rewind();
        // After `rewind`, which forgets both.
        self.timed = timed;
        self.probe = Some(probe);
        Ok(())
    }

    /// How a packet that is lost now is recovered: packets after it that refer to their payload are lost, too.
    fn recovery_now(&self) -> LossRecovery {
        match self.merged_until {
            Some(_) => LossRecovery::GoBackN,
            None => self.recovery,
        }
    }

    /// Rewinds to `una` because the peer missed a packet, or a response is missing.
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

    /// Counts a retry, or fails the first request when the retry limit is reached.
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

    /// Returns whether the time without progress is over.
    fn is_out_of_time(&self, now: Time) -> bool {
        match self.attributes.retry_limit {
            RetryLimit::Count(_) => false,
            RetryLimit::NoProgressFor(limit) => now >= self.progress_at + limit,
        }
    }

    /// When to retransmit a packet that is sent at `now`. `None` means never.
    fn retransmit_time(&self, now: Time) -> Option<Time> {
        // Exponent 0: the program wants no timer, so nothing is sent again without an answer
        // (IBTA 9.7.6.1.3).
        let wait = self.attributes.timeout.duration()?;
        let measured = self.round_trip.timeout();
        // A measured time longer than the timeout of the program does not count: it must fail as
        // early as the program expects.
        let first = measured.map_or(wait, |measured| measured.min(wait));
        // The timer doubles with each expiration (RFC 6298, 5.5). Beyond 2^16 every limit below is
        // reached, and the shift cannot overflow.
        let backoff = first.saturating_mul(1 << self.expirations.min(16));
        let at = match self.attributes.retry_limit {
            // Not after the end of the attempt, when a retry counts.
            RetryLimit::Count(_) => (now + backoff.min(wait)).min(self.attempt_at + wait),
            RetryLimit::NoProgressFor(limit) => {
                let longest = wait.max(RetryLimit::MAX_BACKOFF);
                // Not after the end of the time without progress, when the connection fails.
                (now + backoff.min(longest)).min(self.progress_at + limit)
            }
        };
        // The limits above may be over: the timer expires at once.
        Some(at.max(now))
    }

    fn rewind(&mut self) {
        self.next = self.una;
        self.restarted_at = Some(self.una);
        self.cursor = 0;
        self.reads_sent = 0;
        self.since_ack_request = 0;
        self.recovering = true;
        // Everything from `una` on is sent again in any case.
        self.missing.clear();
        self.examined = self.una;
        self.probe = None;
        // An acknowledgement of a packet that was sent twice may answer either.
        self.timed = None;
        self.retransmit_at = None;
    }

    /// Completes the first request of the send queue with an error.
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
