//! The thread that calls the copy engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gdr_cuda::{ConcreteDriver, Gpu, HostBuffer, Stream};
use rustix::thread::futex;

use super::pieces::{AHEAD, Pieces};
use super::slot::{Lease, RING_WITH_FLAGS, Request, Slot, flag_of, pieces_of};
use crate::copier::Allocations;
use crate::error::Result;
use gdr_process::PerProcess;
use gdr_process::block_signals;

/// The number of reads that the thread serves at a time; further reads use loads.
pub(super) const SLOTS: usize = 8;
/// How long the thread polls for another request before it sleeps: waking it takes longer than a short read.
const AWAKE: Duration = Duration::from_micros(50);
/// Waking the thread takes about as long as loading this many bytes.
const WORTH_WAKING: u64 = 32 << 10;
/// Reads at shorter intervals than this count as consecutive.
const IN_A_ROW: Duration = Duration::from_micros(100);
/// The thread does not queue a read that has fewer bytes left than this.
const LEAST: u64 = 8 << 10;
/// How long nothing may arrive before the stream is checked for an error, and how long before the stream counts as
/// broken.
const LATE: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_secs(10);
/// A reader that makes no progress for this long was left by a jump, or was interrupted and will load the rest itself.
const IDLE: Duration = Duration::from_millis(10);

/// A GPU's thread, which exists as long as the process.
#[derive(Debug)]
pub(super) struct EngineThread {
    slots: [Slot; SLOTS],
    /// 1 while the thread sleeps, or is about to.
    waiting: AtomicU32,
    started: Instant,
    /// When the last short read began, in microseconds since the start.
    last_short: AtomicU64,
    /// The buffers that may be read, by their numbers.
    sources: Mutex<HashMap<u64, Arc<Allocations>>>,
    last_source: AtomicU64,
}

