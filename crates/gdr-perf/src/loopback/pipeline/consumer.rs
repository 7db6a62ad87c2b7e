//! The consuming end, which reads frames, runs a kernel on them and wants its result in host memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_cuda::{DeviceBuffer, HostBuffer, MemoryKind, Stream};
use gdr_rdma::{
    Access, Buffer, Device, Endpoint, MemoryRegion, Mtu, ProtectionDomain, Provider, RemoteMemory,
    SendRequest, Watch, WrId,
};
use serde::{Deserialize, Serialize};

use super::super::compare::{CHUNK, fill, pieces};
use super::super::connection::Connection;
use super::super::device_memory::DeviceMemory;
use super::super::registration;
use super::super::settings::{MESSAGE, TransferPreference};
use super::report::FrameFigures;
use super::settings::PipelineSettings;
use crate::bench_target::BenchTarget;
use crate::error::{Result, SettingsError};
use crate::report::Subject;
use crate::stats::Samples;

/// READs in flight, fewer than a queue pair accepts.
const MOST_MESSAGES: usize = 64;
const OPERATION: &str = "RDMA READ";

/// How a frame gets into GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveMode {
    Staged,
    Direct,
}

impl ReceiveMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::Direct => "direct",
        }
    }
}

/// Durations of one frame.
struct Frame {
    receive: Duration,
    total: Duration,
}

/// The memory of the consuming end, and its connection.
pub(super) struct Consumer {
    // Fields drop in order: the connection and the regions before the memory.
    connection: Connection,
    staged: MemoryRegion,
    direct: Option<MemoryRegion>,
    stream: Stream,
    /// Page-locked memory that receives the frames of the staged mode.
    staging: Arc<HostBuffer>,
    input: Arc<DeviceBuffer>,
    output: Arc<DeviceBuffer>,
    result: Arc<HostBuffer>,
    facts: Facts,
}

/// What the report says about the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) subject: Subject,
    pub(super) allocated_by: String,
    pub(super) direct: Option<String>,
    pub(super) direct_missing: Option<String>,
}

impl Consumer {
    pub(super) fn new(
        target: &BenchTarget,
        device: &Device,
        settings: &PipelineSettings,
    ) -> Result<Self> {
        let bytes = settings.largest();
        let len = usize::try_from(bytes).map_err(|_| SettingsError::TooLarge { bytes })?;
        let gpu = target.gpu();
        let allocate = || target.allocate(settings.memory, bytes);
        let (input, output) = (allocate()?, allocate()?);
        let [staging, result] = [(), ()].map(|()| gpu.allocate_host(len).map(Arc::new));
        let (staging, result) = (staging?, result?);
        let domain = device.protection_domain();
        let (direct, facts) = direct_region(target, &domain, &input, settings.memory)?;
        let staged = Buffer::page_locked(Arc::clone(&staging))?;
        Ok(Self {
            connection: Connection::new(&domain)?,
            staged: domain.register(&staged, Access::LOCAL_WRITE)?,
            direct,
            stream: gpu.stream()?,
            staging,
            input,
            output,
            result,
            facts,
        })
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.connection.pair().endpoint()
    }

    pub(super) fn connect(&self, peer: &Endpoint, mtu: Mtu, give_up_after: Duration) -> Result<()> {
        self.connection.connect(peer, mtu, give_up_after)
    }

    /// Ends waits for frames once the peer sends a message or closes the connection.
    pub(super) fn watch(&mut self, peer: Watch) {
        self.connection.watch(peer);
    }

    /// Returns the modes that can be measured.
    pub(super) fn modes(&self) -> impl Iterator<Item = ReceiveMode> + use<> {
        let direct = self.direct.is_some().then_some(ReceiveMode::Direct);
        [Some(ReceiveMode::Staged), direct].into_iter().flatten()
    }

    fn region(&self, mode: ReceiveMode) -> &MemoryRegion {
        match (mode, &self.direct) {
            (ReceiveMode::Direct, Some(region)) => region,
            _ => &self.staged,
        }
    }

    /// Receives one frame and runs the kernel on it.
    fn frame(
        &self,
        mode: ReceiveMode,
        remote: &RemoteMemory,
        size: u64,
        limit: Duration,
    ) -> Result<Frame> {
        let start = Instant::now();
        let deadline = start + limit;
        self.receive(mode, remote, size, deadline, limit)?;
        let receive = start.elapsed();
        let len = size as usize;
        if mode == ReceiveMode::Staged {
            self.stream
                .queue_write(&self.staging, 0, &self.input, 0, len)?;
        }
        self.stream
            .queue_double(&self.input, &self.output, size / 4)?;
        self.stream
            .queue_read(&self.output, 0, &self.result, 0, len)?;
        self.stream
            .wait(deadline.saturating_duration_since(Instant::now()))?;
        Ok(Frame {
            receive,
            total: start.elapsed(),
        })
    }

