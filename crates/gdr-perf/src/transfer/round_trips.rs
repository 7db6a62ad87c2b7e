//! Messages back and forth, for the latency of WRITEs and SENDs.
//!
//! Where the receiver looks at it, each message ends with the number of its round, modulo 255, so that
//! two rounds in a row differ. In host memory a WRITE is seen by that byte, as in `ib_write_lat`. The
//! CPU does not watch GPU memory: there the WRITE has an immediate, and its receive completes.

use std::time::{Duration, Instant};

use gdr_rdma::{Buffer, Immediate, PreparedSend, Provider, RecvRequest, SendRequest, WcOpcode};

use super::memory::EndMemory;
use super::pipeline::{Remote, Sent};
use super::plan::{Amount, Pattern, Plan, Role, Verification};
use super::queue_pairs::{QueuePairs, Wait, id, of_id};
use super::report::Observe;
use super::verb::Operation;
use crate::error::{PeerError, Result, compare};
use crate::stats::Samples;

/// The most requests of which one has a completion.
const MOST_UNSIGNALLED: u64 = 64;

/// How often an end looks at its memory between two polls of the queue of a kernel device, which
/// delivers messages without being polled. A poll takes much longer than a look.
const LOOKS: u32 = 64;

/// How an end sees that a message arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// By its last byte.
    LastByte,
    /// By the completion of a receive.
    Receive,
}

/// One end of messages that go back and forth.
pub(super) struct RoundTrips<'a> {
    plan: &'a Plan,
    role: Role,
    row: usize,
    size: u64,
    pairs: &'a QueuePairs,
    memory: &'a EndMemory,
    remote: Remote,
    /// How this end sees messages.
    arrival: Arrival,
    /// How often it looks at its memory between two polls.
    looks: u32,
    /// Whether the peer needs an immediate.
    immediate: Immediates,
    /// Whether the peer reads the last byte of a message.
    marks: Marks,
    /// The bytes to send, if they are sent inline.
    inline: Vec<u8>,
    /// The next request, if it was made while the peer had its turn.
    next: Option<PreparedSend<'a>>,
    /// One of so many requests has a completion.
    every: u64,
    sent: u64,
    completed: u64,
    received: u64,
    /// Receives that completed and are not posted again yet: the answer goes first.
    used_receives: u64,
}

/// Whether WRITEs have an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Immediates {
    /// The peer watches its memory.
    No,
    /// The peer waits for a receive.
    Yes,
}

/// Whether anything reads the number of the round in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    /// The peer watches its memory, or compares it.
    Read,
    /// The completion of the receive shows the peer all that it needs.
    Unread,
}

/// The last byte of a message, which differs from that of the round before.
fn mark(round: u64) -> u8 {
    (round % 255) as u8 + 1
}

