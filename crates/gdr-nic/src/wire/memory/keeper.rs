//! The thread that creates the rings of a device, and ends those whose other end is gone.

use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gdr_process::lock::lock;
use gdr_process::{ProcessId, block_signals};
use gdr_roce::Qpn;
use gdr_roce::wire::MAX_DATAGRAM;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::header::EXPORTS;
use super::peer_process::PeerProcess;
use super::process_memory::{ProcessMemory, Token};
use super::rendezvous::{self, Hello, Welcome};
use super::rings::{RingId, RingSender};
use super::segment::Segment;
use crate::ending_thread::EndingThread;
use crate::error::{Error, Result};
use crate::shard::engine::ConnectionId;
use crate::shard::shared_engine::SharedEngine;
use gdr_udp::Deadline;
use gdr_udp::LinkWatch;
use gdr_udp::ProcessFd;
use gdr_udp::QpnRange;
use gdr_udp::Slot;
use gdr_udp::address;
use gdr_udp::local_socket::wait_readable;

/// The length of a ring in bytes.
const RING: usize = 1 << 18;
const _: () = assert!(RING > 8 * MAX_DATAGRAM);
/// How long [`RingKeeper::reach`] waits for the other device's answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);
/// How long a device that did not answer is not asked again, and how long the thread waits for an answer.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a process may take to exit after its descriptors were closed.
const ENDING: Duration = Duration::from_secs(2);
/// How long no connections are accepted after accepting one has failed, mostly for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of accepted connections whose first message has not arrived.
const MOST_NEW: usize = 128;

/// Creates and watches the rings of a device. Dropping it ends its thread, which closes the connections of the rings.
pub(crate) struct RingKeeper {
    origin: ProcessId,
    /// Whether this host has the device's address.
    is_present: Arc<AtomicBool>,
    requests: RingRequests,
    thread: Option<EndingThread>,
    /// Devices that did not answer, and when they were asked. The lock also ensures that one thread at a time creates a
    /// ring.
    silent: Mutex<Vec<((SocketAddr, Slot), Instant)>>,
}

/// A request to the thread.
enum Request {
    /// Watches a ring that was created.
    Watch(Watched),
    /// Creates a ring from the engine with this range of numbers to the device that has a queue pair.
    Make(QpnRange, SocketAddr, Qpn),
    Stop,
}

/// A handle for requests to the thread that keeps the rings of a device.
#[derive(Clone)]
pub(crate) struct RingRequests {
    sender: Sender<Request>,
    /// Wakes the thread.
    notify: Arc<OwnedFd>,
}

impl RingRequests {
    /// Requests a ring from the engine with the range `from` to the device that has a queue pair, without waiting.
    pub(crate) fn ask(&self, from: QpnRange, to: SocketAddr, qpn: Qpn) {
        self.send(Request::Make(from, to, qpn));
    }

    fn send(&self, request: Request) {
        // Sending fails if the thread has ended with the device.
        let _ = self.sender.send(request);
        // This only fails if the counter is at its limit, which wakes the thread as well.
        if let Err(error) = rustix::io::write(&*self.notify, &1_u64.to_ne_bytes()) {
            tracing::trace!(%error, "the eventfd of the rings is at its limit");
        }
    }
}

/// A ring that another device was asked to accept, and has not answered for.
struct Asked {
    socket: ProcessFd,
    engine: Arc<SharedEngine>,
    to: SocketAddr,
    slot: Slot,
    segment: Segment,
    /// When to stop waiting for the answer.
    until: Deadline,
    /// The secret that the other process reads from this one's memory before it answers.
    _token: Box<u64>,
}

impl Asked {
    /// Asks the device that has a queue pair to accept a ring. Returns `None` unless it is a device of this host and
    /// user.
    fn new(
        engine: &Arc<SharedEngine>,
        to: SocketAddr,
        qpn: Qpn,
    ) -> std::result::Result<Option<Self>, Errno> {
        let Some(socket) = rendezvous::connect(to, qpn)? else {
            return Ok(None);
        };
        let (segment, descriptor) = Segment::create(RING)?;
        let source = engine.local();
        let descriptors = [descriptor.as_fd(), engine.wake_fd().as_fd()];
        let value = getrandom::u64().map_err(|_| Errno::IO)?;
        let secret = Box::new(value);
        let token = Token {
            addr: (&raw const *secret).expose_provenance() as u64,
            value,
        };
        let hello = Hello { source, qpn, token };
        rendezvous::send(socket.as_fd(), &hello, &descriptors)?;
        Ok(Some(Self {
            socket,
            engine: Arc::clone(engine),
            to,
            slot: Slot::of(qpn),
            segment,
            until: Deadline::after(SILENCE),
            _token: secret,
        }))
    }

