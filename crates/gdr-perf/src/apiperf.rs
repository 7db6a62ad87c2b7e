//! Cost of pinning, mapping, unmapping and unpinning (`gdrcopy_apiperf`).

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

use gdr_cuda::DeviceBuffer;
use serde::Serialize;

use crate::bench_target::BenchTarget;
use crate::error::{Result, proceed};
use crate::mapped_buffer::{BufferOptions, GPU_PAGE, whole_pages};
use crate::report::{Schema, Subject};
use crate::sizes::powers_of_two;
use crate::stats::{Bin, Samples, Summary, histogram};
use crate::timer::nanoseconds;

/// Bins of the histogram of pinning times.
const BINS: usize = 10;
/// Calls in each sample of [`Row::get_info`], because a single call is shorter than reading the clock.
const INFO_BATCH: u32 = 100;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Largest size in bytes, rounded up to whole GPU pages.
    pub largest: u64,
    /// How to allocate and map the buffer.
    pub memory: BufferOptions,
    /// Rounds of each size.
    pub iterations: u32,
    /// Rounds to run before the measured ones.
    pub warm_up: u32,
}

impl Default for Settings {
    /// Returns the defaults of `gdrcopy_apiperf`.
    fn default() -> Self {
        Self {
            largest: 16 << 20,
            memory: BufferOptions::default(),
            iterations: 100,
            warm_up: 10,
        }
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The buffer is allocated.
    Allocated {
        /// Its device address.
        device_ptr: u64,
        /// Its length.
        bytes: u64,
    },
    /// A size was measured.
    Measured(&'a Row),
}

/// The durations for one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Bytes.
    pub size: u64,
    /// [`gdr_copy::Context::pin`].
    pub pin: Summary,
    /// [`gdr_copy::Pinned::map`].
    pub map: Summary,
    /// [`gdr_copy::Pinned::info`]. Each sample is the mean of 100 calls.
    pub get_info: Summary,
    /// Dropping the mapping.
    pub unmap: Summary,
    /// Dropping the pin.
    pub unpin: Summary,
    /// All but `get_info`, together.
    pub round: Summary,
    /// Distribution of pinning times, in ten bins of equal width.
    pub pin_histogram: Vec<Bin>,
}

/// Result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.apiperf`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The machine.
    #[serde(flatten)]
    pub subject: Subject,
    /// Each size.
    pub rows: Vec<Row>,
}

/// Measures the durations of the calls.
///
/// # Errors
/// [`crate::Error::Stopped`] and the errors of the layers below.
pub fn run(
    target: &BenchTarget,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let bytes = whole_pages(settings.largest)?;
    let buffer = target.gpu().allocate(settings.memory.kind, bytes)?;
    proceed(observe(Event::Allocated {
        device_ptr: buffer.ptr().get(),
        bytes,
    }))?;
    let subject = Subject::new(target, Some(&target.pin(buffer.ptr(), GPU_PAGE)?));
    let mut rows = Vec::new();
    for size in powers_of_two(GPU_PAGE, bytes) {
        let row = measure(target, settings, &buffer, size)?;
        proceed(observe(Event::Measured(&row)))?;
        rows.push(row);
    }
    Ok(Report {
        schema: Schema::first("gdr.apiperf"),
        subject,
        rows,
    })
}

/// Durations of one round, in nanoseconds.
#[derive(Clone, Copy)]
struct Round {
    pin: f64,
    map: f64,
    get_info: f64,
    unmap: f64,
    unpin: f64,
}

fn measure(
    target: &BenchTarget,
    settings: &Settings,
    buffer: &DeviceBuffer,
    size: u64,
) -> Result<Row> {
    for _ in 0..settings.warm_up {
        round(target, settings, buffer, size)?;
    }
    let rounds = (0..settings.iterations)
        .map(|_| round(target, settings, buffer, size))
        .collect::<Result<Vec<Round>>>()?;
    let summary = |part: fn(&Round) -> f64| -> Result<Summary> {
        let mut samples = Samples::new()?;
        rounds.iter().for_each(|round| samples.record(part(round)));
        samples.summary()
    };
    let pins: Vec<f64> = rounds.iter().map(|round| round.pin).collect();
    Ok(Row {
        size,
        pin: summary(|round| round.pin)?,
        map: summary(|round| round.map)?,
        get_info: summary(|round| round.get_info)?,
        unmap: summary(|round| round.unmap)?,
        unpin: summary(|round| round.unpin)?,
        round: summary(|round| round.pin + round.map + round.unmap + round.unpin)?,
        pin_histogram: histogram(&pins, BINS),
    })
}

fn round(
    target: &BenchTarget,
    settings: &Settings,
    buffer: &DeviceBuffer,
    size: u64,
) -> Result<Round> {
    let (pinned, pin) = timed(|| target.pin(buffer.ptr(), size));
    let pinned = pinned?;
    let (mapping, map) = timed(|| pinned.map_with(settings.memory.mapping));
    let mapping = mapping?;
    let ((), all_calls) = timed(|| {
        for _ in 0..INFO_BATCH {
            black_box(black_box(&pinned).info());
        }
    });
    let ((), unmap) = timed(|| drop(mapping));
    let ((), unpin) = timed(|| drop(pinned));
    Ok(Round {
        pin,
        map,
        get_info: all_calls / f64::from(INFO_BATCH),
        unmap,
        unpin,
    })
}

/// Calls `call`; returns its result and its duration in nanoseconds.
fn timed<T>(call: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let returned = call();
    (returned, nanoseconds(start))
}
