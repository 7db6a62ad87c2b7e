//! Reads of GPU memory ahead of the packets that carry it.
//!
//! A request that reads is announced with its whole range before its first byte is loaded. Its bytes are then copied
//! into page-locked memory, used as a ring, some chunks ahead of the packets, so that the copy engine works while
//! packets are built and sent. A packet waits only for the copy of its own chunk, not for chunks queued later.
//!
//! The bytes served for a request are never older than its announcement, which drops all chunks of
//! the range that were read before.
//!
//! [`Copies`] abstracts over the thread that makes the copies: the engine's own
//! ([`Streams`](super::copy_stream::Streams)) or a copy thread ([`Handed`](super::copy_thread::Handed)), whose copies
//! may be late. The bytes of a late copy are loaded by the CPU, and its place in the ring is reused only when it is
//! complete.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gdr_cuda::HostBuffer;

use super::copy_stream::CHUNK;
use super::read_source::{ReadSource, SourceId};
use super::volatile_copy;
use crate::error::Result;

/// The length in bytes of the first chunk of a request that finds no copy in progress: some 15 packets,
/// which one system call sends while the next chunk is copied.
pub(super) const FIRST: usize = 64 << 10;
/// How many announced requests are remembered until they are served.
const REQUESTS: usize = 64;

/// Makes the copies of a [`ReadAhead`].
pub(super) trait Copies: fmt::Debug + Send {
    /// Returns the length of the ring in bytes.
    fn ring_len(&self) -> usize;

    /// Returns the page-locked memory, which begins with the ring; `None` before the first copy.
    fn memory(&self) -> Option<&HostBuffer>;

    /// Queues a copy to offset `at` of the ring. Returns `None` if no copy can be queued now: the CPU loads
    /// the bytes then.
    fn queue(
        &mut self,
        source: &Arc<ReadSource>,
        offset: u64,
        at: usize,
        len: usize,
    ) -> Result<Option<Ticket>>;

    /// Waits for a copy, for a bounded time.
    fn wait(&mut self, ticket: Ticket) -> Result<Arrival>;
}

/// Names a copy, or several that are waited for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) u64);

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The copy is complete.
    Complete,
    /// The copy is not complete, and the caller loads the bytes itself.
    Late,
}

/// Copies of GPU memory for announced requests.
#[derive(Debug)]
pub(super) struct ReadAhead<C: ?Sized> {
    /// Where the next chunk goes.
    head: usize,
    /// The chunks in the ring, oldest first.
    chunks: VecDeque<Chunk>,
    /// Announced requests that are not yet served, oldest first.
    requests: VecDeque<Request>,
    copies: C,
}

/// An announced request.
#[derive(Clone, Copy, Debug)]
struct Request {
    source: SourceId,
    /// The offset of the first byte for which a copy may be queued. It only grows, so a request that its peer abandons
    /// costs few copies.
    next: u64,
    /// The end of the range.
    end: u64,
}

/// A part of GPU memory that was copied.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    source: SourceId,
    /// The offset of its first byte in the source.
    offset: u64,
    len: usize,
    /// The offset of its first byte in the memory.
    at: usize,
    /// The end of the announced range.
    end: u64,
    /// The copy to wait for.
    ticket: Ticket,
    progress: Progress,
    demand: Demand,
    /// Whether the following chunk was queued.
    continued: bool,
}

/// The state of a chunk's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Not yet found complete by a wait.
    Pending,
    Complete,
}

/// Who still needs the bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// The request for which they were copied.
    Expected,
    /// At most retransmissions.
    Served,
    /// None: a later request reads the same range.
    Dropped,
}

/// The chunks that a new chunk may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replace {
    /// Chunks whose bytes were served.
    Served,
    /// Any chunk.
    Any,
}

impl Chunk {
    fn contains(&self, source: SourceId, offset: u64) -> bool {
        self.source == source && offset >= self.offset && offset - self.offset < self.len as u64
    }

    fn overlaps(&self, source: SourceId, offset: u64, len: u64) -> bool {
        self.source == source
            && self.offset < offset.saturating_add(len)
            && offset < self.offset + self.len as u64
    }

    fn uses(&self, memory: &Range<usize>) -> bool {
        self.at < memory.end && memory.start < self.at + self.len
    }

