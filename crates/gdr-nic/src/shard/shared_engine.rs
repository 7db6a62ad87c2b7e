//! A shard of a device: an engine shared by threads.

mod engine_guard;
mod posts;
mod qp_states;

use std::fmt;
use std::hint;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread as threads;
use std::time::{Duration, Instant};

use gdr_process::lock::{lock, try_lock};
use gdr_roce::wire::Packet;
use gdr_roce::{Capabilities, PacketBudget, Qpn, SharedReceiveQueue};

use crate::cache_line::CacheLine;
use crate::device_state::DeviceState;
use crate::ending_thread::EndingThread;
use crate::error::Result;
use crate::os;
use crate::poller::{PerPoller, Poller};
use crate::retained;
use crate::shard::caller_activity::{CallerActivity, count_roughly};
use crate::shard::clock::{Clock, RecentTime, nanoseconds};
use crate::shard::completion_counting::{CompletionCounter, CountedOperation};
use crate::shard::cpu_contention::{CpuContention, Yielded};
use crate::shard::cq_entries::{CqEntries, CqProducer};
use crate::shard::engine::{ConnectionId, Engine};
use crate::shard::intake::Intake;
use crate::shard::left_send::LeftSend;
use crate::shard::process_end;
use crate::shard::progress_thread;
use crate::shard::qp_context::{QpContext, Receives};
use crate::shard::srq_context::SrqContext;
use crate::shard::transport::Transport;
use crate::shard::xrc_context::XrcContext;
use crate::types::{Counters, Domain};
use crate::wire::memory::{ExportNumber, RingId, Watches};
use gdr_udp::Datagram;
use gdr_udp::Deadline;
use gdr_udp::Socket;
use gdr_udp::{Integrity, SourcePort};

pub(crate) use engine_guard::EngineGuard;

/// Idle polls between two yields of the CPU, unless other threads want it. A yield costs as much as a poll.
const POLLS_PER_YIELD: u64 = 256;
/// Number of consecutive idle polls after which a thread checks the sockets before it locks the engine. Until then a
/// poll notices a packet sooner.
const POLLS_UNCHECKED: u32 = 64;
/// How often the progress thread checks the rings for a packet between two polls.
const SPINS_FOR_PACKET: u32 = 16;
/// One poll in this many checks for datagrams without the engine's lock, while all connections have rings.
const LOOKS_PER_UDP: u64 = 256;
/// How long a call of the program tries to lock the engine before it sleeps, and the maximum number of spins between
/// two tries.
const LOCK_SPIN: Duration = Duration::from_micros(50);
const SPINS_PER_LOOK: u32 = 16;
/// How many times the progress thread yields its CPU before it blocks on the mutex.
const YIELDS_FOR_LOCK: u32 = 64;
/// Maximum number of consecutive polls that give way to callers waiting for the lock. Callers that take turns would
/// otherwise keep every poll from the engine, and so would a caller that has lost its CPU.
const POLLS_GIVEN_WAY: u32 = 16;
/// Maximum number of bytes of buffered and dropped packets that the allocator may retain.
const MOST_FREED: usize = 8 << 20;
/// Values of [`SharedEngine::due`]: a poll is due now, or no timer makes one due.
const NOW: u64 = 0;
const NEVER: u64 = u64::MAX;

/// The parts of a new queue pair.
pub(crate) struct QpParts {
    pub(crate) domain: Domain,
    pub(crate) capabilities: Capabilities,
    /// The shared queue that its receives come from, instead of its own.
    pub(crate) srq: Option<Arc<SrqContext>>,
    /// The XRC domain of the queues that its peer selects instead.
    pub(crate) xrc: Option<Arc<XrcContext>>,
    pub(crate) send_completions: Arc<CqEntries>,
    pub(crate) recv_completions: Arc<CqEntries>,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// There was something to do.
    Work,
    /// There was nothing to do.
    Idle,
    /// There was nothing to do as far as could be seen without the engine's lock. It took hardly any time.
    Skipped,
}

