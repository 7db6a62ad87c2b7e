//! One end of a run in two processes.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use gdr_rdma::{
    Deadline, Device, Endpoint, Listener, Mtu, PeerInfo, RemoteMemory, Security, Session,
};

use super::event::{Event, Observer, Step};
use super::gpu::GpuSide;
use super::iterations::{Tally, run_all};
use super::protocol::{Ask, Message, Ready, SERVICE, receive, send, unexpected};
use super::report::{Cause, End, Iteration, Outcome, PacketCounter, Packets, Path, Report};
use super::requester::Requester;
use super::settings::{Destination, Settings};
use crate::bench_target::BenchTarget;
use crate::conversation::{AFTERMATH, arrivals, check_end, common_mtu, known_mtu, reach};
use crate::error::{Error, PeerError, Result};
use crate::expected::Expected;
use crate::memory_facts::{Memory, MemoryFacts};
use crate::peer_message::refusal;
use crate::registered_buffer::TransferMemory;

/// Time allowed for a message in addition to its step.
const MESSAGE_DELAY: Duration = Duration::from_secs(3);

/// Deadlines of the listening end.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a peer to connect.
    pub peer: Duration,
    /// For each step, as in [`Settings::timeout`].
    pub step: Duration,
}

/// What the listening end contributes to a run.
#[derive(Clone, Debug)]
pub struct ListeningEnd {
    /// Its GPU memory.
    pub destination: Destination,
    /// Its deadlines.
    pub timeouts: Timeouts,
    /// Settings that it requires its peer to choose.
    pub expected: Option<Expected<Settings>>,
}

impl ListeningEnd {
    /// Creates an end that takes any settings.
    pub const fn new(destination: Destination, timeouts: Timeouts) -> Self {
        Self {
            destination,
            timeouts,
            expected: None,
        }
    }
}

/// A session with the peer, and the deadline of its next message.
struct PeerSession {
    stream: Session,
    limit: Duration,
}

impl PeerSession {
    fn send(&mut self, message: &Message) -> Result<()> {
        send(&mut self.stream, message, Deadline::after(self.limit))
    }

    fn receive(&mut self) -> Result<Message> {
        self.receive_within(self.limit)
    }

    fn receive_within(&mut self, limit: Duration) -> Result<Message> {
        receive(&mut self.stream, Deadline::after(limit))
    }

    /// Exchanges the endpoints of all queue pairs, and the regions, with the peer.
    fn introduce_all(
        &mut self,
        device: &Device,
        peer: &End,
        endpoints: Vec<Endpoint>,
        mtu: Mtu,
        regions: &[RemoteMemory],
    ) -> Result<(Vec<Endpoint>, Vec<RemoteMemory>)> {
        let (mut peers, mut their_regions) = (Vec::new(), Vec::new());
        for endpoint in endpoints {
            let ours = PeerInfo {
                endpoint,
                path_mtu: mtu,
                regions: regions.to_vec(),
            };
            let deadline = Deadline::after(self.limit);
            let theirs = self.stream.introduce(&ours, deadline).map_err(refusal)?;
            check_end(device, peer, &theirs)?;
            peers.push(theirs.endpoint);
            their_regions = theirs.regions;
        }
        Ok((peers, their_regions))
    }

    /// Waits until both ends are connected.
    fn barrier(&mut self) -> Result<()> {
        let deadline = Deadline::after(self.limit);
        self.stream.barrier(deadline).map_err(refusal)
    }

    /// Sends the peer the reason if this end cannot go on.
    fn explain<T>(&mut self, outcome: Result<T>) -> Result<T> {
        match &outcome {
            Ok(_) => {}
            Err(Error::Peer(what)) => self.refuse(&format!("your side {what}")),
            Err(error) => self.refuse(&error.to_string()),
        }
        outcome
    }

    fn refuse(&mut self, reason: &str) {
        // Best effort, as the peer may be gone. The first error is the one that is reported.
        let _ = self.stream.refuse(reason, Deadline::after(AFTERMATH));
    }

    /// Sends the peer the result of a run that did not pass.
    fn conclude(&mut self, end: &Result<Option<Cause>>) {
        match end {
            Ok(None) => {}
            Ok(Some(cause)) => self.refuse(&cause.what),
            Err(Error::Stopped) => self.refuse("it was stopped"),
            Err(error) => self.refuse(&error.to_string()),
        }
    }
}