/// The threads of this process. A forked child has none of its parent's threads.
type Threads = Mutex<Vec<(Gpu, &'static EngineThread)>>;

impl EngineThread {
    fn new() -> Self {
        Self {
            slots: Default::default(),
            waiting: AtomicU32::new(0),
            started: Instant::now(),
            last_short: AtomicU64::new(0),
            sources: Mutex::default(),
            last_source: AtomicU64::new(0),
        }
    }

    /// Returns the thread of this GPU, which the first call starts.
    pub(super) fn of(gpu: &Gpu) -> Result<&'static Self> {
        static THREADS: PerProcess<Threads> = PerProcess::new();
        let is_same = |other: &Gpu| {
            Arc::ptr_eq(other.driver(), gpu.driver()) && other.info().ordinal == gpu.info().ordinal
        };
        let mut all = lock(THREADS.get());
        if let Some((_, thread)) = all.iter().find(|(other, _)| is_same(other)) {
            return Ok(thread);
        }
        // Readers may access a slot at any time, even after a copy was abandoned.
        let this: &'static Self = Box::leak(Box::new(Self::new()));
        let served = gpu.clone();
        let builder = thread::Builder::new().name("gdr-engine".to_owned());
        let started = builder.spawn(move || {
            block_signals();
            this.serve(&served);
        });
        started.map_err(|source| gdr_cuda::Error::Os {
            what: "starting the thread of the copy engine failed",
            source,
        })?;
        all.push((gpu.clone(), this));
        Ok(this)
    }

    /// Allows reads of a buffer; returns its number.
    pub(super) fn add(&self, source: Arc<Allocations>) -> u64 {
        let number = self.last_source.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.sources).insert(number, source);
        number
    }

    /// Forbids further reads, and waits until the copy engine has finished the outstanding ones.
    pub(super) fn remove(&self, source: u64) {
        // Removed first, so that no more requests for it begin.
        lock(&self.sources).remove(&source);
        let start = Instant::now();
        while self.slots.iter().any(|slot| slot.serves(source)) {
            if start.elapsed() >= LIMIT {
                tracing::warn!("the copy engine may still read memory that is unmapped");
                return;
            }
            thread::yield_now();
        }
    }

    /// Returns whether a read of this length is faster with the thread than with loads alone. For a short read this is
    /// the case only if the thread is awake, and only consecutive short reads wake it.
    pub(super) fn is_worth(&self, len: u64, now: Instant) -> bool {
        if len >= WORTH_WAKING {
            return true;
        }
        // In microseconds since the start, so that the time fits one atomic word.
        let now = now.saturating_duration_since(self.started).as_micros() as u64;
        let last = self.last_short.swap(now, Ordering::Relaxed);
        let in_a_row = u128::from(now.saturating_sub(last)) < IN_A_ROW.as_micros();
        in_a_row || self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Claims a free slot for the reader with this lease.
    pub(super) fn claim(&'static self, lease: &Lease) -> Option<&'static Slot> {
        self.slots.iter().find(|slot| slot.claim(lease))
    }

    /// Wakes the thread after a request was posted.
    pub(super) fn wake(&self) {
        // Sequentially consistent, like the request and the accesses in `sleep`.
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.waiting.store(0, Ordering::SeqCst);
            // Fails only for an address that does not exist.
            let _ = futex::wake(&self.waiting, futex::Flags::PRIVATE, 1);
        }
    }

    fn sleep(&self) {
        // The word is stored before the slots are checked. A reader posts before it checks the word.
        self.waiting.store(1, Ordering::SeqCst);
        while self.waiting.load(Ordering::SeqCst) != 0 {
            if self.slots.iter().any(Slot::is_posted) {
                break;
            }
            // Returns at once if the word is already 0; signals are blocked.
            let _ = futex::wait(&self.waiting, futex::Flags::PRIVATE, 1, None);
        }
        self.waiting.store(0, Ordering::SeqCst);
    }

    fn serve(&self, gpu: &Gpu) {
        let cuda = match ConcreteDriver::of(gpu.driver()) {
            ConcreteDriver::Cuda(cuda) => Some(cuda),
            ConcreteDriver::Simulated(_) => None,
        };
        let _relaxed = cuda.as_ref().map(|cuda| cuda.relax_stream_capture());
        let mut works = [const { SlotWork::EMPTY }; SLOTS];
        let mut worked = Instant::now();
        loop {
            let mut is_busy = false;
            // Never waits at a slot, so that a slow read does not delay the others.
            for (slot, work) in self.slots.iter().zip(&mut works) {
                is_busy |= self.advance(slot, work, gpu);
            }
            if is_busy {
                worked = Instant::now();
            } else if worked.elapsed() >= AWAKE {
                self.sleep();
                worked = Instant::now();
            }
            // A reader may need this CPU.
            thread::yield_now();
        }
    }

    /// Does the work of a slot that is possible without waiting. Returns whether there was any.
    fn advance(&self, slot: &Slot, work: &mut SlotWork, gpu: &Gpu) -> bool {
        let Some(job) = &mut work.job else {
            let Some(request) = slot.take() else {
                return false;
            };
            match self.begin(slot, request, work, gpu) {
                Ok(Some(job)) => work.job = Some(job),
                Ok(None) => slot.finish(),
                Err(error) => {
                    tracing::debug!(%error, "a read is made by loads");
                    slot.finish();
                }
            }
            return true;
        };
        let Some(ring) = &mut work.ring else {
            return false;
        };
        match job.advance(slot, ring) {
            Ok(false) => {}
            Ok(true) => {
                work.job = None;
                slot.finish();
            }
            Err(error) => {
                tracing::debug!(%error, "the rest of a read is made by loads");
                // The slot's reader may still access the ring.
                ring.is_broken = true;
                work.job = None;
                slot.finish();
            }
        }
        true
    }

    /// Begins a request. Returns `None` if its source was removed, or if the reader will have loaded the rest before a
    /// piece arrives.
    fn begin(
        &self,
        slot: &Slot,
        request: Request,
        work: &mut SlotWork,
        gpu: &Gpu,
    ) -> Result<Option<Job>> {
        let source = lock(&self.sources).get(&request.source).cloned();
        let Some(source) = source else {
            return Ok(None);
        };
        // The allocation may have been freed, and its address reused, since the source was added.
        source.check(request.offset..request.offset.saturating_add(request.len))?;
        if work.ring.as_ref().is_some_and(|ring| ring.is_broken) {
            // The reader that could still access the ring has left, because a new reader has the slot.
            work.ring = None;
        }
        if work.ring.is_none() {
            work.ring = Some(Ring::new(gpu)?);
        }
        let (Some(ring), copied) = (&work.ring, slot.copied()) else {
            return Ok(None);
        };
        // The reader will have loaded the rest by the time a piece would arrive.
        if request.len.saturating_sub(copied) < LEAST {
            return Ok(None);
        }
        let pieces = pieces_of(&request, source.buffer().ptr().get());
        let first = pieces.with(copied);
        slot.begin(ring.memory.cpu_ptr(), first, ring.next_flag);
        Ok(Some(Job {
            source,
            offset: request.offset,
            pieces,
            next: first,
            arrived: first,
            is_stopped: false,
            moved: Instant::now(),
            asked: Instant::now(),
            copied,
            copied_at: Instant::now(),
        }))
    }
}

/// The thread's work for a slot.
struct SlotWork {
    ring: Option<Ring>,
    job: Option<Job>,
}

impl SlotWork {
    const EMPTY: Self = Self {
        ring: None,
        job: None,
    };
}

/// Page-locked memory with a flag for each piece in progress, and the stream that writes both.
struct Ring {
    // Dropped before the memory, which the stream may still use.
    stream: Stream,
    /// Memory of this process, so that a reader does not fault if the program destroys the context.
    memory: Arc<HostBuffer>,
    /// The flag of the next piece. It differs from the previous flag at the same position.
    next_flag: u32,
    is_broken: bool,
}

