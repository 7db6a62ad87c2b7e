//! The two ends of a measurement.

use std::net::SocketAddr;
use std::time::Duration;

use gdr_rdma::{
    Deadline, Device, Listener, Mtu, PeerInfo, ProtectionDomain, Provider, Security, Session,
};
use rustix::time::{ClockId, clock_gettime};

use super::endpoint::TransferEndpoint;
use super::memory::{EndMemory, LocalEnd};
use super::pipeline::{Pipeline, Remote, Sent, check_counts};
use super::plan::{Amount, Direction, Plan, PlanError, Request, Role, Verification};
use super::protocol::{
    Ask, Measured, Message, Offer, Phase, SERVICE, VERSION, immediates, unexpected,
};
use super::queue_pairs::{QueuePairs, Wait};
use super::report::{
    CpuSeconds, LatencyDistribution, Observe, TransferEnd, TransferEvent, TransferReport,
    TransferRow,
};
use super::round_trips::{Immediates, RoundTrips};
use super::threshold::Thresholds;
use super::verb::{Metric, Operation};
use crate::conversation::{Conversation, common_mtu, known_mtu, reach};
use crate::error::{PeerError, Result, SettingsError, proceed};
use crate::loopback::{End as DeviceEnd, Timeouts};
use crate::report::{CpuPlacement, ProcessFacts, Schema};
use crate::stats::Samples;
use crate::wire::Wire;

/// Connects to a peer that [serves](serve), and measures what the plan says.
///
/// Without a key, connects from the device's own address unless `end` names another: the peer accepts only the address
/// of the connection as the RDMA address.
///
/// # Errors
/// [`crate::Error::Settings`] for a plan that cannot be measured; [`crate::Error::Peer`] if the peer refuses;
/// [`crate::Error::Transfer`] for a request that fails or misses its deadline; [`crate::Error::WrongData`] for bytes
/// that did not arrive; the errors of the connection and of the memory.
pub fn measure<'a>(
    device: &Device,
    peer: SocketAddr,
    security: &Security,
    end: impl Into<LocalEnd<'a>>,
    plan: &Plan,
    thresholds: &Thresholds,
    observe: &mut dyn FnMut(TransferEvent<'_>) -> std::ops::ControlFlow<()>,
) -> Result<TransferReport> {
    TransferEndpoint::new(device, end).measure(peer, security, plan, thresholds, observe)
}

pub(super) fn measure_at(
    endpoint: &mut TransferEndpoint<'_>,
    peer: SocketAddr,
    security: &Security,
    plan: &Plan,
    thresholds: &Thresholds,
    observe: Observe<'_>,
) -> Result<TransferReport> {
    plan.check().map_err(SettingsError::Plan)?;
    if plan.verb.metric() == Metric::Latency && thresholds.has_rates() {
        return Err(SettingsError::Plan(PlanError::RateOfLatency(plan.verb)).into());
    }
    let limit = plan.limit(0);
    let terms = security.with_service(SERVICE);
    let session = match endpoint.connect_from() {
        Some(from) => Session::connect_from(from, peer, terms, Deadline::after(limit))?,
        None => reach(endpoint.device(), peer, terms, limit)?,
    };
    let mut conversation = Conversation::new(session, limit)?;
    let measured = client(&mut conversation, endpoint, plan, thresholds, observe);
    conversation.conclude(measured)
}

/// Waits for one peer that [measures](measure), and does its part.
///
/// # Errors
/// Same as [`measure`]; no peer connects in time.
pub fn serve<'a>(
    device: &Device,
    listener: &Listener,
    security: &Security,
    end: impl Into<LocalEnd<'a>>,
    timeouts: Timeouts,
    observe: &mut dyn FnMut(TransferEvent<'_>) -> std::ops::ControlFlow<()>,
) -> Result<TransferReport> {
    TransferEndpoint::new(device, end).serve(listener, security, timeouts, observe)
}

pub(super) fn serve_at(
    endpoint: &mut TransferEndpoint<'_>,
    listener: &Listener,
    security: &Security,
    timeouts: Timeouts,
    observe: Observe<'_>,
) -> Result<TransferReport> {
    proceed(observe(TransferEvent::Listening(listener.address()?)))?;
    let terms = security.with_service(SERVICE);
    let (mut conversation, asked) = Conversation::accept(listener, terms, timeouts)?;
    let served = asked.and_then(|asked| server(&mut conversation, asked, endpoint, observe));
    conversation.conclude(served)
}

