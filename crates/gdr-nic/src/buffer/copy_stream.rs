//! The streams on which the engine's copies run.
//!
//! They do not synchronize with the default stream, so the engine never waits for kernels of the program. After the
//! first wait that times out, a stream is not used again: the engine serves all queue pairs of its device, so a GPU
//! that does not respond may delay it once, but not for each packet.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, Gpu, HostBuffer, PooledHostBuffer, Stream};

use super::read_ahead::{Arrival, Copies, Ticket};
use super::read_source::ReadSource;
use crate::error::Result;

/// The maximum length of one copy in bytes: a whole READ as this crate's requester splits it (64 packets of 4 KiB). On
/// PCIe Gen5 it takes some 5 us, on top of a fixed cost of 10 us.
pub(super) const CHUNK: usize = 256 << 10;
/// The length in bytes of the page-locked memory between the network and GPU memory. To send, a
/// requester has two such READs in flight, each chunk of a longer message is followed by the next, and
/// some room is left for other queue pairs. To receive, one chunk fills while others are copied.
pub(super) const STAGING: usize = 4 * CHUNK;

/// The number of streams for reads. More chunks than that share streams, and thus waits.
pub(super) const STREAMS: usize = 4;

/// The limit of a wait. A copy of 256 KiB takes some 20 us.
const LIMIT: Duration = Duration::from_secs(2);

/// A stream that is abandoned after a wait that timed out.
#[derive(Debug)]
pub(super) struct CopyStream {
    stream: Stream,
    /// Set by a wait that timed out: copies on the stream may never complete.
    lost: Cell<bool>,
    limit: Duration,
}

impl CopyStream {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            stream: gpu.stream()?,
            lost: Cell::new(false),
            limit: LIMIT,
        })
    }

    /// Queues a copy from page-locked memory.
    pub(super) fn queue_write(
        &self,
        from: &Arc<HostBuffer>,
        from_offset: usize,
        to: &DeviceBuffer,
        to_offset: u64,
        len: usize,
    ) -> Result<()> {
        self.check()?;
        Ok(self
            .stream
            .queue_write(from, from_offset, to, to_offset, len)?)
    }

    /// Queues a copy to page-locked memory.
    pub(super) fn queue_read(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &Arc<HostBuffer>,
        to_offset: usize,
        len: usize,
    ) -> Result<()> {
        self.check()?;
        Ok(self
            .stream
            .queue_read(from, from_offset, to, to_offset, len)?)
    }

    /// Waits until all queued copies are complete.
    pub(super) fn wait(&self) -> Result<()> {
        self.check()?;
        self.stream
            .wait(self.limit)
            .inspect_err(|_| self.lost.set(true))?;
        Ok(())
    }

    /// Fails if an earlier wait timed out.
    pub(super) fn check(&self) -> Result<()> {
        if !self.lost.get() {
            return Ok(());
        }
        Err(gdr_cuda::Error::Deadline {
            what: "an earlier copy",
            limit: self.limit,
        }
        .into())
    }
}

/// The copies of a [`ReadAhead`](super::read_ahead::ReadAhead) by the reading thread, which calls the driver and waits
/// for it. A ticket is the index of a stream.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<CopyStream>,
    /// Which streams had a copy queued since the last wait for them.
    busy: [bool; STREAMS],
    /// The stream of the last copy.
    last: usize,
    memory: PooledHostBuffer,
}

impl Streams {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let streams: Result<_> = (0..STREAMS).map(|_| CopyStream::new(gpu)).collect();
        Ok(Self {
            streams: streams?,
            busy: [false; STREAMS],
            last: 0,
            memory: PooledHostBuffer::new(gpu, STAGING)?,
        })
    }

    #[cfg(test)]
    pub(super) fn stream(&self, number: usize) -> &Stream {
        &self.streams[number].stream
    }

    /// Fails if an earlier wait on any of the streams timed out.
    fn check(&self) -> Result<()> {
        self.streams.iter().try_for_each(CopyStream::check)
    }
}

impl Copies for Streams {
    fn ring_len(&self) -> usize {
        STAGING
    }

    fn memory(&self) -> Option<&HostBuffer> {
        Some(&self.memory)
    }

    fn queue(
        &mut self,
        source: &Arc<ReadSource>,
        offset: u64,
        at: usize,
        len: usize,
    ) -> Result<Option<Ticket>> {
        self.check()?;
        // Use a stream without a copy in progress, or the least recently used one.
        let free = self.busy.iter().position(|busy| !busy);
        let stream = free.unwrap_or((self.last + 1) % STREAMS);
        self.streams[stream].queue_read(source.buffer(), offset, &self.memory, at, len)?;
        self.last = stream;
        self.busy[stream] = true;
        Ok(Some(Ticket(stream as u64)))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Arrival> {
        self.check()?;
        let stream = ticket.0 as usize;
        self.streams[stream].wait()?;
        self.busy[stream] = false;
        Ok(Arrival::Complete)
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Direction, Launch, MemoryKind, Ordinal, SimDriver};

    use super::*;

    #[test]
    fn a_stream_is_not_used_after_a_wait_that_timed_out() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let stream = CopyStream {
            limit: Duration::ZERO,
            ..CopyStream::new(&gpu).unwrap()
        };
        let flags = Arc::new(gpu.allocate_host(64).unwrap());
        flags.write(0, &[0; 64]).unwrap();
        let memory = gpu.allocate(MemoryKind::Plain, 64).unwrap();
        let flag = |offset| flags.gpu_ptr().checked_add(offset).unwrap();
        let stuck = Launch::PingPong {
            ping: flag(0),
            pong: flag(4),
            stop: flag(8),
            iterations: 1,
            data: memory.ptr(),
            data_words: 0,
            direction: Direction::CpuToGpu,
            blocks: 1,
            threads: 1,
            barrier: memory.ptr(),
            mismatches: memory.ptr().checked_add(8).unwrap(),
        };
        // SAFETY: all of it is memory of this driver that lives until the stream is idle, below.
        unsafe { stream.stream.launch(&stuck) }.unwrap();
        assert!(stream.wait().is_err());
        flags.store_u32(8, 1).unwrap();
        while !stream.stream.is_idle().unwrap() {
            std::thread::yield_now();
        }
        assert!(stream.wait().is_err());
        assert!(stream.queue_read(&memory, 0, &flags, 0, 8).is_err());
    }
}
