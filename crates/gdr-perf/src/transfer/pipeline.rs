//! Several requests in flight, for bandwidth; one at a time, for the latency of READs and atomics; one message at a
//! time, striped over several queue pairs.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use gdr_rdma::{AtomicOp, Completion, RecvRequest, RemoteMemory, SendRequest, Stripe};

use super::memory::EndMemory;
use super::plan::{
    Amount, AtomicKind, Layout, Pattern, Plan, Role, Striping, Verification, other_seed,
};
use super::queue_pairs::{QueuePairs, Wait, id, of_id};
use super::report::Observe;
use super::verb::{Metric, Operation};
use crate::error::{Error, PeerError, Result, compare};
use crate::stats::Samples;

/// Completions to take before requests are posted again.
const MOST_COMPLETIONS: usize = 64;

/// An end of a connection while one size is measured.
pub(super) struct Pipeline<'a> {
    pub(super) plan: &'a Plan,
    pub(super) role: Role,
    pub(super) row: usize,
    pub(super) size: u64,
    pub(super) pairs: &'a QueuePairs,
    pub(super) memory: &'a EndMemory,
    pub(super) remote: Remote,
    layout: Layout,
    depth: u64,
    every: u64,
    /// How many groups the queue must have room for before any is posted, unless fewer are left.
    least: u64,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    inline: Vec<u8>,
    /// Completions that the last poll of the queue found.
    completions: Vec<Completion>,
    /// Groups that the last poll found complete. They are recorded when the next ones are posted.
    ended: Vec<Posted>,
    /// Messages of each queue pair in the current round.
    round: Range<u64>,
}

/// The buffers of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) outgoing: RemoteMemory,
    pub(super) incoming: RemoteMemory,
}

/// Messages of one queue pair, or messages that are striped over all of them.
#[derive(Debug, Default)]
struct Sender {
    posted: u64,
    completed: u64,
    /// Groups in flight, each with one completion.
    groups: VecDeque<Posted>,
}

/// Groups that were posted together.
#[derive(Clone, Copy, Debug)]
struct Posted {
    at: Instant,
    groups: u64,
}

/// The receives of a queue pair.
#[derive(Debug, Default)]
struct Receiver {
    posted: u64,
    received: u64,
}

/// What was sent in one go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) messages: u64,
    pub(super) elapsed: Duration,
}

