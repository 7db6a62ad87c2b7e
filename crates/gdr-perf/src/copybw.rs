//! Bandwidth of copies through a mapping (`gdrcopy_copybw`).

use std::ops::ControlFlow;

use serde::Serialize;

use crate::against::{self, Against, Comparison, Way};
use crate::error::{Error, Result};
use crate::report::{Schema, Subject};
use crate::site::Site;
use crate::stats::Summary;
use crate::target::{Memory, Setup, Target, check_sizes};
use crate::timer::Batches;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes to allocate; rounded up to whole GPU pages.
    pub buffer: u64,
    /// How to allocate and map them.
    pub memory: Memory,
    /// Bytes of each copy.
    pub sizes: Vec<u64>,
    /// Where in the buffer copies start.
    pub offset: u64,
    /// Copies to the GPU, each size.
    pub writes: u32,
    /// Copies from the GPU, each size.
    pub reads: u32,
    /// What to compare with.
    pub against: Against,
}

impl Default for Settings {
    /// Those of `gdrcopy_copybw`.
    fn default() -> Self {
        Self {
            buffer: 128 << 10,
            memory: Memory::default(),
            sizes: vec![128 << 10],
            offset: 0,
            writes: 10_000,
            reads: 100,
            against: Against::Nothing,
        }
    }
}

/// What happens during a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The buffer is mapped.
    Mapped(&'a Setup),
    /// Copies of this size begin.
    Begin {
        /// Bytes.
        size: u64,
        /// Which way.
        way: Way,
        /// How often.
        iterations: u32,
    },
    /// They have ended.
    Measured(&'a Rate),
    /// A size was compared.
    Compared(&'a Comparison),
    /// The buffer is about to be unmapped.
    Unmapping,
    /// It is about to be unpinned.
    Unpinning,
}

/// How fast copies of one size go.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// Bytes a copy.
    pub size: u64,
    /// Which way.
    pub way: Way,
    /// Over all copies, in units of 2^20 bytes a second.
    pub mib_per_s: f64,
    /// The duration of a copy.
    pub copy: Summary,
    /// Copies behind each sample of it.
    pub copies_per_sample: u32,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.copybw`.
    #[serde(flatten)]
    pub schema: Schema,
    /// On what.
    #[serde(flatten)]
    pub subject: Subject,
    /// The buffer.
    pub setup: Setup,
    /// Where in it copies start.
    pub offset: u64,
    /// Each size, each way.
    pub rates: Vec<Rate>,
    /// Against `cuMemcpy`, where that was asked for.
    pub against_cuda: Vec<Comparison>,
}

/// Measures, and checks that the bytes arrive.
///
/// # Errors
/// [`Error::Settings`], [`Error::WrongData`], [`Error::Stopped`], and those of the layers below.
pub fn run(
    site: &Site,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let mut tell = |event: Event<'_>| match observe(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Stopped),
    };
    check_sizes(&settings.sizes, settings.offset, settings.buffer)?;
    let mut target = Target::new(site, settings.memory, settings.buffer)?;
    let setup = target.setup(settings.buffer);
    tell(Event::Mapped(&setup))?;
    let subject = Subject::new(site, Some(&target.pinned));

    let (offset, mut rates, mut against_cuda) = (settings.offset, Vec::new(), Vec::new());
    for &size in &settings.sizes {
        for (way, iterations) in [
            (Way::ToGpu, settings.writes),
            (Way::FromGpu, settings.reads),
        ] {
            let batches = Batches::exactly(iterations);
            tell(Event::Begin {
                size,
                way,
                iterations: batches.iterations(),
            })?;
            let rate = measure(&mut target, way, offset, size, batches)?;
            tell(Event::Measured(&rate))?;
            rates.push(rate);
            if settings.against == Against::Cuda {
                let comparison = against::compare(&mut target, way, offset, size, iterations)?;
                tell(Event::Compared(&comparison))?;
                against_cuda.push(comparison);
            }
        }
    }
    let Target {
        mapping, pinned, ..
    } = target;
    tell(Event::Unmapping)?;
    drop(mapping);
    tell(Event::Unpinning)?;
    drop(pinned);
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
    target: &mut Target,
    way: Way,
    offset: u64,
    size: u64,
    batches: Batches,
) -> Result<Rate> {
    let len = size as usize;
    target.prepare(way, offset, len)?;
    let Target {
        mapping,
        source,
        sink,
        ..
    } = target;
    let samples = match way {
        Way::ToGpu => batches.time(|| Ok(mapping.write_at(offset, &source[..len])?))?,
        Way::FromGpu => batches.time(|| Ok(mapping.read_at(offset, &mut sink[..len])?))?,
    };
    target.check(&format!("copies of {size} bytes {way}"), way, offset, len)?;
    let copy = samples.summary()?;
    // The mean over equal batches is the mean over all copies.
    let mib_per_s = size as f64 / f64::from(1 << 20) / (copy.mean_ns.max(0.001) / 1e9);
    Ok(Rate {
        size,
        way,
        mib_per_s,
        copy,
        copies_per_sample: batches.per_sample(),
    })
}
