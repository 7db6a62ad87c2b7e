//! Copies of GPU memory by a dedicated thread, for engines in programs that use the GPU themselves.
//!
//! A thread of the program may hold a driver lock (in `cudaFree`, `cudaMalloc`, a synchronization) while it waits for a
//! kernel, which may in turn wait for the very bytes that the engine is about to send: NCCL's kernels do. If the
//! engine's thread called the driver, it would wait for that lock, and both would deadlock. Therefore the engine makes
//! no driver calls here. It hands a copy over and polls a word in page-locked memory, which the GPU writes after the
//! copy. The engine stops waiting for a late copy: it loads the bytes with the CPU, and requests no more copies until
//! the late one is complete. Checking that takes one load, so the engine checks before each packet: a blocked driver
//! costs one wait, and copies resume as soon as the driver does.
//!
//! The place of a late copy in the ring stays in use until its word is written. Its bytes are no older than the
//! announcement of their request in any case.
//!
//! The program may free its memory at any time. The copy thread compares the allocation before it queues a copy, so
//! that memory of others is not touched, and again before it queues the word: a copy queued between the two read the
//! old memory.
//!
//! In the other direction, memory of another process of this host is copied into registered memory ([`IncomingCopy`]):
//! the thread opens it by CUDA IPC ([`PeerMemory`]) and queues a kernel that copies from GPU to GPU. Such a copy can be
//! cancelled at any time without a driver call ([`GuardedCopy`](gdr_cuda::GuardedCopy)): if the driver or the GPU
//! delays it, it does not run later, when the memory has been reused.

mod copier;
mod incoming_copy;
mod incoming_target;
mod link;
mod peer_memory;
mod process_end;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};
use std::{fmt, hint, mem, slice};

use gdr_cuda::{BufferId, DeviceBuffer, DeviceExport, ExportedMemory, Gpu, HostBuffer};
use gdr_process::lock::lock;

use self::incoming_copy::{IncomingCopies, IncomingProgress, IncomingWork};
pub(crate) use self::incoming_copy::{IncomingCopy, IncomingState};
pub(super) use self::incoming_target::IncomingTarget;
use self::link::{HandOver, Job, Link};
pub(crate) use self::peer_memory::{PeerMemory, PeerState};
use super::copy_stream::CHUNK;
use super::read_ahead::{Arrival, Copies, ReadAhead, Ticket};
use super::read_source::{ReadSource, SourceId};
use gdr_process::ProcessBound;

/// The length of the ring in bytes, shared by all memory of a GPU that a program registers: chunks of four messages of
/// 1 MiB, which is what NCCL has in flight with several channels.
const RING: usize = 16 * CHUNK;
/// The maximum number of copies in flight.
const SLOTS: usize = 64;
/// The length in bytes of a cache line; each word has one for itself.
const LINE: usize = 64;
/// The index of the word for the trial copy, after those of the slots.
const TRIAL: usize = SLOTS;

/// The offset of the words for copies of other processes' memory.
const GUARDS: usize = word_at(TRIAL + 1);

/// How long the engine waits for a copy. A copy of 256 KiB takes 10 to 20 us, and its hand-over some 50 us. The CPU
/// loads as many bytes in some 400 us, so a wait that times out costs about as much as a copy could have saved.
const LATE: Duration = Duration::from_micros(500);

/// How long the last user of a copy thread waits for the thread to release its driver objects: some milliseconds,
/// unless the driver is blocked, perhaps by the waiting thread itself.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// A thread that copies registered memory of one GPU for
/// [`Buffer::direct_with_copy_thread`](super::Buffer::direct_with_copy_thread).
///
/// The thread starts at the first long read, or for the first copy of another process's memory, and sleeps between
/// them. It has 4 MiB of page-locked memory and four streams that do not synchronize with the default stream, and
/// blocks all signals. Its driver calls do not disturb a stream capture of the program. It ends after the last clone
/// and the last buffer made with it are dropped, or with the process. A forked child has none.
#[derive(Clone)]
pub struct CopyThread(Arc<ProcessBound<OfGpu>>);

