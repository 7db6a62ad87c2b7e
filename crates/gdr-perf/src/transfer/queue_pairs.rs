//! Queue pairs of one end, and their completion queue.

use std::time::{Duration, Instant};

use gdr_rdma::{
    AckTimeout, Capabilities, Completion, CompletionQueue, ConnectionOptions, Endpoint, Mtu,
    ProtectionDomain, QueuePair, QueuePairOptions, RetryCount, WrId,
};

use super::plan::Plan;
use crate::error::{Error, Result, TransferFailure, proceed};
use crate::loopback::connection::{ack_timeout, success};
use crate::transfer::report::{Observe, TransferEvent};

/// Empty polls between two readings of the clock.
const POLLS: u32 = 32;
/// Readings of the clock between two actions that need a system call.
const READINGS: u32 = 8;
/// Messages of the peer between two readings of the clock, which slow the other end down.
const MESSAGES: u32 = 64;
/// How often a wait notifies the observer, which may stop the run.
const LOOK: Duration = Duration::from_millis(100);

/// Queue pairs of one end.
pub(super) struct QueuePairs {
    pairs: Vec<QueuePair>,
    queue: CompletionQueue,
}

impl QueuePairs {
    pub(super) fn new(domain: &ProtectionDomain, plan: &Plan) -> Result<Self> {
        let entries = (plan.tx_depth + plan.rx_depth) * plan.queue_pairs;
        let queue = domain.device().completion_queue(entries as usize);
        let options = QueuePairOptions::new(&queue).capabilities(Capabilities {
            max_send_wr: plan.tx_depth,
            max_recv_wr: plan.rx_depth,
            max_inline: plan.inline,
        });
        let pairs = (0..plan.queue_pairs).map(|_| domain.queue_pair(&options));
        Ok(Self {
            pairs: pairs.collect::<Result<_, _>>()?,
            queue,
        })
    }

    pub(super) fn all(&self) -> &[QueuePair] {
        &self.pairs
    }

    /// Connects one of them; requests without an answer fail after `limit`.
    pub(super) fn connect(
        &self,
        number: usize,
        peer: &Endpoint,
        mtu: Mtu,
        plan: &Plan,
        limit: Duration,
    ) -> Result<()> {
        let give_up_after = limit * 7 / 8;
        let (timeout, give_up_after) = match plan.ack_timeout {
            Some(exponent) => (AckTimeout::new(exponent), None),
            None => (ack_timeout(give_up_after), Some(give_up_after)),
        };
        let options = ConnectionOptions {
            timeout,
            retry_count: RetryCount::new(7),
            give_up_after,
            service_level: plan.service_level,
            traffic_class: plan.traffic_class,
            ..ConnectionOptions::new(mtu)
        };
        Ok(self.pairs[number].connect(peer, &options)?)
    }

    /// Polls for the next completion, which must be a success of `wait.operation`.
    pub(super) fn poll(&self, wait: &Wait) -> Result<Option<Completion>> {
        let completion = self.queue.poll()?;
        if let Some(completion) = &completion {
            success(completion, wait.operation, wait.size)?;
        }
        Ok(completion)
    }

    /// Appends up to `most` completions, which must be successes of `wait.operation`; returns how many.
    pub(super) fn poll_into(
        &self,
        wait: &Wait,
        most: usize,
        completions: &mut Vec<Completion>,
    ) -> Result<usize> {
        let taken = self.queue.poll_into(most, completions)?;
        for completion in &completions[completions.len() - taken..] {
            success(completion, wait.operation, wait.size)?;
        }
        Ok(taken)
    }
}

/// A wait for the peer's next action: its deadline, and the observer that may stop it.
pub(super) struct Wait {
    operation: &'static str,
    size: u64,
    /// How long it may take until something happens.
    limit: Duration,
    /// Time by which the peer must have sent everything, and the length of that limit.
    end: (Instant, Duration),
    messages: u32,
    polls: u32,
    /// When the wait began, as far as the clock has been read since.
    last: Instant,
    /// Something happened after that.
    progressed: bool,
    looked: Instant,
}