impl<'a> RoundTrips<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        role: Role,
        row: usize,
        pairs: &'a QueuePairs,
        memory: &'a EndMemory,
        remote: Remote,
        immediate: Immediates,
    ) -> Result<Self> {
        let size = plan.sizes[row];
        let arrival = match (plan.verb.operation(), memory.incoming.host_buffer()) {
            (Operation::Write, Some(_)) => Arrival::LastByte,
            _ => Arrival::Receive,
        };
        let is_watched = plan.verb.operation() == Operation::Write && immediate == Immediates::No;
        let marks = match is_watched || plan.verify == Verification::On {
            true => Marks::Read,
            false => Marks::Unread,
        };
        let mut trips = Self {
            plan,
            role,
            row,
            size,
            pairs,
            memory,
            remote,
            arrival,
            looks: match pairs.all()[0].domain().device().provider() {
                // Polling moves it on.
                Provider::Soft => 1,
                _ => LOOKS,
            },
            immediate,
            marks,
            inline: Vec::new(),
            next: None,
            every: u64::from(plan.tx_depth / 2).clamp(1, MOST_UNSIGNALLED),
            sent: 0,
            completed: 0,
            received: 0,
            used_receives: 0,
        };
        if plan.verify == Verification::On {
            memory.outgoing.fill(0, size, trips.seed(role))?;
            memory.incoming.fill(0, size, !trips.seed(role.other()))?;
        }
        memory.incoming.write(size - 1, &[0])?;
        if size <= plan.inline.into() && memory.outgoing.host_buffer().is_some() {
            trips.inline = vec![0; size as usize];
            memory.outgoing.read(0, &mut trips.inline)?;
        }
        if trips.arrival == Arrival::Receive {
            for _ in 0..plan.rx_depth {
                trips.post_receive()?;
            }
        }
        Ok(trips)
    }

    /// The pattern of what `sender` sends.
    fn seed(&self, sender: Role) -> u32 {
        self.plan.pattern(Pattern {
            row: self.row,
            sender,
            queue_pair: 0,
            slot: 0,
        })
    }

    fn post_receive(&self) -> Result<()> {
        let request = RecvRequest::new(id(0, 0));
        let request = match self.plan.verb.operation() {
            Operation::Send => request.segment(self.memory.incoming.segment(0, self.size)?),
            _ => request,
        };
        Ok(self.pairs.all()[0].post_recv(request)?)
    }

    /// Posts the receives again that completed.
    fn post_used_receives(&mut self) -> Result<()> {
        for _ in 0..std::mem::take(&mut self.used_receives) {
            self.post_receive()?;
        }
        Ok(())
    }

    /// Sends the next message.
    fn send(&mut self) -> Result<()> {
        // A copy into GPU memory takes longer than the round trip.
        if self.inline.is_empty() && self.marks == Marks::Read {
            let mark = mark(self.sent);
            self.memory.outgoing.write(self.size - 1, &[mark])?;
        }
        match self.next.take() {
            Some(mut next) => next.post()?,
            None => self.pairs.all()[0].post_send(self.request()?)?,
        }
        self.sent += 1;
        Ok(())
    }

    /// The request of the next message, whose bytes are in memory when it is sent, if they are not
    /// inline.
    fn request(&mut self) -> Result<SendRequest> {
        let mark = mark(self.sent);
        let mut request = match self.plan.verb.operation() {
            Operation::Send => SendRequest::send(id(0, self.sent)),
            _ => SendRequest::write(id(0, self.sent), self.remote.incoming.at(0)),
        };
        if self.immediate == Immediates::Yes {
            request = request.immediate(Immediate(u32::from(mark)));
        }
        request = match self.inline.last_mut() {
            Some(last) => {
                *last = mark;
                request.inline(&self.inline)
            }
            None => request.segment(self.memory.outgoing.segment(0, self.size)?),
        };
        // An answer shows that a message arrived: completions only free the queue.
        Ok(match (self.sent + 1).is_multiple_of(self.every) {
            true => request,
            false => request.unsignalled(),
        })
    }

    /// What may be done while the peer has its turn: posts receives again, and makes the next request.
    fn prepare(&mut self) -> Result<()> {
        self.post_used_receives()?;
        let request = self.request()?;
        self.next = Some(self.pairs.all()[0].prepare(request)?);
        Ok(())
    }

    /// Waits for the peer's next message. With `ended`, which is asked now and then, the peer may end
    /// the rounds instead; returns whether a message arrived.
    fn receive(
        &mut self,
        wait: &mut Wait,
        observe: Observe<'_>,
        ended: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        loop {
            if self.arrival == Arrival::LastByte {
                for _ in 0..self.looks {
                    if self.is_marked()? {
                        self.received += 1;
                        return Ok(true);
                    }
                }
            }
            let completion = self.pairs.poll(wait)?;
            match completion {
                Some(completion) if completion.opcode.is_receive() => {
                    self.check(completion.opcode, completion.byte_len)?;
                    self.used_receives += 1;
                    if self.used_receives == u64::from(self.plan.rx_depth) {
                        // The peer's next message would find none.
                        self.post_used_receives()?;
                    }
                    self.received += 1;
                    return Ok(true);
                }
                Some(completion) => self.completed = of_id(completion.id).1 + 1,
                None => {}
            }
            if completion.is_none() && wait.idle(observe)? && ended() {
                return Ok(false);
            }
        }
    }

    fn check(&self, opcode: WcOpcode, bytes: u32) -> Result<()> {
        let expected = match self.plan.verb.operation() {
            Operation::Send => WcOpcode::Recv,
            _ => WcOpcode::RecvWriteImmediate,
        };
        match opcode == expected && u64::from(bytes) == self.size {
            true => Ok(()),
            false => Err(PeerError::MessageLength {
                bytes,
                size: self.size,
            }
            .into()),
        }
    }

    /// Whether the last byte is that of the next message.
    fn is_marked(&self) -> Result<bool> {
        let buffer: Option<&Buffer> = self.memory.incoming.host_buffer();
        let Some(buffer) = buffer else {
            return Ok(false);
        };
        Ok(buffer.load_u8(self.size - 1)? == mark(self.received))
    }

    /// Takes completions until the queue has room for a request.
    fn make_room(&mut self, wait: &mut Wait, observe: Observe<'_>) -> Result<()> {
        while self.sent - self.completed >= u64::from(self.plan.tx_depth) {
            match self.pairs.poll(wait)? {
                Some(completion) if !completion.opcode.is_receive() => {
                    self.completed = of_id(completion.id).1 + 1;
                }
                Some(_) => return Err(PeerError::MessageCount.into()),
                None => {
                    wait.idle(observe)?;
                }
            }
        }
        Ok(())
    }

    /// Sends and waits for the answer, again and again. With `samples`, records half of each round
    /// trip.
    pub(super) fn lead(
        &mut self,
        amount: Amount,
        mut samples: Option<&mut Samples>,
        observe: Observe<'_>,
    ) -> Result<Sent> {
        let (most, until) = amount.limits();
        let mut wait = Wait::new(self.plan, self.size);
        let mut keep = |round_trip: Duration| {
            if let Some(samples) = samples.as_deref_mut() {
                samples.record(round_trip.as_nanos() as f64 / 2.0);
            }
        };
        let mut messages = 0;
        let start = Instant::now();
        let mut posted = start;
        loop {
            self.send()?;
            // A sample is the time from one message to the next, as perftest's is. Behind the post the
            // look at the clock, as all else, takes no time of the round trip.
            let now = Instant::now();
            if messages > 0 {
                keep(now.saturating_duration_since(posted));
                wait.progress();
            }
            posted = now;
            messages += 1;
            let is_last = messages >= most || until.is_some_and(|until| now - start >= until);
            self.prepare()?;
            wait.look(now, observe)?;
            self.receive(&mut wait, observe, &mut || false)?;
            if is_last {
                break;
            }
            self.make_room(&mut wait, observe)?;
        }
        let now = Instant::now();
        keep(now.saturating_duration_since(posted));
        Ok(Sent {
            messages,
            elapsed: now.saturating_duration_since(start),
        })
    }

    /// Answers each message until `ended`.
    pub(super) fn answer(
        &mut self,
        observe: Observe<'_>,
        ended: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let mut wait = Wait::new(self.plan, self.size);
        while self.receive(&mut wait, observe, ended)? {
            self.send()?;
            self.prepare()?;
            wait.arrived(observe)?;
            self.make_room(&mut wait, observe)?;
        }
        Ok(())
    }

    /// The number of messages that this end sent.
    pub(super) fn messages(&self) -> u64 {
        self.sent
    }

    /// Compares the last message of the peer, which sent `theirs` messages; returns the number of
    /// bytes.
    pub(super) fn verify(&self, theirs: u64) -> Result<u64> {
        if self.received != theirs || theirs == 0 {
            return Err(PeerError::MessageCount.into());
        }
        let what = format!("{} of {} bytes", self.plan.verb.operation_name(), self.size);
        let body = self.size - 1;
        if body > 0 {
            let seed = self.seed(self.role.other());
            self.memory.incoming.compare(&what, 0, body, seed)?;
        }
        let mut last = [0];
        self.memory.incoming.read(body, &mut last)?;
        compare(
            &format!("{what}, its last byte"),
            &[mark(theirs - 1)],
            &last,
        )?;
        Ok(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rounds_in_a_row_have_other_marks_and_none_is_that_of_no_message() {
        for round in 0..600 {
            assert_ne!(mark(round), mark(round + 1));
            assert_ne!(mark(round), 0);
        }
    }
}
