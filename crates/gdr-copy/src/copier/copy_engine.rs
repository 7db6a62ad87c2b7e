//! Copies by the GPU's copy engine.
//!
//! They run on streams of this library, which do not synchronize with the default stream: a copy
//! waits neither for kernels of the program nor for its other copies. Calls of the driver are made
//! with a relaxed capture mode, so that a stream capture elsewhere in the process stays valid.
//!
//! Pageable memory is copied through page-locked slots: while the engine copies one chunk, the CPU
//! copies another.

use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gdr_cuda::{
    AddressRange, BufferId, CaptureGuard, ConcreteDriver, Cuda, DeviceBuffer, DevicePtr,
    HostBuffer, Stream,
};

use super::staging_memory::{SLOT, SLOTS, StagingMemory};
use crate::error::{Error, Result};
use crate::plan::CopyPlan;

/// How many rings and streams are kept for later copies.
const MOST_KEPT: usize = 8;

/// The copy engine for one buffer.
#[derive(Debug)]
pub(super) struct CopyEngine {
    buffer: Arc<DeviceBuffer>,
    /// The allocations of the buffer. If one changes, the memory at its address is another one.
    allocations: Vec<(AddressRange, BufferId)>,
    /// For the capture mode; `None` for the simulation, which has no captures.
    cuda: Option<Arc<Cuda>>,
    rings: Mutex<Vec<Ring>>,
    streams: Mutex<Vec<Stream>>,
}

/// Streams with a slot of page-locked memory each.
#[derive(Debug)]
struct Ring {
    // Dropped before the memory, which it may still use.
    streams: [Stream; SLOTS],
    memory: StagingMemory,
}

/// A copy that failed, and how many of its first bytes were copied.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) copied: u64,
    pub(super) source: Error,
}

impl Failed {
    fn after<E: Into<Error>>(copied: u64) -> impl FnOnce(E) -> Self {
        move |source| Self {
            copied,
            source: source.into(),
        }
    }
}

impl CopyEngine {
    /// For copies to and from `buffer`.
    pub(super) fn new(buffer: Arc<DeviceBuffer>) -> Result<Self> {
        let driver = buffer.gpu().driver();
        let end = buffer.ptr().checked_add(buffer.len());
        let end = end.unwrap_or(DevicePtr::new(u64::MAX));
        let first = driver.pointer_info(buffer.ptr())?;
        let others = first.neighbours_up_to(end, |next| driver.pointer_info(next));
        let others = others.map_err(|gap| gdr_cuda::Error::UnknownPointer { ptr: gap })?;
        let allocations = [first].into_iter().chain(others);
        let range = |base, size| AddressRange { base, size };
        let cuda = match ConcreteDriver::of(driver) {
            ConcreteDriver::Cuda(cuda) => Some(cuda),
            ConcreteDriver::Simulated(_) => None,
        };
        Ok(Self {
            allocations: allocations
                .map(|info| (range(info.base, info.size), info.buffer))
                .collect(),
            buffer,
            cuda,
            rings: Mutex::default(),
            streams: Mutex::default(),
        })
    }

