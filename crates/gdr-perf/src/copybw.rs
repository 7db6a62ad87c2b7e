//! Bandwidth of copies through a mapping (`gdrcopy_copybw`).

use std::ops::ControlFlow;

use serde::Serialize;

use crate::baseline::{self, Baseline, Comparison};
use crate::bench_target::BenchTarget;
use crate::error::{Result, proceed};
use crate::mapped_buffer::{
    BufferOptions, CopyDirection, MappedBuffer, Release, Setup, check_sizes, direction_name,
};
use crate::report::{Schema, Subject};
use crate::stats::Summary;
use crate::timer::Batches;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes to allocate, rounded up to whole GPU pages.
    pub buffer: u64,
    /// How to allocate and map them.
    pub memory: BufferOptions,
    /// Bytes of each copy.
    pub sizes: Vec<u64>,
    /// Offset in the buffer at which copies start.
    pub offset: u64,
    /// Copies to the GPU, each size.
    pub writes: u32,
    /// Copies from the GPU, each size.
    pub reads: u32,
    /// What to compare the copies with.
    pub baseline: Baseline,
}

impl Default for Settings {
    /// Returns the defaults of `gdrcopy_copybw`.
    fn default() -> Self {
        Self {
            buffer: 128 << 10,
            memory: BufferOptions::default(),
            sizes: vec![128 << 10],
            offset: 0,
            writes: 10_000,
            reads: 100,
            baseline: Baseline::None,
        }
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The buffer is mapped.
    Mapped(&'a Setup),
    /// Copies of this size begin.
    Begin {
        /// Bytes.
        size: u64,
        /// Where the bytes go.
        direction: CopyDirection,
        /// The number of copies.
        iterations: u32,
    },
    /// Copies of a size have ended.
    Measured(&'a Rate),
    /// A size was compared.
    Compared(&'a Comparison),
    /// The buffer is about to be unmapped.
    Unmapping,
    /// The buffer is about to be unpinned.
    Unpinning,
}

/// Bandwidth of copies of one size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// Bytes a copy.
    pub size: u64,
    /// Where the bytes go.
    #[serde(rename = "way", serialize_with = "direction_name")]
    pub direction: CopyDirection,
    /// Mean over all copies, in MiB/s.
    pub mib_per_s: f64,
    /// The duration of a copy.
    pub copy: Summary,
    /// Copies in each sample.
    pub copies_per_sample: u32,
}

/// Result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.copybw`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The machine.
    #[serde(flatten)]
    pub subject: Subject,
    /// The buffer.
    pub setup: Setup,
    /// Offset in the buffer at which copies start.
    pub offset: u64,
    /// Each size in each direction.
    pub rates: Vec<Rate>,
    /// Comparison with `cuMemcpy`, if requested.
    pub against_cuda: Vec<Comparison>,
}

/// Measures the bandwidth, and checks that the bytes arrive.
///
/// # Errors
/// [`crate::Error::Settings`], [`crate::Error::WrongData`], [`crate::Error::Stopped`], and the errors of the layers below.
pub fn run(
    target: &BenchTarget,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    check_sizes(&settings.sizes, settings.offset, settings.buffer)?;
    let mut mapped = MappedBuffer::new(target, settings.memory, settings.buffer)?;
    let setup = mapped.setup(settings.buffer);
    proceed(observe(Event::Mapped(&setup)))?;
    let subject = Subject::new(target, Some(&mapped.pinned));

    let (offset, mut rates, mut against_cuda) = (settings.offset, Vec::new(), Vec::new());
    for &size in &settings.sizes {
        for (direction, iterations) in [
            (CopyDirection::ToGpu, settings.writes),
            (CopyDirection::FromGpu, settings.reads),
        ] {
            let batches = Batches::exactly(iterations);
            proceed(observe(Event::Begin {
                size,
                direction,
                iterations: batches.iterations(),
            }))?;
            let rate = measure(&mut mapped, direction, offset, size, batches)?;
            proceed(observe(Event::Measured(&rate)))?;
            rates.push(rate);
            if settings.baseline == Baseline::CuMemcpy {
                let comparison =
                    baseline::compare(&mut mapped, direction, offset, size, iterations)?;
                proceed(observe(Event::Compared(&comparison)))?;
                against_cuda.push(comparison);
            }
        }
    }
    mapped.release(|step| {
        proceed(observe(match step {
            Release::Unmap => Event::Unmapping,
            Release::Unpin => Event::Unpinning,
        }))
    })?;
    Ok(Report {
        schema: Schema::first("gdr.copybw"),
        subject,
        setup,
        offset,
        rates,
        against_cuda,
    })
}

fn measure(
    mapped: &mut MappedBuffer,
    direction: CopyDirection,
    offset: u64,
    size: u64,
    batches: Batches,
) -> Result<Rate> {
    let len = size as usize;
    mapped.prepare(direction, offset, len)?;
    let samples = mapped.time(direction, offset, len, batches)?;
    mapped.check(
        &format!("copies of {size} bytes {direction}"),
        direction,
        offset,
        len,
    )?;
    let copy = samples.summary()?;
    // Batches have equal size, so their mean is the mean over all copies.
    let mib_per_s = size as f64 / f64::from(1 << 20) / (copy.mean_ns.max(0.001) / 1e9);
    Ok(Rate {
        size,
        direction,
        mib_per_s,
        copy,
        copies_per_sample: batches.per_sample(),
    })
}