    fn is_pending(&self) -> bool {
        self.progress == Progress::Pending
    }
}

impl<C: Copies> ReadAhead<C> {
    pub(super) fn new(copies: C) -> Self {
        Self {
            head: 0,
            chunks: VecDeque::new(),
            requests: VecDeque::new(),
            copies,
        }
    }

    /// Ends all requests of a source, and drops its chunks. Returns the copier, and the copies that may still be in
    /// progress.
    pub(super) fn end(&mut self, source: SourceId) -> (&mut C, Vec<Ticket>) {
        self.requests.retain(|request| request.source != source);
        self.forget(source, 0, u64::MAX);
        let pending = self.chunks.iter().filter(|chunk| chunk.source == source);
        let pending = pending.map(|chunk| chunk.ticket).collect();
        (&mut self.copies, pending)
    }

    /// Returns the copier.
    pub(super) fn copies(&mut self) -> &mut C {
        &mut self.copies
    }

    /// Returns the parts of the ring whose copies are not known to be complete.
    #[cfg(test)]
    pub(super) fn in_progress(&self) -> Vec<Range<usize>> {
        let pending = self.chunks.iter().filter(|chunk| chunk.is_pending());
        pending
            .map(|chunk| chunk.at..chunk.at + chunk.len)
            .collect()
    }
}

impl<C: Copies + ?Sized> ReadAhead<C> {
    /// Drops the chunks of this range.
    pub(super) fn forget(&mut self, source: SourceId, offset: u64, len: u64) {
        // The memory of a copy in progress stays in use.
        self.chunks
            .retain(|chunk| chunk.is_pending() || !chunk.overlaps(source, offset, len));
        for chunk in &mut self.chunks {
            if chunk.overlaps(source, offset, len) {
                chunk.demand = Demand::Dropped;
            }
        }
    }

    /// Announces a request that reads this range of `source`, which is not empty, and queues the copy
    /// of its first bytes, unless the memory is full of bytes that other requests need.
    pub(super) fn expect(&mut self, source: &Arc<ReadSource>, offset: u64, len: u64) -> Result<()> {
        self.forget(source.id(), offset, len);
        if self.requests.len() == REQUESTS {
            // A request that was announced this long ago and never served was most likely abandoned by its
            // peer.
            self.requests.pop_front();
        }
        let end = offset + len;
        self.requests.push_back(Request {
            source: source.id(),
            next: offset,
            end,
        });
        let is_idle = !self.chunks.iter().any(Chunk::is_pending);
        // With no copy in progress the first packets wait for this one, so it is short.
        let first = match is_idle && len > 2 * FIRST as u64 {
            true => FIRST,
            false => CHUNK,
        };
        self.queue(source, offset..end, first, Replace::Served)?;
        if first == FIRST {
            self.go_on(source, offset)?;
        }
        Ok(())
    }

