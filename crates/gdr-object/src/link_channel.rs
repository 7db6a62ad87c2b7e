//! The link's end of a queue pair to an owner: transfers and wake-ups, each with a deadline.

use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Buffer, BufferKind, Completion, Deadline, Error as RdmaError, MemoryRegion, Mtu,
    ProtectionDomain, RecvRequest, Remote, RemoteMemory, Segment, SendRequest, Session, Stripe,
    StripedPart, Watch, WcStatus, WrId,
};

use crate::connection::{CELL, CELLS, Connection, LANES, QUEUE};
use crate::error::Result;
use crate::header::LINE;
use crate::info::AccessPath;

/// Receives that wait for wake-ups.
const RECEIVES: u64 = 64;
/// The number of header lines that one batch of transfers can receive.
pub(crate) const LINES: u64 = 1024;
/// How long a wait lasts before it checks whether the owner is still there.
const LOOK: Duration = Duration::from_millis(20);
/// The identifiers of receives; identifiers of sends stay below them.
const RECEIVE: WrId = WrId(u64::MAX);

/// One end of a queue pair, with the memory that the owner writes wake-ups to.
#[derive(Debug)]
pub(crate) struct LinkChannel {
    // Fields drop in order: once the queue pairs are gone, nothing writes to memory any more. Queue pairs with one
    // completion queue. The first one receives wake-ups; the others are for large transfers.
    pairs: Vec<Connection>,
    /// Written by wake-ups: the newest epoch of each open object.
    mailbox: MemoryRegion,
    /// For header lines.
    lines: MemoryRegion,
    /// The owner's mailbox.
    cells: RemoteMemory,
    next: u64,
    wake_ups: WakeUps,
}

/// The receives of wake-ups.
#[derive(Debug, Default)]
struct WakeUps {
    /// How many receives have not been posted again yet.
    taken: usize,
}

/// A step of a transfer.
#[derive(Debug)]
pub(crate) enum Step {
    /// Reads into a segment; `order` says whether earlier READs must have completed.
    Read {
        from: Remote,
        to: Segment,
        order: Order,
    },
    /// Writes a segment.
    Write { from: Segment, to: Remote },
    /// Writes a word.
    Store { word: u64, to: Remote },
}

/// When a READ begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// At any time.
    Any,
    /// After all earlier READs have completed. A device may fetch the bytes of several READs at
    /// once.
    AfterReads,
}

impl Step {
    /// Reads a header line once all earlier READs have completed, so that it describes their bytes.
    pub(crate) const fn line(from: Remote, to: Segment) -> Self {
        Self::Read {
            from,
            to,
            order: Order::AfterReads,
        }
    }

    /// Returns the number of object bytes that the step moves; headers and words do not count.
    fn bytes(&self) -> u64 {
        match self {
            Self::Read {
                to,
                order: Order::Any,
                ..
            } => u64::from(to.len()),
            Self::Write { from, .. } => u64::from(from.len()),
            Self::Read { .. } | Self::Store { .. } => 0,
        }
    }

    fn request(self, id: WrId) -> SendRequest {
        match self {
            Self::Read { from, to, order } => {
                let request = SendRequest::read(id, from).segment(to);
                match order {
                    Order::Any => request,
                    Order::AfterReads => request.fenced(),
                }
            }
            Self::Write { from, to } => SendRequest::write(id, to).segment(from),
            Self::Store { word, to } => SendRequest::write(id, to).inline(&word.to_le_bytes()),
        }
    }
}

impl From<Step> for StripedPart {
    fn from(step: Step) -> Self {
        let bytes = step.bytes();
        let request = step.request(WrId(0));
        Self { request, bytes }
    }
}

/// Which queue pairs of a channel move an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePairs {
    First,
    All,
}

impl QueuePairs {
    /// Returns the queue pairs that move `bytes` between memory here and an object that its owner reaches as `there`
    /// says: all of them for a long transfer, unless an end is staged. Staged bytes are gathered in the order of one
    /// queue pair; from several, they are copied in short pieces, which takes four times as long on an H100.
    pub(crate) fn of(bytes: u64, here: BufferKind, there: &AccessPath) -> Self {
        let is_staged = here == BufferKind::Staged || there.is_staged();
        match bytes >= Stripe::LONG_TRANSFER && !is_staged {
            true => Self::All,
            false => Self::First,
        }
    }
}

/// Why a transfer did not complete. The channel must not be used any more: its requests may be
/// outstanding, and end only with it.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The deadline passed after this many bytes.
    Deadline { done: u64 },
    /// The owner closed the connection.
    Closed,
    /// A request failed.
    Status(WcStatus),
    /// The device failed.
    Device(RdmaError),
}

impl Fault {
    /// Returns the same failure, if this many bytes were moved earlier.
    pub(crate) fn after(self, earlier: u64) -> Self {
        match self {
            Self::Deadline { done } => Self::Deadline {
                done: earlier + done,
            },
            other => other,
        }
    }
}

