//! The two ends in two processes.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use gdr_rdma::{Deadline, Device, Introduction, Listener, Mtu, RemoteMemory, Security, Session};

use super::gpu::GpuSide;
use super::host::HostSide;
use super::message::{Ask, Message, Ready, VERSION, receive, send, unexpected};
use super::report::{Iteration, Outcome, Path, Report, Tally};
use super::{Cause, Destination, End, Event, Observer, Place, Settings, Step, conclude};
use crate::error::{Error, Result};

/// How long an end waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a peer to come.
    pub peer: Duration,
    /// For each step, as [`Settings::timeout`].
    pub step: Duration,
}

/// A session, and how long the peer may take for its part.
struct Talk {
    session: Session,
    limit: Duration,
}

impl Talk {
    fn send(&mut self, message: &Message) -> Result<()> {
        send(&mut self.session, message, Deadline::after(self.limit))
    }

    fn receive(&mut self) -> Result<Message> {
        receive(&mut self.session, Deadline::after(self.limit))
    }

    /// Introduces this end to the other.
    fn introduce(&mut self, ours: &Introduction) -> Result<Introduction> {
        Ok(self.session.introduce(ours, Deadline::after(self.limit))?)
    }

    /// Returns when both ends are connected.
    fn meet(&mut self) -> Result<()> {
        Ok(self.session.barrier(Deadline::after(self.limit))?)
    }
}

/// Waits for one peer that [connects](connect), and lets it write into GPU memory at `device`.
/// What is moved, the peer says. The run cannot be stopped while it waits for the peer.
///
/// # Errors
/// As [`super::run`]; a peer that does not come, that speaks something else, or does not know the
/// key. A peer that fails later is a [`super::Verdict::Fail`].
pub fn listen(
    place: &Place,
    device: &Device,
    listener: &Listener,
    security: &Security,
    destination: Destination,
    patience: Patience,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let mut observer = Observer(observe);
    observer.tell(Event::Listening(listener.address()?))?;
    let session = listener.accept(security, Deadline::after(patience.peer))?;
    greet(&session, &mut observer)?;
    let mut talk = Talk {
        session,
        limit: patience.step,
    };
    let ask = match talk.receive()? {
        Message::Ask(ask) => ask,
        other => return unexpected(&other),
    };
    let settings = Settings {
        size: ask.size,
        iterations: ask.iterations,
        seed: ask.seed,
        timeout: patience.step,
    };
    talk.limit = settings.peer_limit();
    let mut gpu = match prepare(place, device, destination, &settings, ask.version) {
        Ok(gpu) => gpu,
        Err(error) => {
            // The peer learns why; that this fails, too, is no news beside it.
            let reason = error.to_string().replace(char::is_control, " ");
            let _ = talk.send(&Message::Refused { reason });
            return Err(error);
        }
    };
    let memory = gpu.memory().clone();
    let ours = device.path_mtu(ask.end.address.ip())?;
    talk.send(&Message::Ready(Box::new(Ready {
        memory: memory.clone(),
        end: End::of(device),
        mtu: ours.code(),
    })))?;
    let mtu = match talk.receive()? {
        Message::Agreed { mtu } => known(mtu)?,
        other => return unexpected(&other),
    };
    let theirs = talk.introduce(&Introduction {
        endpoint: gpu.endpoint(),
        path_mtu: mtu,
        regions: vec![gpu.remote()],
    })?;
    gpu.connect(&theirs.endpoint, mtu)?;
    talk.meet()?;
    let path = Path::new(ask.end, End::of(device), mtu, settings.size);
    observer.tell(Event::Ready {
        settings: &settings,
        memory: &memory,
        path: &path,
    })?;

    let mut tally = Tally::default();
    let end = all(&settings, &mut tally, &mut observer, |number, observer| {
        receive_round(&mut gpu, &mut talk, &settings, number, observer)
    });
    Ok(tally.report(&settings, memory, path, end))
}

/// Connects to a peer that [listens](listen), and writes into its GPU memory from host memory at
/// `device`.
///
/// # Errors
/// As [`listen`].
pub fn connect(
    device: &Device,
    peer: SocketAddr,
    security: &Security,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    settings.check()?;
    let mut observer = Observer(observe);
    let session = Session::connect(peer, security, Deadline::after(settings.timeout))?;
    greet(&session, &mut observer)?;
    let mut talk = Talk {
        session,
        limit: settings.peer_limit(),
    };
    talk.send(&Message::Ask(Ask {
        version: VERSION,
        size: settings.size,
        iterations: settings.iterations,
        seed: settings.seed,
        end: End::of(device),
    }))?;
    let Ready { memory, end, mtu } = match talk.receive()? {
        Message::Ready(ready) => *ready,
        other => return unexpected(&other),
    };
    let (theirs, ours) = (known(mtu)?, device.path_mtu(end.address.ip())?);
    let mtu = if theirs.bytes() < ours.bytes() {
        theirs
    } else {
        ours
    };
    talk.send(&Message::Agreed { mtu: mtu.code() })?;
    let mut host = HostSide::new(device, settings)?;
    let theirs = talk.introduce(&Introduction {
        endpoint: host.endpoint(),
        path_mtu: mtu,
        regions: Vec::new(),
    })?;
    let remote = match theirs.regions[..] {
        [remote] if remote.len == settings.size => remote,
        _ => {
            let what = "offered other memory than was asked for; use one gdr on both sides";
            return Err(Error::Peer(what.into()));
        }
    };
    host.connect(&theirs.endpoint, mtu)?;
    talk.meet()?;
    let path = Path::new(End::of(device), end, mtu, settings.size);
    observer.tell(Event::Ready {
        settings,
        memory: &memory,
        path: &path,
    })?;

    let mut tally = Tally::default();
    let end = all(settings, &mut tally, &mut observer, |number, observer| {
        send_round(&mut host, &remote, &mut talk, settings, number, observer)
    });
    Ok(tally.report(settings, memory, path, end))
}

