//! Latency of copies through a mapping (`gdrcopy_copylat`).

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use gdr_copy::Caching;
use gdr_cuda::Stream;
use serde::Serialize;

use crate::against::{self, Against, Comparison, Way};
use crate::error::{Error, Result};
use crate::report::{Schema, Subject};
use crate::site::Site;
use crate::stats::{Samples, Summary};
use crate::target::{Memory, Setup, Target, check_sizes};
use crate::timer::{Batches, nanoseconds};

/// How long the kernel that makes caches cold may take.
const KERNEL_LIMIT: Duration = Duration::from_secs(20);

/// Whether the CPU's cache holds the mapping's lines when a copy begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// As the copy before left it.
    #[default]
    Warm,
    /// The GPU rewrote the memory before each copy; for cached mappings only.
    Cold,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes to allocate; rounded up to whole GPU pages.
    pub buffer: u64,
    /// How to allocate and map them.
    pub memory: Memory,
    /// Bytes of each copy.
    pub sizes: Vec<u64>,
    /// Copies to the GPU, each size.
    pub writes: u32,
    /// Copies from the GPU, each size.
    pub reads: u32,
    /// Which series to run, in this order.
    pub series: Vec<Series>,
    /// The state of the CPU's cache.
    pub cache: Cache,
    /// What to compare with, size by size, after the series.
    pub against: Against,
}

/// A way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Series {
    /// `cuMemcpyHtoD` of page-locked memory.
    #[serde(rename = "cuMemcpy_H2D")]
    CudaToGpu,
    /// `cuMemcpyDtoH` to page-locked memory.
    #[serde(rename = "cuMemcpy_D2H")]
    CudaFromGpu,
    /// [`gdr_copy::Mapping::write_at`].
    #[serde(rename = "gdr_copy_to_mapping")]
    ToMapping,
    /// [`gdr_copy::Mapping::read_at`].
    #[serde(rename = "gdr_copy_from_mapping")]
    FromMapping,
}

impl Series {
    /// Both ways through the mapping.
    pub const MAPPING: [Self; 2] = [Self::ToMapping, Self::FromMapping];
    /// Both ways by `cuMemcpy`.
    pub const CUDA: [Self; 2] = [Self::CudaToGpu, Self::CudaFromGpu];

    /// The name that `gdrcopy_copylat` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CudaToGpu => "cuMemcpy_H2D",
            Self::CudaFromGpu => "cuMemcpy_D2H",
            Self::ToMapping => "gdr_copy_to_mapping",
            Self::FromMapping => "gdr_copy_from_mapping",
        }
    }

    /// Which way its bytes go.
    pub const fn way(self) -> Way {
        match self {
            Self::CudaToGpu | Self::ToMapping => Way::ToGpu,
            Self::CudaFromGpu | Self::FromMapping => Way::FromGpu,
        }
    }
}

/// What happens during a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The buffer is mapped.
    Mapped(&'a Setup),
    /// A series begins.
    Begin {
        /// Which.
        series: Series,
        /// Copies of each size.
        iterations: u32,
    },
    /// A size of it was measured.
    Measured(&'a Row),
    /// A size was compared.
    Compared(&'a Comparison),
    /// The buffer is about to be unmapped.
    Unmapping,
    /// It is about to be unpinned.
    Unpinning,
}

/// One size of one series.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub series: Series,
    /// Bytes a copy.
    pub size: u64,
    /// The duration of a copy.
    pub copy: Summary,
    /// Copies behind each sample of it.
    pub copies_per_sample: u32,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.copylat`.
    #[serde(flatten)]
    pub schema: Schema,
    /// On what.
    #[serde(flatten)]
    pub subject: Subject,
    /// The buffer.
    pub setup: Setup,
    /// Each series, each size.
    pub rows: Vec<Row>,
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
    let mut target = Target::new(site, settings.memory, settings.buffer)?;
    check_sizes(&settings.sizes, 0, target.buffer.len())?;
    let cold = match settings.cache {
        Cache::Warm => None,
        Cache::Cold if target.mapping.caching() == Caching::Cached => Some(site.gpu().stream()?),
        Cache::Cold => {
            return Err(Error::Settings(format!(
                "a cold cache means nothing to a {} mapping: only cached ones have lines in it",
                target.mapping.caching()
            )));
        }
    };
    let setup = target.setup(settings.buffer);
    tell(Event::Mapped(&setup))?;
    let subject = Subject::new(site, Some(&target.pinned));

    let iterations = |way| match way {
        Way::ToGpu => Batches::of(settings.writes),
        Way::FromGpu => Batches::of(settings.reads),
    };
    let mut rows = Vec::new();
    for &series in &settings.series {
        let batches = iterations(series.way());
        tell(Event::Begin {
            series,
            iterations: batches.iterations(),
        })?;
        for &size in &settings.sizes {
            let row = measure(&mut target, series, size, batches, cold.as_ref())?;
            tell(Event::Measured(&row))?;
            rows.push(row);
        }
    }
    let mut against_cuda = Vec::new();
    if settings.against == Against::Cuda {
        for &size in &settings.sizes {
            for way in [Way::ToGpu, Way::FromGpu] {
                let comparison =
                    against::compare(&mut target, way, 0, size, iterations(way).iterations())?;
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
        schema: Schema::first("gdr.copylat"),
        subject,
        setup,
        rows,
        against_cuda,
    })
}

fn measure(
    target: &mut Target,
    series: Series,
    size: u64,
    batches: Batches,
    cold: Option<&Stream>,
) -> Result<Row> {
    let len = size as usize;
    target.prepare(series.way(), 0, len)?;
    let Target {
        mapping,
        buffer,
        source,
        sink,
        ..
    } = target;
    let mut copy = || -> Result<()> {
        match series {
            Series::CudaToGpu => buffer.write(0, &source[..len])?,
            Series::CudaFromGpu => buffer.read(0, &mut sink[..len])?,
            Series::ToMapping => mapping.write_at(0, &source[..len])?,
            Series::FromMapping => mapping.read_at(0, &mut sink[..len])?,
        }
        Ok(())
    };
    let through_mapping = Series::MAPPING.contains(&series);
    let (samples, copies_per_sample) = match cold.filter(|_| through_mapping) {
        None => (batches.time(copy)?, batches.per_sample()),
        Some(stream) => {
            // Each copy by itself, for the GPU takes the lines away before every one of them.
            let mut samples = Samples::new()?;
            for _ in 0..batches.iterations() {
                stream.fill_pattern(buffer, 0, size.div_ceil(4), 1, KERNEL_LIMIT)?;
                let start = Instant::now();
                copy()?;
                samples.record(nanoseconds(start));
            }
            (samples, 1)
        }
    };
    let what = format!("{} of {size} bytes", series.name());
    target.check(&what, series.way(), 0, len)?;
    Ok(Row {
        series,
        size,
        copy: samples.summary()?,
        copies_per_sample,
    })
}