    /// Copies bytes at `offset` into the start of `bytes`; returns how many, 0 if they were not read
    /// ahead, or not in time.
    pub(super) fn serve(
        &mut self,
        source: &Arc<ReadSource>,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize> {
        let id = source.id();
        let len = match self.arrive(source, offset)? {
            true => self.load(id, offset, bytes)?,
            false => 0,
        };
        // The CPU loads the rest.
        let end = offset + if len == 0 { bytes.len() } else { len } as u64;
        if let Some(chunk) = self.chunk(id, offset)
            && end >= chunk.offset + chunk.len as u64
        {
            chunk.demand = Demand::Served;
        }
        let is_served = |it: &Request| it.source == id && it.end == end;
        if let Some(served) = self.requests.iter().position(is_served) {
            self.requests.remove(served);
        }
        Ok(len)
    }

    /// Waits for the chunk that contains the byte at `offset`, and queues the next one. Returns whether the chunk is
    /// complete.
    fn arrive(&mut self, source: &Arc<ReadSource>, offset: u64) -> Result<bool> {
        let id = source.id();
        if self.chunk(id, offset).is_none() {
            // The chunk was not queued: there was no room, another request took it, or copies were blocked.
            let needs = |request: &Request| {
                request.source == id && request.next <= offset && offset < request.end
            };
            // Take the latest request, whose bytes must be the newest.
            let Some(at) = self.requests.iter().rposition(needs) else {
                return Ok(false);
            };
            let end = self.requests[at].end;
            if !self.queue(source, offset..end, CHUNK, Replace::Any)? {
                return Ok(false);
            }
            self.requests[at].next = end.min(offset + CHUNK as u64);
        }
        let Some(&mut Chunk {
            ticket, progress, ..
        }) = self.chunk(id, offset)
        else {
            return Ok(false);
        };
        if progress == Progress::Pending && self.wait(ticket)? == Arrival::Late {
            return Ok(false);
        }
        // The copied memory may have another owner by now; the mapping still shows the old memory.
        if source.is_lost() {
            return Ok(false);
        }
        self.go_on(source, offset)?;
        Ok(true)
    }

    /// Copies the bytes at `offset` from their chunk; returns how many.
    fn load(&mut self, source: SourceId, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let Some(&mut Chunk {
            offset: start,
            len,
            at,
            ..
        }) = self.chunk(source, offset)
        else {
            return Ok(0);
        };
        let Some(memory) = self.copies.memory() else {
            return Ok(0);
        };
        let skip = (offset - start) as usize;
        let len = (len - skip).min(bytes.len());
        let from = memory.part(at + skip, len)?;
        // SAFETY: `part` returns the address of `len` bytes of page-locked memory, which `copies`
        // keeps; there are no references to them.
        unsafe { volatile_copy::load(from, &mut bytes[..len]) };
        Ok(len)
    }

    /// Returns the latest chunk that contains the byte at `offset`.
    fn chunk(&mut self, source: SourceId, offset: u64) -> Option<&mut Chunk> {
        let has =
            |chunk: &&mut Chunk| chunk.demand != Demand::Dropped && chunk.contains(source, offset);
        self.chunks.iter_mut().rev().find(has)
    }

    /// Queues the chunk after the one at `offset`, if its request continues.
    fn go_on(&mut self, source: &Arc<ReadSource>, offset: u64) -> Result<()> {
        let Some(chunk) = self.chunk(source.id(), offset) else {
            return Ok(());
        };
        let next = chunk.offset + chunk.len as u64..chunk.end;
        if chunk.continued || next.is_empty() {
            return Ok(());
        }
        let queued = self.queue(source, next, CHUNK, Replace::Served)?;
        if let Some(chunk) = self.chunk(source.id(), offset) {
            chunk.continued = queued;
        }
        Ok(())
    }

    /// Waits for a copy.
    fn wait(&mut self, ticket: Ticket) -> Result<Arrival> {
        let arrival = self.copies.wait(ticket)?;
        if arrival == Arrival::Complete {
            for chunk in &mut self.chunks {
                if chunk.ticket == ticket {
                    chunk.progress = Progress::Complete;
                }
            }
        }
        Ok(arrival)
    }

    /// Queues a copy of at most `longest` bytes from the start of a range; returns whether there was room.
    fn queue(
        &mut self,
        source: &Arc<ReadSource>,
        range: Range<u64>,
        longest: usize,
        replace: Replace,
    ) -> Result<bool> {
        let len = (range.end - range.start).min(longest as u64) as usize;
        // A chunk is a contiguous range of the ring, so the remainder at the end stays unused.
        let at = match self.head + len > self.copies.ring_len() {
            true => 0,
            false => self.head,
        };
        let room = at..at + len;
        let is_needed = |chunk: &Chunk| chunk.uses(&room) && chunk.demand == Demand::Expected;
        if replace == Replace::Served && self.chunks.iter().any(is_needed) {
            return Ok(false);
        }
        // Nothing may be copied to a place that another copy may still write to.
        let copying = |chunk: &&Chunk| chunk.uses(&room) && chunk.is_pending();
        while let Some(ticket) = self.chunks.iter().find(copying).map(|chunk| chunk.ticket) {
            if self.wait(ticket)? == Arrival::Late {
                return Ok(false);
            }
        }
        let Some(ticket) = self.copies.queue(source, range.start, at, len)? else {
            return Ok(false);
        };
        // Do this only now: as long as no copy was queued, the old chunks can still be served.
        self.chunks.retain(|chunk| !chunk.uses(&room));
        self.head = room.end;
        self.chunks.push_back(Chunk {
            source: source.id(),
            offset: range.start,
            len,
            at,
            end: range.end,
            ticket,
            progress: Progress::Pending,
            demand: Demand::Expected,
            continued: false,
        });
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};

    use super::*;
    use crate::buffer::copy_stream::{STAGING, Streams};

    const PACKET: usize = 4096;

    /// Returns a buffer of this many bytes with `seed` in the bytes of the pattern, and its reads.
    fn setup(len: usize, seed: u8) -> (Arc<ReadSource>, ReadAhead<Streams>) {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, len as u64).unwrap();
        buffer.write(0, &pattern(0, len, seed)).unwrap();
        let source = Arc::new(ReadSource::kept(Arc::new(buffer)));
        (source, ReadAhead::new(Streams::new(&gpu).unwrap()))
    }

