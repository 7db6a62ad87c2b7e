//! Latency of copies through a mapping (`gdrcopy_copylat`).

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use gdr_copy::Caching;
use gdr_cuda::Stream;
use serde::Serialize;

use crate::baseline::{self, Baseline, Comparison};
use crate::bench_target::BenchTarget;
use crate::error::{Result, SettingsError, proceed};
use crate::mapped_buffer::{
    BufferOptions, CopyDirection, MappedBuffer, Release, Setup, check_sizes,
};
use crate::report::{Schema, Subject};
use crate::stats::{Samples, Summary};
use crate::timer::{Batches, nanoseconds};

/// Deadline of the kernel that invalidates the CPU's cache lines.
const KERNEL_LIMIT: Duration = Duration::from_secs(20);

/// State of the CPU's cache at the start of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// As the previous copy left it.
    #[default]
    Warm,
    /// Invalidated: the GPU writes the memory before each copy. For cached mappings only.
    Cold,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes to allocate, rounded up to whole GPU pages.
    pub buffer: u64,
    /// How to allocate and map them.
    pub memory: BufferOptions,
    /// Bytes of each copy.
    pub sizes: Vec<u64>,
    /// Copies to the GPU, each size.
    pub writes: u32,
    /// Copies from the GPU, each size.
    pub reads: u32,
    /// The series to run, in order.
    pub series: Vec<Series>,
    /// The state of the CPU's cache.
    pub cache: Cache,
    /// What to compare the copies with, size by size, after the series.
    pub baseline: Baseline,
}

/// A direction and a method of copying.
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
    /// Both directions through the mapping.
    pub const MAPPING: [Self; 2] = [Self::ToMapping, Self::FromMapping];
    /// Both directions by `cuMemcpy`.
    pub const CUDA: [Self; 2] = [Self::CudaToGpu, Self::CudaFromGpu];

    /// Returns the name that `gdrcopy_copylat` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CudaToGpu => "cuMemcpy_H2D",
            Self::CudaFromGpu => "cuMemcpy_D2H",
            Self::ToMapping => "gdr_copy_to_mapping",
            Self::FromMapping => "gdr_copy_from_mapping",
        }
    }

    /// Returns where the bytes go.
    pub const fn direction(self) -> CopyDirection {
        match self {
            Self::CudaToGpu | Self::ToMapping => CopyDirection::ToGpu,
            Self::CudaFromGpu | Self::FromMapping => CopyDirection::FromGpu,
        }
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The buffer is mapped.
    Mapped(&'a Setup),
    /// A series begins.
    Begin {
        /// The series.
        series: Series,
        /// Copies of each size.
        iterations: u32,
    },
    /// One size of a series was measured.
    Measured(&'a Row),
    /// A size was compared.
    Compared(&'a Comparison),
    /// The buffer is about to be unmapped.
    Unmapping,
    /// The buffer is about to be unpinned.
    Unpinning,
}

/// One size of one series.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// The series.
    pub series: Series,
    /// Bytes a copy.
    pub size: u64,
    /// The duration of a copy.
    pub copy: Summary,
    /// Copies in each sample.
    pub copies_per_sample: u32,
}

/// Result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.copylat`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The machine.
    #[serde(flatten)]
    pub subject: Subject,
    /// The buffer.
    pub setup: Setup,
    /// Each series, each size.
    pub rows: Vec<Row>,
    /// Comparison with `cuMemcpy`, if requested.
    pub against_cuda: Vec<Comparison>,
}

/// Measures the latency, and checks that the bytes arrive.
///
/// # Errors
/// [`crate::Error::Settings`], [`crate::Error::WrongData`], [`crate::Error::Stopped`], and the errors of the layers below.
pub fn run(
    target: &BenchTarget,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let mut mapped = MappedBuffer::new(target, settings.memory, settings.buffer)?;
    check_sizes(&settings.sizes, 0, mapped.buffer.len())?;
    let cold = match settings.cache {
        Cache::Warm => None,
        Cache::Cold if mapped.mapping.caching() == Caching::Cached => Some(target.gpu().stream()?),
        Cache::Cold => {
            return Err(SettingsError::ColdCache(mapped.mapping.caching()).into());
        }
    };
    let setup = mapped.setup(settings.buffer);
    proceed(observe(Event::Mapped(&setup)))?;
    let subject = Subject::new(target, Some(&mapped.pinned));

    let iterations = |direction| match direction {
        CopyDirection::ToGpu => Batches::of(settings.writes),
        CopyDirection::FromGpu => Batches::of(settings.reads),
    };
    let mut rows = Vec::new();
    for &series in &settings.series {
        let batches = iterations(series.direction());
        proceed(observe(Event::Begin {
            series,
            iterations: batches.iterations(),
        }))?;
        for &size in &settings.sizes {
            let row = measure(&mut mapped, series, size, batches, cold.as_ref())?;
            proceed(observe(Event::Measured(&row)))?;
            rows.push(row);
        }
    }
    let mut against_cuda = Vec::new();
    if settings.baseline == Baseline::CuMemcpy {
        for &size in &settings.sizes {
            for direction in [CopyDirection::ToGpu, CopyDirection::FromGpu] {
                let comparison = baseline::compare(
                    &mut mapped,
                    direction,
                    0,
                    size,
                    iterations(direction).iterations(),
                )?;
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
        schema: Schema::first("gdr.copylat"),
        subject,
        setup,
        rows,
        against_cuda,
    })
}

fn measure(
    mapped: &mut MappedBuffer,
    series: Series,
    size: u64,
    batches: Batches,
    cold: Option<&Stream>,
) -> Result<Row> {
    let len = size as usize;
    mapped.prepare(series.direction(), 0, len)?;
    let direction = series.direction();
    let through_mapping = Series::MAPPING.contains(&series);
    let (samples, copies_per_sample) = match cold {
        Some(stream) if through_mapping => {
            // One copy per sample, because the GPU invalidates the cache lines before each.
            let mut samples = Samples::new()?;
            for _ in 0..batches.iterations() {
                let words = size.div_ceil(4);
                stream.fill_pattern(&mapped.buffer, 0, words, 1, KERNEL_LIMIT)?;
                let start = Instant::now();
                mapped.copy(direction, 0, len)?;
                samples.record(nanoseconds(start));
            }
            (samples, 1)
        }
        _ if through_mapping => (
            mapped.time(direction, 0, len, batches)?,
            batches.per_sample(),
        ),
        _ => (
            mapped.time_cu_memcpy(direction, 0, len, batches)?,
            batches.per_sample(),
        ),
    };
    let what = format!("{} of {size} bytes", series.name());
    mapped.check(&what, series.direction(), 0, len)?;
    Ok(Row {
        series,
        size,
        copy: samples.summary()?,
        copies_per_sample,
    })
}