struct OfGpu {
    gpu: Gpu,
    link: Arc<Link>,
    ahead: Arc<Mutex<ReadAhead<Handed>>>,
    thresholds: OnceLock<super::direct::Thresholds>,
    /// The allocations that other processes may open.
    exports: Mutex<HashMap<BufferId, Weak<ExportedMemory>>>,
    peers: PeerCopies,
}

/// Whether memory is copied from and to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerCopies {
    On,
    Off,
}

impl fmt::Debug for CopyThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyThread")
            .field("gpu", &self.0.gpu.info().ordinal)
            .finish_non_exhaustive()
    }
}

impl CopyThread {
    /// Creates a copy thread for memory of `gpu`. Nothing is started or allocated yet. Long messages between memory of
    /// two processes of this host, both registered with such a thread, are copied by the receiver's GPU, with a kernel
    /// of up to 32 blocks.
    pub fn new(gpu: &Gpu) -> Self {
        Self::with_limit(gpu, LATE, PeerCopies::On)
    }

    /// Returns the process's shared copy thread for memory of `gpu` whose reads it does not make.
    pub(super) fn shared(gpu: &Gpu) -> Self {
        static ALL: Mutex<Vec<Weak<ProcessBound<OfGpu>>>> = Mutex::new(Vec::new());
        let mut all = lock(&ALL);
        // The list holds weak references, so that a thread ends with its last buffer.
        all.retain(|thread| thread.strong_count() > 0);
        let threads = all.iter().filter_map(Weak::upgrade);
        let known = threads
            // In a forked child the thread of the parent does not exist.
            .filter(|it| it.is_own())
            .find(|it| it.gpu.is_same(gpu));
        if let Some(known) = known {
            return Self(known);
        }
        let thread = Self::new(gpu);
        all.push(Arc::downgrade(&thread.0));
        thread
    }

    /// Like [`CopyThread::new`], without copies between processes: no kernel runs on the GPU.
    pub fn without_peer_copies(gpu: &Gpu) -> Self {
        Self::with_limit(gpu, LATE, PeerCopies::Off)
    }