/// A shard of a device: an engine, and the state shared by its users and its progress thread.
///
/// Fields that a thread writes in each call are in cache lines of their own, apart from those that everyone reads.
pub(crate) struct SharedEngine {
    device: Arc<DeviceState>,
    /// Its index among the shards of the device.
    shard: usize,
    engine: CacheLine<Mutex<Engine>>,
    /// Requests that posters leave to the thread that holds the engine's lock.
    intake: Arc<Intake<LeftSend>>,
    socket: Arc<Socket>,
    /// Shows whether packets have arrived on rings.
    watches: Arc<Watches>,
    /// The number of its queue pairs.
    qps: AtomicUsize,
    /// Calls of the program that wait for the mutex.
    lock_waiters: CacheLine<LockWaiters>,
    /// Number of the program's threads that poll the engine while they wait.
    polling_waiters: AtomicU32,
    /// When the program's threads drive the engine.
    callers: CacheLine<CallerActivity>,
    /// Whether other threads want the CPUs of the program's polling threads.
    contention: CpuContention,
    polls: PerPoller<Polls>,
    found: CacheLine<Found>,
    /// The progress thread leaves the engine to the program's threads.
    yielded: AtomicBool,
    stop: AtomicBool,
}

/// The polls of one kind of threads.
#[derive(Debug, Default)]
struct Polls {
    /// Their number; see [`count_roughly`].
    count: AtomicU64,
    recent: RecentTime,
}

/// Calls of the program that wait for the mutex. Polling threads let them go first, [`POLLS_GIVEN_WAY`] times.
#[derive(Default)]
struct LockWaiters {
    count: AtomicU32,
    /// Consecutive polls that gave way to them.
    polls_given_way: AtomicU32,
}

/// Findings of the lock's holders, for threads that do not hold it.
struct Found {
    /// When the engine will have something to do even if nothing arrives, as a time of the device's clock.
    due: AtomicU64,
    /// Consecutive polls that found nothing to do, up to [`POLLS_UNCHECKED`].
    idle_polls: AtomicU32,
    /// Time of the last poll, by any thread, that found something to do.
    last_work: AtomicU64,
}