impl From<RdmaError> for Fault {
    fn from(error: RdmaError) -> Self {
        Self::Device(error)
    }
}

impl LinkChannel {
    /// Connects to the owner, which has agreed to it.
    pub(crate) fn connect(
        domain: &ProtectionDomain,
        session: &mut Session,
        mtu: Mtu,
        deadline: Deadline,
    ) -> Result<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let cells = Buffer::host((CELL * u64::from(CELLS)) as usize)?;
        let mailbox = domain.register(&cells, access)?;
        let lines = Buffer::host((LINE * LINES) as usize)?;
        let lines = domain.register(&lines, Access::LOCAL_WRITE)?;
        let completions = LANES * 2 * QUEUE as usize;
        let queue = domain.device().completion_queue(completions);
        let connection = Connection::with_queue(domain, queue)?;
        for _ in 0..RECEIVES {
            connection.pair.post_recv(RecvRequest::new(RECEIVE))?;
        }
        let cells = connection.connect(session, mtu, mailbox.remote(), deadline)?;
        Ok(Self {
            pairs: vec![connection],
            mailbox,
            lines,
            cells,
            next: 0,
            wake_ups: WakeUps::default(),
        })
    }

    /// Returns whether the channel has fewer queue pairs than large transfers use.
    pub(crate) fn is_narrow(&self) -> bool {
        self.pairs.len() < LANES
    }

    /// Connects another queue pair to the owner, which has agreed to it.
    pub(crate) fn widen(
        &mut self,
        domain: &ProtectionDomain,
        session: &mut Session,
        mtu: Mtu,
        deadline: Deadline,
    ) -> Result<()> {
        let lane = Connection::with_queue(domain, self.pairs[0].queue.clone())?;
        lane.connect(session, mtu, self.mailbox.remote(), deadline)?;
        self.pairs.push(lane);
        Ok(())
    }

    /// Returns the place for the header line with this index.
    pub(crate) fn line(&self, index: usize) -> Result<Segment> {
        Ok(self.lines.segment(LINE * index as u64, LINE)?)
    }

    /// Returns the header line that was read into this index.
    pub(crate) fn line_bytes(&self, index: usize) -> Result<[u8; LINE as usize]> {
        let mut bytes = [0; LINE as usize];
        let at = LINE * index as u64;
        self.lines.buffer().read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the address of a word of an object's cell at the owner.
    pub(crate) fn cell(&self, cell: u16, word: u64) -> Remote {
        self.cells.at(CELL * u64::from(cell) + word)
    }

    /// Returns the epoch of the last wake-up for the object in `cell`; 0 if there was none.
    pub(crate) fn woken(&self, cell: u16) -> Result<u64> {
        let word = self.mailbox.buffer().load_u64(CELL * u64::from(cell))?;
        Ok(u64::from_le(word))
    }

    /// Executes all steps, in order.
    pub(crate) fn run(
        &mut self,
        steps: impl IntoIterator<Item = Step>,
        deadline: Deadline,
        owner: &Watch,
    ) -> Result<(), Fault> {
        self.execute(1, steps, deadline, owner)
    }

    /// Executes all steps, in any order, over these queue pairs.
    pub(crate) fn run_over(
        &mut self,
        pairs: QueuePairs,
        steps: impl IntoIterator<Item = Step>,
        deadline: Deadline,
        owner: &Watch,
    ) -> Result<(), Fault> {
        let count = match pairs {
            QueuePairs::First => 1,
            QueuePairs::All => self.pairs.len(),
        };
        self.execute(count, steps, deadline, owner)
    }

    /// Executes all steps over the first `pairs` queue pairs.
    fn execute(
        &mut self,
        pairs: usize,
        steps: impl IntoIterator<Item = Step>,
        deadline: Deadline,
        owner: &Watch,
    ) -> Result<(), Fault> {
        let mut parts = steps.into_iter().map(StripedPart::from).peekable();
        let pairs = self.pairs.iter().take(pairs).map(|lane| &lane.pair);
        let mut stripe = Stripe::over(pairs).numbered_from(self.next);
        let mut looked = Instant::now();
        loop {
            if stripe.outstanding() == 0 && parts.peek().is_none() {
                return Ok(());
            }
            // Checked on every turn: completions may follow each other for a long time, and an
            // owner can send wake-ups without a pause.
            if deadline.has_passed() {
                let done = stripe.moved();
                return Err(Fault::Deadline { done });
            }
            stripe.post(&mut parts)?;
            self.next = stripe.next_number();
            let next = self.wake_ups.wait(&self.pairs[0], deadline, owner)?;
            let Some(completion) = next else {
                let done = stripe.moved();
                return Err(Fault::Deadline { done });
            };
            if looked.elapsed() >= LOOK {
                if owner.is_due() {
                    return Err(Fault::Closed);
                }
                looked = Instant::now();
            }
            // Sends that were not waited for also complete here, and so do receives.
            stripe.completed(&completion);
        }
    }

    /// Posts a step without waiting for it to complete.
    pub(crate) fn post(&mut self, step: Step) -> Result<(), Fault> {
        let id = WrId(self.next);
        self.next += 1;
        Ok(self.pairs[0].pair.post_send(step.request(id))?)
    }

    /// Waits for a wake-up or any other event; also returns at the deadline.
    pub(crate) fn wait_for_wake_up(
        &mut self,
        deadline: Deadline,
        owner: &Watch,
    ) -> Result<(), Fault> {
        let waited = self.wake_ups.wait(&self.pairs[0], deadline, owner);
        waited.map(drop)
    }
}

