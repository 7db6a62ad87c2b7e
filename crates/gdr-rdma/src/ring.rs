//! GPU memory that a device does not reach, and a peer's memory: through a ring of page-locked
//! host memory.

use std::fmt;
use std::sync::Arc;

use gdr_cuda::{DeviceBuffer, HostBuffer, Stream};
use gdr_roce::{Access, Completion, WcStatus, WrId};

use crate::buffer::{Buffer, check_range};
use crate::completion::CompletionQueue;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::queue_pair::{QueuePair, QueuePairOptions};
use crate::region::{MemoryRegion, ProtectionDomain, RemoteMemory};
use crate::request::SendRequest;

/// How large a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Bytes of a slot, which is what one request and one copy move. Long enough that a copy's fixed
    /// cost, some microseconds, is small beside its duration.
    pub slot_len: u32,
    /// Slots, so many requests are on their way at most; two and more let copies and the network
    /// work at the same time.
    pub slots: u32,
}

impl Default for RingShape {
    /// Eight slots of 512 KiB.
    fn default() -> Self {
        Self {
            slot_len: 512 << 10,
            slots: 8,
        }
    }
}

/// Moves bytes between GPU memory and a peer's memory where the device does not reach the GPU's
/// (neither dma-buf nor a peer-memory module): through page-locked host memory, in pieces, so that
/// the GPU's copy engine works on one while others are on the network.
///
/// It works for what this side begins. Memory that a peer writes by itself has to be registered as
/// a whole ([`Buffer::page_locked`]) and copied once its completion has come.
///
/// The ring has a queue pair of its own, to be connected like any other ([`StagingRing::pair`]); to
/// post there or to receive there is not foreseen. After an error the queue pair is in ERR, and the
/// ring can only be dropped: which bytes had moved is not known.
pub struct StagingRing {
    // Field order is drop order: nothing uses the memory any more when it goes.
    pair: QueuePair,
    queue: CompletionQueue,
    region: MemoryRegion,
    memory: Arc<HostBuffer>,
    stream: Stream,
    gpu: Arc<DeviceBuffer>,
    shape: RingShape,
    state: Condition,
}

/// Whether a ring can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Good,
    Broken,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToPeer,
    FromPeer,
}

impl StagingRing {
    /// For all of `gpu`.
    ///
    /// # Errors
    /// [`Error::EmptyBuffer`] for a shape without slots or bytes; [`Error::Cuda`] where there is no
    /// page-locked memory; those of [`ProtectionDomain::register`] and of making a queue pair.
    pub fn new(
        domain: &ProtectionDomain,
        gpu: impl Into<Arc<DeviceBuffer>>,
        shape: RingShape,
    ) -> Result<Self> {
        let gpu = gpu.into();
        let len = u64::from(shape.slot_len) * u64::from(shape.slots);
        if len == 0 {
            return Err(Error::EmptyBuffer);
        }
        let len = usize::try_from(len).map_err(|_| Error::OutOfRange {
            offset: 0,
            wanted: len,
            len: usize::MAX as u64,
        })?;
        let memory = Arc::new(gpu.gpu().allocate_host(len)?);
        let region = domain.register(
            &Buffer::page_locked(Arc::clone(&memory))?,
            Access::LOCAL_WRITE,
        )?;
        let queue = domain.device().completion_queue(shape.slots as usize + 1);
        Ok(Self {
            pair: domain.queue_pair(&QueuePairOptions::new(&queue))?,
            queue,
            region,
            memory,
            stream: gpu.gpu().stream()?,
            gpu,
            shape,
            state: Condition::Good,
        })
    }

    /// The queue pair, to be connected.
    pub fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// Copies `len` bytes at `offset` of GPU memory to `to` at the peer (RDMA WRITE). They are in
    /// the peer's memory when this returns.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing done. [`Error::Transfer`], [`Error::Deadline`],
    /// [`Error::Cuda`], [`Error::Post`]: the ring is of no use any more.
    pub fn write(
        &mut self,
        offset: u64,
        to: &RemoteMemory,
        len: u64,
        deadline: Deadline,
    ) -> Result<()> {
        self.run(Direction::ToPeer, offset, to, len, deadline)
    }

    /// Copies `len` bytes from `from` at the peer (RDMA READ) to `offset` of GPU memory. Work that
    /// is given to the GPU after this returned sees them.
    ///
    /// # Errors
    /// As [`StagingRing::write`].
    pub fn read(
        &mut self,
        offset: u64,
        from: &RemoteMemory,
        len: u64,
        deadline: Deadline,
    ) -> Result<()> {
        self.run(Direction::FromPeer, offset, from, len, deadline)
    }