impl SharedEngine {
    /// Creates a shard and starts its progress thread.
    pub(crate) fn start(
        device: &Arc<DeviceState>,
        shard: usize,
        socket: Socket,
    ) -> Result<(Arc<Self>, EndingThread)> {
        let socket = Arc::new(socket);
        let engine = Engine::new(Arc::clone(&socket), Arc::clone(device))?;
        let intake = Arc::clone(&engine.intake);
        let watches = Arc::clone(engine.rings.watches());
        let shared = Arc::new(Self {
            device: Arc::clone(device),
            shard,
            watches,
            engine: CacheLine(Mutex::new(engine)),
            intake,
            socket,
            qps: AtomicUsize::new(0),
            lock_waiters: CacheLine::default(),
            polling_waiters: AtomicU32::new(0),
            callers: CacheLine::default(),
            contention: CpuContention::new(),
            polls: PerPoller::default(),
            found: CacheLine(Found {
                due: AtomicU64::new(NEVER),
                idle_polls: AtomicU32::new(0),
                last_work: AtomicU64::new(device.clock.now()),
            }),
            yielded: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        // Before the thread starts, so that no acknowledgement is lost when the process ends.
        process_end::watch(&shared);
        let for_thread = Arc::clone(&shared);
        let thread = EndingThread::start("gdr-nic", move || progress_thread::run(&for_thread))?;
        Ok((shared, thread))
    }

    /// Asks the progress thread to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // After setting the flag, which the thread must see when it wakes.
        self.wake();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn check_process(&self) -> Result<()> {
        self.device.check_process()
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.socket.local()
    }

    /// Returns whether packets may refer to memory of their sender. A capture file needs their payloads.
    pub(crate) fn takes_references(&self) -> bool {
        self.device.chaos.is_none()
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn receive_buffer(&self) -> usize {
        self.socket.receive_buffer()
    }

    pub(crate) fn busy_poll(&self) -> Duration {
        self.device.busy_poll
    }

    pub(crate) fn integrity(&self) -> Integrity {
        self.socket.integrity()
    }

    /// Returns whether a queue pair of this number would be in this shard.
    pub(crate) fn owns(&self, qpn: Qpn) -> bool {
        self.socket.owns(qpn)
    }

    /// Returns the number of queue pairs.
    pub(crate) fn qp_count(&self) -> usize {
        self.qps.load(Ordering::Relaxed)
    }

    /// Returns the counters of this shard.
    pub(crate) fn counters(&self) -> Counters {
        let counters = self.lock().counters();
        Counters {
            kernel_drops: self.socket.kernel_drops(),
            looks: self
                .polls
                .iter()
                .map(|polls| polls.count.load(Ordering::Relaxed))
                .sum(),
            ..counters
        }
    }

    /// Returns the source ports of its connections.
    pub(crate) fn source_port(&self) -> SourcePort {
        self.socket.source_port()
    }

    /// Returns the budget for packets that are buffered until missing ones arrive.
    pub(crate) fn packet_budget(&self) -> &PacketBudget {
        &self.device.kept_packets
    }

    /// Creates a queue pair in RESET, whose protocol state `transport` makes.
    pub(crate) fn create_qp(
        &self,
        parts: QpParts,
        transport: impl FnOnce(Qpn, Capabilities, Option<&SharedReceiveQueue>) -> Transport,
    ) -> Result<Qpn> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let qpn = engine.new_qpn()?;
        let shared = parts.srq.as_ref().map(|srq| srq.roce());
        let transport = transport(qpn, parts.capabilities, shared);
        let sends = CqProducer::new(parts.send_completions, self.shard);
        let receives = CqProducer::new(parts.recv_completions, self.shard);
        let mut qp = QpContext::new(transport, parts.domain, sends, receives);
        qp.receives = match (parts.srq, parts.xrc) {
            (_, Some(xrc)) => Receives::Named(xrc, self.shard),
            (Some(srq), None) => Receives::Shared(srq),
            (None, None) => Receives::Own,
        };
        engine.add(qp);
        self.qps.fetch_add(1, Ordering::Relaxed);
        Ok(qpn)
    }

    /// Destroys a queue pair: from then on it neither sends, receives nor completes anything.
    pub(crate) fn destroy_qp(&self, qpn: Qpn) {
        let mut engine = self.lock();
        // An unanswered peer would retransmit, and then fail with a message that this side has received.
        engine.acknowledge(qpn, &self.device.regions.read(self.shard));
        if let Some(packets) = self.socket.packets() {
            engine.packets.remove_flows(packets, qpn);
        }
        let qp = engine.remove(qpn);
        self.qps.fetch_sub(qp.is_some().into(), Ordering::Relaxed);
        drop(engine);
        // They may hold the last reference to a region, whose end waits for the engine's table.
        let retained = qp.map(|mut qp| qp.requests.reset());
        retained::release(retained.into_iter().flatten());
        self.return_memory();
    }

    /// Dispatches a datagram of a multicast group to the attached queue pairs.
    pub(crate) fn receive_multicast(
        &self,
        qpns: &[Qpn],
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
    ) {
        let mut engine = self.lock();
        engine.receive_multicast(
            qpns,
            packet,
            datagram,
            &self.device.regions.read(self.shard),
        );
        self.unlock(engine);
    }

    /// Sends the delayed acknowledgements before the process ends. Waits for other threads until the deadline; returns
    /// whether they were sent.
    pub(crate) fn acknowledge_by(&self, deadline: Deadline) -> bool {
        if self.check_process().is_err() {
            return false;
        }
        // Polls of other threads give way.
        let _waiter = self.lock_waiter();
        loop {
            let engine = try_lock(&self.engine.0);
            if let Some((engine, regions)) = engine.zip(self.device.regions.try_read(self.shard)) {
                let mut engine = self.guard(engine);
                // Requests left from now on need not be sent.
                engine.leave_intake();
                engine.acknowledge_all(&regions);
                return true;
            }
            if deadline.has_passed() {
                return false;
            }
            threads::yield_now();
        }
    }

    /// Makes a counter count operations of a queue pair.
    pub(crate) fn count_completions(
        &self,
        qpn: Qpn,
        operations: &[CountedOperation],
        counter: &CompletionCounter,
    ) {
        let mut engine = self.lock();
        if let Some(qp) = engine.schedule(qpn) {
            let served = qp.transport.served();
            qp.requests.count(operations, counter, served);
        }
    }

    /// Sends what was just posted, and wakes the progress thread if there is a timer that it does not know.
    fn send_now(&self, mut engine: EngineGuard<'_>, now: u64) {
        engine.send(&self.device.regions.read(self.shard), now);
        self.unlock(engine);
    }

    /// Returns memory of buffered and dropped packets to the operating system once there is much of it, as peers decide
    /// how much.
    fn return_memory(&self) {
        if self.device.kept_packets.dropped(MOST_FREED).is_some() {
            os::return_freed_memory();
        }
    }

    /// Unlocks the engine, releases completed requests, and wakes the progress thread if it would sleep too long.
    pub(crate) fn unlock(&self, mut engine: EngineGuard<'_>) {
        // Taken under the lock and released without it: the last segment of a region ends the region, which waits for
        // the engine's table.
        let has_completed = !engine.completed.is_empty();
        let completed = has_completed.then(|| mem::take(&mut engine.completed));
        // Also under the lock: later, the thread may begin its sleep on older state.
        let wake = engine.take_wake_up();
        drop(engine);
        if let Some(completed) = completed {
            retained::release(completed);
        }
        if wake {
            self.wake();
        }
        self.return_memory();
    }

    /// Polls the engine once, unless another thread uses it or waits for it. Packets of strangers and damaged packets
    /// do not count as work.
    pub(crate) fn try_poll(&self, poller: Poller, now: u64) -> Polled {
        let look = count_roughly(&self.polls.of(poller).count);
        let waiters = &self.lock_waiters.0;
        // Gives way to calls of the program that wait for the lock, but not forever: callers that take turns would keep
        // every packet out.
        if waiters.count.load(Ordering::Relaxed) > 0
            && waiters.polls_given_way.fetch_add(1, Ordering::Relaxed) < POLLS_GIVEN_WAY
        {
            threads::yield_now();
            return Polled::Work;
        }
        // A packet on a ring is noticed at once, without a system call.
        let is_checked = self.watches.suffice()
            || self.found.0.idle_polls.load(Ordering::Relaxed) >= POLLS_UNCHECKED;
        // Checked without the lock, so that idle threads do not take it from each other.
        if is_checked && !self.may_have_work(look, now) {
            return Polled::Skipped;
        }
        let Some(engine) = try_lock(&self.engine.0) else {
            // The holder may have lost its CPU to this very loop.
            if self.contention.is_present() {
                threads::yield_now();
            }
            return Polled::Skipped;
        };
        store_new(&waiters.polls_given_way, 0);
        let mut engine = self.guard(engine);
        let worked = self.poll(&mut engine, now);
        self.unlock(engine);
        match worked {
            true => Polled::Work,
            false => Polled::Idle,
        }
    }

    /// Polls the locked engine.
    pub(crate) fn poll(&self, engine: &mut Engine, now: u64) -> bool {
        let worked = engine.poll(&self.device.regions.read(self.shard), now);
        let idle_polls = &self.found.0.idle_polls;
        let idle = match worked {
            true => 0,
            false => POLLS_UNCHECKED.min(idle_polls.load(Ordering::Relaxed) + 1),
        };
        store_new(idle_polls, idle);
        if worked {
            self.set_last_work(now);
        }
        worked
    }

    /// Returns whether a poll may find anything to do, as far as can be seen without the mutex.
    fn may_have_work(&self, look: u64, now: u64) -> bool {
        let due = self.found.0.due.load(Ordering::Acquire);
        due == NOW || due <= now || self.watches.has_packet() || self.is_readable(look)
    }

    /// Lets the progress thread wait a moment for a packet on a ring, or for a thread that wants the engine.
    pub(crate) fn spin(&self) {
        if !self.watches.any() {
            return;
        }
        for _ in 0..SPINS_FOR_PACKET {
            let is_wanted = self.lock_waiters.0.count.load(Ordering::Relaxed) > 0;
            if is_wanted || self.watches.has_packet() {
                return;
            }
            hint::spin_loop();
        }
    }

    /// Returns whether a datagram has arrived. Finding out costs a system call, so most calls return false while all
    /// connections have rings.
    fn is_readable(&self, look: u64) -> bool {
        if self.watches.suffice() && !look.is_multiple_of(LOOKS_PER_UDP) {
            return false;
        }
        let is_readable = self.socket.is_readable();
        if is_readable {
            self.watches.set_readable();
        }
        is_readable
    }

    /// Closes a ring whose other end is gone. Returns the connections that sent on it.
    pub(crate) fn close_ring(&self, ring: RingId) -> Vec<ConnectionId> {
        // The lock orders this against a poll that sends on the ring.
        let mut engine = self.lock();
        let connections = engine.close_ring(ring);
        self.unlock(engine);
        // The progress thread may be waiting with packets of a queue pair that waited for room.
        self.wake();
        connections
    }

    /// Stores the descriptor by which GPU memory of a ring's sender is opened, and opens the memory; refuses it without
    /// a descriptor.
    pub(crate) fn add_descriptor(
        &self,
        ring: RingId,
        number: ExportNumber,
        descriptor: Option<OwnedFd>,
    ) {
        let mut engine = self.lock();
        engine.rings.add_descriptor(ring, number, descriptor);
        self.unlock(engine);
        // The progress thread may be waiting, and no packet may arrive before the memory is open.
        self.wake();
    }

    /// Ends connections whose peers have ended.
    pub(crate) fn end_peers(&self, connections: Vec<ConnectionId>) {
        let mut engine = self.lock();
        engine.end_peers(connections);
        self.unlock(engine);
    }

    /// Polls once for a thread of the program. Yields the CPU from time to time if there was nothing to do.
    pub(crate) fn progress(&self) -> bool {
        self.check_process().is_ok() && self.progress_at(self.now(Poller::Program)).0
    }

    /// Like [`SharedEngine::progress`], for the process that opened the device. Starts at `begin`; also returns the
    /// time when it ended, if it read the clock.
    fn progress_at(&self, begin: u64) -> (bool, Option<u64>) {
        let polls = self.callers.0.begin(begin);
        let polled = self.try_poll(Poller::Program, begin);
        let yielded = match polled {
            Polled::Work => None,
            // A yield is a system call, so skip it as long as packets arrive.
            Polled::Idle | Polled::Skipped => pause(polls, &self.contention, self.clock()),
        };
        let end = match (yielded, polled) {
            (Some(yielded), _) => Some(yielded.end),
            // It took hardly any time.
            (None, Polled::Skipped) => None,
            (None, Polled::Work | Polled::Idle) => Some(self.now(Poller::Program)),
        };
        self.callers.0.end(end.unwrap_or(begin));
        (polled == Polled::Work, end)
    }

    /// Polls the engine until `take` returns something. Returns `None` when the deadline has passed, and after a while
    /// without packets.
    pub(crate) fn poll_until<T>(
        &self,
        deadline: Deadline,
        take: &dyn Fn() -> Option<T>,
    ) -> Option<T> {
        // Counted before the check, so that the progress thread leaves the engine to this one.
        let _polling = PollingWaiter::new(self);
        if self.check_process().is_err() {
            return None;
        }
        let mut now = self.now(Poller::Program);
        let mut last_work = now;
        let end = now.saturating_add(nanoseconds(deadline.remaining()));
        let longest = nanoseconds(self.busy_poll());
        loop {
            if let Some(taken) = take() {
                return Some(taken);
            }
            let (worked, read) = self.progress_at(now);
            now = read.unwrap_or_else(|| self.now(Poller::Program));
            if worked {
                last_work = now;
            } else if now.saturating_sub(last_work) >= longest {
                // Nothing arrives: the caller will sleep, and the progress thread takes over.
                return None;
            }
            if now >= end {
                // Check once more: the last poll may have brought it.
                return take();
            }
        }
    }

    /// Makes the progress thread drive the engine, because the program is about to wait elsewhere.
    pub(crate) fn leave_to_thread(&self) {
        // Only if it has yielded the engine. Otherwise it drives it already, and the wake-up would be a wasted system
        // call.
        if self.yielded.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// Locks the engine for a call of the program.
    pub(crate) fn lock(&self) -> EngineGuard<'_> {
        if let Some(engine) = try_lock(&self.engine.0) {
            return self.guard(engine);
        }
        // Announced before the next try, so that a polling thread gives way.
        let waiter = self.lock_waiter();
        // Ignores poisoning: a panic within a poll is a defect of the engine, but leaves it memory-safe, and peers
        // notice by their own timers.
        let engine = self.spin_for_lock().unwrap_or_else(|| lock(&self.engine.0));
        drop(waiter);
        self.guard(engine)
    }

    /// Announces a thread that waits for the mutex.
    pub(crate) fn lock_waiter(&self) -> LockWaiter<'_> {
        let waiters = &self.lock_waiters.0.count;
        waiters.fetch_add(1, Ordering::Relaxed);
        LockWaiter(self)
    }

    /// Tries to lock the engine for the duration of a long poll, after which its holder gives way to waiting threads: a
    /// wake-up would take longer.
    fn spin_for_lock(&self) -> Option<MutexGuard<'_, Engine>> {
        let first = try_lock(&self.engine.0);
        // If another thread wants this CPU, spinning could keep the holder from running.
        if first.is_some() || self.contention.is_present() {
            return first;
        }
        let (start, mut spins) = (Instant::now(), 1);
        loop {
            for _ in 0..spins {
                hint::spin_loop();
            }
            let locked = try_lock(&self.engine.0);
            if locked.is_some() || start.elapsed() >= LOCK_SPIN {
                return locked;
            }
            // Most polls are short. Each try takes the cache line of the lock from its holder.
            spins = SPINS_PER_LOOK.min(2 * spins);
        }
    }

