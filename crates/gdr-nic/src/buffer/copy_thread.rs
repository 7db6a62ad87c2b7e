//! Copies of GPU memory by a thread of their own, for engines in programs that use the GPU themselves.
//!
//! A thread of the program may hold a lock of the driver (in `cudaFree`, `cudaMalloc`, a synchronization)
//! while it waits for a kernel, which may wait for the very bytes that the engine is about to send: NCCL's
//! kernels do. A call of the driver by the engine's thread would wait for that lock, and neither would
//! ever go on. So the engine calls no function of the driver here. It hands a copy over and looks at a word
//! in page-locked memory, which the GPU writes behind the copy. A copy that is late is not waited for any
//! longer: the engine loads the bytes by CPU, and asks for no more copies until the late one is complete.
//! Whether it is takes one look at its word, so the engine looks before each packet: a driver that is held
//! up costs one wait, and from the moment when it goes on the copies do, too.
//!
//! The place of a late copy in the ring stays in use until its word is there, and its bytes are as new as the
//! announcement of their request in any case.
//!
//! The memory of the program may be freed at any time. The copy thread compares the allocation before it
//! queues a copy, so that memory of others is not touched, and again before it queues the word: what was
//! queued between the two read the old memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};
use std::{fmt, hint};

use gdr_copy::block_signals;
use gdr_cuda::{ConcreteDriver, Gpu, HostBuffer, Stream};
use gdr_process::lock::lock;

use super::copy_stream::{CHUNK, STREAMS};
use super::read_ahead::{Arrival, Copies, ReadAhead, Ticket};
use super::read_source::ReadSource;
use crate::os::shorten_time_slice;
use gdr_process::ProcessBound;

/// The length of the ring in bytes. It is shared by all memory of a GPU that a program registers: chunks of
/// four messages of 1 MiB, which is what NCCL has in flight with several channels.
const RING: usize = 16 * CHUNK;
/// How many copies can be handed over and not complete.
const SLOTS: usize = 64;
/// The length of the cache line in bytes that each word has for itself.
const LINE: usize = 64;
/// The word of the trial behind those of the slots.
const TRIAL: usize = SLOTS;

/// The most time that the first copies of a GPU may take: more than any kernel that holds up the driver for
/// a moment. Only the copy thread waits.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);
/// How long the copy thread looks for work before it sleeps: the time of the next packets of a message.
const LOOK: Duration = Duration::from_micros(50);
/// A stream lets go of the memory of its past copies each time so many were queued.
const RELEASE_EVERY: u64 = 1024;

/// How long the engine waits for a copy. One of 256 KiB takes 10 to 20 us, and its hand-over some 50 us. The
/// CPU loads these bytes in some 400 us, so a wait without success costs about as much as was to be gained.
const LATE: Duration = Duration::from_micros(500);

/// A thread that copies registered memory of one GPU for
/// [`Buffer::direct_with_copy_thread`](super::Buffer::direct_with_copy_thread).
///
/// The thread is started at the first long read, and sleeps between reads. It has 4 MiB of page-locked
/// memory, four streams that do not synchronize with the default stream, and blocks all signals. Its calls
/// of the driver do not disturb a stream capture of the program. It ends after the last clone and the last
/// buffer made with it are dropped, and with the process in any case. A forked child has none.
#[derive(Clone)]
pub struct CopyThread(Arc<ProcessBound<OfGpu>>);

struct OfGpu {
    gpu: Gpu,
    ahead: Arc<Mutex<ReadAhead<Handed>>>,
    thresholds: OnceLock<super::direct::Thresholds>,
}

impl fmt::Debug for CopyThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyThread")
            .field("gpu", &self.0.gpu.info().ordinal)
            .finish_non_exhaustive()
    }
}

impl CopyThread {
    /// For memory of `gpu`. Nothing is started or allocated yet.
    pub fn new(gpu: &Gpu) -> Self {
        Self::with_limit(gpu, LATE)
    }