    fn relax_capture(&self) -> Option<CaptureGuard<'_>> {
        self.cuda.as_ref().map(|cuda| cuda.relax_stream_capture())
    }

    /// Fails if memory of this range was freed: its address may belong to another allocation now.
    fn check_allocations(&self, range: Range<u64>) -> Result<()> {
        let driver = self.buffer.gpu().driver();
        let at = |offset| self.buffer.ptr().get() + offset;
        for (allocation, id) in &self.allocations {
            let start = allocation.base.get();
            let overlaps = start < at(range.end) && at(range.start) < start + allocation.size;
            if !overlaps {
                continue;
            }
            let ptr = DevicePtr::new(start.max(at(range.start)));
            let freed = Error::Freed { ptr };
            match driver.pointer_info(ptr) {
                Ok(info) if info.buffer == *id => {}
                Ok(_) | Err(gdr_cuda::Error::UnknownPointer { .. }) => return Err(freed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Copies to page-locked memory; returns the stream on which the copy runs.
    pub(super) fn start_read(
        &self,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<Stream> {
        let _relaxed = self.relax_capture();
        self.check_allocations(offset..offset + len as u64)?;
        let stream = self.stream()?;
        stream.queue_read(&self.buffer, offset, host, host_offset, len)?;
        Ok(stream)
    }

    /// Copies from page-locked memory; returns the stream on which the copy runs.
    pub(super) fn start_write(
        &self,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<Stream> {
        let _relaxed = self.relax_capture();
        self.check_allocations(offset..offset + len as u64)?;
        let stream = self.stream()?;
        stream.queue_write(host, host_offset, &self.buffer, offset, len)?;
        Ok(stream)
    }

    /// Whether the copy that `start_read` or `start_write` returned is complete.
    pub(super) fn is_complete(&self, stream: &Stream) -> Result<bool> {
        let _relaxed = self.relax_capture();
        Ok(stream.is_idle()?)
    }

    /// Waits for a copy that `start_read` or `start_write` returned.
    pub(super) fn wait(&self, stream: &Stream, limit: Duration) -> Result<()> {
        let _relaxed = self.relax_capture();
        Ok(stream.wait(limit)?)
    }

    /// Takes back the stream of a copy that is complete.
    pub(super) fn keep(&self, stream: Stream) {
        let mut streams = lock(&self.streams);
        if streams.len() < MOST_KEPT {
            streams.push(stream);
        }
    }

    fn stream(&self) -> Result<Stream> {
        let kept = lock(&self.streams).pop();
        match kept {
            Some(stream) => Ok(stream),
            None => Ok(self.buffer.gpu().stream()?),
        }
    }

    /// Makes the ring of a later copy.
    pub(super) fn prepare(&self) -> Result<()> {
        let _relaxed = self.relax_capture();
        let ring = self.ring()?;
        self.keep_ring(ring);
        Ok(())
    }

    fn ring(&self) -> Result<Ring> {
        if let Some(ring) = lock(&self.rings).pop() {
            return Ok(ring);
        }
        let gpu = self.buffer.gpu();
        Ok(Ring {
            streams: [gpu.stream()?, gpu.stream()?, gpu.stream()?],
            memory: StagingMemory::new(gpu)?,
        })
    }

    /// Only after a copy that succeeded: the streams of others may not be idle.
    fn keep_ring(&self, ring: Ring) {
        let mut rings = lock(&self.rings);
        if rings.len() < MOST_KEPT {
            rings.push(ring);
        }
    }

    /// Reads the pieces of `plan`, which begins at `offset` of the buffer, through the ring.
    ///
    /// # Safety
    /// `host` is valid for writing the bytes of the plan, and is no page-locked memory of this crate.
    pub(super) unsafe fn read(
        &self,
        plan: &CopyPlan,
        offset: u64,
        host: *mut u8,
        limit: Duration,
    ) -> Result<(), Failed> {
        let _relaxed = self.relax_capture();
        let end = Instant::now() + limit;
        self.check_allocations(offset..offset + plan.request().len)
            .map_err(Failed::after(0))?;
        let ring = self.ring().map_err(Failed::after(0))?;
        let mut queued = plan.pieces().enumerate();
        let mut arrived = plan.pieces().enumerate();
        let queue = |(at, piece): (usize, Range<u64>)| {
            let (slot, len) = (at % SLOTS, (piece.end - piece.start) as usize);
            let stream = &ring.streams[slot];
            stream.queue_read(
                &self.buffer,
                offset + piece.start,
                &ring.memory,
                slot * SLOT,
                len,
            )
        };
        for next in queued.by_ref().take(SLOTS) {
            queue(next).map_err(Failed::after(0))?;
        }
        for (at, piece) in arrived.by_ref() {
            let slot = at % SLOTS;
            let left = end.saturating_duration_since(Instant::now());
            ring.streams[slot]
                .wait(left)
                .map_err(Failed::after(piece.start))?;
            let len = (piece.end - piece.start) as usize;
            // SAFETY: a chunk has at most `SLOT` bytes, and the memory `SLOTS` slots. Its copy is
            // complete, and the next one into this slot is queued below. `host` is the caller's
            // promise.
            unsafe {
                let from = ring.memory.cpu_ptr().add(slot * SLOT);
                ptr::copy_nonoverlapping(from, host.add(piece.start as usize), len);
            }
            if let Some(next) = queued.next() {
                queue(next).map_err(Failed::after(piece.end))?;
            }
        }
        self.keep_ring(ring);
        Ok(())
    }

    /// Writes the pieces of `plan`, which begins at `offset` of the buffer, through the ring, and
    /// returns when they are in GPU memory.
    ///
    /// # Safety
    /// `host` is valid for reading the bytes of the plan, and is no page-locked memory of this crate.
    pub(super) unsafe fn write(
        &self,
        plan: &CopyPlan,
        offset: u64,
        host: *const u8,
        limit: Duration,
    ) -> Result<(), Failed> {
        let _relaxed = self.relax_capture();
        let end = Instant::now() + limit;
        let left = || end.saturating_duration_since(Instant::now());
        self.check_allocations(offset..offset + plan.request().len)
            .map_err(Failed::after(0))?;
        let ring = self.ring().map_err(Failed::after(0))?;
        // What a slot has in flight; all before the earliest of them is copied.
        let mut in_flight: [Option<Range<u64>>; SLOTS] = [const { None }; SLOTS];
        let mut copied = 0;
        for (at, piece) in plan.pieces().enumerate() {
            let slot = at % SLOTS;
            if let Some(earlier) = in_flight[slot].take() {
                ring.streams[slot]
                    .wait(left())
                    .map_err(Failed::after(copied))?;
                copied = earlier.end;
            }
            let (to, len) = (offset + piece.start, (piece.end - piece.start) as usize);
            // SAFETY: a chunk has at most `SLOT` bytes, and the memory `SLOTS` slots. The copy out of
            // this slot is complete. `host` is the caller's promise.
            unsafe {
                let from = host.add(piece.start as usize);
                ptr::copy_nonoverlapping(from, ring.memory.cpu_ptr().add(slot * SLOT), len);
            }
            ring.streams[slot]
                .queue_write(&ring.memory, slot * SLOT, &self.buffer, to, len)
                .map_err(Failed::after(copied))?;
            in_flight[slot] = Some(piece);
        }
        let mut rest: Vec<_> = (0..SLOTS).zip(in_flight).collect();
        rest.sort_by_key(|(_, piece)| piece.as_ref().map(|piece| piece.start));
        for (slot, piece) in rest {
            if let Some(piece) = piece {
                ring.streams[slot]
                    .wait(left())
                    .map_err(Failed::after(copied))?;
                copied = piece.end;
            }
        }
        self.keep_ring(ring);
        Ok(())
    }
}

/// The lists are valid after a panic in a thread that had one locked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