    /// Receives the answer, which has arrived. From here on packets are sent on the ring.
    fn finish(self) -> std::result::Result<Watched, Errno> {
        let (reaches, [doorbell]) = rendezvous::receive_welcome(self.socket.as_fd())?;
        let segment = Arc::new(self.segment);
        let socket = Arc::new(self.socket);
        let passes = Arc::downgrade(&socket);
        // Lock the engine only now: waiting for the answer took no lock.
        let mut engine = self.engine.lock();
        let ring = engine
            .rings
            .add_outbound(segment, self.to, reaches, doorbell, passes);
        drop(engine);
        // If this fails, connections to a process that has ended fail by their own timers.
        let process = PeerProcess::of_unix(socket.as_fd()).ok();
        tracing::debug!(to = %self.to, from = %self.engine.local(), "a ring to a device of this host");
        Ok(Watched {
            socket,
            engine: self.engine,
            ring,
            end: End::Sending(process),
        })
    }
}

/// A ring, and the connection that stays open as long as its other end exists.
struct Watched {
    socket: Arc<ProcessFd>,
    engine: Arc<SharedEngine>,
    ring: RingId,
    end: End,
}

/// The end of a ring that this process has.
enum End {
    /// It sends packets to this process, if the process is visible here.
    Sending(Option<PeerProcess>),
    Receiving,
}

impl Watched {
    /// Receives what the other end, whose socket is readable, has sent. Returns whether that end is gone.
    fn has_ended(&self) -> bool {
        // A receiver never sends anything on the connection, so only its end makes the socket readable.
        if let End::Sending(_) = self.end {
            return true;
        }
        for _ in 0..EXPORTS {
            match rendezvous::receive_export(self.socket.as_fd()) {
                Ok((number, descriptor)) => {
                    self.engine.add_descriptor(self.ring, number, descriptor);
                }
                Err(Errno::AGAIN | Errno::INTR) => return false,
                Err(_) => return true,
            }
        }
        false
    }
}

/// Connections that sent on a ring that has ended. If the process at its other end exits before `until`, they end as
/// well.
struct Left {
    process: PeerProcess,
    until: Deadline,
    engine: Arc<SharedEngine>,
    connections: Vec<ConnectionId>,
}

impl RingKeeper {
    /// Starts listening for devices that want to send to one of these engines of a device. Returns `None` if another
    /// process has the device's name.
    pub(crate) fn start(engines: Vec<Arc<SharedEngine>>) -> Result<Option<Self>> {
        let failed = |call| move |errno: Errno| Error::os(call, errno);
        let listeners = listen(&engines).map_err(failed("listening for devices of this host"))?;
        let Some(listeners) = listeners else {
            return Ok(None);
        };
        let presence = engines
            .first()
            .and_then(|engine| Presence::of(engine.local().ip()));
        let is_present = Arc::new(AtomicBool::new(true));
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let notify = rustix::event::eventfd(0, flags).map_err(failed("eventfd"))?;
        let notify = Arc::new(notify);
        let (sender, requests) = channel();
        let thread = Thread {
            notify: Arc::clone(&notify),
            requests,
            listeners,
            presence,
            is_present: Arc::clone(&is_present),
            engines,
            new: Vec::new(),
            asked: Vec::new(),
            rings: Vec::new(),
            left: Vec::new(),
        };
        let thread = EndingThread::start("gdr-rings", move || thread.run())?;
        Ok(Some(Self {
            origin: ProcessId::current(),
            is_present,
            requests: RingRequests { sender, notify },
            thread: Some(thread),
            silent: Mutex::default(),
        }))
    }

    /// Returns the handle by which the device's engines request rings.
    pub(crate) fn requests(&self) -> RingRequests {
        self.requests.clone()
    }

