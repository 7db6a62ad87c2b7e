//! Measures every copy path by size, beside `cuMemcpy` and the planner's choice.

use std::fmt;
use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_copy::plan::{
    Calibration, CopyPath, CostCurve, CostPoint, HostMemory, PathLimits, Planner, Profile, Series,
};
use gdr_copy::{
    CalibrationSource, Copier, Mapping, built_in_calibration, calibration_for, profile_key,
};
use gdr_cuda::{DeviceBuffer, HostBuffer, pattern_word};
use serde::{Serialize, Serializer};

use crate::bench_target::BenchTarget;
use crate::copy_library::CopyLibrary;
use crate::error::{Result, SettingsError, compare, proceed};
use crate::mapped_buffer::{
    BufferOptions, CopyDirection, check_sizes, direction_name, whole_pages,
};
use crate::report::{Schema, Subject};
use crate::stats::{Samples, Summary};
use crate::timer::nanoseconds;

/// Maximum duration of a copy by the copy engine.
const LIMIT: Duration = Duration::from_secs(60);
/// Minimum duration of a batch, so that reading the clock does not matter.
const BATCH_NS: f64 = 20_000.0;
/// Maximum number of copies in a batch.
const MOST_IN_BATCH: f64 = 1000.0;
/// Minimum and maximum number of batches.
const BATCHES: (f64, f64) = (5.0, 60.0);
/// Number of copies queued at once to measure the cost of one among others, and their length.
const QUEUED: usize = 8;
const QUEUED_LEN: usize = 4096;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Each path, to calibrate a planner.
    Paths,
    /// Each path, `cuMemcpy`, and the planner's choice.
    Comparison,
}

/// The costs that the planner knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Costs {
    /// The user's profile of this machine, or the built-in costs without one.
    OfUser,
    /// The built-in ones.
    BuiltIn,
}

/// Whether reads by a resident kernel are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidentPath {
    /// Measures them, and lets the planner choose them.
    Measured,
    /// Like [`ResidentPath::Measured`] on GPUs that support them.
    WhereSupported,
    /// They are not.
    LeftOut,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to allocate and map.
    pub memory: BufferOptions,
    /// Bytes of each copy.
    pub sizes: Vec<u64>,
    /// Offset in the buffer at which copies start.
    pub offset: u64,
    /// Maximum number of threads of a copy.
    pub max_threads: NonZeroU16,
    /// Whether reads by a resident kernel are measured.
    pub resident: ResidentPath,
    /// What is measured.
    pub extent: Extent,
    /// Copy functions to compare the paths with; left out for [`Extent::Paths`].
    pub library: Option<Arc<CopyLibrary>>,
    /// What the planner knows.
    pub costs: Costs,
    /// Approximate time for one size on one path. A copy is made at least five times.
    pub time: Duration,
}

impl Settings {
    /// Returns the numbers of threads to measure: one, the maximum, half of it and a quarter of it.
    fn threads(&self) -> Vec<NonZeroU16> {
        let most = self.max_threads.get();
        let mut threads = vec![1, most / 4, most / 2, most];
        threads.sort_unstable();
        threads.dedup();
        threads.into_iter().filter_map(NonZeroU16::new).collect()
    }

    /// Returns the methods for copies in a direction, on paths that the limits allow.
    fn methods(&self, direction: CopyDirection, limits: PathLimits) -> Vec<Method> {
        let resident = (direction == CopyDirection::FromGpu && limits.allow(CopyPath::Resident))
            .then_some(CopyPath::Resident);
        let paths = self.threads().into_iter().map(CopyPath::cpu);
        let paths = paths.chain(resident).chain([CopyPath::CopyEngine]);
        let paths = paths.map(Method::Path);
        match self.extent {
            Extent::Paths => paths.collect(),
            Extent::Comparison => {
                let library = self.library.as_ref().map(|_| Method::Library);
                let others = [Method::CuMemcpy].into_iter().chain(library);
                paths.chain(others).chain([Method::Planned]).collect()
            }
        }
    }

    /// Returns the number of [`Event::Measured`] of a run.
    pub fn steps(&self) -> usize {
        4 * self.sizes.len()
    }
}

