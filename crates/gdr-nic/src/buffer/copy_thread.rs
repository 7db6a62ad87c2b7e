//! Copies of GPU memory by a thread of their own, for engines in programs that use the GPU themselves.
//!
//! A thread of the program may hold a lock of the driver (in `cudaFree`, `cudaMalloc`, a synchronization)
//! while it waits for a kernel, which may wait for the very bytes that the engine is about to send: NCCL's
//! kernels do. A call of the driver by the engine's thread would wait for that lock, and neither would
//! ever go on. So the engine calls no function of the driver here. It hands a copy over and looks at a word
//! in page-locked memory, which the GPU writes after the copy. A copy that is late is not waited for any
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
//!
//! The other way, memory of another process of this host is copied into registered memory ([`IncomingCopy`]): the thread
//! opens it by CUDA IPC ([`PeerMemory`]) and queues a kernel that copies from GPU to GPU. Such a copy can be given up at any
//! time without a call of the driver ([`GuardedCopy`](gdr_cuda::GuardedCopy)): what the driver or the GPU holds up is not
//! made later, when the memory is used again.

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

/// The length of the ring in bytes. It is shared by all memory of a GPU that a program registers: chunks of
/// four messages of 1 MiB, which is what NCCL has in flight with several channels.
const RING: usize = 16 * CHUNK;
/// How many copies can be handed over and not complete.
const SLOTS: usize = 64;
/// The length of the cache line in bytes that each word has for itself.
const LINE: usize = 64;
/// The word of the trial, after the slots' words.
const TRIAL: usize = SLOTS;

/// The offset of the words of copies of other processes' memory.
const GUARDS: usize = word_at(TRIAL + 1);

/// How long the engine waits for a copy. One of 256 KiB takes 10 to 20 us, and its hand-over some 50 us. The
/// CPU loads these bytes in some 400 us, so a wait without success costs about as much as was to be gained.
const LATE: Duration = Duration::from_micros(500);

/// How long the last user of a copy thread waits until that has left the driver: some milliseconds, but for a
/// driver that is held up, perhaps by this very thread.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// A thread that copies registered memory of one GPU for
/// [`Buffer::direct_with_copy_thread`](super::Buffer::direct_with_copy_thread).
///
/// The thread is started at the first long read, or for the first copy of another process's memory, and sleeps
/// between them. It has 4 MiB of page-locked
/// memory, four streams that do not synchronize with the default stream, and blocks all signals. Its calls
/// of the driver do not disturb a stream capture of the program. It ends after the last clone and the last
/// buffer made with it are dropped, and with the process in any case. A forked child has none.
#[derive(Clone)]
pub struct CopyThread(Arc<ProcessBound<OfGpu>>);

struct OfGpu {
    gpu: Gpu,
    link: Arc<Link>,
    ahead: Arc<Mutex<ReadAhead<Handed>>>,
    thresholds: OnceLock<super::direct::Thresholds>,
    /// What other processes may open.
    exports: Mutex<HashMap<BufferId, Weak<ExportedMemory>>>,
    peers: PeerCopies,
}

