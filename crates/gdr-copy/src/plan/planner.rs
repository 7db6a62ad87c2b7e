//! The choice of a path.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU64};
use std::ops::Range;

use super::calibration::{Calibration, Series};
use super::path::{CopyDirection, CopyPath, HostMemory};

/// The alignment of pieces in GPU memory, so that threads do not share a line and the copy engine gets aligned
/// addresses.
const ALIGNMENT: u64 = 4 << 10;
/// The shortest and the longest piece for a thread. Each thread gets several pieces, so that one that starts late does
/// not delay the end.
const THREAD_PIECE: Range<u64> = 16 << 10..1 << 20;
const PIECES_PER_THREAD: u64 = 4;
/// The shortest and the longest chunk of the page-locked ring. The first chunk's copy overlaps with nothing, and each
/// chunk costs some microseconds.
const RING_CHUNK: Range<u64> = 64 << 10..512 << 10;
const CHUNKS: u64 = 8;
/// From this length on, reads use several threads to copy from the ring to pageable memory: one thread copies 8 to 10
/// GB/s, the engine 50. Starting the threads takes about 10 us.
const RING_THREADS_FROM: u64 = 1 << 20;
const MOST_RING_THREADS: u16 = 4;
/// The longest piece that a resident kernel pushes at once.
const RESIDENT_CHUNK: u64 = 32 << 10;
/// A size above every measured one, at which costs are compared as well.
const LARGEST: u64 = 1 << 46;

/// Whether copies may use the copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyEngineUse {
    /// Copies may use the copy engine.
    Allowed,
    /// Only CPU copies are allowed.
    Forbidden,
}

/// Whether reads may use a resident kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResidentUse {
    /// Reads may use a resident kernel.
    Allowed,
    /// No kernel stays on the GPU.
    Forbidden,
}

/// The paths that a program allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathLimits {
    /// The maximum number of threads per copy, including the caller's.
    pub max_threads: NonZeroU16,
    /// Whether the copy engine may be used.
    pub copy_engine: CopyEngineUse,
    /// Whether a resident kernel may be used.
    pub resident: ResidentUse,
}

impl PathLimits {
    /// Allows only CPU copies by the calling thread.
    pub const ONE_THREAD: Self = Self {
        max_threads: NonZeroU16::MIN,
        copy_engine: CopyEngineUse::Forbidden,
        resident: ResidentUse::Forbidden,
    };

    /// Allows the copy engine, and CPU copies by up to `max_threads` threads.
    pub const fn all(max_threads: NonZeroU16) -> Self {
        Self {
            max_threads,
            copy_engine: CopyEngineUse::Allowed,
            resident: ResidentUse::Forbidden,
        }
    }

    /// Returns the same limits, with short reads by a resident kernel as given by `resident`.
    pub const fn with_resident(self, resident: ResidentUse) -> Self {
        Self { resident, ..self }
    }

    /// Returns whether copies may take `path`.
    pub fn allow(&self, path: CopyPath) -> bool {
        match path {
            CopyPath::Cpu { threads } => threads <= self.max_threads,
            CopyPath::Resident => self.resident == ResidentUse::Allowed,
            CopyPath::CopyEngine => self.copy_engine == CopyEngineUse::Allowed,
        }
    }
}

/// A copy to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// The direction of the copy.
    pub direction: CopyDirection,
    /// The host memory.
    pub host: HostMemory,
    /// The GPU address of the first byte; its alignment matters.
    pub address: u64,
    /// The length in bytes.
    pub len: u64,
}

/// A path, and the size from which it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The size in bytes.
    pub from: u64,
    /// The path.
    pub path: CopyPath,
}

/// The estimated cost of a copy on a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The path.
    pub path: CopyPath,
    /// The cost in nanoseconds.
    pub ns: f64,
    /// Whether the limits allow the path.
    pub is_allowed: bool,
}

/// A plan for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct CopyPlan {
    path: CopyPath,
    request: CopyRequest,
    chunk: NonZeroU64,
}