impl WakeUps {
    /// Returns the next completion, a success; `None` at the deadline. Posts the receives of
    /// earlier wake-ups again.
    fn wait(
        &mut self,
        lane: &Connection,
        deadline: Deadline,
        owner: &Watch,
    ) -> Result<Option<Completion>, Fault> {
        // Posted now rather than when they completed, because a wake-up must be passed on at once.
        while self.taken > 0 {
            lane.pair.post_recv(RecvRequest::new(RECEIVE))?;
            self.taken -= 1;
        }
        loop {
            let look = Deadline::after(LOOK.min(deadline.remaining()));
            match lane.queue.wait(look) {
                Ok(completion) if completion.status != WcStatus::Success => {
                    return Err(Fault::Status(completion.status));
                }
                Ok(completion) => {
                    self.taken += usize::from(completion.opcode.is_receive());
                    return Ok(Some(completion));
                }
                // The owner sends nothing between its answers, so this is the end of the
                // connection.
                Err(RdmaError::Deadline(_)) if owner.is_due() => return Err(Fault::Closed),
                Err(RdmaError::Deadline(_)) if deadline.has_passed() => return Ok(None),
                Err(RdmaError::Deadline(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gdr_rdma::Security;

    use super::*;
    use crate::link_shared::LinkShared;
    use crate::protocol::Domain;
    use crate::{ObjectServer, ServerOptions};

    #[test]
    fn the_read_of_a_line_waits_for_the_reads_before_it() {
        let device = gdr_rdma::Device::soft_with(gdr_rdma::SoftOptions::default().port(0)).unwrap();
        let memory = Buffer::host(64).unwrap();
        let domain = device.protection_domain();
        let region = domain.register(&memory, Access::REMOTE_READ).unwrap();
        let (from, to) = (region.remote().at(0), region.segment(0, LINE).unwrap());
        let step = Step::line(from, to.clone());
        let bytes = Step::Read {
            from,
            to,
            order: Order::Any,
        };
        // The requests do not differ otherwise.
        let (line, bytes) = (step.request(WrId(1)), bytes.request(WrId(1)).fenced());
        assert_eq!(format!("{line:?}"), format!("{bytes:?}"));
    }

    #[test]
    fn nothing_is_posted_after_the_deadline() {
        let server = ObjectServer::bind(
            "127.0.0.1:0".parse().unwrap(),
            ServerOptions::new(Security::Loopback),
        );
        let server = server.unwrap();
        let link = LinkShared::new(
            server.address(),
            Security::Loopback,
            server.device().clone(),
        );
        let limit = Deadline::after(Duration::from_secs(60));
        let mut state = link.lock(limit).unwrap();
        let (channel, watch) = state.channel(&link, Domain::ReadOnly, limit).unwrap();
        let store = |channel: &LinkChannel| Step::Store {
            word: 1,
            to: channel.cell(0, 0),
        };
        channel.run([store(channel)], limit, watch).unwrap();
        let passed = Deadline::after(Duration::ZERO);
        let late = channel.run([store(channel)], passed, watch);
        assert!(matches!(late, Err(Fault::Deadline { done: 0 })), "{late:?}");
        let next = Deadline::after(Duration::from_millis(200));
        let completion = channel.pairs[0].queue.wait(next);
        assert!(completion.is_err(), "{completion:?}");
    }

    #[test]
    fn only_long_transfers_between_ends_that_are_not_staged_take_all_queue_pairs() {
        let path = |method: &str| AccessPath {
            provider: "soft".to_owned(),
            method: method.to_owned(),
            why: String::new(),
        };
        let long = Stripe::LONG_TRANSFER;
        for (bytes, here, there, pairs) in [
            (long, BufferKind::Host, "host", QueuePairs::All),
            (long, BufferKind::Direct, "direct", QueuePairs::All),
            (long - 1, BufferKind::Host, "host", QueuePairs::First),
            (long, BufferKind::Staged, "host", QueuePairs::First),
            (long, BufferKind::Host, "staged", QueuePairs::First),
        ] {
            let found = QueuePairs::of(bytes, here, &path(there));
            assert_eq!(found, pairs, "{bytes} bytes, {here:?}, {there}");
        }
    }
}