impl Wait {
    pub(super) fn new(plan: &Plan, size: u64) -> Self {
        let (now, phase) = (Instant::now(), plan.phase_limit(size));
        Self {
            operation: plan.verb.operation_name(),
            size,
            limit: plan.limit(size),
            end: (now + phase, phase),
            messages: 0,
            polls: 0,
            last: now,
            progressed: false,
            looked: now,
        }
    }

    /// Like [`Wait::new`], for an end that sees nothing of the peer until it has sent everything.
    pub(super) fn for_all(plan: &Plan, size: u64) -> Self {
        let wait = Self::new(plan, size);
        let (_, limit) = wait.end;
        Self { limit, ..wait }
    }

    /// Records that something happened: the deadline starts again.
    pub(super) fn progress(&mut self) {
        self.progressed = true;
        self.polls = 0;
    }

    /// Counts a message of the peer, which may send without a pause and without end. Checks the limit, and lets the
    /// observer stop the run, once per `MESSAGES`.
    pub(super) fn arrived(&mut self, observe: Observe<'_>) -> Result<()> {
        self.progress();
        self.messages = self.messages.wrapping_add(1);
        if !self.messages.is_multiple_of(MESSAGES) {
            return Ok(());
        }
        let (now, (end, limit)) = (Instant::now(), self.end);
        match now < end {
            true => self.look(now, observe),
            false => Err(self.late(limit)),
        }
    }

    fn late(&self, limit: Duration) -> Error {
        Error::Transfer {
            operation: self.operation,
            size: self.size,
            failure: TransferFailure::Deadline { limit },
        }
    }

    /// Records that nothing happened. Now and then returns that the caller may check what is too slow to be checked
    /// each time.
    pub(super) fn idle(&mut self, observe: Observe<'_>) -> Result<bool> {
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS) {
            return Ok(false);
        }
        let now = Instant::now();
        if std::mem::take(&mut self.progressed) {
            self.last = now;
        }
        let waited = now.saturating_duration_since(self.last);
        if waited >= self.limit {
            return Err(self.late(self.limit));
        }
        self.look(now, observe)?;
        Ok(self.polls.is_multiple_of(READINGS * POLLS))
    }

    /// Lets the observer stop the run, ten times a second.
    pub(super) fn look(&mut self, now: Instant, observe: Observe<'_>) -> Result<()> {
        if now.saturating_duration_since(self.looked) >= LOOK {
            self.looked = now;
            proceed(observe(TransferEvent::Waiting))?;
        }
        Ok(())
    }
}

/// Returns the identifier of a request: its queue pair and its number.
pub(super) fn id(queue_pair: usize, number: u64) -> WrId {
    WrId((queue_pair as u64) << 56 | (number & NUMBER))
}

/// Returns the queue pair and the number of a request; the number has at most 56 bits.
pub(super) fn of_id(id: WrId) -> (usize, u64) {
    ((id.0 >> 56) as usize, id.0 & NUMBER)
}

const NUMBER: u64 = (1 << 56) - 1;

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::transfer::{Amount, Verb};

    #[test]
    fn a_peer_that_sends_without_a_pause_ends_at_the_limit_and_can_be_stopped() {
        let began = Instant::now();
        let sends = |timeout_ms, observe: Observe<'_>| {
            let plan = Plan {
                amount: Amount::Iterations(1),
                timeout_ms,
                ..Plan::new(Verb::SendBw)
            };
            let mut wait = Wait::new(&plan, 1);
            loop {
                if let Err(error) = wait.arrived(observe) {
                    return error;
                }
                assert!(began.elapsed() < Duration::from_secs(60));
            }
        };
        let late = sends(1, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(late, Error::Transfer { .. }), "{late}");
        let stopped = sends(600_000, &mut |_| ControlFlow::Break(()));
        assert!(matches!(stopped, Error::Stopped), "{stopped}");
    }

    #[test]
    fn an_identifier_has_its_queue_pair_and_its_number() {
        for (queue_pair, number) in [(0, 0), (63, 5), (1, NUMBER)] {
            assert_eq!(of_id(id(queue_pair, number)), (queue_pair, number));
        }
    }
}