/// How bytes are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// On this path.
    Path(CopyPath),
    /// By `cuMemcpyHtoD` and `cuMemcpyDtoH`.
    CuMemcpy,
    /// By the functions of a [`CopyLibrary`], through the mapping.
    Library,
    /// On the path that the planner chooses.
    Planned,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.fmt(f),
            Self::CuMemcpy => f.pad("cuMemcpy"),
            Self::Library => f.pad("library"),
            Self::Planned => f.pad("planned"),
        }
    }
}

impl Serialize for Method {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Serializes host memory or a path by its name.
fn name<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Copies of one kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SweepCell {
    /// Where the bytes go.
    #[serde(rename = "way", serialize_with = "direction_name")]
    pub direction: CopyDirection,
    /// The host memory.
    #[serde(serialize_with = "name")]
    pub host: HostMemory,
    /// Bytes a copy.
    pub size: u64,
}

/// What copies cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// The copies.
    #[serde(flatten)]
    pub cell: SweepCell,
    /// How they were made.
    pub method: Method,
    /// Their duration.
    pub copy: Summary,
}

/// The planner's choice beside the fastest method measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Choice {
    /// The copies.
    #[serde(flatten)]
    pub cell: SweepCell,
    /// The path that the planner chose.
    #[serde(serialize_with = "name")]
    pub path: CopyPath,
    /// Median of the planned copies, in nanoseconds.
    pub planned_ns: f64,
    /// Fastest method on its own, including `cuMemcpy` and the library's functions.
    pub best: Method,
    /// Median of the fastest method, in nanoseconds.
    pub best_ns: f64,
    /// Duration of the planned copy divided by the fastest duration.
    pub ratio: f64,
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.copysweep`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The machine.
    #[serde(flatten)]
    pub subject: Subject,
    /// The CPU's name.
    pub cpu: String,
    /// The CUDA function that allocated the memory.
    pub allocated_by: &'static str,
    /// How the memory is mapped.
    #[serde(serialize_with = "name")]
    pub caching: gdr_copy::Caching,
    /// Routine of CPU copies.
    pub routine: &'static str,
    /// Maximum number of threads of a copy.
    pub max_threads: NonZeroU16,
    /// The file of the copy functions of [`Method::Library`].
    pub library: Option<PathBuf>,
    /// What the planner knows.
    #[serde(serialize_with = "name")]
    pub costs: CalibrationSource,
    /// A row for each size, direction, kind of memory and method.
    pub rows: Vec<Row>,
    /// What the planner chose; empty for [`Extent::Paths`].
    pub choices: Vec<Choice>,
    /// Cost of a short copy by the copy engine among others, in nanoseconds.
    pub queued_copy_ns: f64,
    /// The machine, as profiles name it.
    #[serde(skip)]
    pub key: gdr_copy::plan::ProfileKey,
}

impl Report {
    /// Returns the profile of this machine.
    pub fn profile(&self) -> Profile {
        let mut calibration = Calibration::new();
        let mut all: Vec<Series> = self.rows.iter().filter_map(series_of).collect();
        all.sort_unstable();
        all.dedup();
        for series in all {
            let rows = self
                .rows
                .iter()
                .filter(|row| series_of(row) == Some(series));
            let points = rows.map(|row| CostPoint {
                len: row.cell.size,
                // A short copy may take less than a tick of the clock.
                ns: row.copy.median_ns.max(0.001),
            });
            if let Ok(curve) = CostCurve::new(points) {
                calibration.set(series, curve);
            }
        }
        calibration.set_queued_copy(self.queued_copy_ns);
        Profile {
            key: self.key.clone(),
            calibration,
        }
    }

    /// Returns the choice that is slowest relative to the fastest path.
    pub fn worst_choice(&self) -> Option<&Choice> {
        let choices = self.choices.iter();
        choices.max_by(|a, b| a.ratio.total_cmp(&b.ratio))
    }
}

fn series_of(row: &Row) -> Option<Series> {
    match row.method {
        Method::Path(path) => Some(Series {
            direction: row.cell.direction,
            host: row.cell.host,
            path,
        }),
        Method::CuMemcpy | Method::Library | Method::Planned => None,
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Copies of this kind and size begin.
    Begin(&'a SweepCell),
    /// They were measured with every method.
    Measured(&'a [Row]),
}

/// Measures every path, and checks that each copies the right bytes.
///
/// # Errors
/// [`crate::Error::Settings`], [`crate::Error::WrongData`], [`crate::Error::Stopped`], and the errors
/// of the layers below.
pub fn run(
    target: &BenchTarget,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let largest = settings.sizes.iter().copied().max().unwrap_or(0);
    let end = settings.offset.checked_add(largest);
    let bytes = whole_pages(end.unwrap_or(u64::MAX))?;
    check_sizes(&settings.sizes, settings.offset, bytes)?;
    let len = usize::try_from(bytes).map_err(|_| SettingsError::TooLarge { bytes })?;
    let buffer = Arc::new(target.gpu().allocate(settings.memory.kind, bytes)?);
    let pinned = target.pin(buffer.ptr(), bytes)?;
    let mapping = Arc::new(pinned.map_with(settings.memory.mapping)?);
    let subject = Subject::new(target, Some(&pinned));
    let (calibration, costs) = match settings.costs {
        Costs::OfUser => calibration_for(target.gpu(), &mapping)?,
        Costs::BuiltIn => built_in_calibration(&mapping),
    };
    let limits = PathLimits::all(settings.max_threads);
    let planner = Planner::new(&calibration, limits);
    let key = profile_key(target.gpu(), &mapping);
    let mut bench = Bench::new(buffer, &mapping, planner, settings, len)?;
    if settings.resident != ResidentPath::LeftOut {
        match bench.copier.allow_resident_kernel(target.context()?) {
            Err(gdr_copy::Error::NoResidentKernel { .. })
                if settings.resident == ResidentPath::WhereSupported => {}
            allowed => allowed?,
        }
    }

    let mut rows = Vec::new();
    for direction in CopyDirection::ALL {
        let methods = settings.methods(direction, bench.copier.planner().limits());
        for host in HostMemory::ALL {
            for &size in &settings.sizes {
                let cell = SweepCell {
                    direction,
                    host,
                    size,
                };
                proceed(observe(Event::Begin(&cell)))?;
                let measured = bench.measure(cell, &methods, settings.time)?;
                proceed(observe(Event::Measured(&measured)))?;
                rows.extend(measured);
            }
        }
    }
    let queued_copy_ns = bench.queued_copy()?;
    Ok(Report {
        schema: Schema::first("gdr.copysweep"),
        subject,
        cpu: key.cpu.clone(),
        allocated_by: bench.buffer.kind().function(),
        caching: mapping.caching(),
        routine: mapping.routine().name(),
        max_threads: settings.max_threads,
        library: settings.library.as_ref().map(|it| it.file().to_owned()),
        costs,
        choices: choices(&rows, bench.copier.planner()),
        rows,
        queued_copy_ns,
        key,
    })
}

/// Shuffles the items with a linear congruential generator.
fn shuffle(items: &mut [usize], random: &mut u64) {
    for last in (1..items.len()).rev() {
        *random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        items.swap(last, (*random >> 33) as usize % (last + 1));
    }
}

/// Compares the planned copies with the fastest.
fn choices(rows: &[Row], planner: &Planner) -> Vec<Choice> {
    let planned = rows.iter().filter(|row| row.method == Method::Planned);
    let choice = |planned: &Row| {
        let cell = planned.cell;
        let others = rows
            .iter()
            .filter(|row| row.cell == cell && row.method != Method::Planned);
        let best = others.min_by(|a, b| a.copy.median_ns.total_cmp(&b.copy.median_ns))?;
        let (planned_ns, best_ns) = (planned.copy.median_ns, best.copy.median_ns);
        Some(Choice {
            cell,
            path: planner.path(cell.direction, cell.host, cell.size),
            planned_ns,
            best: best.method,
            best_ns,
            ratio: planned_ns / best_ns.max(0.001),
        })
    };
    planned.filter_map(choice).collect()
}

/// The memory of the measurement.
struct Bench {
    copier: Copier,
    library: Option<Arc<CopyLibrary>>,
    buffer: Arc<DeviceBuffer>,
    offset: u64,
    /// Bytes to write, and destinations of reads. All methods share them, because the copy engine writes faster to
    /// memory that the CPU has not touched since its last copy there.
    source: Vec<u8>,
    sink: Vec<u8>,
    locked_source: Arc<HostBuffer>,
    locked_sink: Arc<HostBuffer>,
}

impl Bench {
    fn new(
        buffer: Arc<DeviceBuffer>,
        mapping: &Arc<Mapping>,
        planner: Planner,
        settings: &Settings,
        len: usize,
    ) -> Result<Self> {
        let gpu = buffer.gpu();
        let words = (0..).flat_map(|at| pattern_word(1, at).to_le_bytes());
        let source: Vec<u8> = words.take(len).collect();
        let locked_source = gpu.allocate_host(len)?;
        locked_source.write(0, &source)?;
        Ok(Self {
            locked_source: Arc::new(locked_source),
            locked_sink: Arc::new(gpu.allocate_host(len)?),
            copier: Copier::new(Arc::clone(mapping), Arc::clone(&buffer), planner)?
                .with_limit(LIMIT),
            library: settings.library.clone(),
            offset: settings.offset,
            sink: vec![0; len],
            source,
            buffer,
        })
    }

    /// Measures the methods in turn, so that disturbances of the machine affect all of them alike. Their order changes
    /// from round to round. Each turn begins with a copy that is not timed, because the GPU's write speed to host
    /// memory depends on what the previous method left in the caches.
    fn measure(&mut self, cell: SweepCell, methods: &[Method], time: Duration) -> Result<Vec<Row>> {
        let mut plans = Vec::with_capacity(methods.len());
        for &method in methods {
            self.verify(cell, method)?;
            let start = Instant::now();
            self.copy(cell, method)?;
            let ns = nanoseconds(start).max(1.0);
            let batch = (BATCH_NS / ns).clamp(1.0, MOST_IN_BATCH).ceil();
            let batches = time.as_nanos() as f64 / (batch * ns);
            let batches = batches.clamp(BATCHES.0, BATCHES.1);
            plans.push((method, batch as u32, batches as u32, Samples::new()?));
        }
        let most = plans.iter().map(|plan| plan.2).max().unwrap_or(0);
        let mut order: Vec<usize> = (0..plans.len()).collect();
        let mut random = 0;
        for round in 0..most {
            shuffle(&mut order, &mut random);
            for &at in &order {
                let (method, batch, batches, samples) = &mut plans[at];
                if round >= *batches {
                    continue;
                }
                self.copy(cell, *method)?;
                let start = Instant::now();
                for _ in 0..*batch {
                    self.copy(cell, *method)?;
                }
                samples.record(nanoseconds(start) / f64::from(*batch));
            }
        }
        let rows = plans.iter().map(|(method, _, _, samples)| {
            Ok(Row {
                cell,
                method: *method,
                copy: samples.summary()?,
            })
        });
        rows.collect()
    }

    fn copy(&mut self, cell: SweepCell, method: Method) -> Result<()> {
        use CopyDirection::{FromGpu, ToGpu};
        use HostMemory::{PageLocked, Pageable};
        let (offset, len) = (self.offset, cell.size as usize);
        let copier = &self.copier;
        match (cell.direction, cell.host, method) {
            (direction, host, Method::Library) => self.copy_by_library(direction, host, len)?,
            (ToGpu, Pageable, Method::Path(path)) => {
                copier.write_at_by(path, offset, &self.source[..len])?;
            }
            (ToGpu, Pageable, Method::Planned) => copier.write_at(offset, &self.source[..len])?,
            (ToGpu, Pageable, Method::CuMemcpy) => {
                self.buffer.write(offset, &self.source[..len])?;
            }
            (ToGpu, PageLocked, Method::CuMemcpy) => {
                let source = &self.locked_source;
                self.buffer.write_from_host(offset, source, 0, len)?;
            }
            (ToGpu, PageLocked, Method::Planned) => {
                copier.write_from(offset, &self.locked_source, 0, len)?;
            }
            (FromGpu, Pageable, Method::Path(path)) => {
                copier.read_at_by(path, offset, &mut self.sink[..len])?;
            }
            (FromGpu, Pageable, Method::Planned) => {
                copier.read_at(offset, &mut self.sink[..len])?
            }
            (FromGpu, Pageable, Method::CuMemcpy) => {
                self.buffer.read(offset, &mut self.sink[..len])?;
            }
            (FromGpu, PageLocked, Method::CuMemcpy) => {
                self.buffer
                    .read_to_host(offset, &self.locked_sink, 0, len)?;
            }
            (FromGpu, PageLocked, Method::Planned) => {
                copier.read_into(offset, &self.locked_sink, 0, len)?;
            }
            (direction, PageLocked, Method::Path(path)) => {
                let host = match direction {
                    ToGpu => &self.locked_source,
                    FromGpu => &self.locked_sink,
                };
                copier
                    .start_by(path, direction, offset, host, 0, len)?
                    .wait(LIMIT)?;
            }
        }
        Ok(())
    }

    #[allow(unsafe_code)]
    fn copy_by_library(
        &mut self,
        direction: CopyDirection,
        host: HostMemory,
        len: usize,
    ) -> Result<()> {
        let Some(library) = &self.library else {
            return Ok(());
        };
        let host = match (direction, host) {
            (CopyDirection::ToGpu, HostMemory::Pageable) => self.source.as_ptr().cast_mut(),
            (CopyDirection::FromGpu, HostMemory::Pageable) => self.sink.as_mut_ptr(),
            (CopyDirection::ToGpu, HostMemory::PageLocked) => self.locked_source.cpu_ptr(),
            (CopyDirection::FromGpu, HostMemory::PageLocked) => self.locked_sink.cpu_ptr(),
        };
        // SAFETY: the host buffers, and the mapping from the offset on, hold the largest size, which `run` has checked.
        // Nothing else uses them now.
        unsafe { library.copy(direction, self.copier.mapping(), self.offset, host, len) }
    }

    /// Copies once into cleared memory and compares the bytes.
    fn verify(&mut self, cell: SweepCell, method: Method) -> Result<()> {
        let (offset, len) = (self.offset, cell.size as usize);
        self.sink[..len].fill(0);
        match cell.direction {
            CopyDirection::ToGpu => self.buffer.write(offset, &self.sink[..len])?,
            CopyDirection::FromGpu => {
                self.locked_sink.write(0, &self.sink[..len])?;
                self.buffer.write(offset, &self.source[..len])?;
            }
        }
        self.copy(cell, method)?;
        match (cell.direction, cell.host, method) {
            (CopyDirection::ToGpu, ..) => self.buffer.read(offset, &mut self.sink[..len])?,
            (_, HostMemory::Pageable, _) => {}
            (_, HostMemory::PageLocked, _) => self.locked_sink.read(0, &mut self.sink[..len])?,
        }
        let SweepCell {
            direction,
            host,
            size,
        } = cell;
        let what = format!("a copy of {size} bytes {direction} ({host} memory, {method})");
        compare(&what, &self.source[..len], &self.sink[..len])
    }

    /// Measures the cost of a short copy by the copy engine among others, in nanoseconds.
    fn queued_copy(&self) -> Result<f64> {
        let stream = self.buffer.gpu().stream()?;
        let len = QUEUED_LEN.min(self.locked_sink.len());
        let mut least = f64::INFINITY;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..QUEUED {
                stream.queue_read(&self.buffer, 0, &self.locked_sink, 0, len)?;
            }
            stream.wait(LIMIT)?;
            least = least.min(nanoseconds(start));
        }
        Ok(least / QUEUED as f64)
    }
}

#[cfg(test)]
mod tests {
    use gdr_copy::plan::ResidentUse;
    use gdr_copy::{BackendKind, Context};
    use gdr_cuda::{Gpu, Ordinal, SimDriver};

    use super::*;
    use crate::copy_library;

    fn target() -> BenchTarget {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let context = Context::builder()
            .simulated(driver)
            .backend(BackendKind::Sim);
        BenchTarget::new(gpu, Arc::new(context.open().unwrap()))
    }

    fn settings(extent: Extent) -> Settings {
        Settings {
            memory: BufferOptions::default(),
            sizes: vec![1, 5000],
            offset: 3,
            max_threads: NonZeroU16::new(4).unwrap(),
            resident: ResidentPath::WhereSupported,
            extent,
            library: None,
            costs: Costs::BuiltIn,
            time: Duration::ZERO,
        }
    }

    #[test]
    fn every_method_is_measured_at_every_size_and_compared_with_the_choice() {
        let settings = settings(Extent::Comparison);
        let mut steps = 0;
        let report = run(&target(), &settings, &mut |event| {
            steps += usize::from(matches!(event, Event::Measured(_)));
            ControlFlow::Continue(())
        });
        let report = report.unwrap();
        assert_eq!(steps, settings.steps());
        let limits = PathLimits::all(settings.max_threads);
        let methods = settings.methods(CopyDirection::FromGpu, limits);
        let names: Vec<_> = methods.iter().map(Method::to_string).collect();
        let all = [
            "cpu",
            "cpu-2",
            "cpu-4",
            "copy-engine",
            "cuMemcpy",
            "planned",
        ];
        assert_eq!(names, all);
        assert_eq!(report.rows.len(), 8 * names.len());
        assert_eq!(report.choices.len(), 8);
        for choice in &report.choices {
            assert_eq!(choice.path, CopyPath::ONE_THREAD, "it is simulated");
            assert!(choice.best != Method::Planned && choice.ratio > 0.0);
        }
        let worst = report.worst_choice().unwrap().ratio;
        assert!(report.choices.iter().all(|choice| choice.ratio <= worst));
    }

    #[test]
    fn a_sweep_of_paths_makes_a_profile_with_all_of_them() {
        let report = run(&target(), &settings(Extent::Paths), &mut |_| {
            ControlFlow::Continue(())
        });
        let report = report.unwrap();
        assert!(report.choices.is_empty());
        let profile = report.profile();
        assert_eq!(profile.calibration.curves().count(), 4 * 4);
        assert!(profile.calibration.queued_copy_ns().is_some());
        for (_, curve) in profile.calibration.curves() {
            let lens: Vec<_> = curve.points().iter().map(|point| point.len).collect();
            assert_eq!(lens, [1, 5000]);
        }
        assert_eq!(
            profile.to_string().parse::<Profile>().unwrap().key,
            profile.key
        );
    }

    #[test]
    fn a_resident_kernel_is_measured_for_reads_and_refused_where_there_is_none() {
        let settings = Settings {
            resident: ResidentPath::Measured,
            ..settings(Extent::Comparison)
        };
        let limits = PathLimits::all(settings.max_threads).with_resident(ResidentUse::Allowed);
        let resident = Method::Path(CopyPath::Resident);
        for direction in CopyDirection::ALL {
            let is_measured = settings.methods(direction, limits).contains(&resident);
            assert_eq!(is_measured, direction == CopyDirection::FromGpu);
        }
        let refused = run(&target(), &settings, &mut |_| ControlFlow::Continue(()));
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("the GPU is simulated"), "{message}");
    }

    #[test]
    fn functions_of_a_library_are_measured_and_compared_with_the_choice() {
        let settings = |library| Settings {
            library: Some(Arc::new(library)),
            ..settings(Extent::Comparison)
        };
        let run = |settings| run(&target(), &settings, &mut |_| ControlFlow::Continue(()));
        let report = run(settings(copy_library::tests::right())).unwrap();
        let of_library = report
            .rows
            .iter()
            .filter(|row| row.method == Method::Library);
        assert_eq!(of_library.count(), 8);
        assert_eq!(report.library, Some("copies.so".into()));
        assert_eq!(report.profile().calibration.curves().count(), 4 * 4);

        let wrong = run(settings(copy_library::tests::wrong())).unwrap_err();
        let crate::Error::WrongData { what, .. } = &wrong else {
            panic!("{wrong}");
        };
        assert!(what.contains("library"), "{what}");
        let refusing = run(settings(copy_library::tests::refusing())).unwrap_err();
        assert!(refusing.to_string().contains("returned 22"), "{refusing}");
    }

    #[test]
    fn every_method_comes_after_every_other_one() {
        let (mut order, mut random) = ([0, 1, 2, 3], 0);
        let mut pairs = std::collections::BTreeSet::new();
        for _ in 0..60 {
            shuffle(&mut order, &mut random);
            pairs.extend(order.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!(pairs.len(), 4 * 3, "{pairs:?}");
    }

    #[test]
    fn an_observer_ends_the_sweep() {
        let ended = run(&target(), &settings(Extent::Paths), &mut |_| {
            ControlFlow::Break(())
        });
        assert!(matches!(ended, Err(crate::Error::Stopped)));
    }
}
