//! Messages that go back and forth, for the latency of WRITEs and SENDs.
//!
//! If the receiver looks at it, each message ends with the number of its round modulo 255, so that consecutive rounds
//! differ. In host memory, a WRITE is detected by that byte, as in `ib_write_lat`. The CPU does not watch GPU memory:
//! there, the WRITE has an immediate and completes a receive.

use std::time::{Duration, Instant};

use gdr_rdma::{Buffer, Immediate, PreparedSend, Provider, RecvRequest, SendRequest, WcOpcode};

use super::memory::EndMemory;
use super::pipeline::{Remote, Sent};
use super::plan::{Amount, Pattern, Plan, Role, Verification, other_seed};
use super::queue_pairs::{QueuePairs, Wait, id, of_id};
use super::report::Observe;
use super::verb::Operation;
use crate::error::{Error, PeerError, Result};
use crate::stats::Samples;

/// Maximum number of requests per completion.
const MOST_UNSIGNALLED: u64 = 64;

/// How often an end looks at its memory between two polls of a kernel device's queue. Such a device delivers messages
/// without being polled, and a poll takes much longer than a look.
const LOOKS: u32 = 64;

/// How an end detects a message.
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
    /// How this end detects messages.
    arrival: Arrival,
    /// How often it looks at its memory between two polls.
    looks: u32,
    /// Whether the peer needs an immediate.
    immediate: Immediates,
    /// Whether the peer reads the last byte of a message.
    marks: Marks,
    /// The bytes to send, if they are sent inline.
    inline: Vec<u8>,
    /// The next request, if it was prepared during the peer's turn.
    next: Option<PreparedSend<'a>>,
    /// One request in this many has a completion.
    every: u64,
    sent: u64,
    completed: u64,
    received: u64,
    /// Receives that completed but are not posted again yet, because the answer goes first.
    used_receives: u64,
    /// Last byte of the previous message.
    seen: u8,
    /// The first wrong message.
    wrong: Option<Error>,
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
    /// The completion of a receive is all that the peer needs.
    Unread,
}

/// Returns the last byte of a message, which differs from the round before.
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
        let marks = match is_watched || plan.verify != Verification::Off {
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
            seen: 0,
            wrong: None,
        };
        if plan.verify != Verification::Off {
            memory.incoming.fill(0, size, trips.seed(role.other(), 1))?;
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

    /// Returns the pattern of a message of `sender`. The previous message had a different one, so that a message which
    /// does not arrive cannot pass.
    fn seed(&self, sender: Role, number: u64) -> u32 {
        let seed = self.plan.pattern(Pattern {
            row: self.row,
            sender,
            queue_pair: 0,
            slot: 0,
        });
        match number.is_multiple_of(2) {
            true => seed,
            false => other_seed(seed),
        }
    }

    fn post_receive(&self) -> Result<()> {
        let request = RecvRequest::new(id(0, 0));
        let request = match self.plan.verb.operation() {
            Operation::Send => request.segment(self.memory.incoming.segment(0, self.size)?),
            _ => request,
        };
        Ok(self.pairs.all()[0].post_recv(request)?)
    }

    /// Posts receives again that have completed.
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
            self.fill()?;
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

    /// Fills memory with the next message, if the peer compares it.
    fn fill(&self) -> Result<()> {
        match self.plan.verify {
            Verification::Off => Ok(()),
            Verification::Last | Verification::On => {
                let seed = self.seed(self.role, self.sent);
                self.memory.outgoing.fill(0, self.size, seed)
            }
        }
    }

    /// Returns the request of the next message. Unless they are inline, its bytes must be in memory when it is sent.
    fn request(&mut self) -> Result<SendRequest> {
        let mark = mark(self.sent);
        let mut request = match self.plan.verb.operation() {
            Operation::Send => SendRequest::send(id(0, self.sent)),
            _ => SendRequest::write(id(0, self.sent), self.remote.incoming.at(0)),
        };
        if self.immediate == Immediates::Yes {
            request = request.immediate(Immediate(u32::from(mark)));
        }
        if !self.inline.is_empty() && self.plan.verify != Verification::Off {
            self.fill()?;
            self.memory.outgoing.read(0, &mut self.inline)?;
        }
        request = match self.inline.last_mut() {
            Some(last) => {
                *last = mark;
                request.inline(&self.inline)
            }
            None => request.segment(self.memory.outgoing.segment(0, self.size)?),
        };
        // An answer proves that a message arrived. Completions only free space in the queue.
        Ok(match (self.sent + 1).is_multiple_of(self.every) {
            true => request,
            false => request.unsignalled(),
        })
    }

    /// Does what is possible while the peer has its turn: posts receives again, and makes the next request.
    fn prepare(&mut self) -> Result<()> {
        self.post_used_receives()?;
        let request = self.request()?;
        self.next = Some(self.pairs.all()[0].prepare(request)?);
        Ok(())
    }

    /// Waits for the peer's next message. With `ended`, which is checked now and then, the peer may instead end the
    /// rounds. Returns whether a message arrived.
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
                        self.take()?;
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
                        // The peer's next message would find no receive.
                        self.post_used_receives()?;
                    }
                    self.take()?;
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

    /// Returns whether the last byte is the next message's.
    fn is_marked(&self) -> Result<bool> {
        let buffer: Option<&Buffer> = self.memory.incoming.host_buffer();
        let Some(buffer) = buffer else {
            return Ok(false);
        };
        let found = buffer.load_u8(self.size - 1)?;
        Ok(match self.plan.verify {
            Verification::Off => found == mark(self.received),
            // A message with a wrong byte counts as well.
            Verification::Last | Verification::On => found != self.seen,
        })
    }

    /// Counts a message that arrived, and compares it if the plan says so. An error is kept until the rounds end,
    /// because the peer waits for an answer.
    fn take(&mut self) -> Result<()> {
        if self.plan.verify != Verification::Off {
            let mut last = [0];
            self.memory.incoming.read(self.size - 1, &mut last)?;
            [self.seen] = last;
            match self.compare() {
                Err(error @ Error::WrongData { .. }) => {
                    self.wrong = self.wrong.take().or(Some(error))
                }
                compared => compared?,
            }
        }
        self.received += 1;
        Ok(())
    }

    /// Compares the message that has just arrived.
    fn compare(&self) -> Result<()> {
        let body = self.size - 1;
        if body > 0 {
            let seed = self.seed(self.role.other(), self.received);
            let incoming = &self.memory.incoming;
            incoming.compare(&self.name(), 0, body, seed)?;
        }
        let (found, expected) = (self.seen, mark(self.received));
        match found == expected {
            true => Ok(()),
            false => Err(Error::WrongData {
                what: self.name(),
                offset: body,
                expected,
                found,
            }),
        }
    }

    /// Names the next message of the peer, for an error.
    fn name(&self) -> String {
        let operation = self.plan.verb.operation_name();
        let number = self.received;
        format!("{operation} of {} bytes, message {number}", self.size)
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

    /// Repeatedly sends and waits for the answer. With `samples`, records half of each round trip.
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
            // A sample is the time from one message to the next, as in perftest. After the post, reading the clock and
            // everything else costs no time of the round trip.
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

    /// Returns the number of messages that this end sent.
    pub(super) fn messages(&self) -> u64 {
        self.sent
    }

    /// Checks that each of the peer's `theirs` messages was compared and correct; returns their bytes.
    pub(super) fn verify(&mut self, theirs: u64) -> Result<u64> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        if self.received != theirs || theirs == 0 {
            return Err(PeerError::MessageCount.into());
        }
        Ok(self.size.saturating_mul(theirs))
    }
}

