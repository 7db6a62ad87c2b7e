//! How fast RDMA into GPU memory and out of it is, by size: direct against staged.
//!
//! The same bytes take the same way three times: into host memory, which shows what the network
//! stack costs by itself, into GPU memory directly, and staged. With a device of the kernel, staged
//! means that the program has the GPU copy between its memory and page-locked host memory, after
//! WRITEs and before READs. For each size:
//!
//! - *latency*: one request at a time, from its post to its completion, polled as `ib_write_lat`
//!   and its kin do;
//! - *bandwidth*: [`DEPTH`] requests in flight. Requests longer than a message of the proof are
//!   several messages, in flight together: there one figure follows from the other.
//!
//! After each of them the first and the last MiB are compared with what was sent: figures of bytes
//! that did not arrive are an error.

mod lane;
mod report;

use std::collections::VecDeque;
use std::hint;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use gdr_cuda::MemoryKind;
use gdr_rdma::{Access, Buffer, Device, MemoryRegion, ProtectionDomain};

use lane::Lane;
pub use report::{Operation, Row, Sweep, Way};

use super::Place;
use super::compare::pieces;
use super::link::MESSAGE;
use super::report::{End, Path};
use super::settings::Reach;
use super::stage::Stage;
use crate::error::{Error, Result};
use crate::stats::Samples;

/// Requests in flight where bandwidth is measured.
const DEPTH: u64 = 16;
/// How long each figure is measured, where its requests are not longer.
const DURATION: Duration = Duration::from_millis(250);
/// Latencies are of this many rounds at least.
const LEAST: u64 = 5;
/// Rounds before those that count.
const WARM_UP: u32 = 20;
/// Bytes of a piece where the GPU copies to and from a stage: long enough that a copy's fixed cost
/// is small beside it.
const STAGED_PIECE: u64 = 1 << 20;
/// Pieces on their way at a time: what a queue pair takes is more.
const MOST_PIECES: usize = 64;
/// Bytes that are compared, at either end of what was sent.
const COMPARED: u64 = 1 << 20;
/// Polls for nothing between two looks at the clock.
const POLLS: u32 = 64;
/// The smallest size, and the ratio between two sizes.
const SMALLEST: u64 = 4;
const RATIO: u64 = 4;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct SweepSettings {
    /// The largest size, 1 GiB at most; the smallest is 4 bytes, each four times the one before.
    pub largest: u64,
    /// The most rounds that a latency is taken from.
    pub rounds: u32,
    /// How GPU memory is allocated.
    pub memory: MemoryKind,
    /// Which ways are compared: with `Auto` both, direct where the memory can be mapped.
    pub reach: Reach,
    /// How long one round may take, and a second more for each 64 MiB.
    pub timeout: Duration,
}

impl Default for SweepSettings {
    fn default() -> Self {
        Self {
            largest: 64 << 20,
            rounds: 2000,
            memory: MemoryKind::Plain,
            reach: Reach::Auto,
            timeout: Duration::from_secs(10),
        }
    }
}

impl SweepSettings {
    /// From the smallest to the largest.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let largest = self.largest;
        std::iter::successors(Some(SMALLEST), |size| size.checked_mul(RATIO))
            .take_while(move |size| *size <= largest)
    }

    fn limit(&self, size: u64) -> Duration {
        let settings = super::Settings {
            size,
            timeout: self.timeout,
            ..super::Settings::default()
        };
        settings.limit()
    }

    fn check(&self) -> Result<()> {
        let settings = super::Settings {
            size: self.largest,
            iterations: self.rounds,
            timeout: self.timeout,
            ..super::Settings::default()
        };
        settings.check()
    }
}

/// What happens during a sweep.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SweepEvent<'a> {
    /// What is measured is settled; there are no rows yet.
    Ready(&'a Sweep),
    /// One operation and size was measured, by each way.
    Measured(&'a [Row]),
}

/// Host memory at the end that asks, shared by all lanes.
struct Host {
    domain: ProtectionDomain,
    source: MemoryRegion,
    sink: MemoryRegion,
}

/// Measures between `from`, whose memory is the host's, and `to`, behind which are host and GPU
/// memory, both in this process.
///
/// # Errors
/// What stands against beginning; a request that fails or does not end in time
/// ([`Error::Transfer`]); bytes that did not arrive ([`Error::WrongData`]); [`Error::Stopped`] when
/// `observe` breaks.
pub fn sweep(
    place: &Place,
    from: &Device,
    to: &Device,
    settings: &SweepSettings,
    observe: &mut dyn FnMut(SweepEvent<'_>) -> ControlFlow<()>,
) -> Result<Sweep> {
    settings.check()?;
    let mtu = super::mutual_mtu(from, to)?;
    let bytes = usize::try_from(settings.largest)
        .map_err(|_| Error::Settings("too large for this process; give less".into()))?;
    let domain = from.protection_domain();
    let host = Host {
        source: domain.register(&Buffer::host(bytes)?, Access::empty())?,
        sink: domain.register(&Buffer::host(bytes)?, Access::LOCAL_WRITE)?,
        domain,
    };
    let built = lane::build(place, &host.domain, to, mtu, settings)?;
    let mut sweep = Sweep::new(
        built.subject,
        settings.memory.function(),
        Path::new(End::of(from), End::of(to), mtu, settings.largest),
        built.direct_missing,
        built.long_reads_from,
    );
    let mut tell = |event: SweepEvent<'_>| match observe(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Stopped),
    };
    tell(SweepEvent::Ready(&sweep))?;
    for operation in [Operation::Write, Operation::Read] {
        for size in settings.sizes() {
            let begin = sweep.rows.len();
            for lane in &built.lanes {
                let row = measure(&host, lane, operation, size, settings)?;
                sweep.rows.push(row);
            }
            tell(SweepEvent::Measured(&sweep.rows[begin..]))?;
        }
    }
    Ok(sweep)
}

fn measure(
    host: &Host,
    lane: &Lane,
    operation: Operation,
    size: u64,
    settings: &SweepSettings,
) -> Result<Row> {
    // A pattern of its own, so that nothing left over passes for what was sent.
    let seed = (size as u32) ^ ((operation as u32) << 8) ^ ((lane.way as u32) << 16);
    let ends = [0, size.saturating_sub(COMPARED)].map(|at| (at, size.min(COMPARED)));
    for (offset, len) in ends {
        let bytes = pattern(seed, offset, len);
        match operation {
            Operation::Write => host.source.buffer().copy_in(offset, &bytes)?,
            Operation::Read => lane.target.write(offset, &bytes)?,
        }
    }
    let run = Run {
        host,
        lane,
        operation,
        size,
        limit: settings.limit(size),
    };
    let latency = run.latency(settings.rounds)?.summary()?;
    let gb_per_s = if size > MESSAGE {
        size as f64 / latency.median_ns.max(1.0)
    } else {
        run.bandwidth()?
    };
    for (offset, len) in ends {
        let mut found = vec![0; len as usize];
        match operation {
            Operation::Write => lane.target.read(offset, &mut found)?,
            Operation::Read => host.sink.buffer().copy_out(offset, &mut found)?,
        }
        let what = format!("{operation} of {size} bytes, {}", lane.way);
        crate::error::compare(&what, &pattern(seed, offset, len), &found)?;
    }
    Ok(Row {
        operation,
        size,
        way: lane.way,
        latency,
        gb_per_s,
    })
}

fn pattern(seed: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    super::compare::fill(&mut bytes, seed, offset / 4);
    bytes
}

/// One figure's way and size.
struct Run<'a> {
    host: &'a Host,
    lane: &'a Lane,
    operation: Operation,
    size: u64,
    limit: Duration,
}