/// One end, once the plan is known.
struct End<'a> {
    role: Role,
    device: &'a Device,
    domain: &'a ProtectionDomain,
    plan: Plan,
    mtu: Mtu,
    pairs: Option<QueuePairs>,
    remote: Option<Remote>,
    memory: &'a EndMemory,
    peer: TransferEnd,
}

fn describe(device: &Device, memory: &EndMemory, cpus: Option<CpuPlacement>) -> TransferEnd {
    TransferEnd {
        process: ProcessFacts {
            cpus,
            ..ProcessFacts::of_this_one()
        },
        device: DeviceEnd::of(device),
        memory: memory.facts.clone(),
    }
}

fn client(
    conversation: &mut Conversation,
    endpoint: &mut TransferEndpoint<'_>,
    plan: &Plan,
    thresholds: &Thresholds,
    observe: Observe<'_>,
) -> Result<TransferReport> {
    let cpus = endpoint.cpus().cloned();
    let (domain, memory) = endpoint.registered(plan.registered_bytes())?;
    let device = domain.device();
    plan.check_device(device).map_err(SettingsError::Plan)?;
    let end = describe(device, memory, cpus);
    conversation.send(&Message::Ask(Box::new(Ask {
        version: VERSION,
        request: Request {
            plan: plan.clone(),
            thresholds: thresholds.clone(),
        },
        end: end.clone(),
    })))?;
    let offer = match conversation.receive(plan.limit(plan.registered_bytes()) * 4)? {
        Message::Ready(offer) => *offer,
        other => return unexpected(&other),
    };
    let mtu = choose_mtu(device, plan, &offer)?;
    conversation.send(&Message::Agreed { mtu: mtu.code() })?;
    let mut report = TransferReport {
        schema: Schema::first("gdr.perf"),
        role: Role::Client,
        simulated: end.memory.is_simulated() || offer.end.memory.is_simulated(),
        plan: plan.clone(),
        path_mtu: mtu.bytes(),
        wire: None,
        client: end,
        server: offer.end.clone(),
        thresholds: thresholds.clone(),
        rows: Vec::new(),
        passed: true,
    };
    proceed(observe(TransferEvent::Ready(&report)))?;
    let mut end = End {
        role: Role::Client,
        device,
        domain,
        plan: plan.clone(),
        mtu,
        pairs: None,
        remote: None,
        memory,
        peer: offer.end,
    };
    let before = device.counters();
    for row in plan.rows() {
        let mut measured = end.client_row(conversation, row, observe)?;
        measured.failures = thresholds.judge(&measured);
        let shared = TransferRow {
            latency: LatencyDistribution {
                histogram: Vec::new(),
                ..measured.latency.clone()
            },
            ..measured.clone()
        };
        conversation.send(&Message::Row(Box::new(shared)))?;
        proceed(observe(TransferEvent::Measured(&measured)))?;
        report.keep(row, measured);
    }
    report.wire = Wire::since(device, &before);
    Ok(report)
}

/// Returns the path MTU that the plan requests, or the largest that both ends can use.
fn choose_mtu(device: &Device, plan: &Plan, offer: &Offer) -> Result<Mtu> {
    let path = common_mtu(device, &offer.end.device, offer.mtu)?;
    match plan.path_mtu().map_err(SettingsError::Plan)? {
        Some(asked) if asked.bytes() > path.bytes() => {
            let (asked, path) = (asked.bytes(), path.bytes());
            Err(SettingsError::Plan(PlanError::LongMtu { asked, path }).into())
        }
        Some(asked) => Ok(asked),
        None => Ok(path),
    }
}