impl CopyPlan {
    /// Returns a plan for `request` on the given path.
    pub fn on(path: CopyPath, request: CopyRequest) -> Self {
        let len = request.len;
        let between = |wanted: u64, limits: Range<u64>| {
            let wanted = wanted.clamp(limits.start, limits.end);
            // Whole multiples, so that each piece after the first begins at an aligned address.
            wanted.next_multiple_of(ALIGNMENT)
        };
        let chunk = match (path, request.host) {
            // One piece, because two pieces would not overlap.
            (CopyPath::ONE_THREAD, _) | (CopyPath::CopyEngine, HostMemory::PageLocked) => u64::MAX,
            (CopyPath::Cpu { threads }, _) => {
                let pieces = u64::from(threads.get()) * PIECES_PER_THREAD;
                between(len / pieces, THREAD_PIECE)
            }
            (CopyPath::Resident, _) => RESIDENT_CHUNK,
            (CopyPath::CopyEngine, HostMemory::Pageable) => between(len / CHUNKS, RING_CHUNK),
        };
        Self {
            path,
            request,
            chunk: NonZeroU64::new(chunk).unwrap_or(NonZeroU64::MAX),
        }
    }

    /// Returns the path.
    pub fn path(&self) -> CopyPath {
        self.path
    }

    /// Returns the request that the plan is for.
    pub fn request(&self) -> &CopyRequest {
        &self.request
    }

    /// Returns the maximum length of a piece; [`NonZeroU64::MAX`] if the copy is a single piece.
    pub fn chunk(&self) -> NonZeroU64 {
        self.chunk
    }

    /// Returns the number of threads, including the caller's and at most `most`, that copy between page-locked and
    /// pageable memory while the copy engine copies. It is 1 for writes, for which several threads would store into the
    /// mapping instead.
    pub fn ring_threads(&self, most: NonZeroU16) -> NonZeroU16 {
        let CopyRequest {
            direction,
            host,
            len,
            ..
        } = self.request;
        let has_ring = self.path == CopyPath::CopyEngine && host == HostMemory::Pageable;
        if !has_ring || direction == CopyDirection::ToGpu || len < RING_THREADS_FROM {
            return NonZeroU16::MIN;
        }
        NonZeroU16::new(most.get().min(MOST_RING_THREADS)).unwrap_or(NonZeroU16::MIN)
    }

    /// Returns the pieces in order, as offsets from the start of the copy. They cover it without gaps, and all but the
    /// first begin at GPU addresses that are multiples of 4 KiB.
    pub fn pieces(&self) -> Pieces {
        let CopyRequest { address, len, .. } = self.request;
        let chunk = self.chunk.get();
        let first = match chunk {
            u64::MAX => len,
            // Shortened by the distance from the previous multiple, so that all other pieces begin at a multiple.
            _ => chunk - address % ALIGNMENT,
        };
        Pieces {
            chunk,
            next: 0,
            end: first.min(len),
            len,
        }
    }
}

/// The pieces of a [`CopyPlan`].
#[derive(Clone, Debug)]
pub struct Pieces {
    chunk: u64,
    /// The next piece.
    next: u64,
    end: u64,
    len: u64,
}

impl Iterator for Pieces {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        if self.next == self.len {
            return None;
        }
        let piece = self.next..self.end;
        self.next = self.end;
        self.end = self.end.saturating_add(self.chunk).min(self.len);
        Some(piece)
    }
}

/// Chooses the path of each copy.
#[derive(Clone, Debug)]
pub struct Planner {
    calibration: Calibration,
    limits: PathLimits,
    /// The steps by direction and host memory, the shortest copies first.
    steps: [[Vec<Step>; 2]; 2],
}

impl Planner {
    /// Creates a planner with the costs of `calibration` and the paths that `limits` allow.
    ///
    /// With increasing size, the choice moves through the paths in their order, from CPU copies by one thread to the
    /// copy engine, and never back. The switches are placed where the total cost over all sizes is lowest, so a single
    /// wrong measurement does not move them.
    pub fn new(calibration: &Calibration, limits: PathLimits) -> Self {
        let steps = CopyDirection::ALL.map(|direction| {
            HostMemory::ALL.map(|host| steps(calibration, limits, direction, host))
        });
        Self {
            calibration: calibration.clone(),
            limits,
            steps,
        }
    }

