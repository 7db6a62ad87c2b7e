//! Transfers between a peer's memory and GPU memory that the device cannot access, through a ring of
//! page-locked host memory. [`crate::buffer`] explains how this differs from a staged buffer.

use std::fmt;
use std::sync::Arc;

use gdr_cuda::{DeviceBuffer, HostBuffer, Stream};
use gdr_roce::{Access, Completion, WcStatus, WrId};

use crate::completion_queue::CompletionQueue;
use crate::error::{Error, NicError, Result, TransferError};
use crate::memory_region::{MemoryRegion, RemoteMemory};
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::{QueuePair, QueuePairOptions};
use crate::work_request::SendRequest;
use gdr_nic::Deadline;
use gdr_nic::{Buffer, check_range};
use gdr_process::ProcessBound;

/// The dimensions of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// The length of a slot in bytes. One request and one copy move a slot, so a slot should be long
    /// enough that the fixed cost of a copy, a few microseconds, hardly matters.
    pub slot_len: u32,
    /// The number of slots, which limits the outstanding requests. With two or more, copies and network
    /// transfers overlap.
    pub slots: u32,
}

impl Default for RingConfig {
    /// Eight slots of 512 KiB.
    fn default() -> Self {
        Self {
            slot_len: 512 << 10,
            slots: 8,
        }
    }
}

/// Moves bytes between GPU memory and a peer's memory if the device can access GPU memory neither by
/// dma-buf nor through a peer-memory module. The bytes pass through page-locked host memory in chunks,
/// so that the GPU's copy engine copies one chunk while others are on the network.
///
/// This side starts every transfer. If a peer is to write by itself, register host memory for the whole
/// transfer instead ([`Buffer::page_locked`]), and copy it to the GPU after the completion.
///
/// The ring has its own queue pair, which must be connected like any other ([`StagingRing::pair`]), and
/// to which the program must not post. After an error the queue pair is in ERR, it is unknown which
/// bytes were moved, and the ring can only be dropped.
pub struct StagingRing {
    // Field order is drop order: the memory is dropped after all its users.
    pair: QueuePair,
    queue: CompletionQueue,
    region: MemoryRegion,
    copies: ProcessBound<Copies>,
    config: RingConfig,
    state: RingState,
}

/// The copies between the GPU and the slots.
struct Copies {
    memory: Arc<HostBuffer>,
    stream: Stream,
    gpu: Arc<DeviceBuffer>,
}

/// Whether a ring can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingState {
    Usable,
    Failed,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToPeer,
    FromPeer,
}

impl StagingRing {
    /// Creates a ring for transfers to and from the whole of `gpu`.
    ///
    /// # Errors
    /// [`NicError::EmptyBuffer`](crate::NicError::EmptyBuffer) for a ring without slots or bytes;
    /// [`NicError::Cuda`](crate::NicError::Cuda) if there is no page-locked memory; the errors of
    /// [`ProtectionDomain::register`] and of making a queue pair.
    pub fn new(
        domain: &ProtectionDomain,
        gpu: impl Into<Arc<DeviceBuffer>>,
        config: RingConfig,
    ) -> Result<Self> {
        domain.device().check_process()?;
        let gpu = gpu.into();
        let len = u64::from(config.slot_len) * u64::from(config.slots);
        if len == 0 {
            return Err(NicError::EmptyBuffer.into());
        }
        let len = usize::try_from(len).map_err(|_| NicError::OutOfRange {
            offset: 0,
            wanted: len,
            len: usize::MAX as u64,
        })?;
        let memory = Arc::new(gpu.gpu().allocate_host(len)?);
        let region = domain.register(
            &Buffer::page_locked(Arc::clone(&memory))?,
            Access::LOCAL_WRITE,
        )?;
        let queue = domain.device().completion_queue(config.slots as usize + 1);
        Ok(Self {
            pair: domain.queue_pair(&QueuePairOptions::new(&queue))?,
            queue,
            region,
            copies: ProcessBound::new(Copies {
                memory,
                stream: gpu.gpu().stream()?,
                gpu,
            }),
            config,
            state: RingState::Usable,
        })
    }

    /// Returns the queue pair, which the program has to connect.
    pub fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// Copies `len` bytes at `offset` in GPU memory to `to` in the peer's memory (RDMA WRITE). They have
    /// arrived there when this returns.
    ///
    /// # Errors
    /// [`NicError::OutOfRange`](crate::NicError::OutOfRange), [`NicError::ForkedChild`](crate::NicError::ForkedChild); nothing was done. After [`Error::Transfer`], [`Error::Deadline`],
    /// [`NicError::Cuda`](crate::NicError::Cuda) or [`NicError::Post`](crate::NicError::Post) the ring cannot be used.
    pub fn write(
        &mut self,
        offset: u64,
        to: &RemoteMemory,
        len: u64,
        deadline: Deadline,
    ) -> Result<()> {
        self.run(Direction::ToPeer, offset, to, len, deadline)
    }