impl Ring {
    fn new(gpu: &Gpu) -> Result<Self> {
        let memory = Arc::new(gpu.register_host(RING_WITH_FLAGS)?);
        for number in 0..AHEAD {
            // Flags of pieces begin at 1.
            memory.store_u32(flag_of(number), 0)?;
        }
        Ok(Self {
            stream: gpu.stream()?,
            memory,
            next_flag: 1,
            is_broken: false,
        })
    }
}

/// A request that the thread has taken.
struct Job {
    source: Arc<Allocations>,
    offset: u64,
    pieces: Pieces,
    /// The next piece to queue, and the next one to arrive.
    next: usize,
    arrived: usize,
    is_stopped: bool,
    /// When the last piece arrived, and when the stream was last checked for errors.
    moved: Instant,
    asked: Instant,
    /// The reader's progress, and when it was first observed.
    copied: u64,
    copied_at: Instant,
}

impl Job {
    /// Queues the pieces that may be queued. Returns whether the job is finished.
    fn advance(&mut self, slot: &Slot, ring: &mut Ring) -> Result<bool> {
        self.queue(slot, ring)?;
        while self.arrived < self.next && self.has_arrived(ring)? {
            self.arrived += 1;
            self.moved = Instant::now();
        }
        if self.arrived < self.next {
            // Called rarely, because it is a driver call.
            if self.asked.elapsed() >= LATE {
                self.asked = Instant::now();
                // After a failure the driver never writes the flag; only the stream reports the error.
                ring.stream.is_idle()?;
                if self.moved.elapsed() >= LIMIT {
                    let (what, limit) = ("a piece of a read", LIMIT);
                    return Err(gdr_cuda::Error::Deadline { what, limit }.into());
                }
            }
            return Ok(false);
        }
        // The next piece waits for room in the ring, which only the reader makes.
        if !self.is_stopped && self.next < self.pieces.count() {
            self.is_stopped = !self.has_progress(slot);
            return Ok(false);
        }
        // All flags have arrived, so the stream is idle by now; this releases the memory of the copies.
        ring.stream.wait(LIMIT)?;
        Ok(true)
    }

    /// Returns whether the reader that the next piece waits for still takes pieces.
    fn has_progress(&mut self, slot: &Slot) -> bool {
        let copied = slot.copied();
        if copied != self.copied {
            (self.copied, self.copied_at) = (copied, Instant::now());
        }
        slot.has_reader() && self.copied_at.elapsed() < IDLE
    }

    fn queue(&mut self, slot: &Slot, ring: &mut Ring) -> Result<()> {
        while !self.is_stopped
            && self.next < self.pieces.count()
            && self.next - self.arrived < AHEAD
        {
            let (number, piece) = (self.next, self.pieces.range(self.next));
            // The position still holds bytes that the reader has not taken.
            if slot.copied() < self.pieces.free_after(number) {
                return Ok(());
            }
            if !slot.may_queue(number, piece.end) {
                self.is_stopped = true;
                return Ok(());
            }
            self.next += 1;
            let flag = ring.next_flag;
            // Incremented across requests, so that it differs from a flag that an earlier piece left.
            ring.next_flag = flag.wrapping_add(1);
            let (place, len) = (self.pieces.place(piece.start), piece.end - piece.start);
            let (buffer, memory) = (self.source.buffer(), &ring.memory);
            let from = self.offset + piece.start;
            ring.stream
                .queue_read(buffer, from, memory, place, len as usize)?;
            // Queued on the same stream after the copy, so that the flag shows that the bytes have arrived.
            ring.stream.queue_flag(memory, flag_of(number), flag)?;
        }
        Ok(())
    }

    /// Returns whether the next piece has arrived.
    fn has_arrived(&self, ring: &Ring) -> Result<bool> {
        let behind = (self.next - self.arrived) as u32;
        let flag = ring.next_flag.wrapping_sub(behind);
        Ok(ring.memory.load_u32(flag_of(self.arrived))? == flag)
    }
}

/// Locks one of the lists. Operations on them do not panic halfway, so a poisoned lock is usable.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_read_is_worth_it_where_the_thread_is_awake_or_short_ones_come_in_a_row() {
        let thread = EngineThread::new();
        let at = |microseconds| thread.started + Duration::from_micros(microseconds);
        assert!(thread.is_worth(WORTH_WAKING - 1, at(1000)), "it is awake");
        thread.waiting.store(1, Ordering::Relaxed);
        assert!(thread.is_worth(WORTH_WAKING, at(5000)));
        assert!(!thread.is_worth(WORTH_WAKING - 1, at(5000)));
        assert!(thread.is_worth(WORTH_WAKING - 1, at(5099)));
        assert!(!thread.is_worth(WORTH_WAKING - 1, at(5199)));
    }
}
