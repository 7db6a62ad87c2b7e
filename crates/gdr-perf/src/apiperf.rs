//! What pinning, mapping and undoing both cost (`gdrcopy_apiperf`).

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

use gdr_cuda::DeviceBuffer;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::report::{Schema, Subject};
use crate::site::Site;
use crate::sizes::powers_of_two;
use crate::stats::{Bin, Samples, Summary, histogram};
use crate::target::{GPU_PAGE, Memory};
use crate::timer::nanoseconds;

/// Bins of the histogram of pinning.
const BINS: usize = 10;
/// Calls behind each sample of [`Row::get_info`], which is shorter than a look at the clock.
const INFO_BATCH: u32 = 100;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The largest size, bytes; rounded up to whole GPU pages.
    pub largest: u64,
    /// How to allocate and map.
    pub memory: Memory,
    /// Rounds of each size.
    pub iterations: u32,
    /// Rounds before those, not measured.
    pub warm_up: u32,
}

impl Default for Settings {
    /// Those of `gdrcopy_apiperf`.
    fn default() -> Self {
        Self {
            largest: 16 << 20,
            memory: Memory::default(),
            iterations: 100,
            warm_up: 10,
        }
    }
}

/// What happens during a run.
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

/// One size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Bytes.
    pub size: u64,
    /// [`gdr_copy::Context::pin`].
    pub pin: Summary,
    /// [`gdr_copy::Pinned::map`].
    pub map: Summary,
    /// [`gdr_copy::Pinned::info`]; each sample is the mean of 100 calls.
    pub get_info: Summary,
    /// Dropping the mapping.
    pub unmap: Summary,
    /// Dropping the pin.
    pub unpin: Summary,
    /// All but `get_info`, together.
    pub round: Summary,
    /// How long pinning takes, in ten bins of equal width.
    pub pin_histogram: Vec<Bin>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.apiperf`.
    #[serde(flatten)]
    pub schema: Schema,
    /// On what.
    #[serde(flatten)]
    pub subject: Subject,
    /// Each size.
    pub rows: Vec<Row>,
}

/// Measures.
///
/// # Errors
/// [`Error::Stopped`] and those of the layers below.
pub fn run(
    site: &Site,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let mut tell = |event: Event<'_>| match observe(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Stopped),
    };
    let bytes = settings
        .largest
        .max(1)
        .checked_next_multiple_of(GPU_PAGE)
        .ok_or_else(|| {
            Error::Settings(format!(
                "{} bytes are more than there can be",
                settings.largest
            ))
        })?;
    let buffer = site.gpu().allocate(settings.memory.kind, bytes)?;
    tell(Event::Allocated {
        device_ptr: buffer.ptr().get(),
        bytes,
    })?;
    let subject = Subject::new(site, Some(&site.pin(buffer.ptr(), GPU_PAGE)?));
    let mut rows = Vec::new();
    for size in powers_of_two(GPU_PAGE, bytes) {
        let row = measure(site, settings, &buffer, size)?;
        tell(Event::Measured(&row))?;
        rows.push(row);
    }
    Ok(Report {
        schema: Schema::first("gdr.apiperf"),
        subject,
        rows,
    })
}

/// The durations of one round, nanoseconds.
#[derive(Clone, Copy)]
struct Round {
    pin: f64,
    map: f64,
    get_info: f64,
    unmap: f64,
    unpin: f64,
}

fn measure(site: &Site, settings: &Settings, buffer: &DeviceBuffer, size: u64) -> Result<Row> {
    for _ in 0..settings.warm_up {
        round(site, settings, buffer, size)?;
    }
    let rounds = (0..settings.iterations)
        .map(|_| round(site, settings, buffer, size))
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

fn round(site: &Site, settings: &Settings, buffer: &DeviceBuffer, size: u64) -> Result<Round> {
    let start = Instant::now();
    let pinned = site.pin(buffer.ptr(), size)?;
    let pin = nanoseconds(start);

    let start = Instant::now();
    let mapping = pinned.map_with(settings.memory.mapping)?;
    let map = nanoseconds(start);

    let start = Instant::now();
    for _ in 0..INFO_BATCH {
        black_box(black_box(&pinned).info());
    }
    let get_info = nanoseconds(start) / f64::from(INFO_BATCH);

    let start = Instant::now();
    drop(mapping);
    let unmap = nanoseconds(start);

    let start = Instant::now();
    drop(pinned);
    let unpin = nanoseconds(start);
    Ok(Round {
        pin,
        map,
        get_info,
        unmap,
        unpin,
    })
}