    /// Creates a ring from an engine to the device that has a queue pair, unless there is one or that device is not of
    /// this host and user. Waits for the device's answer, for at most [`ANSWER_LIMIT`].
    pub(crate) fn reach(&self, engine: &Arc<SharedEngine>, to: SocketAddr, qpn: Qpn) {
        // Check without the lock on the silent devices first, as most connections find a ring.
        if !self.is_present.load(Ordering::Acquire) || engine.lock().rings.to(to, qpn).is_some() {
            return;
        }
        let mut silent = lock(&self.silent);
        silent.retain(|(_, since)| since.elapsed() < SILENCE);
        let device = (to, Slot::of(qpn));
        let is_silent = silent.iter().any(|(silent, _)| *silent == device);
        // Check again: another thread may have created the ring before this one had the lock.
        if is_silent || engine.lock().rings.to(to, qpn).is_some() {
            return;
        }
        match Self::make(engine, to, qpn) {
            Ok(Some(ring)) => self.requests.send(Request::Watch(ring)),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, %to, "no ring to a device of this host; packets go by UDP");
                // Otherwise each further connection would wait for the whole time limit.
                silent.push((device, Instant::now()));
            }
        }
    }

    fn make(
        engine: &Arc<SharedEngine>,
        to: SocketAddr,
        qpn: Qpn,
    ) -> std::result::Result<Option<Watched>, Errno> {
        let Some(asked) = Asked::new(engine, to, qpn)? else {
            return Ok(None);
        };
        let deadline = Deadline::after(ANSWER_LIMIT);
        // A signal handler may end each wait early.
        while !wait_readable(asked.socket.as_fd(), deadline.remaining()) {
            if deadline.has_passed() {
                return Err(Errno::TIMEDOUT);
            }
        }
        asked.finish().map(Some)
    }
}

impl Drop for RingKeeper {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.origin.is_current() {
            // The thread belongs to the parent, and so does the eventfd that wakes it.
            thread.into_iter().for_each(EndingThread::forget);
            return;
        }
        self.requests.send(Request::Stop);
        thread.into_iter().for_each(EndingThread::join);
    }
}

/// Listens for devices that want to send to one of these engines of a device. Returns `None` if another process has the
/// device's name.
fn listen(engines: &[Arc<SharedEngine>]) -> std::result::Result<Option<Vec<ProcessFd>>, Errno> {
    let mut listeners = Vec::new();
    for engine in engines {
        let (address, range) = (engine.local(), engine.socket().range());
        // The shards of one device share a name and a listener, but each slot has its own name.
        if !listeners.is_empty() && !range.is_slot() {
            break;
        }
        match rendezvous::listen(address, range)? {
            Some(listener) => listeners.push(listener),
            None => return Ok(None),
        }
    }
    Ok(Some(listeners))
}

/// Returns the memory of the process at the other end, if this process can read it.
fn memory_of(socket: BorrowedFd<'_>, token: Token) -> Option<ProcessMemory> {
    let process = PeerProcess::of_unix(socket);
    let opened = process.and_then(|process| ProcessMemory::open(process, token));
    if let Err(errno) = &opened {
        tracing::debug!(%errno, "the memory of a process cannot be read; it sends copies");
    }
    opened.ok()
}

/// Tracks whether this host has the address of a device. Without the address the kernel delivers no datagrams either.
struct Presence(LinkWatch);

impl Presence {
    /// Returns `None` for a loopback address, which is never removed.
    fn of(address: IpAddr) -> Option<Self> {
        if address.is_loopback() {
            return None;
        }
        let addresses = address::list().unwrap_or_default();
        let own = addresses.into_iter().find(|own| own.address == address)?;
        Some(Self(LinkWatch::new(&own)))
    }
}

/// The readiness of the descriptors of a [`Thread`], in the order of its lists.
struct Ready {
    listeners: Vec<bool>,
    new: Vec<bool>,
    asked: Vec<bool>,
    rings: Vec<bool>,
    left: Vec<bool>,
}

struct Thread {
    presence: Option<Presence>,
    is_present: Arc<AtomicBool>,
    notify: Arc<OwnedFd>,
    requests: Receiver<Request>,
    listeners: Vec<ProcessFd>,
    engines: Vec<Arc<SharedEngine>>,
    /// Connections whose first message has not arrived.
    new: Vec<ProcessFd>,
    /// Rings whose other end has not answered.
    asked: Vec<Asked>,
    rings: Vec<Watched>,
    left: Vec<Left>,
}