    /// Returns the bytes at an offset.
    fn pattern(offset: u64, len: usize, seed: u8) -> Vec<u8> {
        let byte = |at: u64| (at / 7 + at / PACKET as u64) as u8 ^ seed;
        (offset..offset + len as u64).map(byte).collect()
    }

    /// Serves a packet; returns whether it was read ahead in full.
    fn packet(
        ahead: &mut ReadAhead<Streams>,
        source: &Arc<ReadSource>,
        offset: u64,
        seed: u8,
    ) -> bool {
        let mut bytes = [0; PACKET];
        let len = ahead.serve(source, offset, &mut bytes).unwrap();
        assert_eq!(bytes[..len], pattern(offset, len, seed), "at {offset}");
        len == PACKET
    }

    #[test]
    fn bytes_are_no_older_than_the_latest_announcement() {
        let len = 2 * CHUNK;
        let (source, mut ahead) = setup(len, 1);
        for seed in 1..=9 {
            let written = source.buffer().write(0, &pattern(0, len, seed));
            written.unwrap();
            ahead.expect(&source, 0, len as u64).unwrap();
            // The peer may give up a request, and begin again.
            let packets = if seed % 3 == 0 { 3 } else { len / PACKET };
            for number in 0..packets {
                let offset = (number * PACKET) as u64;
                assert!(packet(&mut ahead, &source, offset, seed), "{number}");
            }
        }
    }

    #[test]
    fn a_packet_waits_only_for_the_chunk_that_has_it() {
        let (source, mut ahead) = setup(CHUNK, 5);
        let (release, released) = channel();
        let later = ahead.copies.stream(1);
        let wait = move || released.recv_timeout(Duration::from_secs(120)).unwrap();
        later.queue_call(wait).unwrap();
        ahead.expect(&source, 0, CHUNK as u64).unwrap();
        for number in 0..FIRST / PACKET {
            let offset = (number * PACKET) as u64;
            assert!(packet(&mut ahead, &source, offset, 5));
        }
        assert!(!ahead.copies.stream(1).is_idle().unwrap());
        release.send(()).unwrap();
        for number in FIRST / PACKET..CHUNK / PACKET {
            let offset = (number * PACKET) as u64;
            assert!(packet(&mut ahead, &source, offset, 5));
        }
        assert!(ahead.requests.is_empty());
    }

    #[test]
    fn requests_for_which_there_was_no_room_are_read_when_their_turn_comes() {
        let requests = 4 * STAGING / CHUNK;
        let len = requests * CHUNK;
        let (source, mut ahead) = setup(len, 3);
        for request in 0..requests {
            let offset = (request * CHUNK) as u64;
            ahead.expect(&source, offset, CHUNK as u64).unwrap();
        }
        let kept: usize = ahead.chunks.iter().map(|chunk| chunk.len).sum();
        assert_eq!(kept, STAGING, "none that is needed was replaced");
        for number in 0..len / PACKET {
            let offset = (number * PACKET) as u64;
            assert!(packet(&mut ahead, &source, offset, 3), "{number}");
        }
        assert!(ahead.requests.is_empty());
    }

    #[test]
    fn a_request_that_was_given_up_does_not_have_its_bytes_copied_for_ever() {
        let (source, mut ahead) = setup(CHUNK, 7);
        ahead.expect(&source, 0, CHUNK as u64).unwrap();
        let copied = (0..5).filter(|_| {
            // A short request, whose bytes the CPU loads.
            ahead.forget(source.id(), 0, 64);
            let mut bytes = [0; 64];
            ahead.serve(&source, 0, &mut bytes).unwrap() > 0
        });
        assert_eq!(copied.count(), 1);
    }
}
