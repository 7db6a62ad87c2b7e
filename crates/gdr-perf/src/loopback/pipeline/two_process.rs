//! One end of a comparison in two processes.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use gdr_rdma::{Device, Listener, PeerInfo, RemoteMemory, Security};

use super::super::report::{End, Path};
use super::super::two_process::Timeouts;
use super::consumer::Consumer;
use super::producer::Producer;
use super::protocol::{Ask, Message, Ready, SERVICE, unexpected};
use super::report::{PipelineProcesses, PipelineReport, PipelineRow};
use super::settings::PipelineSettings;
use super::{DURATION, LEAST, PipelineEvent, measure};
use crate::bench_target::BenchTarget;
use crate::conversation::{Conversation, common_mtu, known_mtu, reach};
use crate::error::{PeerError, Result, proceed};
use crate::registered_buffer::TransferMemory;
use crate::report::ProcessFacts;
use crate::transfer::Role;

type Observe<'a> = &'a mut dyn FnMut(PipelineEvent<'_>) -> ControlFlow<()>;

/// Reads frames from memory of a peer that [serves](serve) them into the GPU at `device`, and measures that.
///
/// Without a key, connects from the device's own address: the peer accepts no other as the RDMA address.
///
/// # Errors
/// The errors of [`super::compare`]; [`crate::Error::Peer`] if the peer refuses, breaks the protocol
/// or has another version; the errors of the connection.
pub fn compare_with(
    target: &BenchTarget,
    device: &Device,
    peer: SocketAddr,
    security: &Security,
    settings: &PipelineSettings,
    observe: &mut dyn FnMut(PipelineEvent<'_>) -> ControlFlow<()>,
) -> Result<PipelineReport> {
    settings.check()?;
    let limit = settings.limit(0);
    let terms = security.with_service(SERVICE);
    let session = reach(device, peer, terms, limit)?;
    let mut conversation = Conversation::new(session, limit)?;
    let measured = client(&mut conversation, target, device, settings, observe);
    conversation.conclude(measured)
}

/// Waits for one peer that [compares](compare_with), and offers it the frames in `source` at `device`. The peer chooses
/// the settings, and the report contains its figures.
///
/// # Errors
/// Same as [`compare_with`]; no peer connects in time.
pub fn serve(
    device: &Device,
    listener: &Listener,
    security: &Security,
    source: TransferMemory<'_>,
    timeouts: Timeouts,
    observe: &mut dyn FnMut(PipelineEvent<'_>) -> ControlFlow<()>,
) -> Result<PipelineReport> {
    proceed(observe(PipelineEvent::Listening(listener.address()?)))?;
    let terms = security.with_service(SERVICE);
    let (mut conversation, asked) = Conversation::accept(listener, terms, timeouts)?;
    let served = asked.and_then(|asked| server(&mut conversation, asked, device, source, observe));
    conversation.conclude(served)
}

/// Returns how long the other end may take to fill its memory.
fn filling(settings: &PipelineSettings) -> Duration {
    settings.limit(settings.largest()) * 4
}

/// Returns how long the other end may take to measure frames of `size` bytes: two modes, each with two checks of three
/// steps, and frames that take their whole limit.
fn measuring(settings: &PipelineSettings, size: u64) -> Duration {
    let steps = 2 * (2 * 3 + LEAST as u32 + 1);
    DURATION + settings.limit(size) * steps
}

fn client(
    conversation: &mut Conversation,
    target: &BenchTarget,
    device: &Device,
    settings: &PipelineSettings,
    observe: Observe<'_>,
) -> Result<PipelineReport> {
    let mut consumer = Consumer::new(target, device, settings)?;
    let (ours, end, facts) = (
        ProcessFacts::of_this_one(),
        End::of(device),
        consumer.facts().clone(),
    );
    let ask = Ask::new(settings, ours.clone(), end.clone(), facts.clone());
    conversation.send(&Message::Ask(Box::new(ask)))?;
    let Ready {
        process: theirs,
        end: from,
        mtu,
        source,
    } = match conversation.receive(filling(settings))? {
        Message::Ready(ready) => *ready,
        other => return unexpected(&other),
    };
    let fits = source.check_beside(&facts.subject);
    fits.map_err(PeerError::Settings)?;
    let mtu = common_mtu(device, &from, mtu)?;
    conversation.send(&Message::Agreed { mtu: mtu.code() })?;
    let limit = settings.limit(settings.largest());
    let info = PeerInfo {
        endpoint: consumer.endpoint(),
        path_mtu: mtu,
        regions: Vec::new(),
    };
    let info = conversation.introduce(device, &from, &info, limit)?;
    let remote: RemoteMemory = match info.regions[..] {
        [remote] if remote.len == settings.largest() => remote,
        _ => return Err(PeerError::OtherMemory.into()),
    };
    consumer.connect(&info.endpoint, mtu, settings.give_up_after())?;
    conversation.barrier(limit)?;
    consumer.watch(conversation.watch()?);

    let path = Path::new(from, end, mtu, settings.largest());
    let mut report = PipelineReport::begin(facts, source, path);
    report.published = settings.published;
    report.processes = Some(PipelineProcesses {
        role: Role::Client,
        from: theirs,
        to: ours,
    });
    proceed(observe(PipelineEvent::Ready(&report)))?;
    for size in &settings.sizes {
        let row = measure(&consumer, &remote, *size, settings)?;
        conversation.send(&Message::Row(Box::new(row)))?;
        report.rows.push(row);
        proceed(observe(PipelineEvent::Measured(&row)))?;
    }
    report.conclude();
    Ok(report)
}

fn server(
    conversation: &mut Conversation,
    asked: Message,
    device: &Device,
    source: TransferMemory<'_>,
    observe: Observe<'_>,
) -> Result<PipelineReport> {
    let ask = match asked {
        Message::Ask(ask) => *ask,
        other => return unexpected(&other),
    };
    let settings = ask.settings()?;
    conversation.limit = settings.limit(0);
    let producer = Producer::new(device, source, settings.largest(), settings.seed)?;
    let source = producer.facts().clone();
    let fits = source.check_beside(&ask.memory.subject);
    fits.map_err(PeerError::Settings)?;
    let (ours, end) = (ProcessFacts::of_this_one(), End::of(device));
    let ready = Ready {
        process: ours.clone(),
        end: end.clone(),
        mtu: device.path_mtu(ask.end.address.ip())?.code(),
        source: source.clone(),
    };
    conversation.send(&Message::Ready(Box::new(ready)))?;
    let mtu = match conversation.receive(conversation.limit)? {
        Message::Agreed { mtu } => known_mtu(mtu)?,
        other => return unexpected(&other),
    };
    let limit = settings.limit(settings.largest());
    let info = PeerInfo {
        endpoint: producer.endpoint(),
        path_mtu: mtu,
        regions: vec![producer.remote()],
    };
    let info = conversation.introduce(device, &ask.end, &info, limit)?;
    producer.connect(&info.endpoint, mtu, settings.give_up_after())?;
    conversation.barrier(limit)?;

    let path = Path::new(end, ask.end, mtu, settings.largest());
    let mut report = PipelineReport::begin(ask.memory, source, path);
    report.processes = Some(PipelineProcesses {
        role: Role::Server,
        from: ours,
        to: ask.process,
    });
    proceed(observe(PipelineEvent::Ready(&report)))?;
    for size in &settings.sizes {
        let row = match conversation.receive(measuring(&settings, *size))? {
            Message::Row(row) if row.size == *size => {
                PipelineRow::new(*size, row.staged, row.direct)
            }
            other => return unexpected(&other),
        };
        report.rows.push(row);
        proceed(observe(PipelineEvent::Measured(&row)))?;
    }
    report.conclude();
    Ok(report)
}
