//! Copies of pageable memory by the copy engine through a ring of page-locked slots.
//!
//! While the engine copies some chunks, CPUs copy others between their slots and the pageable memory. One CPU is slower
//! than the engine, so several CPUs serve a long read.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gdr_cuda::{DeviceBuffer, Gpu, PooledHostBuffer, Stream};

use crate::cpu::{self, Caching, Routine};
use crate::error::{Error, Result};
use crate::plan::{CopyDirection, CopyPlan};

/// The size of a slot in bytes, which is at least a plan's longest chunk, 512 KiB.
const SLOT: usize = 512 << 10;
/// The number of slots: CPUs copy up to four while the engine copies others.
const SLOTS: usize = 8;
/// From this length on, reads use stores that bypass the caches. The caches would not keep the data, and would load
/// each line before it is overwritten.
const UNCACHED: u64 = 16 << 20;

/// Streams, each with a slot of page-locked memory.
#[derive(Debug)]
pub(super) struct Ring {
    // Dropped before the memory, which the streams may still use.
    streams: Vec<Stream>,
    memory: PooledHostBuffer,
}

impl Ring {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let streams: gdr_cuda::Result<_> = (0..SLOTS).map(|_| gpu.stream()).collect();
        Ok(Self {
            streams: streams?,
            memory: PooledHostBuffer::new(gpu, SLOT * SLOTS)?,
        })
    }
}

/// A copy between pageable memory and a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageableCopy<'a> {
    pub(super) plan: &'a CopyPlan,
    /// The offset in the buffer where the plan begins.
    pub(super) offset: u64,
    pub(super) host: *mut u8,
    /// The routine for stores that bypass the caches.
    pub(super) routine: &'static Routine,
    pub(super) limit: Duration,
}

/// A copy through a ring, divided into pieces that several threads may copy.
///
/// Piece `n` uses slot `n % SLOTS`. Pieces are begun in order, and each waits only for earlier pieces, so one thread
/// makes progress, however many there are.
pub(super) struct RingCopy<'a> {
    ring: &'a Ring,
    buffer: &'a DeviceBuffer,
    request: PageableCopy<'a>,
    pieces: Vec<Range<u64>>,
    start: Instant,
    /// The number of pieces that have been queued in each slot.
    queued: [AtomicUsize; SLOTS],
    /// The first piece that was not copied; past the last piece until a piece fails.
    stop: AtomicUsize,
    error: Mutex<Option<(usize, Error)>>,
}

// SAFETY: the pointer is to memory that any thread may access during the copy; each thread accesses different bytes.
unsafe impl Sync for RingCopy<'_> {}

impl<'a> RingCopy<'a> {
    /// # Safety
    /// Until this is dropped, `host` is valid for reading the bytes of the plan, and for writing them if they come from
    /// the GPU. It is not page-locked memory of this crate.
    pub(super) unsafe fn new(
        ring: &'a Ring,
        buffer: &'a DeviceBuffer,
        request: &PageableCopy<'a>,
    ) -> Self {
        Self {
            ring,
            buffer,
            pieces: request.plan.pieces().collect(),
            start: Instant::now(),
            request: *request,
            queued: [const { AtomicUsize::new(0) }; SLOTS],
            stop: AtomicUsize::new(usize::MAX),
            error: Mutex::new(None),
        }
    }

    /// Returns the number of pieces.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Queues the pieces that depend on no other piece, before the first [`RingCopy::copy_piece`].
    pub(super) fn begin(&self) {
        if self.request.plan.request().direction == CopyDirection::FromGpu {
            // The engine fills the slots without the host, so all of them start at once.
            (0..SLOTS.min(self.len())).for_each(|at| self.queue(at));
        }
    }

    /// Copies piece `at`, unless an earlier one has failed.
    pub(super) fn copy_piece(&self, at: usize) {
        match self.request.plan.request().direction {
            CopyDirection::FromGpu => {
                if self.arrives(at) {
                    self.copy_by_cpu(at);
                    // The slot is free. Its next piece is queued at once, so that the engine does not wait for a CPU.
                    self.queue(at + SLOTS);
                }
            }
            CopyDirection::ToGpu => {
                // The engine must have read the slot's previous piece.
                let is_free = at.checked_sub(SLOTS).is_none_or(|user| self.arrives(user));
                if is_free && self.goes_on(at) {
                    self.copy_by_cpu(at);
                    self.queue(at);
                }
            }
        }
    }