    /// Copies `len` bytes from `from` in the peer's memory (RDMA READ) to `offset` in GPU memory. Work
    /// that is submitted to the GPU after this has returned sees them.
    ///
    /// # Errors
    /// Same as [`StagingRing::write`].
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
        if !self.copies.is_own() {
            return Err(NicError::ForkedChild.into());
        }
        check_range(offset, len, self.copies.gpu.len())?;
        check_range(0, len, peer.len)?;
        if self.state == RingState::Failed {
            return Err(Error::Transfer(TransferError::Earlier));
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
            self.state = RingState::Failed;
            // Ends the outstanding requests, which must not write to a slot that is reused.
            self.pair.to_error();
        }
        done
    }
}

impl fmt::Debug for StagingRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingRing")
            .field("gpu", &self.copies.gpu)
            .field("config", &self.config)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// One transfer, in chunks.
struct Transfer<'a> {
    ring: &'a StagingRing,
    offset: u64,
    peer: &'a RemoteMemory,
    len: u64,
    deadline: Deadline,
}

impl Transfer<'_> {
    fn chunks(&self) -> u64 {
        self.len.div_ceil(u64::from(self.ring.config.slot_len))
    }

    /// Returns the offset and length of a chunk, and the offset of its slot.
    fn chunk(&self, number: u64) -> (u64, u64, u64) {
        let slot_len = u64::from(self.ring.config.slot_len);
        let at = number * slot_len;
        let slot = number % u64::from(self.ring.config.slots);
        (at, slot_len.min(self.len - at), slot * slot_len)
    }

    /// Copies each chunk to host memory while the ones before it are sent.
    fn write(&self) -> Result<()> {
        let (chunks, slots) = (self.chunks(), u64::from(self.ring.config.slots));
        let mut completed = 0;
        if chunks > 0 {
            self.copy_from_gpu(0)?;
        }
        for number in 0..chunks {
            self.wait_copies()?;
            self.post(number, Direction::ToPeer)?;
            let next = number + 1;
            if next < chunks {
                while completed + slots <= next {
                    self.wait_request()?;
                    completed += 1;
                }
                self.copy_from_gpu(next)?;
            }
        }
        (completed..chunks).try_for_each(|_| self.wait_request())
    }

    /// Copies each chunk to the GPU while the ones after it are received.
    fn read(&self) -> Result<()> {
        let (chunks, slots) = (self.chunks(), u64::from(self.ring.config.slots));
        for number in 0..chunks.min(slots) {
            self.post(number, Direction::FromPeer)?;
        }
        for number in 0..chunks {
            self.wait_request()?;
            self.copy_to_gpu(number)?;
            if number + slots < chunks {
                self.wait_copies()?;
                self.post(number + slots, Direction::FromPeer)?;
            }
        }
        self.wait_copies()
    }

    fn copy_from_gpu(&self, number: u64) -> Result<()> {
        let ((at, len, slot), copies) = (self.chunk(number), &self.ring.copies);
        let (from, to) = (self.offset + at, slot as usize);
        Ok(copies
            .stream
            .queue_read(&copies.gpu, from, &copies.memory, to, len as usize)?)
    }

    fn copy_to_gpu(&self, number: u64) -> Result<()> {
        let ((at, len, slot), copies) = (self.chunk(number), &self.ring.copies);
        let (from, to) = (slot as usize, self.offset + at);
        Ok(copies
            .stream
            .queue_write(&copies.memory, from, &copies.gpu, to, len as usize)?)
    }

    /// Waits for the copies that were queued.
    fn wait_copies(&self) -> Result<()> {
        Ok(self.ring.copies.stream.wait(self.deadline.remaining())?)
    }

    fn post(&self, number: u64, direction: Direction) -> Result<()> {
        let (at, len, slot) = self.chunk(number);
        let (id, remote) = (WrId(number), self.peer.at(at));
        let request = match direction {
            Direction::ToPeer => SendRequest::write(id, remote),
            Direction::FromPeer => SendRequest::read(id, remote),
        };
        let segment = self.ring.region.segment(slot, len)?;
        self.ring.pair.post_send(request.segment(segment))
    }

    /// Waits for the completion of the oldest request.
    fn wait_request(&self) -> Result<()> {
        let Completion { status, .. } = self.ring.queue.wait(self.deadline)?;
        if status == WcStatus::Success {
            return Ok(());
        }
        Err(Error::Transfer(TransferError::Status(status)))
    }
}
