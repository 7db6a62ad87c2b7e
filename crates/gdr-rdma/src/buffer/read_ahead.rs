//! Reads of GPU memory ahead of the packets that carry it.
//!
//! A request that reads is announced with its whole range before its first byte is loaded. From
//! then on its bytes are copied into page-locked memory, used as a ring, chunks ahead of the
//! packets, so that the copy engine works while packets are made and sent. A packet waits for the copy
//! of its own chunk, not for those that were queued behind it.
//!
//! The bytes served for a request are never older than its announcement, which drops all chunks of
//! the range that were read before.

use std::collections::VecDeque;
use std::ops::Range;

use gdr_cuda::{DeviceBuffer, Gpu, PooledHostBuffer};

use super::copy_stream::{CHUNK, CopyStream, STAGING};
use super::volatile_copy;
use crate::error::Result;

/// The length in bytes of the first chunk of a request that finds no copy in progress: some 15 packets,
/// which one system call sends while the next chunk is copied.
const FIRST: usize = 64 << 10;
/// How many streams there are. More chunks than that share streams, and so the waits for them.
const STREAMS: usize = 4;
/// How many announced requests are remembered until they are served.
const REQUESTS: usize = 64;

/// Copies of GPU memory for announced requests.
#[derive(Debug)]
pub(super) struct ReadAhead {
    streams: Vec<CopyStream>,
    /// The stream of the last chunk.
    stream: usize,
    memory: PooledHostBuffer,
    /// Where the next chunk goes.
    head: usize,
    /// The oldest first.
    chunks: VecDeque<Chunk>,
    /// Those that are announced and not yet served, the oldest first.
    requests: VecDeque<Request>,
}

/// An announced request.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// The offset of the first byte for which a copy may be queued when it is needed. It only grows, so
    /// a request that its peer gave up costs few copies.
    next: u64,
    /// The end of the range.
    end: u64,
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
    /// The stream on which it is copied.
    stream: usize,
    progress: Progress,
    demand: Demand,
    /// Whether the next chunk was queued.
    continued: bool,
}

/// How far the copy of a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Its stream was not waited for since it was queued.
    Pending,
    Complete,
}

/// Whether the bytes of a chunk are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// By the request for which they were copied.
    Expected,
    /// At most for packets that are sent again.
    Served,
    /// No longer: a later request reads the same range.
    Dropped,
}

/// What a chunk may replace in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replace {
    /// Chunks whose bytes were served.
    Served,
    /// Any chunk.
    Any,
}

impl Chunk {
    fn contains(&self, offset: u64) -> bool {
        offset >= self.offset && offset - self.offset < self.len as u64
    }

    fn overlaps(&self, offset: u64, len: u64) -> bool {
        self.offset < offset.saturating_add(len) && offset < self.offset + self.len as u64
    }

    fn uses(&self, memory: &Range<usize>) -> bool {
        self.at < memory.end && memory.start < self.at + self.len
    }

    fn is_pending(&self) -> bool {
        self.progress == Progress::Pending
    }
}