    /// Waits for the pieces that no later piece has waited for. If a piece failed, returns the error and the number of
    /// bytes before that piece, which were copied.
    pub(super) fn finish(self) -> Result<(), (u64, Error)> {
        if self.request.plan.request().direction == CopyDirection::ToGpu {
            let end = self.len().min(self.stop.load(Ordering::Relaxed));
            // Waits only for each slot's last piece: the earlier ones were waited for when their slots were reused.
            for at in end.saturating_sub(SLOTS)..end {
                self.arrives(at);
            }
        }
        let error = self.error.into_inner();
        match error.unwrap_or_else(PoisonError::into_inner) {
            Some((at, error)) => Err((self.pieces[at].start, error)),
            None => Ok(()),
        }
    }

    fn left(&self) -> Duration {
        self.request.limit.saturating_sub(self.start.elapsed())
    }

    fn goes_on(&self, at: usize) -> bool {
        at < self.stop.load(Ordering::Relaxed)
    }

    fn fail(&self, at: usize, error: Error) {
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        // The first failure in byte order determines how many bytes were certainly copied.
        if first.as_ref().is_none_or(|(other, _)| at < *other) {
            self.stop.fetch_min(at, Ordering::Relaxed);
            *first = Some((at, error));
        }
    }

    /// Queues the engine's copy of piece `at`, if there is such a piece, and starts it.
    fn queue(&self, at: usize) {
        let Some(piece) = self.pieces.get(at).filter(|_| self.goes_on(at)) else {
            return;
        };
        let (slot, len) = (at % SLOTS, (piece.end - piece.start) as usize);
        let (stream, memory) = (&self.ring.streams[slot], &self.ring.memory);
        let (buffer, offset) = (self.buffer, self.request.offset + piece.start);
        let queued = match self.request.plan.request().direction {
            CopyDirection::FromGpu => stream.queue_read(buffer, offset, memory, slot * SLOT, len),
            CopyDirection::ToGpu => stream.queue_write(memory, slot * SLOT, buffer, offset, len),
        };
        match queued {
            // Pairs with the load in `arrives`.
            Ok(()) => drop(self.queued[slot].fetch_add(1, Ordering::Release)),
            Err(error) => self.fail(at, error.into()),
        }
    }

    /// Waits until the engine has copied piece `at`. Returns `false` if this piece or an earlier one has failed.
    fn arrives(&self, at: usize) -> bool {
        let slot = at % SLOTS;
        // Another thread may not have queued the piece yet.
        while self.goes_on(at) && self.queued[slot].load(Ordering::Acquire) <= at / SLOTS {
            if self.left().is_zero() {
                let (what, limit) = ("a chunk of a copy", self.request.limit);
                self.fail(at, gdr_cuda::Error::Deadline { what, limit }.into());
            }
            thread::yield_now();
        }
        if !self.goes_on(at) {
            return false;
        }
        // Each slot has its own stream, so this waits for no other piece.
        match self.ring.streams[slot].wait(self.left()) {
            Ok(()) => true,
            Err(error) => {
                self.fail(at, error.into());
                false
            }
        }
    }

    /// Copies piece `at` between its slot and the pageable memory.
    fn copy_by_cpu(&self, at: usize) {
        let (piece, request) = (&self.pieces[at], self.request.plan.request());
        let len = (piece.end - piece.start) as usize;
        // SAFETY: a chunk has at most `SLOT` bytes, and the memory has `SLOTS` slots. The engine does not use the slot:
        // its copy of the slot's previous piece is complete, and the next one is queued after this. The host memory is
        // as `new` requires, and is not in the ring. It is ordinary memory, which consists of whole lines, and the
        // routine accepts it.
        unsafe {
            let slot = self.ring.memory.cpu_ptr().add(at % SLOTS * SLOT);
            let host = self.request.host.add(piece.start as usize);
            let routine = self.request.routine;
            match request.direction {
                CopyDirection::ToGpu => ptr::copy_nonoverlapping(host, slot, len),
                CopyDirection::FromGpu
                    if request.len >= UNCACHED && !routine.needs_uncached_mapping() =>
                {
                    cpu::copy_to(routine, Caching::WriteCombined, host, slot, len);
                }
                CopyDirection::FromGpu => ptr::copy_nonoverlapping(slot, host, len),
            }
        }
    }
}
