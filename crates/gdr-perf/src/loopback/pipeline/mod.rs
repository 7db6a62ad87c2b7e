//! Processes the same frames staged and direct, up to a kernel's result in host memory.
//!
//! A frame is read by RDMA from host or GPU memory of another device. A kernel doubles its 32-bit words, and the result
//! is copied to page-locked host memory. The *staged* mode receives into page-locked host memory and copies to the GPU;
//! the *direct* mode receives into GPU memory. This is the benchmark of KIRO's GPUDirect extension, but without polling
//! for a new frame.
//!
//! [`compare`] runs both ends in one process. [`serve`] offers the frames to another process, which reads them with
//! [`compare_with`].
//!
//! Frames of both modes alternate, so that other load on the machine affects both alike. Each size and mode is checked
//! before and after the measured frames: the input is cleared, and every word of the result is compared.

mod consumer;
mod cost_model;
mod producer;
mod protocol;
mod report;
mod settings;
mod two_process;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use gdr_rdma::{Device, RemoteMemory};

use self::consumer::{Consumer, Measured, ReceiveMode};
use self::producer::Producer;
use super::device::mutual_mtu;
use super::report::{End, Path};
use crate::bench_target::BenchTarget;
use crate::error::{Result, proceed};
use crate::registered_buffer::TransferMemory;

pub use cost_model::{CostModel, Crossing};
pub use protocol::SERVICE;
pub use report::{FrameFigures, PipelineProcesses, PipelineReport, PipelineRow, Published};
pub use settings::PipelineSettings;
pub use two_process::{compare_with, serve};

/// How long to measure the frames of one size, unless fewer than [`LEAST`] fit.
const DURATION: Duration = Duration::from_secs(1);
/// Minimum number of frames per size and mode, unless fewer were requested.
const LEAST: u64 = 5;

/// Progress of a comparison.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum PipelineEvent<'a> {
    /// The end with the frames waits for a peer at this address.
    Listening(SocketAddr),
    /// Both ends are connected; there are no rows yet.
    Ready(&'a PipelineReport),
    /// One size was measured.
    Measured(&'a PipelineRow),
}

/// Measures frames from `source` at `from` to the GPU at `to`, both in this process.
///
/// # Errors
/// The errors of the setup; [`crate::Error::Transfer`] for a READ that fails or misses its
/// deadline; [`crate::Error::WrongData`] for a wrong result; [`crate::Error::Stopped`] if `observe`
/// breaks.
pub fn compare(
    target: &BenchTarget,
    from: &Device,
    to: &Device,
    source: TransferMemory<'_>,
    settings: &PipelineSettings,
    observe: &mut dyn FnMut(PipelineEvent<'_>) -> ControlFlow<()>,
) -> Result<PipelineReport> {
    settings.check()?;
    let mtu = mutual_mtu(from, to)?;
    let producer = Producer::new(from, source, settings.largest(), settings.seed)?;
    let consumer = Consumer::new(target, to, settings)?;
    producer.facts().check_beside(&consumer.facts().subject)?;
    producer.connect(&consumer.endpoint(), mtu, settings.give_up_after())?;
    consumer.connect(&producer.endpoint(), mtu, settings.give_up_after())?;
    let path = Path::new(End::of(from), End::of(to), mtu, settings.largest());
    let mut report =
        PipelineReport::begin(consumer.facts().clone(), producer.facts().clone(), path);
    report.published = settings.published;
    proceed(observe(PipelineEvent::Ready(&report)))?;
    let remote = producer.remote();
    for size in &settings.sizes {
        let row = measure(&consumer, &remote, *size, settings)?;
        report.rows.push(row);
        proceed(observe(PipelineEvent::Measured(&row)))?;
    }
    report.conclude();
    Ok(report)
}

/// Measures frames of one size with connected ends.
fn measure(
    consumer: &Consumer,
    remote: &RemoteMemory,
    size: u64,
    settings: &PipelineSettings,
) -> Result<PipelineRow> {
    let mut modes = Vec::new();
    for mode in consumer.modes() {
        consumer.check(mode, remote, size, settings)?;
        modes.push((mode, Measured::new()?));
    }
    let (limit, rounds) = (settings.limit(size), u64::from(settings.rounds));
    let start = Instant::now();
    loop {
        for (mode, measured) in &mut modes {
            measured.add(consumer, *mode, remote, size, limit)?;
        }
        let frames = modes.first().map_or(rounds, |(_, measured)| measured.len());
        if frames >= rounds || (frames >= LEAST && start.elapsed() >= DURATION) {
            break;
        }
    }
    for (mode, _) in &modes {
        consumer.check(*mode, remote, size, settings)?;
    }
    let of = |kind: ReceiveMode| {
        let found = modes.iter().find(|(mode, _)| *mode == kind);
        found
            .map(|(_, measured)| measured.figures(size))
            .transpose()
    };
    let staged = of(ReceiveMode::Staged)?.ok_or(crate::SettingsError::NoSamples)?;
    Ok(PipelineRow::new(size, staged, of(ReceiveMode::Direct)?))
}