/// Waits for one peer that [connects](connect), and lets it write into GPU memory at `device`. The peer chooses the
/// settings, which must match what this end expects. The run cannot be stopped while it waits for the peer.
///
/// # Errors
/// The errors of [`super::run`]. An error also if no peer connects in time, speaks this protocol or knows the key. A
/// peer that fails later is a [`super::Verdict::Fail`].
pub fn listen(
    target: &BenchTarget,
    device: &Device,
    listener: &Listener,
    security: &Security,
    own: &ListeningEnd,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let mut observer = Observer::new(observe);
    observer.notify(Event::Listening(listener.address()?))?;
    let terms = security.with_service(SERVICE);
    let (session, asked) = arrivals(listener, terms, own.timeouts).first()?;
    report_peer(&session, listener.failed(), &mut observer)?;
    let mut session = PeerSession {
        stream: session,
        limit: own.timeouts.step,
    };
    let prepared = asked.and_then(|asked| prepare(target, device, own, &mut session, asked));
    let Prepared {
        mut gpu,
        settings,
        memory,
        source,
        path,
    } = session.explain(prepared)?;
    observer.watch(&session.stream)?;
    observer.notify(Event::Ready {
        settings: &settings,
        memory: &memory,
        source: &source,
        path: &path,
    })?;

    let mut tally = Tally::default();
    let end = run_all(
        &settings,
        &mut tally,
        &mut observer,
        |iteration, observer| {
            receive_round(
                &mut gpu,
                device,
                &mut session,
                &settings,
                iteration,
                observer,
            )
        },
    );
    session.conclude(&end);
    Ok(tally.report(&settings, memory, source, path, end))
}

/// The listening end after setup, with the peer's settings.
struct Prepared {
    gpu: GpuSide,
    settings: Settings,
    memory: Memory,
    source: MemoryFacts,
    path: Path,
}

fn prepare(
    target: &BenchTarget,
    device: &Device,
    own: &ListeningEnd,
    session: &mut PeerSession,
    asked: Message,
) -> Result<Prepared> {
    let ask = match asked {
        Message::Ask(ask) => *ask,
        other => return unexpected(&other),
    };
    let settings = ask.settings(own.timeouts.step)?;
    if let Some(expected) = &own.expected {
        expected.check(&settings)?;
    }
    session.limit = settings.peer_limit();
    session.stream.give_up_after(settings.limit())?;
    let gpu = GpuSide::new(target, device, own.destination, &settings, ask.queue_pairs)?;
    let memory = gpu.memory().clone();
    let fits = ask.source.check_beside(&memory.subject);
    fits.map_err(PeerError::Settings)?;
    let ours = device.path_mtu(ask.end.address.ip())?;
    session.send(&Message::Ready(Box::new(Ready {
        memory: memory.clone(),
        end: End::of(device),
        mtu: ours.code(),
    })))?;
    let mtu = match session.receive()? {
        Message::Agreed { mtu } => known_mtu(mtu)?,
        other => return unexpected(&other),
    };
    let (peers, _) =
        session.introduce_all(device, &ask.end, gpu.endpoints(), mtu, &[gpu.remote()])?;
    gpu.connect(&peers, mtu)?;
    session.barrier()?;
    let path = Path::new(ask.end, End::of(device), mtu, settings.size);
    let path = path.over(ask.queue_pairs, settings.size);
    Ok(Prepared {
        gpu,
        settings,
        memory,
        source: ask.source,
        path,
    })
}

/// Connects to a peer that [listens](listen), and writes into its GPU memory from `source` at `device`.
///
/// Without a key, connects from the device's own address: the peer accepts no other as the RDMA address.
///
/// # Errors
/// Same as [`listen`].
pub fn connect(
    device: &Device,
    peer: SocketAddr,
    security: &Security,
    source: TransferMemory<'_>,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    settings.check()?;
    let mut observer = Observer::new(observe);
    let terms = security.with_service(SERVICE);
    let session = reach(device, peer, terms, settings.timeout)?;
    report_peer(&session, 0, &mut observer)?;
    let mut session = PeerSession {
        stream: session,
        limit: settings.peer_limit(),
    };
    let agreed = agree(device, source, settings, &mut session);
    let Agreed {
        requester,
        remote,
        memory,
        path,
    } = session.explain(agreed)?;
    let source = requester.facts().clone();
    observer.watch(&session.stream)?;
    observer.notify(Event::Ready {
        settings,
        memory: &memory,
        source: &source,
        path: &path,
    })?;

    let mut tally = Tally::default();
    let end = run_all(
        settings,
        &mut tally,
        &mut observer,
        |iteration, observer| {
            let to = RemoteEnd {
                remote,
                session: &mut session,
            };
            send_round(&requester, device, to, settings, iteration, observer)
        },
    );
    session.conclude(&end);
    Ok(tally.report(settings, memory, source, path, end))
}

/// The connecting end after setup, with the peer's offer.
struct Agreed {
    requester: Requester,
    remote: RemoteMemory,
    memory: Memory,
    path: Path,
}