    fn run(
        &mut self,
        direction: Direction,
        offset: u64,
        peer: &RemoteMemory,
        len: u64,
        deadline: Deadline,
    ) -> Result<()> {
        check_range(offset, len, self.gpu.len())?;
        check_range(0, len, peer.len)?;
        if self.state == Condition::Broken {
            return Err(Error::Transfer {
                what: "a transfer through the ring",
                why: "an earlier one failed".to_owned(),
                remedy: "make a new ring, and connect it",
            });
        }
        let transfer = Transfer {
            ring: self,
            offset,
            peer,
            len,
            deadline,
        };
        let done = match direction {
            Direction::ToPeer => transfer.write(),
            Direction::FromPeer => transfer.read(),
        };
        if done.is_err() {
            self.state = Condition::Broken;
            // What is still on its way ends: it may not land in a slot that is used again.
            self.pair.to_error();
        }
        done
    }
}

impl fmt::Debug for StagingRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingRing")
            .field("gpu", &self.gpu)
            .field("shape", &self.shape)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// One transfer, in pieces.
struct Transfer<'a> {
    ring: &'a StagingRing,
    offset: u64,
    peer: &'a RemoteMemory,
    len: u64,
    deadline: Deadline,
}

impl Transfer<'_> {
    fn pieces(&self) -> u64 {
        self.len.div_ceil(u64::from(self.ring.shape.slot_len))
    }

    /// Where a piece begins, how long it is, and where its slot begins.
    fn piece(&self, number: u64) -> (u64, u64, u64) {
        let slot_len = u64::from(self.ring.shape.slot_len);
        let at = number * slot_len;
        let slot = number % u64::from(self.ring.shape.slots);
        (at, slot_len.min(self.len - at), slot * slot_len)
    }

    /// Each piece is copied here while the ones before it leave.
    fn write(&self) -> Result<()> {
        let (pieces, slots) = (self.pieces(), u64::from(self.ring.shape.slots));
        let mut ended = 0;
        if pieces > 0 {
            self.copy_out(0)?;
        }
        for number in 0..pieces {
            self.copied()?;
            self.post(number, Direction::ToPeer)?;
            let next = number + 1;
            if next < pieces {
                while ended + slots <= next {
                    self.end()?;
                    ended += 1;
                }
                self.copy_out(next)?;
            }
        }
        (ended..pieces).try_for_each(|_| self.end())
    }

    /// Each piece is copied to the GPU while the ones after it arrive.
    fn read(&self) -> Result<()> {
        let (pieces, slots) = (self.pieces(), u64::from(self.ring.shape.slots));
        for number in 0..pieces.min(slots) {
            self.post(number, Direction::FromPeer)?;
        }
        for number in 0..pieces {
            self.end()?;
            self.copy_in(number)?;
            if number + slots < pieces {
                self.copied()?;
                self.post(number + slots, Direction::FromPeer)?;
            }
        }
        self.copied()
    }

    fn copy_out(&self, number: u64) -> Result<()> {
        let ((at, len, slot), ring) = (self.piece(number), self.ring);
        let (from, to) = (self.offset + at, slot as usize);
        Ok(ring
            .stream
            .queue_read(&ring.gpu, from, &ring.memory, to, len as usize)?)
    }

    fn copy_in(&self, number: u64) -> Result<()> {
        let ((at, len, slot), ring) = (self.piece(number), self.ring);
        let (from, to) = (slot as usize, self.offset + at);
        Ok(ring
            .stream
            .queue_write(&ring.memory, from, &ring.gpu, to, len as usize)?)
    }

    /// Waits for the copies that were begun.
    fn copied(&self) -> Result<()> {
        Ok(self.ring.stream.wait(self.deadline.remaining())?)
    }

    fn post(&self, number: u64, direction: Direction) -> Result<()> {
        let (at, len, slot) = self.piece(number);
        let (id, remote) = (WrId(number), self.peer.at(at));
        let request = match direction {
            Direction::ToPeer => SendRequest::write(id, remote),
            Direction::FromPeer => SendRequest::read(id, remote),
        };
        let segment = self.ring.region.segment(slot, len)?;
        self.ring.pair.post_send(request.segment(segment))
    }

    /// Waits for the end of the oldest request.
    fn end(&self) -> Result<()> {
        let Completion { status, .. } = self.ring.queue.wait(self.deadline)?;
        if status == WcStatus::Success {
            return Ok(());
        }
        Err(Error::Transfer {
            what: "a transfer through the ring",
            why: status.to_string(),
            remedy: "look at the peer and its region; then make a new ring, and connect it",
        })
    }
}