impl Thread {
    fn run(mut self) {
        block_signals();
        while self.take_requests() {
            let ready = self.wait();
            if self.follow_address() {
                continue;
            }
            // Readiness is by position: `end` adds to `left`, `make_requested_rings` and `finish` add to `rings`, and
            // `accept` adds to `new`, so each list is handled before it grows.
            self.end_connections(&ready.left);
            let mut is_ready = ready.rings.iter();
            self.end(|ring| is_ready.next().copied().unwrap_or(false) && ring.has_ended());
            self.make_requested_rings(&ready.new);
            self.finish(&ready.asked);
            self.accept(&ready.listeners);
        }
    }

    /// Ends every ring when this host loses the address, and listens again once it is back. Returns whether that
    /// changed.
    fn follow_address(&mut self) -> bool {
        let Some(Presence(watch)) = &mut self.presence else {
            return false;
        };
        let has_address = watch.poll(&mut |_| {}).has_address;
        if self.is_present.swap(has_address, Ordering::AcqRel) == has_address {
            return false;
        }
        self.new.clear();
        self.asked.clear();
        self.end(|_| true);
        self.listeners = match has_address {
            // If listening fails, the packets of other devices arrive over UDP.
            true => listen(&self.engines).ok().flatten().unwrap_or_default(),
            false => Vec::new(),
        };
        true
    }

    /// Handles the pending requests. Returns false if the thread is to stop.
    fn take_requests(&mut self) -> bool {
        let mut count = [0; 8];
        // EAGAIN means that the thread was not woken by a request.
        if let Err(errno) = rustix::io::read(&*self.notify, &mut count)
            && errno != Errno::AGAIN
        {
            tracing::trace!(%errno, "reading the eventfd of the rings failed");
        }
        while let Ok(request) = self.requests.try_recv() {
            match request {
                Request::Watch(ring) => self.rings.push(ring),
                Request::Make(from, to, qpn) => self.make(from, to, qpn),
                Request::Stop => return false,
            }
        }
        true
    }

    /// Asks a device for a ring to it, unless there is one. Asks again if an earlier request was not answered.
    fn make(&mut self, from: QpnRange, to: SocketAddr, qpn: Qpn) {
        let of_range = |engine: &&Arc<SharedEngine>| engine.socket().range() == from;
        let Some(engine) = self.engines.iter().find(of_range) else {
            return;
        };
        if !self.is_present.load(Ordering::Acquire) || engine.lock().rings.to(to, qpn).is_some() {
            return;
        }
        // Drop the earlier request, as a late answer to it would create a second ring.
        self.asked.retain(|asked| {
            (asked.to, asked.slot) != (to, Slot::of(qpn)) || !Arc::ptr_eq(&asked.engine, engine)
        });
        match Asked::new(engine, to, qpn) {
            Ok(asked) => self.asked.extend(asked),
            Err(errno) => tracing::debug!(%errno, %to, "no ring to a device of this host"),
        }
    }

    /// Waits until a descriptor is ready or a deadline passes.
    fn wait(&self) -> Ready {
        let notify = [self.notify.as_fd()];
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        let new = self.new.iter().map(AsFd::as_fd);
        let asked = self.asked.iter().map(|asked| asked.socket.as_fd());
        let rings = self.rings.iter().map(|ring| ring.socket.as_fd());
        let left = self.left.iter().map(|left| left.process.as_fd());
        let presence = self.presence.iter().filter_map(|it| it.0.as_fd());
        let all = notify.into_iter().chain(listeners).chain(new).chain(asked);
        let mut all: Vec<_> = all
            .chain(rings)
            .chain(left)
            .chain(presence)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // The earliest deadline limits the wait, which EINTR and the like may end early.
        let left = self.left.iter().map(|left| left.until);
        let asked = self.asked.iter().map(|asked| asked.until);
        let first = left.chain(asked).map(|until| until.remaining()).min();
        let limit = first.and_then(|limit| Timespec::try_from(limit).ok());
        if let Err(errno) = rustix::event::poll(&mut all, limit.as_ref()) {
            tracing::trace!(%errno, "poll of the thread of the rings ended early");
            // After a failure the kernel has not written the events.
            all.iter_mut().for_each(PollFd::clear_revents);
        }
        let mut ready = all.iter().skip(1).map(|fd| !fd.revents().is_empty());
        let mut next = |count| ready.by_ref().take(count).collect();
        Ready {
            listeners: next(self.listeners.len()),
            new: next(self.new.len()),
            asked: next(self.asked.len()),
            rings: next(self.rings.len()),
            left: next(self.left.len()),
        }
    }

