//! The soft provider: RoCEv2 over a UDP socket of this process.
//!
//! One [`Engine`] a device, behind a lock. Whoever needs progress turns it: a thread that posts
//! sends its own packets, a thread that waits for a completion receives them, and the engine's own
//! thread does both when nobody else does. So a message costs no hand-over between threads where
//! the program is awake anyway, and needs no help of the program where it is not.

mod address;
mod counters;
mod engine;
mod identification;
mod inbox;
mod memory;
mod pair;
mod raw;
mod socket;
mod thread;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread as threads;
use std::time::{Duration, Instant};

use gdr_roce::{
    Access, Capabilities, Completion, Qpn, RtrAttributes, RtsAttributes, State, StateError,
};
use rustix::event::EventfdFlags;

pub use self::address::SoftAddress;
pub(crate) use self::address::{HEADERS, list as addresses};
pub use self::counters::Counters;
use self::engine::Engine;
use self::pair::Pair;
use self::socket::Socket;
use crate::deadline::Deadline;
use crate::device::{Integrity, SoftOptions};
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::mailbox::Mailbox;
use crate::region::{DomainId, RegionTable};
use crate::request::{RecvRequest, SendRequest};

/// Asynchronous events that may wait to be taken.
const EVENTS: usize = 1024;
/// Turns for nothing between two offers of the CPU to others, where there are several CPUs. Each
/// offer costs as much as a turn.
const TURNS_PER_YIELD: u64 = 32;

/// What a queue pair is made from.
pub(crate) struct PairParts {
    pub(crate) domain: DomainId,
    pub(crate) capabilities: Capabilities,
    pub(crate) access: Access,
    pub(crate) send_completions: Arc<Mailbox<Completion>>,
    pub(crate) recv_completions: Arc<Mailbox<Completion>>,
}

/// A device of the soft provider, shared by its handles and its thread.
pub(crate) struct Soft {
    engine: Mutex<Engine>,
    socket: Arc<Socket>,
    regions: Arc<RegionTable>,
    events: Arc<Mailbox<AsyncEvent>>,
    busy_poll: Duration,
    /// Threads that want the engine and must not be starved by those that turn it in a loop.
    wanting: AtomicU32,
    /// Threads of the program that turn the engine while they wait.
    waiters: AtomicU32,
    /// Turns by threads of the program.
    caller_turns: AtomicU64,
    /// How many turns for nothing a waiting thread takes before it offers its CPU to others.
    turns_per_yield: u64,
    /// The engine's thread has left the engine to the program.
    aside: AtomicBool,
    /// An eventfd that wakes the engine's thread.
    wake: OwnedFd,
    stop: AtomicBool,
    next_domain: AtomicU32,
}

