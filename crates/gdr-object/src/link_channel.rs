//! The link's end of a queue pair to an owner: transfers and wake-ups, each with a deadline.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Buffer, Completion, Deadline, Error as RdmaError, MemoryRegion, Mtu, ProtectionDomain,
    RecvRequest, Remote, RemoteMemory, Segment, SendRequest, Session, Watch, WcStatus, WrId,
};

use crate::connection::{CELL, CELLS, Connection, LANES, QUEUE};
use crate::error::Result;
use crate::header::LINE;

/// Bytes of one request: a stall is noticed and reported by the piece.
const PIECE: u64 = 1 << 20;
/// Requests that are outstanding at a time: as many READs as a queue pair may have.
const WINDOW: usize = 16;
/// Receives that wait for wake-ups.
const RECEIVES: u64 = 64;
/// Header lines that one batch of transfers can receive.
pub(crate) const LINES: u64 = 1024;
/// How long a wait lasts until it looks whether the owner is there.
const LOOK: Duration = Duration::from_millis(20);
/// The identifiers of receives, which those of sends do not reach.
const RECEIVE: WrId = WrId(u64::MAX);
/// Bits of a send's number in its identifier; those above are its lane.
const NUMBER_BITS: u32 = 48;
/// Bytes from which on a transfer is striped over several queue pairs.
pub(crate) const STRIPED_FROM: u64 = 16 * PIECE;

/// One end of a queue pair, with the memory that the owner writes wake-ups to.
#[derive(Debug)]
pub(crate) struct LinkChannel {
    // Field order is drop order: once the queue pairs are gone, nothing is written to memory any more.
    /// Queue pairs with one completion queue. The first one has the wake-ups; the others are for large
    /// transfers.
    lanes: Vec<Connection>,
    /// For wake-ups: the newest epoch of each open object.
    mailbox: MemoryRegion,
    /// For header lines.
    lines: MemoryRegion,
    /// The mailbox at the owner.
    cells: RemoteMemory,
    next: u64,
    /// How many receives of wake-ups are not posted again yet.
    receives_taken: usize,
}

/// A part of a transfer.
#[derive(Debug)]
pub(crate) enum Step {
    /// Reads into a segment, after earlier READs have ended if `order` says so.
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
    /// After all earlier READs are complete. A device may fetch the bytes of several READs at once.
    AfterReads,
}

impl Step {
    /// Bytes of the object that it moves; those of headers and words do not count.
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

/// Why a transfer did not end. The channel must not be used any more: its requests may be
/// outstanding, and end only with it.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The deadline passed after so many bytes.
    Deadline { done: u64 },
    /// The owner closed the connection.
    Closed,
    /// A request failed.
    Status(WcStatus),
    /// The device failed.
    Device(RdmaError),
}

