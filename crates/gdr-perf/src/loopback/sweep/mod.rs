//! Latency and bandwidth of RDMA into and out of GPU memory by size, direct and staged.
//!
//! The same transfers are measured three times: into host memory, which shows the cost of the network stack alone; into
//! GPU memory directly; and staged. With a kernel device, staged means that the GPU copies between its memory and
//! page-locked host memory after WRITEs and before READs. For each size:
//!
//! - *latency*: one request at a time, from post to completion, polling the completion queue as `ib_write_lat` does;
//! - *bandwidth*: [`DEPTH`] requests in flight. Requests longer than one message become several messages in flight
//!   together; their bandwidth is computed from the latency.
//!
//! The paths take turns, each time in a different order, so that disturbances of the machine affect all of them alike.
//! After each size, one more request on each path is made, and its first and last MiB are compared with the bytes that
//! were sent. A difference is an error.

mod path;
mod report;
mod settings;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use gdr_rdma::{Access, Buffer, Device, MemoryRegion, ProtectionDomain};

use path::MemoryPath;
pub use report::{DirectRatio, Operation, PathKind, Row, Sweep};
pub use settings::SweepSettings;

use super::compare::pieces;
use super::connection::Connection;
use super::device::mutual_mtu;
use super::report::{End, Path};
use super::settings::MESSAGE;
use super::staging::StagingBuffer;
use crate::bench_target::BenchTarget;
use crate::error::{Result, SettingsError, proceed};
use crate::stats::{Samples, median};

/// Requests in flight while measuring bandwidth.
const DEPTH: u64 = 16;
/// Turns of each path. Three paths have six orders, and each order occurs four times.
const TURNS: u32 = 24;
/// How long each figure is measured in one turn, unless a single request takes longer. Turns are short because machines
/// change their speed within a tenth of a second.
const DURATION: Duration = Duration::from_millis(11);
/// Rounds before the measured ones of a turn, unless they take longer than it.
const WARM_UP: u32 = 20;
/// Bytes of a piece that the GPU copies to or from a staging buffer: long enough to hide the fixed cost of a copy.
const STAGED_PIECE: u64 = 1 << 20;
/// Maximum number of pieces in flight; a queue pair accepts more.
const MOST_PIECES: usize = 64;
/// Number of bytes to compare at the beginning and at the end.
const COMPARED: u64 = 1 << 20;