fn agree(
    device: &Device,
    source: TransferMemory<'_>,
    settings: &Settings,
    session: &mut PeerSession,
) -> Result<Agreed> {
    session.stream.give_up_after(settings.limit())?;
    let queue_pairs = Requester::queue_pairs(device, settings.size, &[source]);
    let requester = Requester::new(device, source, settings, queue_pairs)?;
    let facts = requester.facts();
    let ask = Ask::new(settings, queue_pairs, End::of(device), facts.clone());
    session.send(&Message::Ask(Box::new(ask)))?;
    let Ready { memory, end, mtu } = match session.receive()? {
        Message::Ready(ready) => *ready,
        other => return unexpected(&other),
    };
    let fits = facts.check_beside(&memory.subject);
    fits.map_err(PeerError::Settings)?;
    let mtu = common_mtu(device, &end, mtu)?;
    session.send(&Message::Agreed { mtu: mtu.code() })?;
    let (peers, regions) = session.introduce_all(device, &end, requester.endpoints(), mtu, &[])?;
    let remote = match regions[..] {
        [remote] if remote.len == settings.size => remote,
        _ => return Err(PeerError::OtherMemory.into()),
    };
    requester.connect(&peers, mtu)?;
    session.barrier()?;
    let path = Path::new(End::of(device), end, mtu, settings.size);
    let path = path.over(queue_pairs, settings.size);
    Ok(Agreed {
        requester,
        remote,
        memory,
        path,
    })
}

fn report_peer(
    session: &Session,
    failed_connections: u64,
    observer: &mut Observer<'_>,
) -> Result<()> {
    observer.notify(Event::Connected {
        peer: session.peer()?,
        authenticated: session.is_authenticated(),
        failed_connections,
    })
}

fn receive_round(
    gpu: &mut GpuSide,
    device: &Device,
    session: &mut PeerSession,
    settings: &Settings,
    iteration: &mut Iteration,
    observer: &mut Observer<'_>,
) -> Result<()> {
    let number = iteration.number;
    let seeds = settings.seeds(number);
    let counting = PacketCounter::start(device);
    observer.step(number, Step::Fill)?;
    iteration.filled = gpu.fill(number, seeds);
    session.send(&Message::Filled {
        outcome: iteration.filled.clone(),
    })?;
    if iteration.filled != Outcome::Equal {
        return Ok(());
    }
    observer.step(number, Step::Write)?;
    // The peer reports the result of its WRITE within the step's deadline.
    let written = session.receive_within(settings.limit() + MESSAGE_DELAY);
    iteration.packets.receiver = counting.counted();
    iteration.sent = match written? {
        Message::Written { ended } => ended.of_peer(),
        other => return unexpected(&other),
    };
    if iteration.sent.is_done() {
        iteration.received = gpu.arrived(number, observer)?;
    }
    observer.step(number, Step::Verify)?;
    iteration.checks = gpu.verify(seeds);
    iteration.packets.receiver = counting.counted();
    session.send(&Message::Verified {
        received: iteration.received.clone(),
        checks: iteration.checks.clone(),
        packets: iteration.packets.receiver,
    })?;
    observer.step(number, Step::Read)?;
    match session.receive()? {
        Message::ReadBack {
            ended,
            outcome,
            packets,
        } => {
            iteration.read = ended.of_peer();
            iteration.read_back = outcome.of_peer();
            iteration.packets.sender = packets;
        }
        other => return unexpected(&other),
    }
    Ok(())
}

/// The listening end, as the connecting end uses it.
struct RemoteEnd<'a> {
    remote: RemoteMemory,
    session: &'a mut PeerSession,
}

fn send_round(
    requester: &Requester,
    device: &Device,
    RemoteEnd { remote, session }: RemoteEnd<'_>,
    settings: &Settings,
    iteration: &mut Iteration,
    observer: &mut Observer<'_>,
) -> Result<()> {
    let number = iteration.number;
    let seeds = settings.seeds(number);
    let counting = PacketCounter::start(device);
    observer.step(number, Step::Fill)?;
    requester.load(seeds.sent)?;
    iteration.filled = match session.receive()? {
        Message::Filled { outcome } => outcome.of_peer(),
        other => return unexpected(&other),
    };
    if iteration.filled != Outcome::Equal {
        return Ok(());
    }
    observer.step(number, Step::Write)?;
    iteration.sent = requester.write(number, &remote, observer)?;
    let sent = iteration.sent.is_done();
    iteration.packets = Packets {
        sender: counting.counted(),
        receiver: None,
    };
    session.send(&Message::Written {
        ended: iteration.sent.clone(),
    })?;
    observer.step(number, Step::Verify)?;
    // After a failed WRITE, the peer may be gone.
    let limit = if sent { session.limit } else { AFTERMATH };
    match session.receive_within(limit)? {
        Message::Verified {
            received,
            checks,
            packets,
        } => {
            iteration.received = received.of_peer();
            iteration.checks = checks.of_peer();
            iteration.packets.receiver = packets;
        }
        other => return unexpected(&other),
    }
    if sent {
        observer.step(number, Step::Read)?;
        iteration.read = requester.read(&remote, observer)?;
        if iteration.read.is_done() {
            iteration.read_back = requester.compare(seeds.sent, seeds.before);
        }
    }
    iteration.packets.sender = counting.counted();
    session.send(&Message::ReadBack {
        ended: iteration.read.clone(),
        outcome: iteration.read_back.clone(),
        packets: iteration.packets.sender,
    })
}