impl ReadAhead {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let streams: Result<_> = (0..STREAMS).map(|_| CopyStream::new(gpu)).collect();
        Ok(Self {
            streams: streams?,
            stream: 0,
            memory: PooledHostBuffer::new(gpu, STAGING)?,
            head: 0,
            chunks: VecDeque::new(),
            requests: VecDeque::new(),
        })
    }

    /// Drops the chunks of this range.
    pub(super) fn forget(&mut self, offset: u64, len: u64) {
        // The memory of a copy in progress stays in use.
        self.chunks
            .retain(|chunk| chunk.is_pending() || !chunk.overlaps(offset, len));
        for chunk in &mut self.chunks {
            if chunk.overlaps(offset, len) {
                chunk.demand = Demand::Dropped;
            }
        }
    }

    /// Announces a request that reads this range of `buffer`, which is not empty, and queues the copy
    /// of its first bytes, unless the memory is full of bytes that other requests need. All calls must
    /// name the same buffer.
    pub(super) fn expect(&mut self, buffer: &DeviceBuffer, offset: u64, len: u64) -> Result<()> {
        self.forget(offset, len);
        if self.requests.len() == REQUESTS {
            self.requests.pop_front();
        }
        let end = offset + len;
        self.requests.push_back(Request { next: offset, end });
        let is_idle = !self.chunks.iter().any(Chunk::is_pending);
        let first = match is_idle && len > 2 * FIRST as u64 {
            true => FIRST,
            false => CHUNK,
        };
        self.queue(buffer, offset..end, first, Replace::Served)?;
        if first == FIRST {
            self.go_on(buffer, offset)?;
        }
        Ok(())
    }

    /// Copies bytes at `offset` into the start of `bytes`; returns how many, 0 if they were not read
    /// ahead.
    pub(super) fn serve(
        &mut self,
        buffer: &DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize> {
        if self.chunk(offset).is_none() {
            // There was no room, or another request has taken it.
            let needs = |request: &&mut Request| request.next <= offset && offset < request.end;
            let Some(request) = self.requests.iter_mut().rev().find(needs) else {
                return Ok(0);
            };
            let end = request.end;
            request.next = end.min(offset + CHUNK as u64);
            self.queue(buffer, offset..end, CHUNK, Replace::Any)?;
        }
        let Some(&mut Chunk {
            stream, progress, ..
        }) = self.chunk(offset)
        else {
            return Ok(0);
        };
        if progress == Progress::Pending {
            self.wait(stream)?;
        }
        self.go_on(buffer, offset)?;
        let Some(chunk) = self.chunk(offset) else {
            return Ok(0);
        };
        let skip = (offset - chunk.offset) as usize;
        let len = (chunk.len - skip).min(bytes.len());
        if skip + len == chunk.len {
            chunk.demand = Demand::Served;
        }
        let (end, from) = (offset + len as u64, chunk.at + skip);
        let from = self.memory.part(from, len)?;
        // SAFETY: `part` returns the address of `len` bytes of page-locked memory, which this value
        // keeps; there are no references to them.
        unsafe { volatile_copy::load(from, &mut bytes[..len]) };
        if let Some(served) = self.requests.iter().position(|it| it.end == end) {
            self.requests.remove(served);
        }
        Ok(len)
    }

    /// The latest chunk that has the byte at `offset`.
    fn chunk(&mut self, offset: u64) -> Option<&mut Chunk> {
        let has = |chunk: &&mut Chunk| chunk.demand != Demand::Dropped && chunk.contains(offset);
        self.chunks.iter_mut().rev().find(has)
    }

    /// Queues the chunk behind that of `offset`, if its request goes on.
    fn go_on(&mut self, buffer: &DeviceBuffer, offset: u64) -> Result<()> {
        let Some(chunk) = self.chunk(offset) else {
            return Ok(());
        };
        let next = chunk.offset + chunk.len as u64..chunk.end;
        if chunk.continued || next.is_empty() {
            return Ok(());
        }
        let queued = self.queue(buffer, next, CHUNK, Replace::Served)?;
        if let Some(chunk) = self.chunk(offset) {
            chunk.continued = queued;
        }
        Ok(())
    }

    /// Waits for the copies on a stream.
    fn wait(&mut self, stream: usize) -> Result<()> {
        self.check()?;
        self.streams[stream].wait()?;
        for chunk in &mut self.chunks {
            if chunk.stream == stream {
                chunk.progress = Progress::Complete;
            }
        }
        Ok(())
    }

    /// Queues the copy of the first bytes of a range, `longest` at most; returns whether there was room.
    fn queue(
        &mut self,
        buffer: &DeviceBuffer,
        range: Range<u64>,
        longest: usize,
        replace: Replace,
    ) -> Result<bool> {
        self.check()?;
        let len = (range.end - range.start).min(longest as u64) as usize;
        let at = match self.head + len > STAGING {
            true => 0,
            false => self.head,
        };
        let room = at..at + len;
        let is_needed = |chunk: &Chunk| chunk.uses(&room) && chunk.demand == Demand::Expected;
        if replace == Replace::Served && self.chunks.iter().any(is_needed) {
            return Ok(false);
        }
        // Another stream must not begin to copy to where one still copies.
        let copying = |chunk: &&Chunk| chunk.uses(&room) && chunk.is_pending();
        while let Some(stream) = self.chunks.iter().find(copying).map(|chunk| chunk.stream) {
            self.wait(stream)?;
        }
        self.chunks.retain(|chunk| !chunk.uses(&room));
        let stream = self.free_stream();
        self.streams[stream].queue_read(buffer, range.start, &self.memory, at, len)?;
        (self.stream, self.head) = (stream, room.end);
        self.chunks.push_back(Chunk {
            offset: range.start,
            len,
            at,
            end: range.end,
            stream,
            progress: Progress::Pending,
            demand: Demand::Expected,
            continued: false,
        });
        Ok(true)
    }

    /// Fails after a wait that timed out, on whichever stream.
    fn check(&self) -> Result<()> {
        self.streams.iter().try_for_each(CopyStream::check)
    }

    /// A stream without a copy in progress, or the one that was used the longest time ago.
    fn free_stream(&self) -> usize {
        let is_free = |stream: &usize| {
            let mut chunks = self.chunks.iter();
            !chunks.any(|chunk| chunk.stream == *stream && chunk.is_pending())
        };
        let next = (self.stream + 1) % STREAMS;
        (0..STREAMS).find(is_free).unwrap_or(next)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use gdr_cuda::{MemoryKind, Ordinal, SimDriver};

    use super::*;

    const PACKET: usize = 4096;

    /// A buffer of so many bytes with `seed` in the bytes of the pattern, and its reads.
    fn setup(len: usize, seed: u8) -> (DeviceBuffer, ReadAhead) {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, len as u64).unwrap();
        buffer.write(0, &pattern(0, len, seed)).unwrap();
        (buffer, ReadAhead::new(&gpu).unwrap())
    }

    /// The bytes at an offset.
    fn pattern(offset: u64, len: usize, seed: u8) -> Vec<u8> {
        let byte = |at: u64| (at / 7 + at / PACKET as u64) as u8 ^ seed;
        (offset..offset + len as u64).map(byte).collect()
    }

    /// Serves a packet; returns whether it was read ahead in full.
    fn packet(ahead: &mut ReadAhead, buffer: &DeviceBuffer, offset: u64, seed: u8) -> bool {
        let mut bytes = [0; PACKET];
        let len = ahead.serve(buffer, offset, &mut bytes).unwrap();
        assert_eq!(bytes[..len], pattern(offset, len, seed), "at {offset}");
        len == PACKET
    }

    #[test]
    fn bytes_are_no_older_than_the_latest_announcement() {
        let len = 2 * CHUNK;
        let (buffer, mut ahead) = setup(len, 1);
        for seed in 1..=9 {
            buffer.write(0, &pattern(0, len, seed)).unwrap();
            ahead.expect(&buffer, 0, len as u64).unwrap();
            // The peer may give up a request, and begin again.
            let packets = if seed % 3 == 0 { 3 } else { len / PACKET };
            for number in 0..packets {
                let offset = (number * PACKET) as u64;
                assert!(packet(&mut ahead, &buffer, offset, seed), "{number}");
            }
        }
    }

    #[test]
    fn a_packet_waits_only_for_the_chunk_that_has_it() {
        let (buffer, mut ahead) = setup(CHUNK, 5);
        let (release, released) = channel();
        let later = ahead.streams[1].stream();
        let wait = move || released.recv_timeout(Duration::from_secs(120)).unwrap();
        later.queue_call(wait).unwrap();
        ahead.expect(&buffer, 0, CHUNK as u64).unwrap();
        for number in 0..FIRST / PACKET {
            let offset = (number * PACKET) as u64;
            assert!(packet(&mut ahead, &buffer, offset, 5));
        }
        assert!(!ahead.streams[1].stream().is_idle().unwrap());
        release.send(()).unwrap();
        for number in FIRST / PACKET..CHUNK / PACKET {
            let offset = (number * PACKET) as u64;
            assert!(packet(&mut ahead, &buffer, offset, 5));
        }
        assert!(ahead.requests.is_empty());
    }

    #[test]
    fn requests_for_which_there_was_no_room_are_read_when_their_turn_comes() {
        let requests = 4 * STAGING / CHUNK;
        let len = requests * CHUNK;
        let (buffer, mut ahead) = setup(len, 3);
        for request in 0..requests {
            let offset = (request * CHUNK) as u64;
            ahead.expect(&buffer, offset, CHUNK as u64).unwrap();
        }
        let kept: usize = ahead.chunks.iter().map(|chunk| chunk.len).sum();
        assert_eq!(kept, STAGING, "none that is needed was replaced");
        for number in 0..len / PACKET {
            let offset = (number * PACKET) as u64;
            assert!(packet(&mut ahead, &buffer, offset, 3), "{number}");
        }
        assert!(ahead.requests.is_empty());
    }

    #[test]
    fn a_request_that_was_given_up_does_not_have_its_bytes_copied_for_ever() {
        let (buffer, mut ahead) = setup(CHUNK, 7);
        ahead.expect(&buffer, 0, CHUNK as u64).unwrap();
        let copied = (0..5).filter(|_| {
            // A short request, whose bytes the CPU loads.
            ahead.forget(0, 64);
            let mut bytes = [0; 64];
            ahead.serve(&buffer, 0, &mut bytes).unwrap() > 0
        });
        assert_eq!(copied.count(), 1);
    }
}