    /// Returns a planner with the same costs, but other limits.
    pub fn with_limits(&self, limits: PathLimits) -> Self {
        Self::new(&self.calibration, limits)
    }

    /// Returns the allowed paths.
    pub fn limits(&self) -> PathLimits {
        self.limits
    }

    /// Returns the paths for one kind of copy by size; the first step starts at 0.
    pub fn steps(&self, direction: CopyDirection, host: HostMemory) -> &[Step] {
        &self.steps[direction as usize][host as usize]
    }

    /// Returns the path for a copy of `len` bytes.
    #[inline]
    pub fn path(&self, direction: CopyDirection, host: HostMemory, len: u64) -> CopyPath {
        let steps = self.steps(direction, host);
        let step = steps.iter().rev().find(|step| step.from <= len);
        step.map_or(CopyPath::ONE_THREAD, |step| step.path)
    }

    /// Returns the size from which on copies are no longer made by the calling thread alone; `None` if all are.
    pub fn one_thread_below(&self, direction: CopyDirection, host: HostMemory) -> Option<u64> {
        let mut steps = self.steps(direction, host).iter();
        let step = steps.find(|step| step.path != CopyPath::ONE_THREAD)?;
        Some(step.from)
    }

    /// Returns the size from which on copies use the copy engine; `None` if they never do.
    pub fn copy_engine_from(&self, direction: CopyDirection, host: HostMemory) -> Option<u64> {
        let mut steps = self.steps(direction, host).iter();
        let step = steps.find(|step| step.path == CopyPath::CopyEngine)?;
        Some(step.from)
    }