    /// Locks the engine for the progress thread, which lets all others go first. It blocks on the mutex only if that is
    /// held for long, because the holder has to wake it by a system call each time.
    pub(crate) fn lock_last(&self) -> EngineGuard<'_> {
        for _ in 0..YIELDS_FOR_LOCK {
            if let Some(engine) = try_lock(&self.engine.0) {
                return self.guard(engine);
            }
            threads::yield_now();
        }
        self.guard(lock(&self.engine.0))
    }

    /// Returns when the program's threads drive the engine, and whether one of them is waiting.
    pub(crate) fn callers(&self) -> &CallerActivity {
        &self.callers.0
    }

    /// Returns the clock of the device.
    pub(crate) fn clock(&self) -> &Clock {
        &self.device.clock
    }

    /// Returns the time of that clock, or one that threads of this kind have read within the last microsecond.
    pub(crate) fn now(&self, poller: Poller) -> u64 {
        self.polls.of(poller).recent.now(self.clock())
    }

    /// Returns when a poll, by any thread, last found something to do.
    pub(crate) fn last_work(&self) -> u64 {
        self.found.0.last_work.load(Ordering::Relaxed)
    }

    /// Restarts the idle time at `now`.
    pub(crate) fn set_last_work(&self, now: u64) {
        self.found.0.last_work.store(now, Ordering::Relaxed);
    }

    pub(crate) fn has_polling_waiter(&self) -> bool {
        self.polling_waiters.load(Ordering::Acquire) > 0
    }

    /// Records whether the progress thread leaves the engine to the program's threads.
    pub(crate) fn set_yielded(&self, yielded: bool) {
        self.yielded.store(yielded, Ordering::Release);
    }

    /// Returns the eventfd that wakes the progress thread.
    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        self.device.wake_fd(self.shard)
    }

    fn wake(&self) {
        self.device.wake(self.shard);
    }

    pub(crate) fn clear_wake(&self) {
        self.device.clear_wake(self.shard);
    }
}