impl Fault {
    /// The same, if so many bytes were moved earlier.
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
    /// Connects to the owner, which has agreed to do so.
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
            lanes: vec![connection],
            mailbox,
            lines,
            cells,
            next: 0,
            receives_taken: 0,
        })
    }

    /// Whether it has fewer queue pairs than large transfers use.
    pub(crate) fn is_narrow(&self) -> bool {
        self.lanes.len() < LANES
    }

    /// Connects another queue pair to the owner, which has agreed to do so.
    pub(crate) fn widen(
        &mut self,
        domain: &ProtectionDomain,
        session: &mut Session,
        mtu: Mtu,
        deadline: Deadline,
    ) -> Result<()> {
        let lane = Connection::with_queue(domain, self.lanes[0].queue.clone())?;
        lane.connect(session, mtu, self.mailbox.remote(), deadline)?;
        self.lanes.push(lane);
        Ok(())
    }

    /// The place for the header line with this index.
    pub(crate) fn line(&self, index: usize) -> Result<Segment> {
        Ok(self.lines.segment(LINE * index as u64, LINE)?)
    }

    /// The header line that was read to this index.
    pub(crate) fn line_bytes(&self, index: usize) -> Result<[u8; LINE as usize]> {
        let mut bytes = [0; LINE as usize];
        let at = LINE * index as u64;
        self.lines.buffer().read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// The address of a word of an object's cell at the owner.
    pub(crate) fn cell(&self, cell: u16, word: u64) -> Remote {
        self.cells.at(CELL * u64::from(cell) + word)
    }

    /// The epoch of the last wake-up for the object in `cell`; 0 if there was none.
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

    /// Executes all steps, in any order, over all queue pairs.
    pub(crate) fn run_striped(
        &mut self,
        steps: impl IntoIterator<Item = Step>,
        deadline: Deadline,
        owner: &Watch,
    ) -> Result<(), Fault> {
        self.execute(self.lanes.len(), steps, deadline, owner)
    }

    /// Executes all steps over the first `lanes` queue pairs.
    fn execute(
        &mut self,
        lanes: usize,
        steps: impl IntoIterator<Item = Step>,
        deadline: Deadline,
        owner: &Watch,
    ) -> Result<(), Fault> {
        let mut steps = steps.into_iter().fuse();
        let first = self.next;
        // The bytes of each request, which complete in this order.
        let mut outstanding = vec![VecDeque::with_capacity(WINDOW); lanes];
        let (mut done, mut looked) = (0, Instant::now());
        loop {
            let mut requests: Vec<Vec<SendRequest>> = vec![Vec::new(); lanes];
            let least = |outstanding: &[VecDeque<u64>]| {
                let lanes = outstanding.iter().enumerate();
                let lengths = lanes.map(|(lane, it)| (it.len(), lane)).min();
                lengths.filter(|(len, _)| *len < WINDOW)
            };
            while let Some((_, lane)) = least(&outstanding)
                && let Some(step) = steps.next()
            {
                outstanding[lane].push_back(step.bytes());
                let id = WrId((lane as u64) << NUMBER_BITS | self.next);
                requests[lane].push(step.request(id));
                self.next += 1;
            }
            for (lane, requests) in self.lanes.iter().zip(requests) {
                if !requests.is_empty() {
                    let posted = lane.pair.post_sends(requests);
                    posted.map_err(|refused| refused.error)?;
                }
            }
            if outstanding.iter().all(VecDeque::is_empty) {
                return Ok(());
            }
            let Some(completion) = self.wait(deadline, owner)? else {
                return Err(Fault::Deadline { done });
            };
            // Also where one completion follows another, for long.
            if looked.elapsed() >= LOOK {
                if owner.is_due() {
                    return Err(Fault::Closed);
                }
                looked = Instant::now();
            }
            let WrId(id) = completion.id;
            let number = id & ((1 << NUMBER_BITS) - 1);
            // Sends whose end was not waited for complete here, too.
            if completion.id != RECEIVE
                && number >= first
                && let Some(lane) = outstanding.get_mut((id >> NUMBER_BITS) as usize)
            {
                done += lane.pop_front().unwrap_or(0);
            }
        }
    }

    /// Posts a step and does not wait for its end.
    pub(crate) fn post(&mut self, step: Step) -> Result<(), Fault> {
        let id = WrId(self.next);
        self.next += 1;
        Ok(self.lanes[0].pair.post_send(step.request(id))?)
    }

    /// Waits for a wake-up, or anything else that happens; returns at the deadline, too.
    pub(crate) fn wait_for_wake_up(
        &mut self,
        deadline: Deadline,
        owner: &Watch,
    ) -> Result<(), Fault> {
        self.wait(deadline, owner).map(drop)
    }

    /// The next completion, a success; `None` at the deadline. Posts the receives of earlier wake-ups
    /// again.
    fn wait(&mut self, deadline: Deadline, owner: &Watch) -> Result<Option<Completion>, Fault> {
        // Now, and not when they completed: a wake-up is to be passed on at once.
        while self.receives_taken > 0 {
            self.lanes[0].pair.post_recv(RecvRequest::new(RECEIVE))?;
            self.receives_taken -= 1;
        }
        loop {
            let look = Deadline::after(LOOK.min(deadline.remaining()));
            match self.lanes[0].queue.wait(look) {
                Ok(completion) if completion.status != WcStatus::Success => {
                    return Err(Fault::Status(completion.status));
                }
                Ok(completion) => {
                    self.receives_taken += usize::from(completion.opcode.is_receive());
                    return Ok(Some(completion));
                }
                // Between its answers the owner sends nothing: this is the end of the connection.
                Err(RdmaError::Deadline(_)) if owner.is_due() => return Err(Fault::Closed),
                Err(RdmaError::Deadline(_)) if deadline.has_passed() => return Ok(None),
                Err(RdmaError::Deadline(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The pieces of `len` bytes, as offset and length.
pub(crate) fn pieces(len: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..len.div_ceil(PIECE)).map(|piece| piece * PIECE);
    starts.map(move |start| (start, PIECE.min(len - start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_transfer_once() {
        for len in [1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7] {
            let mut end = 0;
            for (at, piece) in pieces(len) {
                assert_eq!(at, end);
                assert!(piece > 0 && piece <= PIECE);
                end += piece;
            }
            assert_eq!(end, len);
        }
        assert_eq!(pieces(0).count(), 0);
    }
}
