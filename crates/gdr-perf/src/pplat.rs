//! Round trips between the CPU and a running kernel (`gdrcopy_pplat`).

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use gdr_cuda::Direction;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::rally::{Court, Place, Rally};
use crate::report::{Schema, Subject};
use crate::site::Site;
use crate::stats::{Samples, Summary};
use crate::target::Memory;
use crate::timer::{Batches, nanoseconds};

/// Rounds before the measured ones: the kernel starts during them.
const WARM_UP: u32 = 10;
/// How long the kernel may take to end after its last answer.
const END_LIMIT: Duration = Duration::from_secs(10);
/// The most threads a block can have on any GPU that there is.
const MOST_THREADS: u32 = 1024;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Round trips; rounded up to a multiple of 100 above that.
    pub iterations: u32,
    /// How long one answer may take; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// How to allocate and map GPU memory.
    pub memory: Memory,
    /// Bytes of payload a round, a multiple of 4; 0 for the flag alone.
    pub payload: u64,
    /// Who fills the payload.
    pub direction: Direction,
    /// Blocks of the kernel; 1 without payload.
    pub blocks: u32,
    /// Threads of each block; 1 without payload.
    pub threads: u32,
    /// Where the flag is that the CPU writes and the GPU polls.
    pub gpu_flag: Place,
    /// Where the flag is that the GPU writes and the CPU polls.
    pub cpu_flag: Place,
    /// Where the payload is.
    pub data: Place,
}

impl Default for Settings {
    /// Those of `gdrcopy_pplat`.
    fn default() -> Self {
        Self {
            iterations: 1000,
            timeout: Some(Duration::from_secs(10)),
            memory: Memory::default(),
            payload: 0,
            direction: Direction::CpuToGpu,
            blocks: 8,
            threads: 1024,
            gpu_flag: Place::Gpu,
            cpu_flag: Place::Host,
            data: Place::Gpu,
        }
    }
}

/// What happens during a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A round was answered.
    Answered {
        /// Rounds so far, the warm-up included.
        round: u32,
        /// Rounds in all.
        rounds: u32,
    },
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.pplat`.
    #[serde(flatten)]
    pub schema: Schema,
    /// On what.
    #[serde(flatten)]
    pub subject: Subject,
    /// Round trips.
    pub iterations: u32,
    /// Bytes of payload a round.
    pub payload: u64,
    /// `cpu-to-gpu` or `gpu-to-cpu`: who fills the payload.
    pub direction: &'static str,
    /// Blocks of the kernel.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
    /// Where the flag is that the CPU writes.
    pub gpu_flag: Place,
    /// Where the flag is that the GPU writes.
    pub cpu_flag: Place,
    /// Where the payload is.
    pub data: Place,
    /// Means of batches, as `gdrcopy_pplat` gives them.
    pub batch: Summary,
    /// Round trips behind each sample of `batch`.
    pub rounds_per_batch: u32,
    /// Single round trips, each with two looks at the clock in it (20 to 50 ns together).
    pub round: Summary,
}

/// Measures, with the CPU's clock: from before the payload (or the flag) is written to after the
/// answer (and the payload) is read.
///
/// # Errors
/// [`Error::Settings`], [`Error::NoAnswer`], [`Error::OutOfOrder`], [`Error::Stopped`], and those
/// of the layers below. The kernel is ended in any case.
pub fn run(
    site: &Site,
    settings: &Settings,
    observe: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Report> {
    let settings = checked(settings)?;
    let batches = Batches::of(settings.iterations);
    let iterations = batches.iterations();
    let rounds = iterations
        .checked_add(WARM_UP)
        .ok_or_else(|| Error::Settings(format!("{iterations} round trips are too many")))?;
    let scratch = site.gpu().allocate(settings.memory.kind, 4)?;
    let subject = Subject::new(site, Some(&site.pin(scratch.ptr(), 4)?));
    drop(scratch);

    let rally = Rally::start(
        site,
        Court {
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
        let ns = play(&rally, &settings, round, &mut payload, &mut stale)?;
        if round > WARM_UP {
            single.record(ns);
            in_batch += ns;
            if (round - WARM_UP).is_multiple_of(batches.per_sample()) {
                batch.record(in_batch / f64::from(batches.per_sample()));
                in_batch = 0.0;
            }
        }
        // Between rounds, where it costs none of them.
        let told = observe(Event::Answered { round, rounds });
        if told.is_break() {
            return Err(Error::Stopped);
        }
    }
    let mismatches = rally.finish(END_LIMIT)? + stale;
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

/// One round trip: its duration, nanoseconds. Making and checking the payload is not in it.
fn play(
    rally: &Rally,
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
            rally.write_payload(payload)?;
            rally.ping(round)?;
            rally.await_answer(round, settings.timeout)?;
            Ok(nanoseconds(start))
        }
        Direction::GpuToCpu => {
            let start = Instant::now();
            rally.ping(round)?;
            rally.await_answer(round, settings.timeout)?;
            rally.read_payload(payload)?;
            let ns = nanoseconds(start);
            *stale += payload
                .chunks_exact(4)
                .filter(|chunk| **chunk != word)
                .count() as u64;
            Ok(ns)
        }
    }
}

/// The settings that will be used, or what is wrong with them.
fn checked(settings: &Settings) -> Result<Settings> {
    let wrong = |what: &str| Err(Error::Settings(what.to_owned()));
    if !settings.payload.is_multiple_of(4) {
        return wrong("the data size must be divisible by 4");
    }
    if settings.blocks == 0 {
        return wrong("there must be 1 block at least");
    }
    if settings.threads == 0 || settings.threads > MOST_THREADS {
        return wrong("a block has 1 to 1024 threads");
    }
    let mut settings = *settings;
    if settings.payload == 0 {
        (settings.blocks, settings.threads) = (1, 1);
    }
    Ok(settings)
}