impl fmt::Debug for SharedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedEngine")
            .field("local", &self.local())
            .finish_non_exhaustive()
    }
}

/// Yields the CPU from time to time after an idle poll, the `polls`th. Polls need no pause between them: each is a
/// system call.
pub(crate) fn pause(polls: u64, contention: &CpuContention, clock: &Clock) -> Option<Yielded> {
    // It may be the peer that wants the CPU.
    let yields = contention.is_present() || polls.is_multiple_of(POLLS_PER_YIELD);
    yields.then(|| contention.yield_now(clock))
}

/// Stores a value if it is another one: a store would take the cache line from those who only read it.
fn store_new(place: &AtomicU32, value: u32) {
    if place.load(Ordering::Relaxed) != value {
        place.store(value, Ordering::Relaxed);
    }
}

/// While it lives, a thread of the program waits for the mutex.
pub(crate) struct LockWaiter<'a>(&'a SharedEngine);

impl Drop for LockWaiter<'_> {
    fn drop(&mut self) {
        let waiters = &self.0.lock_waiters.0.count;
        waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While it lives, a thread of the program polls the engine in a loop.
pub(crate) struct PollingWaiter<'a>(&'a SharedEngine);

impl<'a> PollingWaiter<'a> {
    pub(crate) fn new(engine: &'a SharedEngine) -> Self {
        engine.polling_waiters.fetch_add(1, Ordering::AcqRel);
        Self(engine)
    }
}

