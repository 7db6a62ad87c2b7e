//! The requester: the send queue, transmission and retransmission.
//!
//! Three PSNs describe the state of a go-back-N sender. All packets before `una` are acknowledged.
//! All packets before `next` were sent since the last rewind, and all before `highest` were sent
//! at least once. A rewind sets `next = una`. `una` is a PSN of the first request of the send
//! queue, or no packet is outstanding.

mod ack;
mod send_wqe;
mod transmit;

use std::collections::VecDeque;

use send_wqe::SendWqe;

use crate::attributes::{Capabilities, RtsAttributes, TransportConfig};
use crate::completion::WcStatus;
use crate::connection::{ConnectionFailed, Notifications};
use crate::error::PostError;
use crate::ids::Qpn;
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
    /// Last PSN of each outstanding READ request packet and atomic.
    outstanding_reads: VecDeque<Psn>,
    /// Number of packets since the last one that requested an acknowledgement.
    since_ack_request: u32,
    /// Already rewound to `una`; further NAKs are ignored until an ACK makes progress.
    recovering: bool,
    /// Number of retries since the last progress.
    retries: u32,
    /// When `una` last advanced, or when the first outstanding packet was sent.
    progress_at: Time,
    /// PSN at which the latest retransmission began; a repeated READ request starts here.
    restarted_at: Option<Psn>,
    rnr_retries_left: Option<u8>,
    retransmit_at: Option<Time>,
    rnr_wait_until: Option<Time>,
    pub(crate) statistics: Statistics,
}

impl Requester {
    pub(crate) fn new(qpn: Qpn, config: TransportConfig) -> Self {
        let window = config.window.clamp(2, 1 << 16);
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
                read_packets: config.read_packets.clamp(1, window),
                ..config
            },
            send_queue: VecDeque::new(),
            cursor: 0,
            una: Psn::default(),
            next: Psn::default(),
            highest: Psn::default(),
            outstanding_reads: VecDeque::new(),
            since_ack_request: 0,
            recovering: false,
            retries: 0,
            progress_at: Time::EPOCH,
            restarted_at: None,
            rnr_retries_left: None,
            retransmit_at: None,
            rnr_wait_until: None,
            statistics: Statistics::default(),
        }
    }

    pub(crate) fn connect(&mut self, attributes: &RtsAttributes) {
        self.attributes = *attributes;
        self.una = attributes.sq_psn;
        self.next = attributes.sq_psn;
        self.highest = attributes.sq_psn;
        self.rnr_retries_left = attributes.rnr_retry.times();
    }

    /// Checks and queues a request.
    pub(crate) fn post(
        &mut self,
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
    ) -> Result<(), PostError> {
        if self.send_queue.len() >= caps.max_send_wr as usize {
            return Err(PostError::Full(caps.max_send_wr));
        }
        let wqe = SendWqe::new(request, caps, mtu)?;
        if wqe.expects_response() && self.attributes.max_rd_atomic == 0 {
            return Err(PostError::NoReads);
        }
        self.send_queue.push_back(wqe);
        Ok(())
    }

    /// Checks a request that is posted in ERR, and completes it as flushed.
    pub(crate) fn post_flushed(
        &self,
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
        notifications: &mut Notifications,
    ) -> Result<(), PostError> {
        let wqe = SendWqe::new(request, caps, mtu)?;
        notifications
            .completions
            .push_back(wqe.completion(WcStatus::WrFlushed, self.qpn));
        Ok(())
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
        self.retransmit_at = None;
        self.rnr_wait_until = None;
    }

    /// Whether packets were sent that are not acknowledged.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.next != self.una
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        // Never both: no packet is outstanding during the wait after an RNR NAK.
        self.rnr_wait_until.or(self.retransmit_at)
    }

    pub(crate) fn handle_deadline(
        &mut self,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        if self.rnr_wait_until.is_some_and(|until| until <= now) {
            self.rnr_wait_until = None;
        }
        if self.retransmit_at.is_some_and(|at| at <= now) {
            self.statistics.timeouts += 1;
            return self.retry(now, notifications);
        }
        Ok(())
    }

    /// Rewinds to `una`, or fails the first request when the retry limit is reached.
    fn retry(
        &mut self,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let exhausted = match self.attributes.retry_limit {
            RetryLimit::Count(count) => self.retries >= count.get().into(),
            RetryLimit::NoProgressFor(limit) => now >= self.progress_at + limit,
        };
        if exhausted {
            return self.fail(WcStatus::RetryExceeded, notifications);
        }
        self.retries = self.retries.saturating_add(1);
        self.statistics.retransmissions += 1;
        self.rewind();
        Ok(())
    }

    /// When to retransmit a packet that is sent at `now`. `None` means never.
    fn retransmit_time(&self, now: Time) -> Option<Time> {
        let wait = self.attributes.timeout.duration()?;
        Some(match self.attributes.retry_limit {
            RetryLimit::Count(_) => now + wait,
            RetryLimit::NoProgressFor(limit) => {
                let longest = wait.max(RetryLimit::MAX_BACKOFF);
                let backoff = wait.saturating_mul(1 << self.retries.min(16)).min(longest);
                (now + backoff).min(self.progress_at + limit).max(now)
            }
        })
    }

    fn rewind(&mut self) {
        self.next = self.una;
        self.restarted_at = Some(self.una);
        self.cursor = 0;
        self.outstanding_reads.clear();
        self.since_ack_request = 0;
        self.recovering = true;
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