    /// READs a frame as several messages in flight.
    fn receive(
        &self,
        mode: ReceiveMode,
        remote: &RemoteMemory,
        size: u64,
        deadline: Instant,
        limit: Duration,
    ) -> Result<()> {
        let region = self.region(mode);
        let done = || self.connection.spin(deadline, limit, (OPERATION, size));
        let mut in_flight = 0;
        for (offset, len) in pieces(size, MESSAGE) {
            if in_flight == MOST_MESSAGES {
                done()?;
                in_flight -= 1;
            }
            let read = SendRequest::read(WrId(offset), remote.at(offset));
            self.connection
                .pair()
                .post_send(read.segment(region.segment(offset, len)?))?;
            in_flight += 1;
        }
        (0..in_flight).try_for_each(|_| done())
    }

    /// Receives one frame into cleared memory, and compares the kernel's result.
    pub(super) fn check(
        &self,
        mode: ReceiveMode,
        remote: &RemoteMemory,
        size: u64,
        settings: &PipelineSettings,
    ) -> Result<()> {
        let limit = settings.limit(size);
        self.stream.fill(&self.input, 0, limit)?;
        self.stream.fill(&self.output, 0, limit)?;
        self.frame(mode, remote, size, limit)?;
        let what = format!("the kernel's result of {size} bytes, {}", mode.name());
        let mut chunks = [vec![0; CHUNK], vec![0; CHUNK]];
        for (offset, len) in pieces(size, CHUNK as u64) {
            let [expected, found] = chunks.each_mut().map(|chunk| &mut chunk[..len as usize]);
            fill(expected, settings.seed, offset / 4);
            for word in expected.as_chunks_mut::<4>().0 {
                *word = u32::from_le_bytes(*word).wrapping_mul(2).to_le_bytes();
            }
            self.result.read(offset as usize, found)?;
            crate::error::compare(&what, expected, found)?;
        }
        Ok(())
    }
}

/// Registers the input so that the device accesses it directly; `None` if it cannot.
fn direct_region(
    target: &BenchTarget,
    domain: &ProtectionDomain,
    input: &Arc<DeviceBuffer>,
    memory: MemoryKind,
) -> Result<(Option<MemoryRegion>, Facts)> {
    let access = Access::LOCAL_WRITE;
    let wanted = TransferPreference::Auto;
    let allocated_by = memory.function().to_owned();
    let missing = |subject, why| Facts {
        subject,
        allocated_by: allocated_by.clone(),
        direct: None,
        direct_missing: Some(why),
    };
    let found = |subject, why| Facts {
        subject,
        allocated_by: allocated_by.clone(),
        direct: Some(why),
        direct_missing: None,
    };
    if domain.device().provider() == Provider::Verbs {
        let subject = Subject::new(target, None);
        let made = DeviceMemory::new(domain, input, 0, input.len(), access, wanted)?;
        return Ok(match made.stage {
            None => (Some(made.region), found(subject, made.why)),
            Some(_) => (None, missing(subject, made.missing())),
        });
    }
    let reached = registration::map_or_stage(target, input, wanted)?;
    let Some(mapping) = reached.mapping else {
        return Ok((None, missing(reached.subject, reached.why)));
    };
    let local = registration::direct(mapping, input)?;
    let why = "the CPU stores into a mapping of the GPU memory".to_owned();
    Ok((
        Some(domain.register(&local, access)?),
        found(reached.subject, why),
    ))
}

/// Frames of one size in one mode.
pub(super) struct Measured {
    total: Samples,
    receive: Samples,
}

impl Measured {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            total: Samples::new()?,
            receive: Samples::new()?,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.total.len()
    }

    /// Measures one more frame.
    pub(super) fn add(
        &mut self,
        consumer: &Consumer,
        mode: ReceiveMode,
        remote: &RemoteMemory,
        size: u64,
        limit: Duration,
    ) -> Result<()> {
        let frame = consumer.frame(mode, remote, size, limit)?;
        self.total.record(frame.total.as_nanos() as f64);
        self.receive.record(frame.receive.as_nanos() as f64);
        Ok(())
    }

    pub(super) fn figures(&self, size: u64) -> Result<FrameFigures> {
        let total = self.total.summary()?;
        Ok(FrameFigures {
            total,
            receive: self.receive.summary()?,
            gb_per_s: size as f64 / total.median_ns.max(1.0),
        })
    }
}