impl Run<'_> {
    /// One request at a time, each from its post to its completion.
    fn latency(&self, rounds: u32) -> Result<Samples> {
        let start = Instant::now();
        for _ in 0..WARM_UP {
            self.round()?;
            if start.elapsed() > DURATION {
                break;
            }
        }
        let mut samples = Samples::new()?;
        let start = Instant::now();
        while samples.len() < u64::from(rounds)
            && (samples.len() < LEAST || start.elapsed() < DURATION)
        {
            let before = Instant::now();
            self.round()?;
            samples.record(before.elapsed().as_nanos() as f64);
        }
        Ok(samples)
    }

    /// Where a device moves bytes to and from a stage, the GPU copies one piece while others are
    /// on their way.
    fn round(&self) -> Result<()> {
        let piece = match self.lane.stage {
            Some(_) => STAGED_PIECE,
            None => MESSAGE,
        };
        let deadline = Instant::now() + self.limit;
        let mut on_their_way = VecDeque::new();
        for (offset, len) in pieces(self.size, piece) {
            if on_their_way.len() == MOST_PIECES {
                self.end(&mut on_their_way, deadline)?;
            }
            self.post(offset, len)?;
            on_their_way.push_back((offset, len));
        }
        while !on_their_way.is_empty() {
            self.end(&mut on_their_way, deadline)?;
        }
        self.lane.stage.as_ref().map_or(Ok(()), Stage::wait)
    }

    /// Waits for the end of the first of these.
    fn end(&self, on_their_way: &mut VecDeque<(u64, u64)>, deadline: Instant) -> Result<()> {
        self.done(deadline)?;
        match on_their_way.pop_front() {
            Some((offset, len)) => self.arrived(offset, len),
            None => Ok(()),
        }
    }

    /// Begins to copy what a WRITE brought to a stage.
    fn arrived(&self, offset: u64, len: u64) -> Result<()> {
        match (&self.lane.stage, self.operation) {
            (Some(stage), Operation::Write) => stage.begin_in(offset, len),
            _ => Ok(()),
        }
    }

    /// Several requests in flight: bytes a nanosecond.
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
            if let Some(stage) = &self.lane.stage {
                // The next request uses the same bytes of the stage.
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
        self.lane.stage.as_ref().map_or(Ok(()), Stage::wait)?;
        Ok((completed * self.size) as f64 / elapsed.as_nanos().max(1) as f64)
    }

    fn post(&self, offset: u64, len: u64) -> Result<()> {
        if let (Some(stage), Operation::Read) = (&self.lane.stage, self.operation) {
            stage.begin_out(offset, len)?;
            stage.wait()?;
        }
        let Host { source, sink, .. } = self.host;
        self.lane.post(self.operation, source, sink, offset, len)
    }

    /// The next completion, awake: perftest waits so, too.
    fn done(&self, deadline: Instant) -> Result<()> {
        let mut polls = 0_u32;
        loop {
            if let Some(completion) = self.lane.here.poll()? {
                return super::link::success(&completion, self.operation.name());
            }
            polls += 1;
            if !polls.is_multiple_of(POLLS) {
                hint::spin_loop();
                continue;
            }
            if Instant::now() >= deadline {
                return Err(Error::Transfer {
                    what: format!("{} of {} bytes", self.operation, self.size),
                    why: format!("did not complete within {:?}", self.limit),
                    remedy: "give a longer --timeout".into(),
                });
            }
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_from_4_bytes_to_the_largest() {
        let sizes = |largest| {
            let settings = SweepSettings {
                largest,
                ..SweepSettings::default()
            };
            settings.sizes().collect::<Vec<_>>()
        };
        assert_eq!(sizes(100), [4, 16, 64]);
        assert_eq!(sizes(1 << 30).last(), Some(&(1 << 30)));
    }
}
