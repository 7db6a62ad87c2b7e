//! Reads of GPU memory ahead of the packets that carry it.
//!
//! A request that reads is announced with its whole range before its first byte is loaded. From
//! then on its bytes are copied into page-locked memory, used as a ring, a chunk ahead of the
//! packets, so that the copy engine works while packets are made and sent.
//!
//! The bytes served for a request are never older than its announcement, which drops all chunks of
//! the range that were read before.

use std::collections::VecDeque;

use gdr_cuda::{DeviceBuffer, Gpu, PooledHostBuffer};

use super::copy_stream::{CHUNK, CopyStream, STAGING};
use crate::error::Result;

/// Copies of GPU memory for announced requests.
#[derive(Debug)]
pub(super) struct ReadAhead {
    memory: PooledHostBuffer,
    /// Where the next chunk goes.
    head: usize,
    /// The oldest first.
    chunks: VecDeque<Chunk>,
}

/// Part of GPU memory that was copied.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// The offset of its first byte in the device buffer.
    offset: u64,
    len: usize,
    /// The offset of its first byte in the memory.
    at: usize,
    /// The end of the announced range.
    end: u64,
    /// Whether its copy may not be complete: the stream was not waited for since it was queued.
    pending: bool,
    /// Whether the next chunk was queued.
    continued: bool,
}

impl Chunk {
    fn contains(&self, offset: u64) -> bool {
        offset >= self.offset && offset - self.offset < self.len as u64
    }

    fn overlaps(&self, offset: u64, len: u64) -> bool {
        self.offset < offset.saturating_add(len) && offset < self.offset + self.len as u64
    }
}

impl ReadAhead {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            memory: PooledHostBuffer::new(gpu, STAGING)?,
            head: 0,
            chunks: VecDeque::new(),
        })
    }

    /// Drops the chunks of this range.
    pub(super) fn forget(&mut self, offset: u64, len: u64) {
        self.chunks.retain(|chunk| !chunk.overlaps(offset, len));
    }

    /// Announces a request that reads this range of `buffer`, which is not empty, and queues the copy
    /// of its first chunk. All calls must name the same stream and buffer.
    pub(super) fn expect(
        &mut self,
        stream: &CopyStream,
        buffer: &DeviceBuffer,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.forget(offset, len);
        self.queue(stream, buffer, offset, offset + len)
    }

    /// Copies bytes at `offset` into the start of `bytes`; returns how many, 0 if they were not read
    /// ahead.
    pub(super) fn serve(
        &mut self,
        stream: &CopyStream,
        buffer: &DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize> {
        let found = self
            .chunks
            .iter_mut()
            .rev()
            .find(|chunk| chunk.contains(offset));
        let Some(chunk) = found else {
            return Ok(0);
        };
        let last = chunk.offset + chunk.len as u64;
        let goes_on = !chunk.continued && last < chunk.end;
        chunk.continued = true;
        let chunk = *chunk;
        if chunk.pending {
            stream.wait()?;
            for chunk in &mut self.chunks {
                chunk.pending = false;
            }
        }
        let skip = (offset - chunk.offset) as usize;
        let len = (chunk.len - skip).min(bytes.len());
        self.memory.read(chunk.at + skip, &mut bytes[..len])?;
        if goes_on {
            // Only now: it takes the room of the oldest chunk, which may be this one.
            self.queue(stream, buffer, last, chunk.end)?;
        }
        Ok(len)
    }

    /// Queues the copy of the first chunk between `offset` and `end`.
    fn queue(
        &mut self,
        stream: &CopyStream,
        buffer: &DeviceBuffer,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let len = (end - offset).min(CHUNK as u64) as usize;
        if self.head + len > STAGING {
            self.head = 0;
        }
        let at = self.head;
        // Their copies may be in progress; the stream runs this one after them.
        self.chunks
            .retain(|chunk| chunk.at >= at + len || chunk.at + chunk.len <= at);
        stream.queue_read(buffer, offset, &self.memory, at, len)?;
        self.head = at + len;
        self.chunks.push_back(Chunk {
            offset,
            len,
            at,
            end,
            pending: true,
            continued: false,
        });
        Ok(())
    }
}