    /// As [`CopyThread::new`], with the time that the engine waits for a copy.
    fn with_limit(gpu: &Gpu, limit: Duration) -> Self {
        let copies = Handed::new(gpu, limit);
        Self(Arc::new(ProcessBound::new(OfGpu {
            gpu: gpu.clone(),
            ahead: Arc::new(Mutex::new(ReadAhead::new(copies))),
            thresholds: OnceLock::new(),
        })))
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    pub(super) fn ahead(&self) -> Arc<Mutex<ReadAhead<Handed>>> {
        Arc::clone(&self.0.ahead)
    }

    /// The thresholds that were planned for the first memory of the GPU.
    pub(super) fn thresholds(
        &self,
        plan: impl FnOnce() -> super::direct::Thresholds,
    ) -> super::direct::Thresholds {
        *self.0.thresholds.get_or_init(plan)
    }

    /// Ends the reads of a source. Returns when no copy of it is in progress, or after `limit`: a copy that
    /// is queued behind a kernel may be in progress for as long as that.
    pub(super) fn end_reads(&self, source: &ReadSource, limit: Duration) {
        source.end_requests();
        let pending = lock(&self.0.ahead).end(source.id()).1;
        if pending.is_empty() {
            return;
        }
        let start = Instant::now();
        while !lock(&self.0.ahead)
            .end(source.id())
            .0
            .are_complete(&pending)
        {
            if start.elapsed() >= limit {
                tracing::debug!("copies of memory that is deregistered are still in progress");
                return;
            }
            thread::yield_now();
        }
    }
}

/// A copy that was handed over.
#[derive(Debug)]
struct HandOver {
    source: Arc<ReadSource>,
    generation: u64,
    offset: u64,
    at: usize,
    len: usize,
    ticket: Ticket,
}

/// What the engine and the copy thread have in common.
#[derive(Debug, Default)]
struct Link {
    work: Mutex<Work>,
    wake: Condvar,
    /// Set with the first work behind the last that was taken, for looks without the lock.
    has_work: AtomicBool,
    /// The ring and, behind it, a word for each slot. There when copies can be made.
    memory: OnceLock<Arc<HostBuffer>>,
    /// Set when no more copies can be made.
    has_failed: AtomicBool,
    /// Stands for a lock of the driver.
    #[cfg(test)]
    driver: Mutex<()>,
    #[cfg(test)]
    streams: Mutex<Vec<Arc<Stream>>>,
}

#[derive(Debug, Default)]
struct Work {
    waiting: VecDeque<HandOver>,
    is_blocked: bool,
    /// The engine's side was dropped.
    has_ended: bool,
}

impl Link {
    fn push(&self, copy: HandOver) {
        let mut work = lock(&self.work);
        work.waiting.push_back(copy);
        self.has_work.store(true, Ordering::Release);
        if work.is_blocked {
            self.wake.notify_one();
        }
    }

    fn end(&self) {
        lock(&self.work).has_ended = true;
        self.wake.notify_one();
    }

    /// The next copy; waits for it. `None` at the end.
    fn next(&self) -> Option<HandOver> {
        let start = Instant::now();
        while !self.has_work.load(Ordering::Acquire) && start.elapsed() < LOOK {
            thread::yield_now();
        }
        let mut work = lock(&self.work);
        loop {
            if work.has_ended {
                return None;
            }
            if let Some(copy) = work.waiting.pop_front() {
                self.has_work
                    .store(!work.waiting.is_empty(), Ordering::Relaxed);
                return Some(copy);
            }
            work.is_blocked = true;
            work = self.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
            work.is_blocked = false;
        }
    }
}

/// The copies of a [`ReadAhead`] by a thread of their own: the engine's side. The number of a ticket counts
/// copies.
#[derive(Debug)]
pub(super) struct Handed {
    gpu: Gpu,
    link: Arc<Link>,
    is_started: bool,
    next: u64,
    /// The last copy of each slot.
    slots: [Option<Ticket>; SLOTS],
    /// How long the engine waits for a copy.
    limit: Duration,
    /// The copy that was waited for without success, until it is complete.
    late: Option<Ticket>,
}

impl Ticket {
    fn slot(self) -> usize {
        (self.0 % SLOTS as u64) as usize
    }

    /// The value of the slot's word when the copy is complete. Those of a slot grow, and wrap around.
    fn word(self) -> u32 {
        (self.0 / SLOTS as u64 + 1) as u32
    }
}

/// The offset of the word of a slot.
const fn word_at(slot: usize) -> usize {
    RING + slot * LINE
}

impl Handed {
    fn new(gpu: &Gpu, limit: Duration) -> Self {
        Self {
            gpu: gpu.clone(),
            link: Arc::default(),
            is_started: false,
            next: 0,
            slots: [None; SLOTS],
            limit,
            late: None,
        }
    }

    /// Starts the thread.
    fn start(&mut self) {
        self.is_started = true;
        let (link, gpu) = (Arc::clone(&self.link), self.gpu.clone());
        let thread = Builder::new().name("gdr-rdma-copy".to_owned());
        if let Err(error) = thread.spawn(move || serve(&link, gpu)) {
            self.link.has_failed.store(true, Ordering::Relaxed);
            tracing::warn!(%error, "there is no thread to copy GPU memory; it is loaded by CPU");
        }
    }

    fn is_complete(&self, ticket: Ticket) -> bool {
        let memory = self.link.memory.get();
        let word = memory.and_then(|memory| memory.load_u32(word_at(ticket.slot())).ok());
        word.is_some_and(|word| word.wrapping_sub(ticket.word()).cast_signed() >= 0)
    }

    fn are_complete(&self, tickets: &[Ticket]) -> bool {
        tickets.iter().all(|ticket| self.is_complete(*ticket))
    }

    /// Whether a late copy holds up those behind it.
    fn is_held_up(&mut self) -> bool {
        self.late = self.late.filter(|late| !self.is_complete(*late));
        self.late.is_some()
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        // The thread releases what it has of the driver itself, as that may wait.
        self.link.end();
    }
}

impl Copies for Handed {
    fn ring_len(&self) -> usize {
        RING
    }

    fn memory(&self) -> Option<&HostBuffer> {
        self.link.memory.get().map(|memory| &**memory)
    }