    /// Returns the size from which on the copy engine reads to page-locked memory faster, if other copies are queued
    /// with the read; `None` if that is unknown, or the engine may not be used.
    pub fn queued_reads_from(&self) -> Option<u64> {
        let (direction, host) = (CopyDirection::FromGpu, HostMemory::PageLocked);
        // A queued read is faster wherever a single read is, so only shorter reads are searched.
        let single = self.copy_engine_from(direction, host)?;
        let queued = self.calibration.queued_copy_ns()?;
        let loads = self.calibration.curve(&Series {
            direction,
            host,
            path: CopyPath::ONE_THREAD,
        })?;
        // The curve never falls.
        let (mut low, mut high) = (0, single);
        while low < high {
            let middle = low + (high - low) / 2;
            match loads.ns(middle) < queued {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Some(low)
    }

    /// Returns the size from which on the copy engine makes a single read to page-locked memory faster than the calling
    /// thread, if the engine costs `extra_ns` more than its curve, for example because another thread makes the calls.
    /// `None` if the engine is never faster, or may not be used.
    pub fn delayed_reads_from(&self, extra_ns: f64) -> Option<u64> {
        let (direction, host) = (CopyDirection::FromGpu, HostMemory::PageLocked);
        let least = self.copy_engine_from(direction, host)?;
        let curve = |path| {
            self.calibration.curve(&Series {
                direction,
                host,
                path,
            })
        };
        let (loads, engine) = (curve(CopyPath::ONE_THREAD)?, curve(CopyPath::CopyEngine)?);
        let is_faster = |len| engine.ns(len) + extra_ns <= loads.ns(len);
        // If the engine is not faster for the largest copy, it never is.
        match (is_faster(least), is_faster(LARGEST)) {
            (true, _) => Some(least),
            (false, true) => Some(crossing(least, LARGEST, is_faster)),
            (false, false) => None,
        }
    }

    /// Plans a copy.
    pub fn plan(&self, request: &CopyRequest) -> CopyPlan {
        let path = self.path(request.direction, request.host, request.len);
        CopyPlan::on(path, *request)
    }

    /// Returns the cost of a copy on every calibrated path, in the order of the paths.
    pub fn estimates(
        &self,
        direction: CopyDirection,
        host: HostMemory,
        len: u64,
    ) -> impl Iterator<Item = Estimate> {
        let curves = self.calibration.curves();
        let of_this = move |series: &Series| (series.direction, series.host) == (direction, host);
        curves
            .filter(move |(series, _)| of_this(series))
            .map(move |(series, curve)| Estimate {
                path: series.path,
                ns: curve.ns(len),
                is_allowed: self.limits.allow(series.path),
            })
    }
}

/// Returns the steps of copies of one kind.
fn steps(
    calibration: &Calibration,
    limits: PathLimits,
    direction: CopyDirection,
    host: HostMemory,
) -> Vec<Step> {
    let curves: Vec<_> = calibration
        .curves()
        .filter(|(series, _)| (series.direction, series.host) == (direction, host))
        .filter(|(series, _)| limits.allow(series.path))
        .map(|(series, curve)| (series.path, curve))
        .collect();
    if curves.is_empty() {
        // No allowed path was measured, but the calling thread can always copy.
        let (from, path) = (0, CopyPath::ONE_THREAD);
        return vec![Step { from, path }];
    }
    let points = curves.iter().flat_map(|(_, curve)| curve.points());
    let mut sizes: BTreeSet<u64> = points.map(|point| point.len).collect();
    // Curves may also cross before the first measured size, or after the last one.
    sizes.extend([1, LARGEST]);
    let sizes: Vec<u64> = sizes.into_iter().collect();

    // The excess of a path at a size is its cost above the best path's, relative to the best. For each size and path,
    // this computes the least sum of excesses up to that size, and the path of the previous size.
    let mut before: Vec<Vec<usize>> = Vec::with_capacity(sizes.len());
    let mut sums = vec![0.0; curves.len()];
    for &size in &sizes {
        let costs: Vec<f64> = curves.iter().map(|(_, curve)| curve.ns(size)).collect();
        let best = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut least, mut from) = (f64::INFINITY, 0);
        let mut chosen = Vec::with_capacity(curves.len());
        for (at, sum) in sums.iter_mut().enumerate() {
            // The choice only moves forward, so the path of the previous size is this path or an earlier one.
            if *sum < least {
                (least, from) = (*sum, at);
            }
            *sum = least + costs[at] / best - 1.0;
            chosen.push(from);
        }
        before.push(chosen);
    }
    let mut path = (0..curves.len())
        .min_by(|a, b| sums[*a].total_cmp(&sums[*b]))
        .unwrap_or(0);
    let mut by_size = vec![path; sizes.len()];
    // Goes back from the best end, following the choices recorded for each size.
    for at in (1..sizes.len()).rev() {
        path = before[at][path];
        by_size[at - 1] = path;
    }

    let mut steps = vec![Step {
        from: 0,
        path: curves[by_size[0]].0,
    }];
    for at in 1..sizes.len() {
        let (low, high) = (by_size[at - 1], by_size[at]);
        if low != high {
            let (low, high) = (curves[low].1, curves[high].1);
            // Both sizes were measured, but the curves cross somewhere between them.
            let from = crossing(sizes[at - 1], sizes[at], |len| high.ns(len) <= low.ns(len));
            let path = curves[by_size[at]].0;
            steps.push(Step { from, path });
        }
    }
    steps
}

/// Returns the first size after `low`, up to `high`, for which `is_past` holds. It then holds for all later sizes.
fn crossing(low: u64, high: u64, is_past: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (low + 1, high);
    while low < high {
        let middle = low + (high - low) / 2;
        match is_past(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::built_in::Machine;
    use super::super::curve::{CostCurve, CostPoint};
    use super::*;

    fn threads(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).unwrap()
    }

    /// Returns the costs of a path with `fixed` ns for each copy and `per_byte` ns for each byte.
    fn affine(fixed: f64, per_byte: f64) -> CostCurve {
        let points = (0..30).map(|shift| 1_u64 << shift);
        CostCurve::new(points.map(|len| CostPoint {
            len,
            ns: fixed + per_byte * len as f64,
        }))
        .unwrap()
    }

    fn series(path: CopyPath) -> Series {
        Series {
            direction: CopyDirection::FromGpu,
            host: HostMemory::PageLocked,
            path,
        }
    }

    fn request(address: u64, len: u64, host: HostMemory) -> CopyRequest {
        CopyRequest {
            direction: CopyDirection::FromGpu,
            host,
            address,
            len,
        }
    }

    #[test]
    fn a_path_begins_where_it_becomes_the_cheaper_one() {
        let mut calibration = Calibration::new();
        calibration.set(series(CopyPath::ONE_THREAD), affine(100.0, 1.0));
        calibration.set(series(CopyPath::CopyEngine), affine(7000.0, 0.02));
        let planner = Planner::new(&calibration, PathLimits::all(threads(1)));
        let of = |host| planner.steps(CopyDirection::FromGpu, host);
        // The crossing: 100 + n = 7000 + 0.02 n.
        let engine = Step {
            from: 7041,
            path: CopyPath::CopyEngine,
        };
        let cpu = Step {
            from: 0,
            path: CopyPath::ONE_THREAD,
        };
        assert_eq!(of(HostMemory::PageLocked), [cpu, engine]);
        assert_eq!(of(HostMemory::Pageable), [cpu], "it is not calibrated");
    }

    #[test]
    fn a_point_that_was_measured_wrongly_does_not_turn_the_choice_back() {
        let mut calibration = Calibration::new();
        let points = |noise: f64| {
            let points = [
                (1 << 10, 8e3),
                (1 << 14, 8e3),
                (1 << 16, noise),
                (1 << 20, 30e3),
            ];
            CostCurve::new(points.map(|(len, ns)| CostPoint { len, ns })).unwrap()
        };
        calibration.set(series(CopyPath::ONE_THREAD), affine(100.0, 1.0));
        for noise in [9e3, 29e3, 30e3] {
            calibration.set(series(CopyPath::CopyEngine), points(noise));
            let planner = Planner::new(&calibration, PathLimits::all(threads(1)));
            let steps = planner.steps(CopyDirection::FromGpu, HostMemory::PageLocked);
            assert_eq!(steps.len(), 2, "{steps:?}");
            assert!((7000..9000).contains(&steps[1].from), "{steps:?}");
        }
    }

    #[test]
    fn reads_that_are_queued_with_others_use_the_copy_engine_earlier() {
        let calibration = Calibration::built_in(Machine::Pcie);
        let planner = Planner::new(&calibration, PathLimits::all(threads(1)));
        let (direction, host) = (CopyDirection::FromGpu, HostMemory::PageLocked);
        let single = planner.copy_engine_from(direction, host).unwrap();
        let queued = planner.queued_reads_from().unwrap();
        assert!(queued > 64 && queued < single, "{queued} {single}");
        let limits = PathLimits::ONE_THREAD;
        assert_eq!(Planner::new(&calibration, limits).queued_reads_from(), None);
    }

    #[test]
    fn a_copy_engine_that_costs_more_is_used_for_longer_reads() {
        let calibration = Calibration::built_in(Machine::Pcie);
        let planner = Planner::new(&calibration, PathLimits::all(threads(1)));
        let (direction, host) = (CopyDirection::FromGpu, HostMemory::PageLocked);
        let single = planner.copy_engine_from(direction, host);
        assert_eq!(planner.delayed_reads_from(0.0), single);
        // Loads take about 1 us per KiB.
        let later = planner.delayed_reads_from(50_000.0).unwrap();
        assert!((40 << 10..100 << 10).contains(&later), "{later}");
        assert_eq!(planner.delayed_reads_from(f64::INFINITY), None);
        let limits = PathLimits::ONE_THREAD;
        assert_eq!(
            Planner::new(&calibration, limits).delayed_reads_from(0.0),
            None
        );
    }

    #[test]
    fn the_built_in_costs_choose_as_was_measured() {
        let limits = PathLimits::all(threads(4));
        let pcie = Planner::new(&Calibration::built_in(Machine::Pcie), limits);
        let path = |planner: &Planner, direction, len| {
            planner.path(direction, HostMemory::PageLocked, len)
        };
        use CopyDirection::{FromGpu, ToGpu};
        assert_eq!(path(&pcie, ToGpu, 64 << 10), CopyPath::ONE_THREAD);
        assert_eq!(path(&pcie, FromGpu, 4096), CopyPath::ONE_THREAD);
        assert_eq!(path(&pcie, FromGpu, 16 << 10), CopyPath::CopyEngine);
        assert_eq!(path(&pcie, ToGpu, 64 << 20), CopyPath::CopyEngine);
        let simulated = Planner::new(&Calibration::built_in(Machine::Simulated), limits);
        for direction in CopyDirection::ALL {
            assert_eq!(path(&simulated, direction, 1 << 30), CopyPath::ONE_THREAD);
        }
    }

    /// Generates affine costs in path order: later paths have higher fixed costs and lower costs per byte.
    fn ordered() -> impl Strategy<Value = Calibration> {
        let step = (10.0_f64..1e5, 0.05_f64..0.9);
        prop::collection::vec(step, 1..5).prop_map(|steps| {
            let (mut fixed, mut per_byte) = (50.0, 2.0);
            let mut calibration = Calibration::new();
            let engine = steps.len() - 1;
            for (at, (more, less)) in steps.into_iter().enumerate() {
                let path = match at {
                    0 => CopyPath::ONE_THREAD,
                    at if at == engine => CopyPath::CopyEngine,
                    at => CopyPath::cpu(threads(at as u16 + 1)),
                };
                calibration.set(series(path), affine(fixed, per_byte));
                fixed += more;
                per_byte *= less;
            }
            calibration
        })
    }

    /// Generates arbitrary costs.
    fn arbitrary() -> impl Strategy<Value = Calibration> {
        let points = prop::collection::btree_map(1_u64..1 << 30, 1.0_f64..1e9, 1..12);
        prop::collection::vec(points, 0..5).prop_map(|all| {
            let mut calibration = Calibration::new();
            for (at, points) in (1..).zip(all) {
                let points = points.into_iter().map(|(len, ns)| CostPoint { len, ns });
                let path = match at {
                    5 => CopyPath::CopyEngine,
                    at => CopyPath::cpu(threads(at)),
                };
                calibration.set(series(path), CostCurve::new(points).unwrap());
            }
            calibration
        })
    }

    fn limits() -> impl Strategy<Value = PathLimits> {
        let engine = prop_oneof![Just(CopyEngineUse::Allowed), Just(CopyEngineUse::Forbidden)];
        (1..6_u16, engine).prop_map(|(most, copy_engine)| PathLimits {
            max_threads: threads(most),
            copy_engine,
            resident: ResidentUse::Forbidden,
        })
    }

    #[test]
    fn several_threads_help_the_copy_engine_with_long_reads_into_pageable_memory_only() {
        let long = request(0, 1 << 20, HostMemory::Pageable);
        let of = |path, request| CopyPlan::on(path, request).ring_threads(threads(16)).get();
        let from_gpu = CopyRequest {
            direction: CopyDirection::FromGpu,
            ..long
        };
        assert_eq!(of(CopyPath::CopyEngine, from_gpu), 4);
        let plan = CopyPlan::on(CopyPath::CopyEngine, from_gpu);
        assert_eq!(plan.ring_threads(threads(3)), threads(3));
        assert_eq!(plan.ring_threads(threads(1)), threads(1));
        for (path, direction, host, len) in [
            (
                CopyPath::ONE_THREAD,
                CopyDirection::FromGpu,
                HostMemory::Pageable,
                1 << 20,
            ),
            (
                CopyPath::CopyEngine,
                CopyDirection::ToGpu,
                HostMemory::Pageable,
                1 << 20,
            ),
            (
                CopyPath::CopyEngine,
                CopyDirection::FromGpu,
                HostMemory::PageLocked,
                1 << 20,
            ),
            (
                CopyPath::CopyEngine,
                CopyDirection::FromGpu,
                HostMemory::Pageable,
                1 << 19,
            ),
        ] {
            let other = CopyRequest {
                direction,
                host,
                len,
                ..long
            };
            assert_eq!(of(path, other), 1, "{path} {other:?}");
        }
    }

    #[test]
    fn a_resident_kernel_is_chosen_for_short_reads_where_it_is_allowed_only() {
        let calibration = Calibration::built_in(Machine::Pcie);
        let limits = PathLimits::all(threads(4));
        let planner = Planner::new(&calibration, limits);
        let with = planner.with_limits(limits.with_resident(ResidentUse::Allowed));
        for host in HostMemory::ALL {
            let from = |planner: &Planner, len| planner.path(CopyDirection::FromGpu, host, len);
            assert_eq!(from(&with, 64), CopyPath::ONE_THREAD);
            assert_eq!(from(&with, 4 << 10), CopyPath::Resident);
            assert_eq!(from(&with, 1 << 20), CopyPath::CopyEngine);
            let to = with.steps(CopyDirection::ToGpu, host);
            assert!(to.iter().all(|step| step.path != CopyPath::Resident));
            let without = planner.steps(CopyDirection::FromGpu, host);
            assert!(without.iter().all(|step| step.path != CopyPath::Resident));
        }
        let long = request(5, 100_000, HostMemory::Pageable);
        let plan = CopyPlan::on(CopyPath::Resident, long);
        assert!(
            plan.pieces()
                .all(|piece| piece.end - piece.start <= 32 << 10)
        );
    }

    proptest! {
        #[test]
        fn the_choice_is_allowed_and_moves_in_one_direction_over_the_sizes(
            calibration in arbitrary(),
            limits in limits(),
            mut lens in prop::array::uniform2(0_u64..1 << 40),
        ) {
            let planner = Planner::new(&calibration, limits);
            lens.sort_unstable();
            for direction in CopyDirection::ALL {
                for host in HostMemory::ALL {
                    let [short, long] = lens.map(|len| planner.path(direction, host, len));
                    prop_assert!(limits.allow(short) && limits.allow(long));
                    prop_assert!(short <= long);
                }
            }
        }

        #[test]
        fn of_paths_that_cross_once_each_the_cheapest_is_chosen(
            calibration in ordered(),
            limits in limits(),
            len in 1_u64..1 << 29,
        ) {
            let planner = Planner::new(&calibration, limits);
            let (direction, host) = (CopyDirection::FromGpu, HostMemory::PageLocked);
            let chosen = planner.path(direction, host, len);
            let estimates = planner.estimates(direction, host, len);
            let allowed: Vec<_> = estimates.filter(|of| of.is_allowed).collect();
            let best = allowed.iter().map(|of| of.ns).fold(f64::INFINITY, f64::min);
            let own = allowed.iter().find(|of| of.path == chosen);
            prop_assert!(own.is_some_and(|own| own.ns <= best * 1.01), "{allowed:?} {chosen}");
        }

        #[test]
        fn pieces_cover_every_copy_without_a_gap_and_begin_at_aligned_addresses(
            address in 0_u64..1 << 48,
            len in 0_u64..1 << 26,
            number in 1_u16..64,
            pageable: bool,
            engine: bool,
        ) {
            let host = match pageable {
                true => HostMemory::Pageable,
                false => HostMemory::PageLocked,
            };
            let path = match engine {
                true => CopyPath::CopyEngine,
                false => CopyPath::cpu(threads(number)),
            };
            let plan = CopyPlan::on(path, request(address, len, host));
            let mut end = 0;
            for piece in plan.pieces() {
                prop_assert_eq!(piece.start, end);
                prop_assert!(piece.end > piece.start);
                prop_assert!(piece.end - piece.start <= plan.chunk().get());
                let aligned = (address + piece.start).is_multiple_of(ALIGNMENT);
                prop_assert!(piece.start == 0 || aligned);
                end = piece.end;
            }
            prop_assert_eq!(end, len);
            let is_ring = engine && pageable;
            let most = if is_ring { RING_CHUNK.end } else { u64::MAX };
            prop_assert!(plan.chunk().get() <= most);
        }
    }
}
