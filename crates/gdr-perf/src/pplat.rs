//! Round trips between the CPU and a running kernel (`gdrcopy_pplat`).

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use gdr_cuda::Direction;
use serde::Serialize;

use crate::bench_target::BenchTarget;
use crate::error::{Error, Result, SettingsError};
use crate::mapped_buffer::BufferOptions;
use crate::ping_pong::{Layout, MemoryLocation, PingPong};
use crate::report::{Schema, Subject};
use crate::stats::{Samples, Summary};
use crate::timer::{Batches, nanoseconds};

/// Rounds before the measured ones, during which the kernel starts.
const WARM_UP: u32 = 10;
/// How long the kernel may take to end after its last answer.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of threads per block on any GPU.
const MOST_THREADS: u32 = 1024;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of round trips; above 100, rounded up to a multiple of 100.
    pub iterations: u32,
    /// The deadline of one answer; `None` waits forever.
    pub timeout: Option<Duration>,
    /// How to allocate and map GPU memory.
    pub memory: BufferOptions,
    /// Bytes of payload per round, a multiple of 4; 0 for the flag alone.
    pub payload: u64,
    /// Which side fills the payload.
    pub direction: Direction,
    /// Kernel blocks; 1 without payload.
    pub blocks: u32,
    /// Threads of each block; 1 without payload.
    pub threads: u32,
    /// The memory of the flag that the CPU writes and the GPU polls.
    pub gpu_flag: MemoryLocation,
    /// The memory of the flag that the GPU writes and the CPU polls.
    pub cpu_flag: MemoryLocation,
    /// The memory of the payload.
    pub data: MemoryLocation,
}

impl Default for Settings {
    /// Returns the defaults of `gdrcopy_pplat`.
    fn default() -> Self {
        Self {
            iterations: 1000,
            timeout: Some(Duration::from_secs(10)),
            memory: BufferOptions::default(),
            payload: 0,
            direction: Direction::CpuToGpu,
            blocks: 8,
            threads: 1024,
            gpu_flag: MemoryLocation::Gpu,
            cpu_flag: MemoryLocation::Host,
            data: MemoryLocation::Gpu,
        }
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A round was answered.
    Answered {
        /// Rounds so far, including the warm-up.
        round: u32,
        /// All rounds.
        rounds: u32,
    },
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.pplat`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The machine.
    #[serde(flatten)]
    pub subject: Subject,
    /// Round trips.
    pub iterations: u32,
    /// Bytes of payload per round.
    pub payload: u64,
    /// `cpu-to-gpu` or `gpu-to-cpu`: the direction in which the payload goes.
    pub direction: &'static str,
    /// Kernel blocks.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
    /// The memory of the flag that the CPU writes.
    pub gpu_flag: MemoryLocation,
    /// The memory of the flag that the GPU writes.
    pub cpu_flag: MemoryLocation,
    /// The memory of the payload.
    pub data: MemoryLocation,
    /// Means of batches, as `gdrcopy_pplat` reports them.
    pub batch: Summary,
    /// Round trips in each sample of `batch`.
    pub rounds_per_batch: u32,
    /// Single round trips. Each includes two readings of the clock (20 to 50 ns together).
    pub round: Summary,
}

/// Measures round trips with the CPU's clock, from before the payload (or the flag) is written until the answer (and
/// the payload) is read.
///
/// # Errors
/// [`Error::Settings`], [`Error::NoAnswer`], [`Error::OutOfOrder`], [`Error::Stopped`], and the
/// errors of the layers below. The kernel is stopped in every case.
pub fn run(
    target: &BenchTarget,
    settings: &Settings,
    observe: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Report> {
    let settings = checked(settings)?;
    let batches = Batches::of(settings.iterations);
    let iterations = batches.iterations();
    let rounds = iterations
        .checked_add(WARM_UP)
        .ok_or(SettingsError::Rounds(iterations))?;
    let scratch = target.gpu().allocate(settings.memory.kind, 4)?;
    let subject = Subject::new(target, Some(&target.pin(scratch.ptr(), 4)?));
    drop(scratch);

    let ping_pong = PingPong::start(
        target,
        Layout {
            rounds,
            ping: settings.gpu_flag,
            pong: settings.cpu_flag,
            data: settings.data,
            data_words: settings.payload / 4,
            direction: settings.direction,
            blocks: settings.blocks,
            threads: settings.threads,
            kind: settings.memory.kind,
            mapping: settings.memory.mapping,
        },
    )?;
    let (mut batch, mut single) = (Samples::new()?, Samples::new()?);
    let mut payload = vec![0; settings.payload as usize];
    let mut in_batch = 0.0;
    let mut stale = 0;
    for round in 1..=rounds {
        let ns = play(&ping_pong, &settings, round, &mut payload, &mut stale)?;
        if round > WARM_UP {
            single.record(ns);
            in_batch += ns;
            if (round - WARM_UP).is_multiple_of(batches.per_sample()) {
                batch.record(in_batch / f64::from(batches.per_sample()));
                in_batch = 0.0;
            }
        }
        // Called between rounds, so that it does not add to their time.
        let flow = observe(Event::Answered { round, rounds });
        if flow.is_break() {
            return Err(Error::Stopped);
        }
    }
    let mismatches = ping_pong.finish(END_LIMIT)? + stale;
    if mismatches > 0 {
        return Err(Error::OutOfOrder { mismatches });
    }
    Ok(Report {
        schema: Schema::first("gdr.pplat"),
        subject,
        iterations,
        payload: settings.payload,
        direction: match settings.direction {
            Direction::CpuToGpu => "cpu-to-gpu",
            Direction::GpuToCpu => "gpu-to-cpu",
        },
        blocks: settings.blocks,
        threads: settings.threads,
        gpu_flag: settings.gpu_flag,
        cpu_flag: settings.cpu_flag,
        data: settings.data,
        batch: batch.summary()?,
        rounds_per_batch: batches.per_sample(),
        round: single.summary()?,
    })
}

/// Runs one round trip; returns its duration in nanoseconds, excluding the time to fill and check the payload.
fn play(
    ping_pong: &PingPong,
    settings: &Settings,
    round: u32,
    payload: &mut [u8],
    stale: &mut u64,
) -> Result<f64> {
    let word = round.to_le_bytes();
    match settings.direction {
        Direction::CpuToGpu => {
            payload
                .chunks_exact_mut(4)
                .for_each(|chunk| chunk.copy_from_slice(&word));
            let start = Instant::now();
            ping_pong.write_payload(payload)?;
            ping_pong.ping(round)?;
            ping_pong.await_answer(round, settings.timeout)?;
            Ok(nanoseconds(start))
        }
        Direction::GpuToCpu => {
            let start = Instant::now();
            ping_pong.ping(round)?;
            ping_pong.await_answer(round, settings.timeout)?;
            ping_pong.read_payload(payload)?;
            let ns = nanoseconds(start);
            *stale += payload
                .chunks_exact(4)
                .filter(|chunk| **chunk != word)
                .count() as u64;
            Ok(ns)
        }
    }
}

/// Checks the settings, and returns those that are used.
fn checked(settings: &Settings) -> Result<Settings, SettingsError> {
    if !settings.payload.is_multiple_of(4) {
        return Err(SettingsError::Payload);
    }
    if settings.blocks == 0 {
        return Err(SettingsError::NoBlocks);
    }
    if settings.threads == 0 || settings.threads > MOST_THREADS {
        return Err(SettingsError::Threads);
    }
    let mut settings = *settings;
    if settings.payload == 0 {
        (settings.blocks, settings.threads) = (1, 1);
    }
    Ok(settings)
}