impl<'a> Pipeline<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        role: Role,
        row: usize,
        pairs: &'a QueuePairs,
        memory: &'a EndMemory,
        remote: Remote,
    ) -> Result<Self> {
        let size = plan.sizes[row];
        let (depth, every) = match plan.verb.metric() {
            Metric::Bandwidth => (plan.tx_depth.into(), plan.signal_every.into()),
            Metric::Latency => (1, 1),
        };
        let layout = plan.layout(size);
        // A round must end with a completion.
        let every = match plan.has_rounds() {
            true => every.min(layout.slots),
            false => every,
        };
        // As in perftest, requests wait until there is room for a list of them. Otherwise lists stay short: a few
        // completions make room for a short list, and the peer acknowledges it as soon as it has arrived. No more than
        // a quarter of the queue waits, so that the device always has something to send.
        let list = u64::from(plan.post_list).min(depth / 4);
        let of_each = 0..plan.sequences();
        let mut pipeline = Self {
            plan,
            role,
            row,
            size,
            pairs,
            memory,
            remote,
            layout,
            depth,
            every,
            least: (list / every).max(1),
            senders: of_each.clone().map(|_| Sender::default()).collect(),
            receivers: of_each.map(|_| Receiver::default()).collect(),
            inline: Vec::new(),
            completions: Vec::new(),
            ended: Vec::new(),
            round: 0..0,
        };
        pipeline.prepare()?;
        Ok(pipeline)
    }

    /// Fills memory, and posts receives.
    fn prepare(&mut self) -> Result<()> {
        let operation = self.plan.verb.operation();
        for queue_pair in 0..self.senders.len() {
            for slot in 0..self.layout.slots {
                let offset = self.layout.offset(queue_pair, slot);
                if operation == Operation::Atomic {
                    self.memory.incoming.write(offset, &[0; 8])?;
                } else if self.plan.verify != Verification::Off {
                    if self.plan.has_data_from(self.role) {
                        let own = self.seed(self.role, queue_pair, slot);
                        self.memory.outgoing.fill(offset, self.size, own)?;
                    }
                    if self.plan.has_data_from(self.role.other()) {
                        // The memory holds other bytes, which the peer's must replace.
                        let other = other_seed(self.seed(self.role.other(), queue_pair, slot));
                        self.memory.incoming.fill(offset, self.size, other)?;
                    }
                }
            }
        }
        if self.size <= self.plan.inline.into() && self.layout.slots > 0 {
            self.inline = vec![0; self.size as usize];
        }
        if operation == Operation::Send {
            for queue_pair in 0..self.receivers.len() {
                for _ in 0..self.plan.rx_depth {
                    self.post_receive(queue_pair)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the maximum number of messages of a queue pair in a round. Each has its own slot.
    pub(super) fn most_in_round(&self) -> u64 {
        self.layout.slots / self.every * self.every
    }

    /// Returns how many messages of a queue pair are missing from an amount, at most as many as a round has.
    pub(super) fn next_round(&self, amount: Amount, sent: u64, elapsed: Duration) -> u64 {
        let (most, until) = amount.limits();
        let goal = most.checked_next_multiple_of(self.every).unwrap_or(most);
        match until {
            Some(until) if elapsed >= until => 0,
            _ => self.most_in_round().min(goal.saturating_sub(sent)),
        }
    }

    /// Begins a round by filling memory with its messages. Each slot held a different pattern before, so that a message
    /// which does not arrive cannot pass.
    pub(super) fn begin_round(&mut self, messages: u64) -> Result<()> {
        if messages == 0 || messages > self.layout.slots {
            return Err(PeerError::MessageCount.into());
        }
        self.round = self.round.end..self.round.end.saturating_add(messages);
        if self.plan.has_data_from(self.role) {
            for queue_pair in 0..self.senders.len() {
                for number in self.round.clone() {
                    let offset = self.layout.offset(queue_pair, number % self.layout.slots);
                    let seed = self.seed_of_message(self.role, queue_pair, number);
                    self.memory.outgoing.fill(offset, self.size, seed)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the pattern of a message, which differs from the previous message in the same slot.
    fn seed_of_message(&self, sender: Role, queue_pair: usize, number: u64) -> u32 {
        let seed = self.seed(sender, queue_pair, number % self.layout.slots);
        match (number / self.layout.slots).is_multiple_of(2) {
            true => seed,
            false => other_seed(seed),
        }
    }

    /// Compares the messages of the round that arrived at this end; see [`Self::verify`].
    pub(super) fn verify_round(&self, theirs: &[u64]) -> Result<u64> {
        let arrived = match self.plan.verb.operation() {
            Operation::Read => self.messages(),
            _ => theirs.to_vec(),
        };
        let mut bytes = 0;
        let arrived = arrived.into_iter().enumerate();
        for (queue_pair, messages) in arrived.filter(|(_, messages)| *messages > 0) {
            if messages != self.round.end {
                return Err(PeerError::MessageCount.into());
            }
            for number in self.round.clone() {
                let seed = self.seed_of_message(self.role.other(), queue_pair, number);
                let offset = self.layout.offset(queue_pair, number % self.layout.slots);
                let what = format!(
                    "{} of {} bytes, message {number} of queue pair {queue_pair}",
                    self.plan.verb.operation_name(),
                    self.size
                );
                let incoming = &self.memory.incoming;
                incoming.compare(&what, offset, self.size, seed)?;
                bytes += self.size;
            }
        }
        Ok(bytes)
    }

    fn seed(&self, sender: Role, queue_pair: usize, slot: u64) -> u32 {
        self.plan.pattern(Pattern {
            row: self.row,
            sender,
            queue_pair,
            slot,
        })
    }

    fn post_receive(&mut self, queue_pair: usize) -> Result<()> {
        let receiver = &mut self.receivers[queue_pair];
        let number = receiver.posted;
        let offset = self.layout.offset(queue_pair, number % self.layout.slots);
        let segment = self.memory.incoming.segment(offset, self.size)?;
        let request = RecvRequest::new(id(queue_pair, number)).segment(segment);
        self.pairs.all()[queue_pair].post_recv(request)?;
        receiver.posted += 1;
        Ok(())
    }

    /// Sends an amount of messages and waits until they are complete. With `samples`, records the time of each request
    /// that has a completion.
    pub(super) fn send(
        &mut self,
        amount: Amount,
        mut samples: Option<&mut Samples>,
        observe: Observe<'_>,
    ) -> Result<Sent> {
        if self.plan.striping == Striping::On {
            return self.send_striped(amount, samples, observe);
        }
        if self.plan.verb.metric() == Metric::Latency {
            return self.send_one_by_one(amount, samples, observe);
        }
        let before: u64 = self.completed();
        let (most, until) = amount.limits();
        // Without a limit, as many as the time allows.
        let goal = most.checked_next_multiple_of(self.every).unwrap_or(most);
        let goals: Vec<u64> = self
            .senders
            .iter()
            .map(|it| it.posted.saturating_add(goal))
            .collect();
        let mut wait = Wait::new(self.plan, self.size);
        let start = Instant::now();
        let mut now = start;
        loop {
            let open = until.is_none_or(|until| now.saturating_duration_since(start) < until);
            for (queue_pair, goal) in goals.iter().enumerate() {
                if open {
                    self.post(queue_pair, *goal, now)?;
                }
            }
            for Posted { at, groups } in self.ended.drain(..) {
                if let Some(samples) = samples.as_deref_mut() {
                    let taken = now.saturating_duration_since(at);
                    samples.record_equal(taken.as_nanos() as f64, groups);
                }
            }
            if self.senders.iter().all(|sender| sender.groups.is_empty()) {
                break;
            }
            now = self.complete(&mut wait, observe)?;
        }
        Ok(Sent {
            messages: self.completed() - before,
            elapsed: now.saturating_duration_since(start),
        })
    }

    /// Like [`Pipeline::send`], but one request at a time.
    ///
    /// The time from a completion to the next post is part of the latency. With rxe it matters beyond its own length:
    /// rxe's worker runs on for a moment after a completion, and a request posted by then needs no wake-up. All other
    /// work is therefore done while the next request is in flight. A sample is the time from one post to the next, as
    /// in perftest. The clock is read after the post, because the position of the reading within the period does not
    /// change its length. Only the last sample ends with a completion.
    fn send_one_by_one(
        &mut self,
        amount: Amount,
        mut samples: Option<&mut Samples>,
        observe: Observe<'_>,
    ) -> Result<Sent> {
        let (most, until) = amount.limits();
        let pair = &self.pairs.all()[0];
        let before = self.completed();
        let mut wait = Wait::new(self.plan, self.size);
        let mut keep = |taken: Duration| {
            if let Some(samples) = samples.as_deref_mut() {
                samples.record(taken.as_nanos() as f64);
            }
        };
        let checks_results = self.checks_results();
        let mut next = pair.prepare(self.request(0, before, before % self.layout.slots)?)?;
        let mut messages = 0;
        let start = Instant::now();
        let mut posted = start;
        loop {
            next.post()?;
            let now = Instant::now();
            if messages > 0 {
                keep(now.saturating_duration_since(posted));
                wait.progress();
            }
            posted = now;
            messages += 1;
            let is_last = messages >= most || until.is_some_and(|until| now - start >= until);
            let number = before + messages;
            next = pair.prepare(self.request(0, number, number % self.layout.slots)?)?;
            wait.look(now, observe)?;
            while self.pairs.poll(&wait)?.is_none() {
                wait.idle(observe)?;
            }
            // The next atomic operation may overwrite the result; other operations have no results.
            if checks_results {
                self.check_results(0, self.senders[0].completed)?;
            }
            self.senders[0].completed += 1;
            if is_last {
                break;
            }
        }
        let now = Instant::now();
        keep(now.saturating_duration_since(posted));
        Ok(Sent {
            messages,
            elapsed: now.saturating_duration_since(start),
        })
    }

    /// Like [`Pipeline::send`], for messages over all queue pairs.
    fn send_striped(
        &mut self,
        amount: Amount,
        mut samples: Option<&mut Samples>,
        observe: Observe<'_>,
    ) -> Result<Sent> {
        let (most, until) = amount.limits();
        let mut wait = Wait::new(self.plan, self.size);
        let before = self.completed();
        let start = Instant::now();
        let mut now = start;
        loop {
            let (messages, elapsed) = (
                self.completed() - before,
                now.saturating_duration_since(start),
            );
            if messages >= most || until.is_some_and(|until| elapsed >= until) {
                return Ok(Sent { messages, elapsed });
            }
            let begun = now;
            now = self.send_message(self.senders[0].completed, &mut wait, observe)?;
            self.senders[0].completed += 1;
            if let Some(samples) = &mut samples {
                samples.record(now.saturating_duration_since(begun).as_nanos() as f64);
            }
        }
    }

    /// Stripes message number `number` and waits until it is complete. Returns the time.
    fn send_message(&self, number: u64, wait: &mut Wait, observe: Observe<'_>) -> Result<Instant> {
        let (size, offset) = (self.size, self.layout.offset(0, number % self.layout.slots));
        let pairs = self.pairs.all();
        let parts = match self.plan.verb.operation() {
            Operation::Read => {
                let from = self.remote.outgoing.at(offset);
                let range = self.memory.incoming.range(offset, from, size);
                range.reads(pairs.len())?
            }
            _ => {
                let to = self.remote.incoming.at(offset);
                let range = self.memory.outgoing.range(offset, to, size);
                range.writes(pairs.len())?
            }
        };
        let mut parts = parts.into_iter();
        let mut stripe = Stripe::over(pairs).window(self.depth as usize);
        loop {
            stripe.post(&mut parts)?;
            if stripe.outstanding() == 0 {
                let now = Instant::now();
                wait.look(now, observe)?;
                return Ok(now);
            }
            match self.pairs.poll(wait)? {
                Some(completion) => {
                    stripe.completed(&completion);
                    wait.progress();
                }
                None => {
                    wait.idle(observe)?;
                }
            }
        }
    }

    fn completed(&self) -> u64 {
        self.senders.iter().map(|sender| sender.completed).sum()
    }

    /// Posts groups of requests if the queue has room for a list of them, or for all that are left. A single request
    /// counts from `now`, which was read just before: as in perftest, the clock is read once per request.
    fn post(&mut self, queue_pair: usize, goal: u64, now: Instant) -> Result<()> {
        let sender = &self.senders[queue_pair];
        let room = self.depth - (sender.posted - sender.completed);
        let left = (goal - sender.posted) / self.every;
        let groups = (room / self.every).min(left);
        if groups == 0 || groups < self.least.min(left) {
            return Ok(());
        }
        let first = sender.posted;
        let count = groups * self.every;
        if count == 1 {
            let request = self.request(queue_pair, first, first % self.layout.slots)?;
            self.pairs.all()[queue_pair].post_send(request)?;
            let sender = &mut self.senders[queue_pair];
            sender.posted += 1;
            sender.groups.push_back(Posted { at: now, groups: 1 });
            return Ok(());
        }
        let end = first + count;
        while self.senders[queue_pair].posted < end {
            let numbers = self.senders[queue_pair].posted..end;
            // Chosen once per list, so that the code which makes a request has no other operations in it. With them, it
            // makes the request in memory and copies it into the list, which takes longer than the rest.
            match (self.plan.verb.operation(), self.inline.is_empty()) {
                (Operation::Write, true) => self.post_list(queue_pair, numbers, Self::write)?,
                (Operation::Read, _) => self.post_list(queue_pair, numbers, Self::read)?,
                _ => self.post_list(queue_pair, numbers, Self::request)?,
            }
        }
        Ok(())
    }

    /// Posts the first requests of `numbers` as a list. `make` is [`Self::request`], or one for this operation only.
    #[inline]
    fn post_list(
        &mut self,
        queue_pair: usize,
        numbers: Range<u64>,
        mut make: impl FnMut(&mut Self, usize, u64, u64) -> Result<SendRequest>,
    ) -> Result<()> {
        let first = numbers.start;
        let end = numbers.end.min(first + u64::from(self.plan.post_list));
        let (slots, every) = (self.layout.slots, self.every);
        // Both advance with the messages, which is cheaper than a division for each.
        let (mut slot, mut signalled) = (first % slots, first / every * every + every - 1);
        let at = Instant::now();
        let mut made = Ok(());
        let posted = self.pairs.all()[queue_pair].post_sends((first..end).map_while(|number| {
            let request = make(self, queue_pair, number, slot);
            let request = request.map_err(|error| made = Err(error)).ok()?;
            slot = if slot + 1 == slots { 0 } else { slot + 1 };
            if number < signalled {
                return Some(request.unsignalled());
            }
            signalled += every;
            Some(request)
        }));
        posted.map_err(|batch| batch.error)?;
        made?;
        let sender = &mut self.senders[queue_pair];
        sender.posted = end;
        // Groups whose last request is in this list.
        let groups = end / every - first / every;
        if groups > 0 {
            sender.groups.push_back(Posted { at, groups });
        }
        Ok(())
    }

    /// Makes request number `number` of a queue pair, from or to a slot.
    fn request(&mut self, queue_pair: usize, number: u64, slot: u64) -> Result<SendRequest> {
        let offset = self.layout.offset(queue_pair, slot);
        let id = id(queue_pair, number);
        Ok(match self.plan.verb.operation() {
            Operation::Read => self.read(queue_pair, number, slot)?,
            Operation::Atomic => {
                let counter = self.layout.offset(queue_pair, 0);
                let op = match self.plan.atomic {
                    AtomicKind::FetchAdd => AtomicOp::FetchAdd { add: 1 },
                    AtomicKind::CompareSwap => AtomicOp::CompareSwap {
                        compare: number,
                        swap: number + 1,
                    },
                };
                let segment = self.memory.outgoing.segment(offset, 8)?;
                SendRequest::atomic(id, self.remote.incoming.at(counter), op).segment(segment)
            }
            operation => {
                let request = match operation {
                    Operation::Send => SendRequest::send(id),
                    _ => SendRequest::write(id, self.remote.incoming.at(offset)),
                };
                // Inline if the bytes are few and in host memory.
                let outgoing = &self.memory.outgoing;
                match self.inline.is_empty() || outgoing.host_buffer().is_none() {
                    true => request.segment(outgoing.segment(offset, self.size)?),
                    false => {
                        outgoing.read(offset, &mut self.inline)?;
                        request.inline(&self.inline)
                    }
                }
            }
        })
    }

    /// Like [`Self::request`], for a WRITE that is not inline.
    #[inline(always)]
    fn write(&mut self, queue_pair: usize, number: u64, slot: u64) -> Result<SendRequest> {
        let offset = self.layout.offset(queue_pair, slot);
        let segment = self.memory.outgoing.segment(offset, self.size)?;
        let to = self.remote.incoming.at(offset);
        Ok(SendRequest::write(id(queue_pair, number), to).segment(segment))
    }

    /// Like [`Self::request`], for a READ.
    #[inline(always)]
    fn read(&mut self, queue_pair: usize, number: u64, slot: u64) -> Result<SendRequest> {
        let offset = self.layout.offset(queue_pair, slot);
        let segment = self.memory.incoming.segment(offset, self.size)?;
        let from = self.remote.outgoing.at(offset);
        Ok(SendRequest::read(id(queue_pair, number), from).segment(segment))
    }

    /// Waits for a completion, and takes all that are available. Returns one time for all of them, because reading the
    /// clock for each would take a tenth of the time of a short message.
    fn complete(&mut self, wait: &mut Wait, observe: Observe<'_>) -> Result<Instant> {
        // After the last completion that can arrive, another poll would only waste time.
        let most = match self.plan.verb.operation() {
            Operation::Send => MOST_COMPLETIONS,
            _ => {
                let in_flight = self.senders.iter().map(|it| it.posted - it.completed);
                MOST_COMPLETIONS.min((in_flight.sum::<u64>() / self.every) as usize)
            }
        };
        let mut completions = mem::take(&mut self.completions);
        while completions.len() < most {
            let left = most - completions.len();
            if self.pairs.poll_into(wait, left, &mut completions)? == 0 {
                if !completions.is_empty() {
                    break;
                }
                wait.idle(observe)?;
            }
        }
        let kind = |it: &Completion| (of_id(it.id).0, it.opcode.is_receive());
        // What follows a completion takes less time once for several than for each.
        for run in completions.chunk_by(|one, next| kind(one) == kind(next)) {
            let Some(last) = run.last() else { continue };
            let (queue_pair, number) = of_id(last.id);
            if last.opcode.is_receive() {
                for completion in run {
                    self.received(queue_pair, completion.byte_len)?;
                }
            } else {
                self.sent(queue_pair, number, run.len() as u64)?;
            }
        }
        completions.clear();
        self.completions = completions;
        let now = Instant::now();
        wait.progress();
        wait.look(now, observe)?;
        Ok(now)
    }

    fn received(&mut self, queue_pair: usize, bytes: u32) -> Result<()> {
        if u64::from(bytes) != self.size {
            return Err(PeerError::MessageLength {
                bytes,
                size: self.size,
            }
            .into());
        }
        self.receivers[queue_pair].received += 1;
        self.post_receive(queue_pair)
    }

    /// Records that the next `groups` of a queue pair are complete, up to request number `last`.
    fn sent(&mut self, queue_pair: usize, last: u64, groups: u64) -> Result<()> {
        if self.checks_results() {
            self.check_results(queue_pair, last)?;
        }
        let sender = &mut self.senders[queue_pair];
        sender.completed = last + 1;
        let mut left = groups;
        while left > 0
            && let Some(posted) = sender.groups.front_mut()
        {
            let ended = Posted {
                groups: left.min(posted.groups),
                ..*posted
            };
            left -= ended.groups;
            posted.groups -= ended.groups;
            if posted.groups == 0 {
                sender.groups.pop_front();
            }
            self.ended.push(ended);
        }
        Ok(())
    }

    /// Returns whether the results of requests are checked.
    fn checks_results(&self) -> bool {
        self.plan.verify != Verification::Off && self.plan.verb.operation() == Operation::Atomic
    }

    /// Checks the results of the atomics that have completed, up to this number.
    fn check_results(&self, queue_pair: usize, number: u64) -> Result<()> {
        // Only this queue pair changes the counter.
        for number in self.senders[queue_pair].completed..=number {
            let offset = self.layout.offset(queue_pair, number % self.layout.slots);
            let found = self.memory.outgoing.word(offset)?;
            let what = format!("the result of atomic operation {number}");
            compare(&what, &number.to_ne_bytes(), &found.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Returns the number of messages that were sent by each queue pair, or striped.
    pub(super) fn messages(&self) -> Vec<u64> {
        self.senders.iter().map(|sender| sender.completed).collect()
    }

    /// Takes completions without waiting, and posts receives again while the peer sends.
    pub(super) fn serve(&mut self, wait: &mut Wait, observe: Observe<'_>) -> Result<bool> {
        match self.pairs.poll(wait)? {
            Some(completion) => {
                let (queue_pair, _) = of_id(completion.id);
                self.received(queue_pair, completion.byte_len)?;
                wait.arrived(observe)?;
                Ok(false)
            }
            None => wait.idle(observe),
        }
    }

    /// Polls until `ended` without sending. While it polls, a soft device answers requests at once, and otherwise only
    /// after its thread wakes up.
    pub(super) fn answer(
        &self,
        observe: Observe<'_>,
        ended: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let mut wait = Wait::for_all(self.plan, self.size);
        loop {
            if self.pairs.poll(&wait)?.is_some() {
                return Err(PeerError::MessageCount.into());
            }
            if wait.idle(observe)? && ended() {
                return Ok(());
            }
        }
    }

    /// Receives until as many messages arrived as the peer sent.
    pub(super) fn drain(&mut self, theirs: &[u64], observe: Observe<'_>) -> Result<()> {
        let mut wait = Wait::new(self.plan, self.size);
        while self
            .receivers
            .iter()
            .zip(theirs)
            .any(|(own, sent)| own.received < *sent)
        {
            self.serve(&mut wait, observe)?;
        }
        let received = self.receivers.iter().map(|receiver| receiver.received);
        if received.ne(theirs.iter().copied()) {
            return Err(PeerError::MessageCount.into());
        }
        Ok(())
    }

    /// Compares the bytes that arrived at this end; returns their number. `theirs` says how many messages each queue
    /// pair of the peer sent here.
    pub(super) fn verify(&self, theirs: &[u64]) -> Result<u64> {
        let operation = self.plan.verb.operation();
        let arrived = match operation {
            Operation::Read => self.messages(),
            _ => theirs.to_vec(),
        };
        let mut bytes = 0;
        let arrived = arrived.into_iter().enumerate();
        for (queue_pair, messages) in arrived.filter(|(_, messages)| *messages > 0) {
            if operation == Operation::Atomic {
                let found = self
                    .memory
                    .incoming
                    .word(self.layout.offset(queue_pair, 0))?;
                let what = "the counter of the atomic operations";
                compare(what, &messages.to_ne_bytes(), &found.to_ne_bytes())?;
                bytes += 8;
                continue;
            }
            for slot in 0..self.layout.slots.min(messages) {
                let seed = self.seed(self.role.other(), queue_pair, slot);
                let offset = self.layout.offset(queue_pair, slot);
                let what = format!(
                    "{} of {} bytes, slot {slot} of queue pair {queue_pair}",
                    self.plan.verb.operation_name(),
                    self.size
                );
                self.memory
                    .incoming
                    .compare(&what, offset, self.size, seed)?;
                bytes += self.size;
            }
        }
        Ok(bytes)
    }
}

/// Fails if the peer sent counts for other queue pairs than the plan has.
pub(super) fn check_counts(plan: &Plan, counts: &[u64]) -> Result<(), Error> {
    match counts.len() == plan.sequences() as usize {
        true => Ok(()),
        false => Err(PeerError::MessageCount.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use gdr_rdma::{Device, Mtu, SoftOptions};

    use super::*;
    use crate::registered_buffer::TransferMemory;
    use crate::transfer::Verb;
    use crate::transfer::memory::LocalEnd;

    const LIMIT: Duration = Duration::from_secs(60);

    fn remote(memory: &EndMemory) -> Remote {
        Remote {
            outgoing: memory.outgoing.remote(),
            incoming: memory.incoming.remote(),
        }
    }

    /// Two ends in this process, with their first queue pairs connected.
    fn ends(plan: &Plan) -> [(QueuePairs, EndMemory); 2] {
        let own = LocalEnd::from(TransferMemory::Host);
        let ends = [(); 2].map(|()| {
            let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
            let domain = device.protection_domain();
            let memory = EndMemory::new(&domain, &own, plan.registered_bytes()).unwrap();
            (QueuePairs::new(&domain, plan).unwrap(), memory)
        });
        for (one, other) in [(0, 1), (1, 0)] {
            let endpoint = ends[other].0.all()[0].endpoint();
            let connected = ends[one].0.connect(0, &endpoint, Mtu::B1024, plan, LIMIT);
            connected.unwrap();
        }
        ends
    }

    fn message(error: Result<u64>) -> String {
        match error {
            Err(error @ Error::WrongData { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_wait_for_room_for_a_list_but_the_last_ones_are_posted() {
        for (verb, signal_every, goal) in [
            (Verb::WriteBw, 1, 1001),
            (Verb::WriteBw, 6, 1002),
            (Verb::ReadBw, 1, 77),
        ] {
            let plan = Plan {
                sizes: vec![8],
                signal_every,
                post_list: 32,
                ..Plan::new(verb)
            };
            let [ours, theirs] = ends(&plan);
            let remote = remote(&theirs.1);
            let mut client =
                Pipeline::new(&plan, Role::Client, 0, &ours.0, &ours.1, remote).unwrap();
            let mut wait = Wait::new(&plan, 8);
            let list = 32.min(plan.tx_depth / 4) / signal_every * signal_every;
            let mut groups = 0;
            while client.completed() < goal {
                let before = client.senders[0].posted;
                client.post(0, goal, Instant::now()).unwrap();
                let posted = client.senders[0].posted;
                let together = posted - before;
                assert!(
                    together == 0 || together >= list.into() || posted == goal,
                    "{verb}: {together} after {before}"
                );
                let in_flight = posted - client.completed();
                assert!(
                    posted == goal || u64::from(plan.tx_depth) - in_flight < list.into(),
                    "{verb}: only {in_flight} in flight after {posted}"
                );
                client
                    .complete(&mut wait, &mut |_| ControlFlow::Continue(()))
                    .unwrap();
                groups += client.ended.drain(..).map(|it| it.groups).sum::<u64>();
            }
            assert_eq!(groups * u64::from(signal_every), goal);
            assert!(client.senders[0].groups.is_empty());
        }
    }

    #[test]
    fn a_wrong_byte_of_any_message_is_found_and_named_and_so_is_a_message_that_did_not_arrive() {
        let plan = Plan {
            sizes: vec![37],
            verify: Verification::On,
            ..Plan::new(Verb::WriteBw)
        };
        let [ours, theirs] = ends(&plan);
        let mut client =
            Pipeline::new(&plan, Role::Client, 0, &ours.0, &ours.1, remote(&theirs.1)).unwrap();
        let mut server = Pipeline::new(
            &plan,
            Role::Server,
            0,
            &theirs.0,
            &theirs.1,
            remote(&ours.1),
        )
        .unwrap();
        let most = client.most_in_round();
        let mut first = 0;
        // The second round begins in the middle of the slots.
        for messages in [most / 2, most, most] {
            client.begin_round(messages).unwrap();
            server.begin_round(messages).unwrap();
            let sent = [first + messages];
            // Nothing has arrived yet.
            let missing = message(server.verify_round(&sent));
            assert!(missing.contains(&format!("message {first} ")), "{missing}");
            let amount = Amount::Iterations(messages);
            let sending = client.send(amount, None, &mut |_| ControlFlow::Continue(()));
            sending.unwrap();
            assert_eq!(server.verify_round(&sent).unwrap(), messages * 37);
            for number in [first, first + messages / 3, first + messages - 1] {
                for byte in [0, 13, 36] {
                    let at = server.layout.offset(0, number % server.layout.slots) + byte;
                    let mut right = [0];
                    theirs.1.incoming.read(at, &mut right).unwrap();
                    theirs.1.incoming.write(at, &[right[0] ^ 1]).unwrap();
                    let found = message(server.verify_round(&sent));
                    theirs.1.incoming.write(at, &right).unwrap();
                    assert!(found.contains(&format!("message {number} ")), "{found}");
                    assert!(found.contains(&format!("byte {byte} ")), "{found}");
                }
            }
            first += messages;
        }
    }
}