#[cfg(test)]
mod tests {
    use gdr_rdma::{Device, SoftOptions};

    use super::*;
    use crate::registered_buffer::TransferMemory;
    use crate::transfer::Verb;
    use crate::transfer::memory::LocalEnd;

    /// Returns what the server finds if one of 300 messages is changed as it arrives: not at all for `None`, otherwise
    /// one bit of a byte.
    fn found(size: u64, changed: Option<(u64, u64)>) -> Result<u64> {
        let plan = Plan {
            sizes: vec![size],
            verify: Verification::On,
            ..Plan::new(Verb::WriteLat)
        };
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let domain = device.protection_domain();
        let own = LocalEnd::from(TransferMemory::Host);
        let memory = EndMemory::new(&domain, &own, plan.registered_bytes()).unwrap();
        let pairs = QueuePairs::new(&domain, &plan).unwrap();
        let remote = Remote {
            outgoing: memory.outgoing.remote(),
            incoming: memory.incoming.remote(),
        };
        let (role, no) = (Role::Server, Immediates::No);
        let mut server = RoundTrips::new(&plan, role, 0, &pairs, &memory, remote, no).unwrap();
        for number in 0..300 {
            let mut message = vec![0; size as usize];
            let seed = server.seed(Role::Client, number);
            memory.outgoing.fill(0, size, seed).unwrap();
            memory.outgoing.read(0, &mut message).unwrap();
            message[size as usize - 1] = mark(number);
            if let Some((_, byte)) = changed.filter(|(changed, _)| *changed == number) {
                message[byte as usize] ^= 0x80;
            }
            memory.incoming.write(0, &message).unwrap();
            assert!(server.is_marked().unwrap(), "message {number}");
            server.take().unwrap();
        }
        server.verify(300)
    }

    #[test]
    fn a_wrong_byte_of_any_message_is_found_and_named() {
        for size in [1, 2, 37] {
            assert_eq!(found(size, None).unwrap(), 300 * size);
            for number in [0, 1, 150, 299] {
                for byte in [0, size / 2, size - 1] {
                    let error = found(size, Some((number, byte))).unwrap_err().to_string();
                    let named = format!("message {number}: byte {byte} is");
                    assert!(error.contains(&named), "{error}");
                }
            }
        }
    }

    #[test]
    fn two_rounds_in_a_row_have_other_marks_and_none_is_that_of_no_message() {
        for round in 0..600 {
            assert_ne!(mark(round), mark(round + 1));
            assert_ne!(mark(round), 0);
        }
    }
}
