//! One long transfer over several queue pairs.

use std::time::Duration;

use gdr_roce::{Completion, Remote, WcStatus, WrId};

use crate::completion_queue::CompletionQueue;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::memory_region::MemoryRegion;
use crate::queue_pair::QueuePair;
use crate::work_request::SendRequest;

/// The longest part that one queue pair moves at a time.
const PART: u64 = 1 << 20;
/// How many parts of a queue pair are under way: it has the next one when the last is acknowledged.
const DEPTH: u64 = 2;

/// How long the requests of a transfer that failed may take to be flushed.
const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// A striped transfer failed. Every queue pair of it is in ERR, and moves no bytes any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StripeError {
    /// There is no queue pair.
    #[error("a transfer was striped over no queue pair; give at least one")]
    NoQueuePairs,
    /// A part failed.
    #[error("a part of a striped transfer failed: {0}; connect new queue pairs")]
    Part(WcStatus),
    /// A request was refused, or did not complete before the deadline.
    #[error(transparent)]
    Rdma(#[from] Error),
}

type Result<T> = std::result::Result<T, StripeError>;

/// Queue pairs over which long transfers are striped.
///
/// All of them are connected to the same device, and the completions of their sends come by one queue,
/// which has room for two of each. While a transfer runs, nothing else is posted to them and no other
/// thread takes completions from the queue.
///
/// Queue pairs in several shards of the soft provider use several processors.
#[derive(Clone, Copy, Debug)]
pub struct Stripe<'a> {
    pairs: &'a [QueuePair],
}

/// The memory of both sides, and its length.
#[derive(Clone, Copy, Debug)]
pub struct StripedRange<'a> {
    /// The memory of this side.
    pub local: &'a MemoryRegion,
    /// The offset in it of the first byte.
    pub offset: u64,
    /// The first byte of the peer's memory.
    pub remote: Remote,
    /// The number of bytes.
    pub len: u64,
}

#[derive(Clone, Copy)]
enum Direction {
    Write,
    Read,
}

impl<'a> Stripe<'a> {
    /// Stripes over these queue pairs.
    pub const fn over(pairs: &'a [QueuePair]) -> Self {
        Self { pairs }
    }

    /// Writes a range into the peer's memory.
    ///
    /// # Errors
    /// [`StripeError::Part`] for a part that failed; those of [`QueuePair::post_send`] and of
    /// [`CompletionQueue::wait`], a deadline that has passed among them.
    pub fn write(&self, range: &StripedRange<'_>, deadline: Deadline) -> Result<()> {
        self.run(Direction::Write, range, deadline)
    }

    /// Reads a range of the peer's memory.
    ///
    /// # Errors
    /// As [`Stripe::write`].
    pub fn read(&self, range: &StripedRange<'_>, deadline: Deadline) -> Result<()> {
        self.run(Direction::Read, range, deadline)
    }

    fn run(
        &self,
        direction: Direction,
        range: &StripedRange<'_>,
        deadline: Deadline,
    ) -> Result<()> {
        let Some(first) = self.pairs.first() else {
            return Err(StripeError::NoQueuePairs);
        };
        let mut run = Run {
            stripe: self,
            direction,
            range,
            begun: 0,
            under_way: 0,
        };
        let queue = first.send_queue();
        let finished = run.finish(queue, deadline);
        if finished.is_err() {
            run.abort(queue);
        }
        finished
    }
}

/// A transfer that is under way.
struct Run<'a> {
    stripe: &'a Stripe<'a>,
    direction: Direction,
    range: &'a StripedRange<'a>,
    /// Bytes that were posted.
    begun: u64,
    /// Parts that are not complete.
    under_way: u64,
}

impl Run<'_> {
    fn finish(&mut self, queue: &CompletionQueue, deadline: Deadline) -> Result<()> {
        for _ in 0..DEPTH {
            for pair in 0..self.stripe.pairs.len() {
                self.post(pair)?;
            }
        }
        while self.under_way > 0 {
            let Completion { id, status, .. } = queue.wait(deadline)?;
            self.under_way -= 1;
            if status != WcStatus::Success {
                return Err(StripeError::Part(status));
            }
            self.post(id.0 as usize)?;
        }
        Ok(())
    }

    /// Posts the next part, if there is one, to a queue pair.
    fn post(&mut self, pair: usize) -> Result<()> {
        let range = self.range;
        let left = range.len - self.begun;
        let Some(queue_pair) = self.stripe.pairs.get(pair).filter(|_| left > 0) else {
            return Ok(());
        };
        // A short transfer has parts for each queue pair, too, of whole pages.
        let share = range.len.div_ceil(DEPTH * self.stripe.pairs.len() as u64);
        let part = share.next_multiple_of(4096).min(PART).min(left);
        let remote = Remote {
            addr: range.remote.addr.wrapping_add(self.begun),
            ..range.remote
        };
        let id = WrId(pair as u64);
        let request = match self.direction {
            Direction::Write => SendRequest::write(id, remote),
            Direction::Read => SendRequest::read(id, remote),
        };
        let segment = range.local.segment(range.offset + self.begun, part)?;
        queue_pair.post_send(request.segment(segment))?;
        self.begun += part;
        self.under_way += 1;
        Ok(())
    }

    /// Ends the parts that are under way, and takes their completions.
    fn abort(&mut self, queue: &CompletionQueue) {
        self.stripe.pairs.iter().for_each(QueuePair::to_error);
        let deadline = Deadline::after(ABORT_LIMIT);
        while self.under_way > 0 && queue.wait(deadline).is_ok() {
            self.under_way -= 1;
        }
    }
}