/// Progress of a sweep.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SweepEvent<'a> {
    /// The paths are set up; there are no rows yet.
    Ready(&'a Sweep),
    /// One operation and size was measured on every path.
    Measured(&'a [Row]),
}

/// Host memory at the requesting end, which all paths share.
struct Host {
    domain: ProtectionDomain,
    source: MemoryRegion,
    sink: MemoryRegion,
}

/// Measures transfers between `from`, which has host memory, and `to`, which has host and GPU memory, both in this
/// process.
///
/// # Errors
/// The errors of the setup; [`Error::Transfer`](crate::Error::Transfer) for a request that fails or
/// misses its deadline; [`Error::WrongData`](crate::Error::WrongData) for bytes that did not arrive;
/// [`Error::Stopped`](crate::Error::Stopped) if `observe` breaks.
pub fn sweep(
    target: &BenchTarget,
    from: &Device,
    to: &Device,
    settings: &SweepSettings,
    observe: &mut dyn FnMut(SweepEvent<'_>) -> ControlFlow<()>,
) -> Result<Sweep> {
    settings.check()?;
    let mtu = mutual_mtu(from, to)?;
    let bytes = usize::try_from(settings.largest).map_err(|_| SettingsError::TooLarge {
        bytes: settings.largest,
    })?;
    let domain = from.protection_domain();
    let host = Host {
        source: domain.register(&Buffer::host(bytes)?, Access::empty())?,
        sink: domain.register(&Buffer::host(bytes)?, Access::LOCAL_WRITE)?,
        domain,
    };
    let built = path::build(target, &host.domain, to, mtu, settings)?;
    let mut sweep = Sweep::new(
        built.subject,
        settings.destination.memory.function(),
        Path::new(End::of(from), End::of(to), mtu, settings.largest),
        built.direct_missing,
        built.long_reads_from,
    );
    proceed(observe(SweepEvent::Ready(&sweep)))?;
    for operation in [Operation::Write, Operation::Read] {
        for size in settings.sizes() {
            let rows = measure(&host, &built.here, &built.paths, operation, size, settings)?;
            proceed(observe(SweepEvent::Measured(&rows)))?;
            sweep.direct_to_staged.extend(DirectRatio::of(&rows));
            sweep.rows.extend(rows);
        }
    }
    Ok(sweep)
}

/// What was measured on one path.
struct Figures {
    latency: Samples,
    /// Bandwidth of each turn, in bytes per nanosecond.
    rates: Vec<f64>,
}

impl Figures {
    fn new() -> Result<Self> {
        Ok(Self {
            latency: Samples::new()?,
            rates: Vec::with_capacity(TURNS as usize),
        })
    }
}

/// Measures the paths in turn.
fn measure(
    host: &Host,
    here: &Connection,
    paths: &[MemoryPath],
    operation: Operation,
    size: u64,
    settings: &SweepSettings,
) -> Result<Vec<Row>> {
    let mut runs = Vec::with_capacity(paths.len());
    for path in paths {
        let run = Run {
            host,
            here,
            path,
            operation,
            size,
            limit: settings.limit(size),
        };
        runs.push((run, Figures::new()?));
    }
    for turn in 1..=TURNS {
        // Rounds in all turns so far.
        let rounds = u64::from(settings.rounds) * u64::from(turn) / u64::from(TURNS);
        let (before, first) = runs.split_at_mut(turn as usize % paths.len());
        let mut order: Vec<_> = first.iter_mut().chain(before).collect();
        if turn.is_multiple_of(2) {
            // The path after one without the GPU finds the GPU idle.
            order.reverse();
        }
        for (run, figures) in order {
            run.latency(rounds, &mut figures.latency)?;
            if size <= MESSAGE {
                figures.rates.push(run.bandwidth()?);
            }
        }
    }
    let rows = runs.into_iter().map(|(run, mut figures)| {
        run.compare()?;
        let latency = figures.latency.summary()?;
        let gb_per_s = match size <= MESSAGE {
            true => median(&mut figures.rates).unwrap_or_default(),
            false => size as f64 / latency.median_ns.max(1.0),
        };
        Ok(Row {
            operation,
            size,
            kind: run.path.kind,
            latency,
            gb_per_s,
        })
    });
    rows.collect()
}

fn pattern(seed: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    super::compare::fill(&mut bytes, seed, offset / 4);
    bytes
}

/// The measurement of one row.
struct Run<'a> {
    host: &'a Host,
    here: &'a Connection,
    path: &'a MemoryPath,
    operation: Operation,
    size: u64,
    limit: Duration,
}

impl Run<'_> {
    /// Measures one request at a time, from post to completion, until there are `rounds` of them.
    fn latency(&self, rounds: u64, samples: &mut Samples) -> Result<()> {
        let start = Instant::now();
        for _ in 0..WARM_UP {
            self.round()?;
            if start.elapsed() > DURATION {
                break;
            }
        }
        let before = samples.len();
        let start = Instant::now();
        while samples.len() < rounds && (samples.len() == before || start.elapsed() < DURATION) {
            let posted = Instant::now();
            self.round()?;
            samples.record(posted.elapsed().as_nanos() as f64);
        }
        Ok(())
    }

    /// Makes one request with a pattern of its own, and compares what arrived.
    fn compare(&self) -> Result<()> {
        let Self {
            host,
            path,
            operation,
            size,
            ..
        } = self;
        // A different seed for each row, so that leftover bytes do not pass.
        let seed = (*size as u32) ^ ((*operation as u32) << 8) ^ ((path.kind as u32) << 16);
        let ends = [0, size.saturating_sub(COMPARED)].map(|at| (at, COMPARED.min(*size)));
        for (offset, len) in ends {
            let bytes = pattern(seed, offset, len);
            match operation {
                Operation::Write => host.source.buffer().write_at(offset, &bytes)?,
                Operation::Read => path.memory.write(offset, &bytes)?,
            }
        }
        self.round()?;
        for (offset, len) in ends {
            let mut found = vec![0; len as usize];
            match operation {
                Operation::Write => path.memory.read(offset, &mut found)?,
                Operation::Read => host.sink.buffer().read_at(offset, &mut found)?,
            }
            let what = format!("{operation} of {size} bytes, {}", path.kind);
            crate::error::compare(&what, &pattern(seed, offset, len), &found)?;
        }
        Ok(())
    }

    /// Executes one request. With a staging buffer, the GPU copies one piece while others are in flight.
    fn round(&self) -> Result<()> {
        let piece = match self.path.stage {
            Some(_) => STAGED_PIECE,
            None => MESSAGE,
        };
        let deadline = Instant::now() + self.limit;
        let mut in_flight = VecDeque::new();
        for (offset, len) in pieces(self.size, piece) {
            if in_flight.len() == MOST_PIECES {
                self.end(&mut in_flight, deadline)?;
            }
            self.post(offset, len)?;
            in_flight.push_back((offset, len));
        }
        while !in_flight.is_empty() {
            self.end(&mut in_flight, deadline)?;
        }
        self.path.stage.as_ref().map_or(Ok(()), StagingBuffer::wait)
    }

    /// Waits for the first piece in flight.
    fn end(&self, in_flight: &mut VecDeque<(u64, u64)>, deadline: Instant) -> Result<()> {
        self.done(deadline)?;
        match in_flight.pop_front() {
            Some((offset, len)) => self.arrived(offset, len),
            None => Ok(()),
        }
    }

    /// Starts the copy of bytes that a WRITE brought to the staging buffer.
    fn arrived(&self, offset: u64, len: u64) -> Result<()> {
        match (&self.path.stage, self.operation) {
            (Some(stage), Operation::Write) => stage.begin_in(offset, len),
            _ => Ok(()),
        }
    }

    /// Measures several requests in flight; returns bytes per nanosecond.
    fn bandwidth(&self) -> Result<f64> {
        for _ in 0..DEPTH {
            self.post(0, self.size)?;
        }
        let start = Instant::now();
        let mut completed = 0_u64;
        let mut elapsed = Duration::ZERO;
        while elapsed < DURATION || completed < DEPTH {
            self.done(Instant::now() + self.limit)?;
            completed += 1;
            if let Some(stage) = &self.path.stage {
                // The next request reuses these bytes of the staging buffer.
                self.arrived(0, self.size)?;
                stage.wait()?;
            }
            self.post(0, self.size)?;
            elapsed = start.elapsed();
        }
        for _ in 0..DEPTH {
            self.done(Instant::now() + self.limit)?;
            self.arrived(0, self.size)?;
        }
        self.path
            .stage
            .as_ref()
            .map_or(Ok(()), StagingBuffer::wait)?;
        Ok((completed * self.size) as f64 / elapsed.as_nanos() as f64)
    }

    fn post(&self, offset: u64, len: u64) -> Result<()> {
        if let (Some(stage), Operation::Read) = (&self.path.stage, self.operation) {
            stage.begin_out(offset, len)?;
            stage.wait()?;
        }
        let Host { source, sink, .. } = self.host;
        let here = self.here;
        self.path
            .post(here, self.operation, source, sink, offset, len)
    }

    fn done(&self, deadline: Instant) -> Result<()> {
        let what = (self.operation.name(), self.size);
        self.here.spin(deadline, self.limit, what)
    }
}