    fn queue(
        &mut self,
        source: &Arc<ReadSource>,
        offset: u64,
        at: usize,
        len: usize,
    ) -> crate::Result<Option<Ticket>> {
        if !self.is_started {
            self.start();
        }
        let is_ready = self.link.memory.get().is_some();
        if !is_ready
            || self.link.has_failed.load(Ordering::Relaxed)
            || source.is_lost()
            || self.is_held_up()
        {
            return Ok(None);
        }
        let ticket = Ticket(self.next);
        let before = self.slots[ticket.slot()];
        if before.is_some_and(|before| !self.is_complete(before)) {
            return Ok(None);
        }
        self.next += 1;
        self.slots[ticket.slot()] = Some(ticket);
        self.link.push(HandOver {
            source: Arc::clone(source),
            generation: source.generation(),
            offset,
            at,
            len,
            ticket,
        });
        Ok(Some(ticket))
    }

    fn wait(&mut self, ticket: Ticket) -> crate::Result<Arrival> {
        const SPINS: u32 = 1000;
        let is_held_up = self.is_held_up();
        let (mut start, mut polls) = (None, 0);
        loop {
            if self.is_complete(ticket) {
                return Ok(Arrival::Complete);
            }
            if is_held_up {
                return Ok(Arrival::Late);
            }
            let start: &mut Instant = start.get_or_insert_with(Instant::now);
            if start.elapsed() >= self.limit {
                self.late = Some(ticket);
                return Ok(Arrival::Late);
            }
            if polls < SPINS {
                polls += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }
}

/// The thread.
fn serve(link: &Link, gpu: Gpu) {
    block_signals();
    // The engine waits for a copy from when this thread is woken.
    shorten_time_slice();
    let cuda = match ConcreteDriver::of(gpu.driver()) {
        ConcreteDriver::Cuda(cuda) => Some(cuda),
        ConcreteDriver::Simulated(_) => None,
    };
    // All calls of this thread, to its end.
    let _relaxed = cuda.as_ref().map(|cuda| cuda.relax_stream_capture());
    let ended = Copier::new(link, &gpu).and_then(|copier| copier.run(link));
    if let Err(error) = ended {
        link.has_failed.store(true, Ordering::Relaxed);
        tracing::warn!(%error, "GPU memory is loaded by CPU, because it cannot be copied");
    }
}

/// What the thread has of the driver.
struct Copier {
    streams: [Arc<Stream>; STREAMS],
    memory: Arc<HostBuffer>,
}

impl Copier {
    fn new(link: &Link, gpu: &Gpu) -> gdr_cuda::Result<Self> {
        const VALUE: u32 = 1;
        // The engine may read it after the program has destroyed the context.
        let memory = Arc::new(gpu.register_host(word_at(TRIAL + 1))?);
        for slot in 0..=TRIAL {
            memory.store_u32(word_at(slot), 0)?;
        }
        let stream = || gpu.stream().map(Arc::new);
        let streams = [stream()?, stream()?, stream()?, stream()?];
        // Drivers before CUDA 11.7 cannot write words.
        streams[0].queue_flag(&memory, word_at(TRIAL), VALUE)?;
        streams[0].wait(TRIAL_LIMIT)?;
        if memory.load_u32(word_at(TRIAL))? != VALUE {
            let (what, limit) = ("the word of a stream", TRIAL_LIMIT);
            return Err(gdr_cuda::Error::Deadline { what, limit });
        }
        #[cfg(test)]
        lock(&link.streams).extend(streams.iter().cloned());
        // It is set only here.
        let _ = link.memory.set(Arc::clone(&memory));
        Ok(Self { streams, memory })
    }

    fn run(&self, link: &Link) -> gdr_cuda::Result<()> {
        while let Some(copy) = link.next() {
            #[cfg(test)]
            let _driver = lock(&link.driver);
            self.copy(&copy)?;
        }
        Ok(())
    }

    /// Queues a copy, and the word that says that it is complete.
    fn copy(&self, copy: &HandOver) -> gdr_cuda::Result<()> {
        let HandOver {
            source,
            offset,
            at,
            len,
            ..
        } = copy;
        let (slot, word) = (word_at(copy.ticket.slot()), copy.ticket.word());
        let is_wanted = source.generation() == copy.generation && !source.is_lost();
        if !is_wanted || !source.look(*offset, *len) {
            return self.memory.store_u32(slot, word);
        }
        let stream = &self.streams[(copy.ticket.0 % STREAMS as u64) as usize];
        let queued = stream.queue_read(source.buffer(), *offset, &self.memory, *at, *len);
        let is_same = source.look(*offset, *len);
        if let Err(error) = queued {
            if is_same {
                return Err(error);
            }
            // It was freed after the first look, and nothing was queued.
            return self.memory.store_u32(slot, word);
        }
        stream.queue_flag(&self.memory, slot, word)?;
        if copy.ticket.0 % RELEASE_EVERY < STREAMS as u64 {
            // Whether it is idle does not matter.
            let _ = stream.wait(Duration::ZERO);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
