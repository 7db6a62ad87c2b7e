//! The sending half: what is posted, what is on its way, when to send it again.
//!
//! PSNs form three marks: everything before `una` is answered, everything before `next` was sent
//! since the last going back, everything before `highest` was ever sent. Going back means
//! `next = una`. `una` lies in the first entry of the queue, or nothing is on its way.

mod answer;
mod entry;
mod transmit;

use std::collections::VecDeque;

use entry::{Entry, Payload};
use smallvec::SmallVec;

use crate::MAX_MESSAGE;
use crate::completion::WcStatus;
use crate::error::PostError;
use crate::key::Qpn;
use crate::link::{Broken, Results};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::queue_pair::{Capabilities, Pace, RtsAttributes};
use crate::request::{Data, Operation, SendRequest};
use crate::scatter;
use crate::timer::{AckTimeout, RetryCount, RnrRetry, Time};

#[derive(Debug)]
pub(crate) struct Requester {
    qpn: Qpn,
    attributes: RtsAttributes,
    pace: Pace,
    queue: VecDeque<Entry>,
    /// The entry that the next packet belongs to.
    cursor: usize,
    una: Psn,
    next: Psn,
    highest: Psn,
    /// The last PSN of each READ request or atomic on its way.
    reads: VecDeque<Psn>,
    /// Packets since one asked for an acknowledgement.
    unasked: u32,
    /// Went back to `una` and nothing was answered since: more of the same bad news is old news.
    recovering: bool,
    retries_left: u8,
    rnr_retries_left: Option<u8>,
    retransmit_at: Option<Time>,
    wait_until: Option<Time>,
}

impl Requester {
    pub(crate) fn new(qpn: Qpn, pace: Pace) -> Self {
        let window = pace.window.clamp(2, 1 << 16);
        let attributes = RtsAttributes {
            sq_psn: Psn::default(),
            timeout: AckTimeout::NEVER,
            retry_count: RetryCount::new(0),
            rnr_retry: RnrRetry::new(0),
            max_rd_atomic: 0,
        };
        Self {
            qpn,
            attributes,
            pace: Pace {
                window,
                read_packets: pace.read_packets.clamp(1, window),
                ..pace
            },
            queue: VecDeque::new(),
            cursor: 0,
            una: Psn::default(),
            next: Psn::default(),
            highest: Psn::default(),
            reads: VecDeque::new(),
            unasked: 0,
            recovering: false,
            retries_left: 0,
            rnr_retries_left: None,
            retransmit_at: None,
            wait_until: None,
        }
    }

    pub(crate) fn connect(&mut self, attributes: &RtsAttributes) {
        self.attributes = *attributes;
        self.una = attributes.sq_psn;
        self.next = attributes.sq_psn;
        self.highest = attributes.sq_psn;
        self.retries_left = attributes.retry_count.get();
        self.rnr_retries_left = attributes.rnr_retry.times();
    }

    /// Checks and queues a request.
    pub(crate) fn post(
        &mut self,
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
    ) -> Result<(), PostError> {
        if self.queue.len() >= caps.max_send_wr as usize {
            return Err(PostError::Full(caps.max_send_wr));
        }
        let answers = matches!(
            request.operation,
            Operation::Read { .. } | Operation::Atomic { .. }
        );
        let (payload, len) = match request.data {
            Data::Inline(_) if answers => return Err(PostError::InlineAnswer),
            Data::Inline(bytes) if bytes.len() > caps.max_inline as usize => {
                return Err(PostError::InlineTooLong {
                    len: bytes.len(),
                    max: caps.max_inline,
                });
            }
            Data::Inline(bytes) => (
                Payload::Inline(SmallVec::from_slice(bytes)),
                bytes.len() as u64,
            ),
            Data::Segments(segments) => {
                (Payload::Segments(segments.into()), scatter::total(segments))
            }
        };
        if len > u64::from(MAX_MESSAGE) {
            return Err(PostError::TooLong(len));
        }
        if matches!(request.operation, Operation::Atomic { .. }) && len != 8 {
            return Err(PostError::AtomicLength(len));
        }
        if answers && self.attributes.max_rd_atomic == 0 {
            return Err(PostError::NoReads);
        }
        let len = len as u32;
        self.queue.push_back(Entry {
            id: request.id,
            operation: request.operation,
            flags: request.flags,
            payload,
            len,
            packets: mtu.packets(len),
            first: None,
            answered: 0,
            failed: None,
        });
        Ok(())
    }

    /// Ends every request that is queued.
    pub(crate) fn flush(&mut self, results: &mut Results) {
        for entry in self.queue.drain(..) {
            results
                .completions
                .push_back(entry.completion(WcStatus::WrFlushed, self.qpn));
        }
        self.cursor = 0;
        self.reads.clear();
        self.retransmit_at = None;
        self.wait_until = None;
    }

    /// Whether packets were sent and are not answered yet.
    pub(crate) fn is_on_its_way(&self) -> bool {
        self.next != self.una
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        // Never both: while the peer is given time, nothing is on its way.
        self.wait_until.or(self.retransmit_at)
    }

    pub(crate) fn handle_deadline(
        &mut self,
        now: Time,
        results: &mut Results,
    ) -> Result<(), Broken> {
        if self.wait_until.is_some_and(|until| until <= now) {
            self.wait_until = None;
        }
        if self.retransmit_at.is_some_and(|at| at <= now) {
            return self.retry(results);
        }
        Ok(())
    }

    /// Sends everything that is not answered again, if that may still be done.
    fn retry(&mut self, results: &mut Results) -> Result<(), Broken> {
        let Some(left) = self.retries_left.checked_sub(1) else {
            return self.fail(WcStatus::RetryExceeded, results);
        };
        self.retries_left = left;
        self.go_back();
        Ok(())
    }

    fn go_back(&mut self) {
        self.next = self.una;
        self.cursor = 0;
        self.reads.clear();
        self.unasked = 0;
        self.recovering = true;
        self.retransmit_at = None;
    }

    /// The first request of the queue failed.
    fn fail(&mut self, status: WcStatus, results: &mut Results) -> Result<(), Broken> {
        if let Some(entry) = self.queue.pop_front() {
            results
                .completions
                .push_back(entry.completion(status, self.qpn));
        }
        Err(Broken)
    }
}