fn server(
    conversation: &mut Conversation,
    asked: Message,
    endpoint: &mut TransferEndpoint<'_>,
    observe: Observe<'_>,
) -> Result<TransferReport> {
    let Ask {
        version,
        request,
        end: peer,
    } = match asked {
        Message::Ask(ask) => *ask,
        other => return unexpected(&other),
    };
    if version != VERSION {
        let (theirs, ours) = (version, VERSION);
        return Err(PeerError::Version { theirs, ours }.into());
    }
    endpoint.expects(&request)?;
    let Request { plan, thresholds } = request;
    let refused = |error| PeerError::Settings(SettingsError::Plan(error));
    plan.check().map_err(refused)?;
    conversation.limit = plan.limit(0);
    let cpus = endpoint.cpus().cloned();
    let (domain, memory) = endpoint.registered(plan.registered_bytes())?;
    let device = domain.device();
    plan.check_device(device).map_err(refused)?;
    let end = describe(device, memory, cpus);
    let mtu = device.path_mtu(peer.device.address.ip())?.code();
    let offer = Offer {
        end: end.clone(),
        mtu,
    };
    conversation.send(&Message::Ready(Box::new(offer)))?;
    let mtu = match conversation.receive(conversation.limit)? {
        Message::Agreed { mtu } => known_mtu(mtu)?,
        other => return unexpected(&other),
    };
    let mut report = TransferReport {
        schema: Schema::first("gdr.perf"),
        role: Role::Server,
        simulated: end.memory.is_simulated() || peer.memory.is_simulated(),
        plan: plan.clone(),
        path_mtu: mtu.bytes(),
        wire: None,
        client: peer.clone(),
        server: end,
        thresholds,
        rows: Vec::new(),
        passed: true,
    };
    proceed(observe(TransferEvent::Ready(&report)))?;
    let mut end = End {
        role: Role::Server,
        device,
        domain,
        plan,
        mtu,
        pairs: None,
        remote: None,
        memory,
        peer,
    };
    let before = device.counters();
    for row in end.plan.rows() {
        let size = end.plan.sizes[row];
        let measured = end.server_row(conversation, row, observe)?;
        conversation.send(&Message::Measured(measured))?;
        let measured = match conversation.receive(end.plan.limit(size) * 4)? {
            Message::Row(row) if row.size == size => *row,
            other => return unexpected(&other),
        };
        proceed(observe(TransferEvent::Measured(&measured)))?;
        report.keep(row, measured);
    }
    report.wire = Wire::since(device, &before);
    Ok(report)
}

/// How an end uses the queue pairs while a size is measured.
enum Work<'a> {
    InFlight(Pipeline<'a>),
    BackAndForth(RoundTrips<'a>),
}

impl Work<'_> {
    fn messages(&self) -> Vec<u64> {
        match self {
            Self::InFlight(pipeline) => pipeline.messages(),
            Self::BackAndForth(trips) => vec![trips.messages()],
        }
    }

    /// Sends the warm-up and the measured messages; records the latter.
    fn send(&mut self, plan: &Plan, samples: &mut Samples, observe: Observe<'_>) -> Result<Busy> {
        let mut warm_up = Sent::default();
        if plan.warm_up > 0 {
            warm_up = self.send_amount(Amount::Iterations(plan.warm_up), None, observe)?;
            let rest = plan.settling().saturating_sub(warm_up.elapsed);
            if !rest.is_zero() {
                let rest = Amount::Seconds(rest.as_secs_f64());
                warm_up.messages += self.send_amount(rest, None, observe)?.messages;
            }
        }
        let before = cpu_seconds();
        let sent = self.send_amount(plan.amount, Some(samples), observe)?;
        Ok(Busy {
            warm_up: warm_up.messages,
            sent,
            cpu_seconds: cpu_seconds() - before,
        })
    }

    fn send_amount(
        &mut self,
        amount: Amount,
        samples: Option<&mut Samples>,
        observe: Observe<'_>,
    ) -> Result<Sent> {
        match self {
            Self::InFlight(pipeline) => pipeline.send(amount, samples, observe),
            Self::BackAndForth(trips) => trips.lead(amount, samples, observe),
        }
    }

    fn verify(&mut self, theirs: &[u64]) -> Result<u64> {
        match self {
            Self::InFlight(pipeline) => pipeline.verify(theirs),
            Self::BackAndForth(trips) => trips.verify(theirs.first().copied().unwrap_or_default()),
        }
    }
}

/// What an end sent, and its CPU time.
struct Busy {
    warm_up: u64,
    sent: Sent,
    cpu_seconds: f64,
}

/// A round of messages, which are compared before the next round.
#[derive(Clone, Copy)]
struct Round {
    row: usize,
    messages: u64,
    phase: Phase,
}

/// What an end sent and compared.
#[derive(Default)]
struct Rounds {
    warm_up: u64,
    messages: u64,
    elapsed: Duration,
    cpu_seconds: f64,
    verified_bytes: u64,
}