    /// Creates a copy thread with a limit on how long the engine waits for a copy.
    fn with_limit(gpu: &Gpu, limit: Duration, peers: PeerCopies) -> Self {
        let copies = Handed::new(gpu, limit, peers);
        Self(Arc::new(ProcessBound::new(OfGpu {
            gpu: gpu.clone(),
            link: Arc::clone(&copies.link),
            ahead: Arc::new(Mutex::new(ReadAhead::new(copies))),
            thresholds: OnceLock::new(),
            exports: Mutex::default(),
            peers,
        })))
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    pub(super) fn ahead(&self) -> Arc<Mutex<ReadAhead<Handed>>> {
        Arc::clone(&self.0.ahead)
    }

    /// Returns the GPU's thresholds, planned for its first memory.
    pub(super) fn thresholds(
        &self,
        plan: impl FnOnce() -> super::direct::Thresholds,
    ) -> super::direct::Thresholds {
        *self.0.thresholds.get_or_init(plan)
    }

    /// Opens GPU memory of another process; [`PeerMemory::state`] says when that is done.
    /// `descriptor` is a duplicate of the one that the export names.
    pub(crate) fn import(&self, export: DeviceExport, descriptor: Option<OwnedFd>) -> PeerMemory {
        lock(&self.0.ahead).copies().start();
        PeerMemory::open(&self.0.link, export, descriptor)
    }

    /// Returns whether it copies memory of other processes.
    pub(super) fn copies_peers(&self) -> bool {
        self.0.peers == PeerCopies::On
    }

    /// Returns whether this thread opens `memory`.
    pub(crate) fn has_opened(&self, memory: &PeerMemory) -> bool {
        memory.is_of(&self.0.link)
    }

    /// Returns whether both are clones of one copy thread.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Exports the allocation of a buffer for other processes; `None` if the driver cannot export it, or if the buffer
    /// extends beyond it. Buffers of one allocation share the export.
    pub(super) fn export(&self, buffer: &DeviceBuffer) -> Option<Arc<ExportedMemory>> {
        if !self.copies_peers() {
            return None;
        }
        let info = self.0.gpu.driver().pointer_info(buffer.ptr()).ok()?;
        if info.remaining(buffer.ptr()) < buffer.len() {
            return None;
        }
        let mut exports = lock(&self.0.exports);
        exports.retain(|_, export| export.strong_count() > 0);
        if let Some(export) = exports.get(&info.buffer).and_then(Weak::upgrade) {
            return Some(export);
        }
        let exported = buffer.export().inspect_err(|error| {
            tracing::debug!(%error, "other processes get copies of registered GPU memory");
        });
        let exported = Arc::new(exported.ok()?);
        exports.insert(info.buffer, Arc::downgrade(&exported));
        Some(exported)
    }

    /// Hands over a copy of `len` bytes at `from_addr` of another process to `at` of `into`. `None` if that is
    /// not possible now.
    pub(super) fn begin_incoming(
        &self,
        peer: &PeerMemory,
        from_addr: u64,
        into: IncomingTarget,
        at: u64,
        len: u64,
    ) -> Option<IncomingCopy> {
        let from = peer.offset_of(from_addr, len)?;
        if len == 0 || !peer.is_of(&self.0.link) || peer.state() != PeerState::Ready {
            return None;
        }
        let mut ahead = lock(&self.0.ahead);
        let progress = ahead.copies().begin_incoming(&into, len)?;
        drop(ahead);
        let work = IncomingWork {
            peer: peer.id(),
            from,
            into,
            at,
            len,
            progress: progress.clone(),
        };
        self.0.link.push(Job::Incoming(work)).then(|| IncomingCopy {
            progress,
            thread: self.clone(),
        })
    }

    /// Returns how many copies of other processes' memory have ended.
    fn ended_incoming(&self) -> u64 {
        lock(&self.0.ahead).copies().incoming.ended()
    }

    /// Ends the reads of a source and the copies into it. Returns once none is in progress, or after `limit`: a copy
    /// queued behind a kernel may wait that long.
    pub(super) fn end_reads(&self, source: &ReadSource, limit: Duration) {
        source.end_requests();
        self.end_copies(source.id(), limit);
    }

    /// Like [`CopyThread::end_reads`], for memory without requests, or whose requests have ended.
    pub(super) fn end_copies(&self, source: SourceId, limit: Duration) {
        let (reads, incoming) = {
            let mut ahead = lock(&self.0.ahead);
            let (copies, reads) = ahead.end(source);
            (reads, copies.incoming.end(source))
        };
        let have_ended = || {
            let are_copied = incoming
                .iter()
                .all(|it| it.state() != IncomingState::InProgress);
            are_copied && (reads.is_empty() || lock(&self.0.ahead).copies().are_complete(&reads))
        };
        let start = Instant::now();
        // Poll: at the end of a copy the GPU only writes a word, which wakes no thread.
        while !have_ended() {
            if start.elapsed() >= limit {
                tracing::debug!("copies of memory that is deregistered are still in progress");
                return;
            }
            thread::yield_now();
        }
    }
}

/// The engine's side of a [`ReadAhead`]'s copies by a dedicated thread. Tickets are numbered by copy.
#[derive(Debug)]
pub(super) struct Handed {
    gpu: Gpu,
    link: Arc<Link>,
    is_started: bool,
    next: u64,
    /// The last copy of each slot.
    slots: [Option<Ticket>; SLOTS],
    incoming: IncomingCopies,
    peers: PeerCopies,
    /// How long the engine waits for a copy.
    limit: Duration,
    /// A copy whose wait timed out, until it is complete.
    late: Option<Ticket>,
}

impl Ticket {
    fn slot(self) -> usize {
        (self.0 % SLOTS as u64) as usize
    }