impl Drop for PollingWaiter<'_> {
    fn drop(&mut self) {
        self.0.polling_waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use gdr_roce::State;

    use super::*;
    use crate::device_state::EVENTS;
    use crate::error::Error;
    use crate::loopback::{connect, device, pair, post_receive};
    use crate::types::{AsyncEvent, Domain};

    #[test]
    fn a_device_that_failed_refuses_connections_and_new_pairs_by_name() {
        let device = device();
        let queue = device.completion_queue(4, None);
        let domain = Domain::new();
        let before = pair(domain, &queue).unwrap();
        let error = Error::os("recvmmsg", rustix::io::Errno::NETDOWN);
        device.shards().first().lock().fail(&error);
        assert_eq!(device.poll_event(), Some(AsyncEvent::DeviceFatal));
        let failed = |error: Error| match error {
            Error::DeviceFailed { why } => assert!(why.contains("recvmmsg"), "{why}"),
            other => panic!("{other:?}"),
        };
        failed(connect(&before, &before).unwrap_err());
        failed(pair(domain, &queue).unwrap_err());
        // Requests of a queue pair that was there before are flushed, as in any that failed.
        post_receive(&before);
        let mut flushed = None;
        queue
            .poll(1, &mut |completion| flushed = Some(completion.status))
            .unwrap();
        assert_eq!(flushed, Some(gdr_roce::WcStatus::WrFlushed));
    }

    #[test]
    fn the_end_of_the_process_waits_for_the_thread_that_has_the_engine() {
        let device = device();
        let shared = device.shards().first();
        let deadline = Deadline::after(Duration::from_secs(60));
        let engine = shared.lock();
        threads::scope(|scope| {
            let ending = scope.spawn(|| shared.acknowledge_by(deadline));
            while shared.lock_waiters.0.count.load(Ordering::Relaxed) == 0 && !deadline.has_passed()
            {
                threads::yield_now();
            }
            drop(engine);
            assert!(ending.join().unwrap());
        });
    }

    #[test]
    fn the_end_of_the_process_does_not_wait_for_ever() {
        let device = device();
        let shared = device.shards().first();
        let engine = shared.lock();
        assert!(!shared.acknowledge_by(Deadline::after(Duration::ZERO)));
        drop(engine);
    }

    #[test]
    fn a_wait_for_an_event_after_lost_ones_lasts_until_its_deadline() {
        let device = device();
        for _ in 0..=EVENTS {
            device.shards().events().push(AsyncEvent::DeviceFatal);
        }
        assert_eq!(device.counters().events_lost, 1);
        for _ in 0..EVENTS {
            device.wait_event(Deadline::after(Duration::ZERO)).unwrap();
        }
        let (start, limit) = (Instant::now(), Duration::from_millis(5));
        assert!(device.wait_event(Deadline::after(limit)).is_none());
        assert!(start.elapsed() >= limit);
    }

    #[test]
    fn a_child_needs_no_lock_that_the_parent_holds() {
        let device = device();
        let queue = device.completion_queue(4, None);
        let domain = Domain::new();
        let pair = pair(domain, &queue).unwrap();
        let buffer = (crate::buffer::Buffer::host(8).unwrap(), 0, 8);
        let region = device
            .register_buffer(domain, buffer, 0, gdr_roce::Access::all())
            .unwrap();
        let engine = device.shards().first().lock();
        let regions = device.shards().regions().read(0);
        // SAFETY: the child takes no lock, and leaves by `_exit` or by the signal of its alarm.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: ends a child that is stuck.
                unsafe { libc::alarm(30) };
                let refused = matches!(queue.poll(1, &mut |_| {}), Err(Error::ForkedChild))
                    && pair.state() == State::Error
                    && device.counters() == Counters::default();
                // SAFETY: the child uses none of them again.
                unsafe {
                    ptr::drop_in_place(ptr::from_ref(&pair).cast_mut());
                    ptr::drop_in_place(ptr::from_ref(&region).cast_mut());
                    ptr::drop_in_place(ptr::from_ref(&queue).cast_mut());
                    ptr::drop_in_place(ptr::from_ref(&device).cast_mut());
                    libc::_exit(i32::from(!refused));
                }
            }
            child => {
                assert!(child > 0, "fork");
                let mut status = 0;
                // SAFETY: this process's own child, and a place for its status.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0, "the child's wait status");
            }
        }
        drop((regions, engine));
        drop((region, pair));
    }
}