/// Whether memory of other processes is copied, and theirs by them.
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
    /// For memory of `gpu`. Nothing is started or allocated yet. Long messages between memory of two processes of this
    /// host, each of them registered with such a thread, are copied by the receiver's GPU, by a kernel of up to 32 blocks.
    pub fn new(gpu: &Gpu) -> Self {
        Self::with_limit(gpu, LATE, PeerCopies::On)
    }

    /// The one for memory of `gpu` whose reads it does not make.
    pub(super) fn shared(gpu: &Gpu) -> Self {
        static ALL: Mutex<Vec<Weak<ProcessBound<OfGpu>>>> = Mutex::new(Vec::new());
        let mut all = lock(&ALL);
        // Only weak references are kept, so that a thread ends with its last buffer.
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

    /// With the time that the engine waits for a copy.
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

    /// Opens GPU memory of another process; [`PeerMemory::state`] says when that is done.
    /// `descriptor` is a duplicate of the one that the export names.
    pub(crate) fn import(&self, export: DeviceExport, descriptor: Option<OwnedFd>) -> PeerMemory {
        lock(&self.0.ahead).copies().start();
        PeerMemory::open(&self.0.link, export, descriptor)
    }

    /// Whether it copies memory of other processes.
    pub(super) fn copies_peers(&self) -> bool {
        self.0.peers == PeerCopies::On
    }

    /// Whether it opens this memory of another process.
    pub(crate) fn has_opened(&self, memory: &PeerMemory) -> bool {
        memory.is_of(&self.0.link)
    }

    /// Whether both are the same thread.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The allocation of a buffer for other processes; `None` if the driver exports no such memory, or if the buffer goes
    /// beyond. Buffers of one allocation share it.
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

    /// How many of these copies have ended.
    fn ended_incoming(&self) -> u64 {
        lock(&self.0.ahead).copies().incoming.ended()
    }

    /// Ends the reads of a source and the copies into it. Returns when none is in progress, or after `limit`: a
    /// copy that waits for a kernel may be in progress for as long as that.
    pub(super) fn end_reads(&self, source: &ReadSource, limit: Duration) {
        source.end_requests();
        self.end_copies(source.id(), limit);
    }

    /// Like [`CopyThread::end_reads`], for memory whose requests have ended or that has none.
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
        // Poll, because at the end of a copy the GPU only writes a word, and does not wake a thread.
        while !have_ended() {
            if start.elapsed() >= limit {
                tracing::debug!("copies of memory that is deregistered are still in progress");
                return;
            }
            thread::yield_now();
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
    incoming: IncomingCopies,
    peers: PeerCopies,
    /// How long the engine waits for a copy.
    limit: Duration,
    /// The copy that was waited for without success, until it is complete.
    late: Option<Ticket>,
}

impl Ticket {
    fn slot(self) -> usize {
        (self.0 % SLOTS as u64) as usize
    }

    /// The value of the slot's word when the copy is complete. A slot's values grow, and wrap around.
    fn word(self) -> u32 {
        (self.0 / SLOTS as u64 + 1) as u32
    }
}

/// The offset of the word of a slot.
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

    /// Starts the thread, once.
    fn start(&mut self) {
        if mem::replace(&mut self.is_started, true) {
            return;
        }
        let (link, gpu, peers) = (Arc::clone(&self.link), self.gpu.clone(), self.peers);
        // Watch before the thread can call the driver, because the process may end at any time.
        process_end::watch(&self.link);
        let thread = Builder::new().name("gdr-rdma-copy".to_owned());
        if let Err(error) = thread.spawn(move || copier::serve(&link, gpu, peers)) {
            self.link.has_failed.store(true, Ordering::Relaxed);
            // Work that was already handed over must fail, instead of waiting for a thread that does not
            // exist.
            self.link.close();
            tracing::warn!(%error, "there is no thread to copy GPU memory; it is loaded by CPU");
        }
    }

    fn is_complete(&self, ticket: Ticket) -> bool {
        self.link.is_complete(ticket)
    }

    /// Where copies go to or say how far they are, if some can be made.
    fn place(&mut self) -> Option<&Arc<HostBuffer>> {
        self.start();
        let is_possible = !self.link.has_failed.load(Ordering::Relaxed);
        self.link.memory.get().filter(|_| is_possible)
    }

    /// The ticket of the next copy, if one can be handed over now.
    fn next_ticket(&mut self, memory: &ReadSource) -> Option<Ticket> {
        self.place().filter(|_| !memory.is_lost())?;
        let ticket = Ticket(self.next);
        // The word of a slot shows one copy at a time.
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

    /// Whether a late copy holds up the next ones.
    fn is_held_up(&mut self) -> bool {
        self.late = self.late.filter(|late| !self.is_complete(*late));
        self.late.is_some()
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        // The thread releases what it has of the driver itself, as that may wait. A program that has deregistered its
        // memory may destroy the context next, which is not safe from calls that use its streams meanwhile.
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
        // Advance only for work that the thread has accepted: otherwise the ticket's word would never be
        // written.
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
            // A blocked driver should cost one wait in total, not one for each packet.
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