    /// Returns the value of the slot's word once the copy is complete. The values of a slot increase, and wrap around.
    fn word(self) -> u32 {
        (self.0 / SLOTS as u64 + 1) as u32
    }
}

/// Returns the offset of a slot's word.
const fn word_at(slot: usize) -> usize {
    RING + slot * LINE
}

impl Handed {
    fn new(gpu: &Gpu, limit: Duration, peers: PeerCopies) -> Self {
        Self {
            gpu: gpu.clone(),
            link: Arc::default(),
            is_started: false,
            next: 0,
            slots: [None; SLOTS],
            incoming: IncomingCopies::new(),
            peers,
            limit,
            late: None,
        }
    }

    /// Starts the thread, on the first call.
    fn start(&mut self) {
        if mem::replace(&mut self.is_started, true) {
            return;
        }
        let (link, gpu, peers) = (Arc::clone(&self.link), self.gpu.clone(), self.peers);
        // Watch before the thread can call the driver: the process may end at any time.
        process_end::watch(&self.link);
        let thread = Builder::new().name("gdr-rdma-copy".to_owned());
        if let Err(error) = thread.spawn(move || copier::serve(&link, gpu, peers)) {
            self.link.has_failed.store(true, Ordering::Relaxed);
            // Fail the work that was already handed over, because no thread will do it.
            self.link.close();
            tracing::warn!(%error, "there is no thread to copy GPU memory; it is loaded by CPU");
        }
    }

    fn is_complete(&self, ticket: Ticket) -> bool {
        self.link.is_complete(ticket)
    }

    /// Returns the page-locked memory of the ring and the words, if copies can be made. Starts the thread if necessary.
    fn place(&mut self) -> Option<&Arc<HostBuffer>> {
        self.start();
        let is_possible = !self.link.has_failed.load(Ordering::Relaxed);
        self.link.memory.get().filter(|_| is_possible)
    }

    /// Returns the ticket of the next copy, if one can be handed over now.
    fn next_ticket(&mut self, memory: &ReadSource) -> Option<Ticket> {
        self.place().filter(|_| !memory.is_lost())?;
        let ticket = Ticket(self.next);
        // A slot's word tracks one copy at a time.
        let before = self.slots[ticket.slot()];
        (!self.is_held_up() && before.is_none_or(|before| self.is_complete(before)))
            .then_some(ticket)
    }

    /// Begins a copy of `len` bytes of another process's memory, if one can be handed over now.
    fn begin_incoming(&mut self, into: &IncomingTarget, len: u64) -> Option<IncomingProgress> {
        let place = Arc::clone(self.place().filter(|_| !into.is_lost())?);
        self.incoming.begin(&place, into.id(), len)
    }

    fn are_complete(&self, tickets: &[Ticket]) -> bool {
        tickets.iter().all(|ticket| self.is_complete(*ticket))
    }

    /// Returns whether a late copy holds up the next ones.
    fn is_held_up(&mut self) -> bool {
        self.late = self.late.filter(|late| !self.is_complete(*late));
        self.late.is_some()
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        // The thread releases its driver objects itself, because that may block. A program that has deregistered its
        // memory may destroy the context next, which is unsafe during calls that use its streams.
        if self.is_started {
            process_end::end_all(slice::from_ref(&self.link), LEAVE_LIMIT);
        }
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
        let Some(ticket) = self.next_ticket(source) else {
            return Ok(None);
        };
        let copy = HandOver {
            source: Arc::clone(source),
            generation: source.generation(),
            offset,
            at,
            len,
            ticket,
        };
        if !self.link.push(Job::Read(copy)) {
            return Ok(None);
        }
        // Advance only for work that the thread has accepted: otherwise the ticket's word would never be written.
        self.next += 1;
        self.slots[ticket.slot()] = Some(ticket);
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
            // Wait once for a blocked driver, not for each packet.
            if is_held_up {
                return Ok(Arrival::Late);
            }
            // Read the clock only if the copy has not already arrived.
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

#[cfg(test)]
mod tests;