fn greet(session: &Session, observer: &mut Observer<'_>) -> Result<()> {
    observer.tell(Event::Connected {
        peer: session.peer()?,
        authenticated: session.is_authenticated(),
    })
}

fn prepare(
    place: &Place,
    device: &Device,
    destination: Destination,
    settings: &Settings,
    version: u32,
) -> Result<GpuSide> {
    if version != VERSION {
        return Err(Error::Peer(format!(
            "speaks version {version} of `gdr loopback`, this is version {VERSION}; use one gdr \
             on both sides"
        )));
    }
    settings.check()?;
    GpuSide::new(place, device, destination, settings)
}

fn known(mtu: u8) -> Result<Mtu> {
    Mtu::from_code(mtu)
        .ok_or_else(|| Error::Peer(format!("named a path MTU that does not exist ({mtu})")))
}

/// All iterations, up to the first that fails.
pub(super) fn all(
    settings: &Settings,
    tally: &mut Tally,
    observer: &mut Observer<'_>,
    mut round: impl FnMut(u32, &mut Observer<'_>) -> Result<Iteration>,
) -> Result<Option<Cause>> {
    for number in 1..=settings.iterations {
        let iteration = round(number, observer)?;
        if let Some(cause) = conclude(tally, iteration, observer)? {
            return Ok(Some(cause));
        }
    }
    Ok(None)
}

fn receive_round(
    gpu: &mut GpuSide,
    talk: &mut Talk,
    settings: &Settings,
    number: u32,
    observer: &mut Observer<'_>,
) -> Result<Iteration> {
    let seeds = settings.seeds(number);
    let mut iteration = Iteration::begun(number, seeds);
    observer.step(number, Step::Fill)?;
    let outcome = gpu.fill(number, seeds);
    iteration.filled = outcome.clone();
    talk.send(&Message::Filled { outcome })?;
    if iteration.filled != Outcome::Equal {
        return Ok(iteration);
    }
    observer.step(number, Step::Write)?;
    iteration.sent = match talk.receive()? {
        Message::Written { ended } => ended,
        other => return unexpected(&other),
    };
    if iteration.sent.is_done() {
        iteration.received = gpu.arrived(number, observer)?;
    }
    observer.step(number, Step::Verify)?;
    iteration.checks = gpu.verify(seeds);
    talk.send(&Message::Verified {
        received: iteration.received.clone(),
        checks: iteration.checks.clone(),
    })?;
    observer.step(number, Step::Read)?;
    (iteration.read, iteration.read_back) = match talk.receive()? {
        Message::ReadBack { ended, outcome } => (ended, outcome),
        other => return unexpected(&other),
    };
    Ok(iteration)
}

fn send_round(
    host: &mut HostSide,
    remote: &RemoteMemory,
    talk: &mut Talk,
    settings: &Settings,
    number: u32,
    observer: &mut Observer<'_>,
) -> Result<Iteration> {
    let seeds = settings.seeds(number);
    let mut iteration = Iteration::begun(number, seeds);
    observer.step(number, Step::Fill)?;
    host.load(seeds.sent)?;
    iteration.filled = match talk.receive()? {
        Message::Filled { outcome } => outcome,
        other => return unexpected(&other),
    };
    if iteration.filled != Outcome::Equal {
        return Ok(iteration);
    }
    observer.step(number, Step::Write)?;
    let ended = host.write(number, remote, observer)?;
    iteration.sent = ended.clone();
    let sent = ended.is_done();
    talk.send(&Message::Written { ended })?;
    observer.step(number, Step::Verify)?;
    (iteration.received, iteration.checks) = match talk.receive()? {
        Message::Verified { received, checks } => (received, checks),
        other => return unexpected(&other),
    };
    if sent {
        observer.step(number, Step::Read)?;
        iteration.read = host.read(remote, observer)?;
        if iteration.read.is_done() {
            iteration.read_back = host.compare(seeds.sent, seeds.before);
        }
    }
    talk.send(&Message::ReadBack {
        ended: iteration.read.clone(),
        outcome: iteration.read_back.clone(),
    })?;
    Ok(iteration)
}