impl Rounds {
    /// Adds a round: of a warm-up, its messages and the bytes that were compared.
    fn add(&mut self, phase: Phase, round: &Self) {
        self.verified_bytes = self.verified_bytes.saturating_add(round.verified_bytes);
        match phase {
            Phase::WarmUp => self.warm_up += round.messages,
            Phase::Measured => {
                self.messages += round.messages;
                self.elapsed += round.elapsed;
                self.cpu_seconds += round.cpu_seconds;
            }
        }
    }
}

/// Returns the CPU time of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl End<'_> {
    /// Creates queue pairs and connects them: before the first size, and before each size for which receives are left
    /// over from the previous one.
    fn connect(&mut self, conversation: &mut Conversation, row: usize) -> Result<()> {
        let has_receives =
            self.plan.verb.operation() == Operation::Send || self.plan.verb.is_ping_pong();
        if self.pairs.is_some() && !has_receives {
            return Ok(());
        }
        self.pairs = None;
        let pairs = QueuePairs::new(self.domain, &self.plan)?;
        let size = self.plan.sizes[row];
        let limit = self.plan.limit(size);
        let registered = self.plan.registered_bytes();
        for (number, pair) in pairs.all().iter().enumerate() {
            let ours = PeerInfo {
                endpoint: pair.endpoint(),
                path_mtu: self.mtu,
                regions: vec![self.memory.outgoing.remote(), self.memory.incoming.remote()],
            };
            let theirs = conversation.introduce(self.device, &self.peer.device, &ours, limit)?;
            self.remote = match theirs.regions[..] {
                [outgoing, incoming]
                    if outgoing.len == registered && incoming.len == registered =>
                {
                    Some(Remote { outgoing, incoming })
                }
                _ => return Err(PeerError::OtherMemory.into()),
            };
            pairs.connect(number, &theirs.endpoint, self.mtu, &self.plan, limit)?;
        }
        conversation.barrier(limit)?;
        self.pairs = Some(pairs);
        Ok(())
    }

    /// Fills memory and posts receives for a size.
    fn prepare(&self, row: usize) -> Result<Work<'_>> {
        let (Some(pairs), Some(remote)) = (&self.pairs, self.remote) else {
            return Err(PeerError::OtherMemory.into());
        };
        let (plan, role, memory) = (&self.plan, self.role, self.memory);
        Ok(if plan.verb.is_ping_pong() {
            let immediate = match plan.verb.operation() {
                Operation::Write => immediates(&self.peer.memory),
                _ => Immediates::No,
            };
            let trips = RoundTrips::new(plan, role, row, pairs, memory, remote, immediate)?;
            Work::BackAndForth(trips)
        } else {
            Work::InFlight(Pipeline::new(plan, role, row, pairs, memory, remote)?)
        })
    }

    fn prepared(&self, conversation: &mut Conversation, row: usize) -> Result<()> {
        let limit = self.plan.limit(self.plan.registered_bytes()) * 4;
        match conversation.receive(limit)? {
            Message::Prepared { row: theirs } if theirs == row => Ok(()),
            other => unexpected(&other),
        }
    }

    /// Returns whether this end polls while the peer sends, so that its answers need no wake-up.
    fn answers_in_polls(&self) -> bool {
        self.plan.verb.metric() == Metric::Latency && self.device.provider() == Provider::Soft
    }

    /// Waits until the peer has sent all of a size; returns the number of messages of each queue pair.
    fn peer_sent(
        &self,
        conversation: &mut Conversation,
        work: &mut Work<'_>,
        size: u64,
        observe: Observe<'_>,
    ) -> Result<Vec<u64>> {
        let mut is_serving = None;
        match work {
            Work::BackAndForth(trips) if self.role == Role::Server => {
                trips.answer(observe, &mut || conversation.is_due())?;
            }
            Work::InFlight(pipeline) if self.answers_in_polls() => {
                pipeline.answer(observe, &mut || conversation.is_due())?;
            }
            Work::InFlight(pipeline) if self.plan.verb.operation() == Operation::Send => {
                let mut wait = Wait::new(&self.plan, size);
                while !(pipeline.serve(&mut wait, observe)? && conversation.is_due()) {}
                is_serving = Some(pipeline);
            }
            _ => {}
        }
        let messages = match conversation.receive(self.plan.phase_limit(size))? {
            Message::Sent { messages } => messages,
            other => return unexpected(&other),
        };
        check_counts(&self.plan, &messages)?;
        if let Some(pipeline) = is_serving {
            pipeline.drain(&messages, observe)?;
        }
        Ok(messages)
    }

    fn verify(&self, work: &mut Work<'_>, theirs: &[u64]) -> Result<u64> {
        match self.plan.verify {
            Verification::Last | Verification::On => work.verify(theirs),
            Verification::Off => Ok(0),
        }
    }

    /// Sends a round, or waits until the peer has, or both; compares what arrived.
    fn round(
        &self,
        conversation: &mut Conversation,
        work: &mut Work<'_>,
        round: Round,
        samples: &mut Samples,
        observe: Observe<'_>,
    ) -> Result<Rounds> {
        let Work::InFlight(pipeline) = work else {
            return Err(PeerError::MessageCount.into());
        };
        let size = self.plan.sizes[round.row];
        pipeline.begin_round(round.messages)?;
        conversation.send(&Message::Prepared { row: round.row })?;
        self.prepared(conversation, round.row)?;
        let before = cpu_seconds();
        let is_both = self.plan.direction == Direction::BothWays;
        let mut done = Rounds::default();
        if self.role == Role::Client || is_both {
            let samples = match round.phase {
                Phase::Measured => Some(samples),
                Phase::WarmUp => None,
            };
            let sent = pipeline.send(Amount::Iterations(round.messages), samples, observe)?;
            (done.messages, done.elapsed) = (sent.messages, sent.elapsed);
            let messages = pipeline.messages();
            conversation.send(&Message::Sent { messages })?;
        }
        let theirs = match self.role == Role::Server || is_both {
            true => self.peer_sent(conversation, work, size, observe)?,
            false => vec![0; self.plan.sequences() as usize],
        };
        done.cpu_seconds = cpu_seconds() - before;
        let Work::InFlight(pipeline) = work else {
            return Err(PeerError::MessageCount.into());
        };
        done.verified_bytes = pipeline.verify_round(&theirs)?;
        Ok(done)
    }

    /// Sends the warm-up and the measured messages in rounds, and ends them.
    fn lead_rounds(
        &self,
        conversation: &mut Conversation,
        work: &mut Work<'_>,
        row: usize,
        samples: &mut Samples,
        observe: Observe<'_>,
    ) -> Result<Rounds> {
        let mut all = Rounds::default();
        let warm_up = Amount::Iterations(self.plan.warm_up);
        for (phase, amount, least) in [
            (Phase::WarmUp, warm_up, self.plan.settling()),
            (Phase::Measured, self.plan.amount, Duration::ZERO),
        ] {
            let (mut sent, mut elapsed) = (0, Duration::ZERO);
            loop {
                let messages = match work {
                    Work::InFlight(pipeline) => match pipeline.next_round(amount, sent, elapsed) {
                        0 if elapsed < least => pipeline.most_in_round(),
                        messages => messages,
                    },
                    Work::BackAndForth(_) => 0,
                };
                if messages == 0 {
                    break;
                }
                conversation.send(&Message::Round { messages, phase })?;
                let round = Round {
                    row,
                    messages,
                    phase,
                };
                let done = self.round(conversation, work, round, samples, observe)?;
                sent += messages;
                elapsed += done.elapsed;
                all.add(phase, &done);
            }
        }
        conversation.send(&Message::Round {
            messages: 0,
            phase: Phase::Measured,
        })?;
        Ok(all)
    }

    /// Follows the rounds of the peer until it ends them.
    fn follow_rounds(
        &self,
        conversation: &mut Conversation,
        work: &mut Work<'_>,
        row: usize,
        observe: Observe<'_>,
    ) -> Result<Measured> {
        let limit = self.plan.phase_limit(self.plan.sizes[row]);
        let mut samples = Samples::new()?;
        let mut all = Rounds::default();
        loop {
            let (messages, phase) = match conversation.receive(limit)? {
                Message::Round { messages: 0, .. } => break,
                Message::Round { messages, phase } => (messages, phase),
                other => return unexpected(&other),
            };
            let round = Round {
                row,
                messages,
                phase,
            };
            let done = self.round(conversation, work, round, &mut samples, observe)?;
            all.add(phase, &done);
        }
        Ok(Measured {
            warm_up: all.warm_up,
            messages: all.messages,
            seconds: all.elapsed.as_secs_f64(),
            cpu_seconds: all.cpu_seconds,
            verified_bytes: all.verified_bytes,
        })
    }

    /// Sends the warm-up and the measured messages, and compares what the peer sent meanwhile.
    fn lead(
        &self,
        conversation: &mut Conversation,
        work: &mut Work<'_>,
        size: u64,
        samples: &mut Samples,
        observe: Observe<'_>,
    ) -> Result<Rounds> {
        let Busy {
            warm_up,
            sent,
            cpu_seconds,
        } = work.send(&self.plan, samples, observe)?;
        let messages = work.messages();
        conversation.send(&Message::Sent { messages })?;
        let theirs = match self.plan.direction {
            Direction::OneWay if !self.plan.verb.is_ping_pong() => {
                vec![0; self.plan.sequences() as usize]
            }
            _ => self.peer_sent(conversation, work, size, observe)?,
        };
        Ok(Rounds {
            warm_up,
            messages: sent.messages,
            elapsed: sent.elapsed,
            cpu_seconds,
            verified_bytes: self.verify(work, &theirs)?,
        })
    }

    fn client_row(
        &mut self,
        conversation: &mut Conversation,
        row: usize,
        observe: Observe<'_>,
    ) -> Result<TransferRow> {
        self.connect(conversation, row)?;
        let size = self.plan.sizes[row];
        let mut samples = Samples::new()?;
        let mut work = self.prepare(row)?;
        conversation.send(&Message::Prepared { row })?;
        self.prepared(conversation, row)?;
        let own = match self.plan.has_rounds() {
            true => self.lead_rounds(conversation, &mut work, row, &mut samples, observe)?,
            false => self.lead(conversation, &mut work, size, &mut samples, observe)?,
        };
        let measured = match conversation.receive(self.plan.phase_limit(size))? {
            Message::Measured(measured) => measured,
            other => return unexpected(&other),
        };
        let messages = own.messages.saturating_add(measured.messages);
        // A clock that does not advance would make the rates infinite.
        let seconds = own.elapsed.as_secs_f64().max(measured.seconds).max(1e-9);
        let gb_per_s = messages as f64 * size as f64 / seconds / 1e9;
        let verified = own.verified_bytes.saturating_add(measured.verified_bytes);
        Ok(TransferRow {
            size,
            warm_up: own.warm_up.saturating_add(measured.warm_up),
            messages,
            seconds,
            gb_per_s,
            gbit_per_s: 8.0 * gb_per_s,
            mpps: messages as f64 / seconds / 1e6,
            latency: LatencyDistribution::of(&samples)?,
            cpu: CpuSeconds {
                client: own.cpu_seconds,
                server: measured.cpu_seconds,
            },
            verified_bytes: (self.plan.verify != Verification::Off).then_some(verified),
            failures: Vec::new(),
        })
    }

    fn server_row(
        &mut self,
        conversation: &mut Conversation,
        row: usize,
        observe: Observe<'_>,
    ) -> Result<Measured> {
        self.connect(conversation, row)?;
        let size = self.plan.sizes[row];
        self.prepared(conversation, row)?;
        let mut work = self.prepare(row)?;
        conversation.send(&Message::Prepared { row })?;
        if self.plan.has_rounds() {
            return self.follow_rounds(conversation, &mut work, row, observe);
        }
        let before = cpu_seconds();
        let mut measured = Measured::default();
        if self.plan.direction == Direction::BothWays {
            let mut samples = Samples::new()?;
            let busy = work.send(&self.plan, &mut samples, observe)?;
            measured.warm_up = busy.warm_up;
            measured.messages = busy.sent.messages;
            measured.seconds = busy.sent.elapsed.as_secs_f64();
            let messages = work.messages();
            conversation.send(&Message::Sent { messages })?;
        }
        let theirs = self.peer_sent(conversation, &mut work, size, observe)?;
        if self.plan.verb.is_ping_pong() {
            let messages = work.messages();
            conversation.send(&Message::Sent { messages })?;
        }
        measured.cpu_seconds = cpu_seconds() - before;
        measured.verified_bytes = self.verify(&mut work, &theirs)?;
        Ok(measured)
    }
}