    /// Receives the answers to this device's requests, and drops requests that were not answered in time.
    fn finish(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        let (answered, waiting) = mem::take(&mut self.asked)
            .into_iter()
            .partition::<Vec<_>, _>(|_| ready.next().copied().unwrap_or(false));
        self.asked = waiting;
        // Otherwise each device that never answers would hold a segment.
        self.asked.retain(|asked| !asked.until.has_passed());
        for asked in answered {
            match asked.finish() {
                Ok(ring) => self.rings.push(ring),
                Err(errno) => tracing::debug!(%errno, "a device of this host refuses a ring"),
            }
        }
    }

    /// Ends the rings for which `has_ended` returns true.
    fn end(&mut self, has_ended: impl FnMut(&Watched) -> bool) {
        let (ended, open) = mem::take(&mut self.rings)
            .into_iter()
            .partition::<Vec<_>, _>(has_ended);
        self.rings = open;
        for watched in ended {
            let connections = watched.engine.close_ring(watched.ring);
            // Its descriptors are closed a moment before a process has ended.
            if let End::Sending(Some(process)) = watched.end
                && !connections.is_empty()
            {
                self.left.push(Left {
                    process,
                    until: Deadline::after(ENDING),
                    engine: watched.engine,
                    connections,
                });
            }
        }
    }

    /// Ends the connections to processes that have ended.
    fn end_connections(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        self.left.retain_mut(|left| {
            let has_ended = ready.next().copied().unwrap_or(false);
            if has_ended {
                left.engine.end_peers(mem::take(&mut left.connections));
            }
            !has_ended && !left.until.has_passed()
        });
    }

    /// Creates the rings that other devices ask for.
    fn make_requested_rings(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        let (said, waiting) = mem::take(&mut self.new)
            .into_iter()
            .partition(|_| ready.next().copied().unwrap_or(false));
        self.new = waiting;
        for socket in said {
            match self.ring(socket) {
                Ok(ring) => self.rings.push(ring),
                Err(errno) => {
                    tracing::debug!(%errno, "a device of this host has no ring to this one")
                }
            }
        }
    }

    fn ring(&self, socket: ProcessFd) -> std::result::Result<Watched, Errno> {
        let (hello, [segment, doorbell]) = rendezvous::receive_hello(socket.as_fd())?;
        let engine = self.engines.iter().find(|engine| engine.owns(hello.qpn));
        let engine = engine.ok_or(Errno::HOSTUNREACH)?;
        let segment = Arc::new(Segment::open(&segment)?);
        let memory = match engine.takes_references() {
            true => memory_of(socket.as_fd(), hello.token),
            false => None,
        };
        // Before the answer, so that the first packet may refer to memory.
        if memory.is_some() {
            segment.header().accept_references();
        }
        let sender = RingSender {
            address: hello.source,
            memory,
        };
        let welcome = Welcome::to(engine.socket().range());
        // Before the answer, as packets arrive as soon as the sender has it.
        let ring = engine.lock().add_inbound(segment, sender, doorbell);
        let sent = rendezvous::send(socket.as_fd(), &welcome, &[engine.wake_fd().as_fd()]);
        if let Err(errno) = sent {
            engine.close_ring(ring);
            return Err(errno);
        }
        Ok(Watched {
            socket: Arc::new(socket),
            engine: Arc::clone(engine),
            ring,
            end: End::Receiving,
        })
    }

    fn accept(&mut self, ready: &[bool]) {
        let ready = self.listeners.iter().zip(ready).filter(|it| *it.1);
        for (listener, _) in ready {
            match rendezvous::accept(listener.as_fd()) {
                Ok(Some(socket)) => self.new.push(socket),
                Ok(None) => {}
                Err(errno) => {
                    tracing::debug!(%errno, "accepting a device of this host failed");
                    // Without a pause the same connection would be ready again at once. A request ends the pause.
                    wait_readable(self.notify.as_fd(), ACCEPT_PAUSE);
                }
            }
        }
        // A device sends its message right after it connects, so the oldest ones are the most likely to stay silent.
        let surplus = self.new.len().saturating_sub(MOST_NEW);
        self.new.drain(..surplus);
    }
}