impl Soft {
    /// Binds the address and starts the thread, which holds on to `alive`.
    pub(crate) fn start(
        options: &SoftOptions,
        alive: Sender<()>,
    ) -> Result<(Arc<Self>, threads::JoinHandle<()>)> {
        let socket = Arc::new(Socket::bind(options.address, options.receive_buffer)?);
        let events = Arc::new(Mailbox::new(EVENTS));
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os("eventfd", errno))?;
        let soft = Arc::new(Self {
            engine: Mutex::new(Engine::new(Arc::clone(&socket), Arc::clone(&events))?),
            socket,
            regions: Arc::default(),
            events,
            busy_poll: options.busy_poll,
            wanting: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            caller_turns: AtomicU64::new(0),
            turns_per_yield: turns_per_yield(),
            aside: AtomicBool::new(false),
            wake,
            stop: AtomicBool::new(false),
            next_domain: AtomicU32::new(0),
        });
        let shared = Arc::clone(&soft);
        let thread = threads::Builder::new()
            .name("gdr-rdma".to_owned())
            .spawn(move || {
                // Goes last, also when a turn panics.
                let _alive = alive;
                thread::run(&shared);
                drop(shared);
            })
            .map_err(|source| Error::os("starting the engine's thread", source))?;
        Ok((soft, thread))
    }

    /// Tells the thread to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.socket.local()
    }

    pub(crate) fn receive_buffer(&self) -> usize {
        self.socket.receive_buffer()
    }

    pub(crate) fn integrity(&self) -> Integrity {
        self.socket.integrity()
    }

    pub(crate) fn regions(&self) -> &Arc<RegionTable> {
        &self.regions
    }

    pub(crate) fn events(&self) -> &Mailbox<AsyncEvent> {
        &self.events
    }

    pub(crate) fn counters(&self) -> Counters {
        self.lock().counters()
    }

    pub(crate) fn new_domain(&self) -> DomainId {
        DomainId(self.next_domain.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a queue pair in INIT.
    pub(crate) fn create_pair(&self, parts: PairParts) -> Result<Qpn> {
        let mut engine = self.lock();
        let qpn = engine.new_qpn();
        let mut roce = pair::protocol(qpn, parts.capabilities, self.receive_buffer());
        roce.to_init(parts.access)?;
        engine.insert(Pair::new(
            roce,
            parts.domain,
            parts.send_completions,
            parts.recv_completions,
        ));
        Ok(qpn)
    }

    /// Ends a queue pair; nothing of it is sent, received or completed from here on.
    pub(crate) fn destroy_pair(&self, qpn: Qpn) {
        let pair = self.lock().remove(qpn);
        // With it may go regions, whose end waits for the engine's table.
        drop(pair);
    }

    pub(crate) fn pair_state(&self, qpn: Qpn) -> State {
        self.lock().state(qpn).unwrap_or(State::Reset)
    }

    pub(crate) fn pair_to_rtr(
        &self,
        qpn: Qpn,
        peer: SocketAddr,
        attributes: &RtrAttributes,
    ) -> Result<()> {
        let mut engine = self.lock();
        let Some(pair) = engine.touch(qpn) else {
            return Err(gone(State::ReadyToReceive));
        };
        pair.roce.to_rtr(attributes)?;
        engine.set_peer(qpn, peer);
        Ok(())
    }

    pub(crate) fn pair_to_rts(&self, qpn: Qpn, attributes: &RtsAttributes) -> Result<()> {
        let mut engine = self.lock();
        let Some(pair) = engine.touch(qpn) else {
            return Err(gone(State::ReadyToSend));
        };
        pair.roce.to_rts(attributes)?;
        self.send_now(engine);
        Ok(())
    }

    pub(crate) fn pair_to_error(&self, qpn: Qpn) {
        let mut engine = self.lock();
        if let Some(pair) = engine.touch(qpn) {
            pair.roce.to_error();
        }
        self.send_now(engine);
    }

    /// Posts requests until one is refused; how many were taken.
    pub(crate) fn post_sends(
        &self,
        qpn: Qpn,
        requests: impl IntoIterator<Item = Result<SendRequest>>,
    ) -> (usize, Result<()>) {
        let mut engine = self.lock();
        let Some(pair) = engine.touch(qpn) else {
            return (0, Err(gone(State::ReadyToSend)));
        };
        let mut posted = 0;
        let mut refusal = Ok(());
        for request in requests {
            refusal = request.and_then(|request| Ok(pair.post_send(request)?));
            if refusal.is_err() {
                break;
            }
            posted += 1;
        }
        // A program that posts all the time is one that turns the engine.
        self.caller_turns.fetch_add(1, Ordering::Relaxed);
        if !engine.may_hold_back(qpn) {
            self.send_now(engine);
        }
        (posted, refusal)
    }

    pub(crate) fn post_recv(&self, qpn: Qpn, request: RecvRequest) -> Result<()> {
        let mut engine = self.lock();
        let Some(pair) = engine.touch(qpn) else {
            return Err(gone(State::Init));
        };
        pair.post_recv(request)?;
        // A queue pair in ERR flushes it at once.
        self.send_now(engine);
        Ok(())
    }

    /// Sends what was just posted, and sees that the thread knows of new deadlines.
    fn send_now(&self, mut engine: MutexGuard<'_, Engine>) {
        engine.transmit(&self.regions.read());
        let retired = std::mem::take(&mut engine.retired);
        let wake = engine.must_wake();
        drop(engine);
        drop(retired);
        if wake {
            self.wake();
        }
    }

    /// Takes one turn, unless somebody else has the engine or wants it; whether there was anything
    /// to do.
    fn turn_unless_busy(&self) -> bool {
        if self.wanting.load(Ordering::Relaxed) > 0 {
            threads::yield_now();
            return true;
        }
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Whoever has it may have lost its CPU to this very loop.
                threads::yield_now();
                return false;
            }
        };
        let worked = engine.turn(&self.regions.read());
        let retired = std::mem::take(&mut engine.retired);
        // The thread may sleep by what it knew before this turn of a thread of the program.
        let wake = engine.must_wake();
        drop(engine);
        drop(retired);
        if wake {
            self.wake();
        }
        worked
    }

    /// One turn by a thread of the program, which now and then offers its CPU to others where
    /// there was nothing to do.
    pub(crate) fn progress(&self) -> bool {
        let turns = self.caller_turns.fetch_add(1, Ordering::Relaxed);
        let worked = self.turn_unless_busy();
        if !worked {
            self.pause(turns);
        }
        worked
    }

    /// Passes the time after a turn for nothing, the `turns`th.
    fn pause(&self, turns: u64) {
        if turns.is_multiple_of(self.turns_per_yield) {
            threads::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Turns the engine until `take` has something or the deadline has passed: awake for a while,
    /// then asleep in `sleep`.
    pub(crate) fn wait<T>(
        &self,
        deadline: Deadline,
        take: impl Fn() -> Option<T>,
        sleep: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        {
            let _awake = Awake::new(self);
            let mut last_work = Instant::now();
            loop {
                if let Some(taken) = take() {
                    return Some(taken);
                }
                if self.progress() {
                    last_work = Instant::now();
                } else if last_work.elapsed() >= self.busy_poll {
                    break;
                }
                if deadline.has_passed() {
                    return take();
                }
            }
        }
        // From here on the engine's thread is needed.
        if self.aside.load(Ordering::Acquire) {
            self.wake();
        }
        sleep()
    }

    /// The engine, for a call of the program.
    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.wanting.fetch_add(1, Ordering::Relaxed);
        // A panic within a turn is a defect of the engine; what it leaves is still memory-safe,
        // and its peers find out by their own timers.
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    fn wake(&self) {
        // The only failure is a counter at its limit, which wakes as well.
        if let Err(error) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            tracing::trace!(%error, "the engine's thread has more wake-ups than it can count");
        }
    }

    fn clear_wake(&self) {
        let mut count = [0; 8];
        // EAGAIN: nobody woke it.
        if let Err(error) = rustix::io::read(&self.wake, &mut count)
            && error != rustix::io::Errno::AGAIN
        {
            tracing::trace!(%error, "reading the eventfd of the engine's thread failed");
        }
    }
}

impl std::fmt::Debug for Soft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Soft")
            .field("local", &self.local())
            .finish_non_exhaustive()
    }
}

fn turns_per_yield() -> u64 {
    match threads::available_parallelism() {
        Ok(cpus) if cpus.get() > 1 => TURNS_PER_YIELD,
        // The peer may be the one that waits.
        _ => 1,
    }
}

/// A queue pair whose device failed to keep it. Handles keep theirs, so nobody sees this.
fn gone(to: State) -> Error {
    StateError {
        from: State::Reset,
        to,
    }
    .into()
}

/// While it lives, a thread of the program turns the engine in a loop.
struct Awake<'a>(&'a Soft);

impl<'a> Awake<'a> {
    fn new(soft: &'a Soft) -> Self {
        soft.waiters.fetch_add(1, Ordering::AcqRel);
        Self(soft)
    }
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}
