//! Long copies on paths faster than loads and stores by the calling thread, unless the environment forbids them.
//!
//! | variable | meaning |
//! |---|---|
//! | `GDR_COPY` unset or `auto` | reads that the planner finds faster so come by the GPU's copy engine |
//! | `GDR_COPY=cpu`, or a copy routine | the calling thread makes each copy |
//! | `GDR_COPY_THREADS=N` | long copies by CPU may use N threads, the caller's included |
//!
//! A copy that is not long costs one additional comparison. Reads by the copy engine keep the interface's promises
//! about copies: the calling thread takes no lock, allocates nothing and waits for nothing ([`EngineReads`]). Copies to
//! the GPU are stores, because a store that the engine makes later could overwrite a newer one, and could fail. Copies
//! by several threads take locks, so signal handlers must neither make nor leave them.
use std::ffi::OsStr;
use std::num::NonZeroU16;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use gdr_copy::plan::{CopyDirection, CopyEngineUse, HostMemory, PathLimits, Planner, ResidentUse};
use gdr_copy::{
    BackendKind, Caching, Copier, EngineReads, Lease, Mapping, PerProcess, built_in_calibration,
    calibration_for,
};
use gdr_cuda::{DeviceBuffer, Driver, Gpu, Ordinal};
use gdr_process::Inherited;

/// Shorter reads are loaded before the copy engine's thread has queued them.
const SHORTEST_BY_ENGINE: usize = 16 << 10;

/// Copies of a mapping that the calling thread does not make alone.
#[derive(Debug)]
pub(crate) struct LongCopies {
    /// `None` if no copy may use several threads.
    by_threads: Option<Copier>,
    /// Reads by the copy engine, and their minimum length in bytes; `None` if it may not be used.
    by_engine: Option<(EngineReads, usize)>,
    to: usize,
    from: usize,
}

/// The CPU must make the copy itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftToCpu;

/// Costs of copies for one kind of mapping of a GPU.
#[derive(Debug)]
struct Costs {
    gpu: Gpu,
    kind: (BackendKind, Caching),
    planner: Planner,
}

impl Costs {
    /// Returns the long copies of this mapping. Reads the profile, and describes each GPU, once per process.
    fn of(
        mapping: &Mapping,
        driver: &Arc<dyn Driver>,
        device: Ordinal,
        limits: PathLimits,
    ) -> gdr_copy::Result<Arc<Self>> {
        static ALL: PerProcess<Mutex<Vec<Arc<Costs>>>> = PerProcess::new();
        let kind = (mapping.backend(), mapping.caching());
        let is_same = |it: &&Arc<Self>| {
            it.gpu.info().ordinal == device
                && Arc::ptr_eq(it.gpu.driver(), driver)
                && it.kind == kind
                && it.planner.limits() == limits
        };
        // An element is complete when added.
        let mut all = ALL.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(is_same) {
            return Ok(Arc::clone(known));
        }
        let gpu = Gpu::open(Arc::clone(driver), device)?;
        let (calibration, source) = calibration_for(&gpu, mapping).unwrap_or_else(|error| {
            tracing::warn!(%error, "built-in costs are used");
            built_in_calibration(mapping)
        });
        tracing::info!(%source, "costs of copies");
        let planner = Planner::new(&calibration, limits);
        let costs = Arc::new(Self { gpu, kind, planner });
        all.push(Arc::clone(&costs));
        Ok(costs)
    }
}

/// Returns the limits that the environment sets; `None` if the calling thread makes every copy.
pub(crate) fn limits() -> Option<PathLimits> {
    static LIMITS: Inherited<Option<PathLimits>> = Inherited::new();
    *LIMITS.get_or_init(|| {
        let mode = gdr_process::variable("GDR_COPY");
        let threads = gdr_process::variable("GDR_COPY_THREADS");
        limits_of(mode.as_deref(), threads.as_deref())
    })
}

fn limits_of(mode: Option<&OsStr>, threads: Option<&OsStr>) -> Option<PathLimits> {
    let threads = threads.filter(|text| !text.is_empty());
    let max_threads = threads.map_or(Some(NonZeroU16::MIN), |text| {
        text.to_str()?.trim().parse().ok()
    });
    if max_threads.is_none() {
        tracing::warn!("GDR_COPY_THREADS is ignored: it is not a number from 1 to 65535");
    }
    let limits = PathLimits {
        max_threads: max_threads.unwrap_or(NonZeroU16::MIN),
        copy_engine: match mode {
            None => CopyEngineUse::Allowed,
            Some(mode) if mode.is_empty() || mode == "auto" => CopyEngineUse::Allowed,
            Some(_) => CopyEngineUse::Forbidden,
        },
        resident: ResidentUse::Forbidden,
    };
    (limits != PathLimits::ONE_THREAD).then_some(limits)
}

impl LongCopies {
    /// Returns the long copies for the mapping of a pin on the GPU of `driver`. `None` if no copy would use another
    /// path.
    pub(crate) fn of(
        mapping: &Arc<Mapping>,
        driver: &Arc<dyn Driver>,
        limits: PathLimits,
    ) -> gdr_copy::Result<Option<Self>> {
        let ptr = mapping.device_ptr();
        let info = driver.pointer_info(ptr)?;
        let costs = Costs::of(mapping, driver, info.device, limits)?;
        let bytes = |from: Option<u64>| {
            let from = from.and_then(|from| usize::try_from(from).ok());
            from.unwrap_or(usize::MAX)
        };
        let (gpu, planner) = (&costs.gpu, &costs.planner);
        let stores_only = PathLimits {
            copy_engine: CopyEngineUse::Forbidden,
            ..limits
        };
        let has_threads = limits.max_threads > NonZeroU16::MIN;
        let by_cpu = has_threads.then(|| planner.with_limits(stores_only));
        let to = by_cpu.as_ref().and_then(|planner| {
            planner.one_thread_below(CopyDirection::ToGpu, HostMemory::Pageable)
        });
        let (direction, host) = (CopyDirection::FromGpu, HostMemory::Pageable);
        let from = planner.one_thread_below(direction, host);
        let engine_from = planner.copy_engine_from(direction, host);
        if to.is_none() && from.is_none() {
            return Ok(None);
        }
        let (to, from) = (bytes(to), bytes(from));
        tracing::info!(to, from, "long copies");
        // SAFETY: the interface requires the program to keep memory allocated while it is copied. If the memory was
        // freed before a copy, the copy detects that and is made by the CPU.
        let buffer = Arc::new(unsafe { DeviceBuffer::borrowed_part(gpu, ptr, mapping.len()) }?);
        let by_threads = by_cpu
            .map(|planner| Copier::new(Arc::clone(mapping), Arc::clone(&buffer), planner))
            .transpose()?;
        let by_engine = match engine_from {
            Some(_) => {
                let reads = EngineReads::new(Arc::clone(mapping), buffer)?;
                Some((reads, bytes(engine_from).max(SHORTEST_BY_ENGINE)))
            }
            None => None,
        };
        Ok(Some(Self {
            by_threads,
            by_engine,
            to,
            from,
        }))
    }

    /// Returns the lengths in bytes from which copies to the GPU, and from the GPU, are long.
    pub(crate) fn from(&self) -> [usize; 2] {
        [self.to, self.from]
    }

    /// Copies to `offset` of the mapping.
    ///
    /// # Safety
    /// `host` is valid for reading `len` bytes, and does not overlap the mapping.
    pub(crate) unsafe fn write(
        &self,
        offset: u64,
        host: *const u8,
        len: usize,
    ) -> Result<(), LeftToCpu> {
        let copier = self.by_threads.as_ref().ok_or(LeftToCpu)?;
        // SAFETY: the caller's promise.
        contained(|| unsafe { copier.write_raw(offset, host, len) })
    }

    /// Copies from `offset` of the mapping.
    ///
    /// # Safety
    /// `host` is valid for writing `len` bytes, and does not overlap the mapping. The lease belongs to
    /// the cell that protects the mapping.
    pub(crate) unsafe fn read(
        &self,
        lease: &Lease,
        offset: u64,
        host: *mut u8,
        len: usize,
    ) -> Result<(), LeftToCpu> {
        match (&self.by_engine, &self.by_threads) {
            (Some((reads, from)), _) if len >= *from => {
                // SAFETY: the caller's promise.
                contained(|| unsafe { reads.read(lease, offset, host, len) })
            }
            (_, Some(copier)) => {
                // SAFETY: the caller's promise.
                contained(|| unsafe { copier.read_raw(offset, host, len) })
            }
            _ => Err(LeftToCpu),
        }
    }
}

impl Drop for LongCopies {
    fn drop(&mut self) {
        if let Some((reads, _)) = &self.by_engine {
            tracing::debug!("{} bytes were read by the copy engine", reads.taken());
        }
    }
}

/// Keeps a panic from crossing the C interface. What a failed copy did not do, the CPU does.
fn contained(copy: impl FnOnce() -> gdr_copy::Result<()>) -> Result<(), LeftToCpu> {
    match panic::catch_unwind(AssertUnwindSafe(copy)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(LeftToCpu),
    }
}

#[cfg(test)]
mod tests {
    use gdr_copy::Context;
    use gdr_cuda::{MemoryKind, Ordinal, SimDriver};

    use super::*;

    #[test]
    fn only_where_the_environment_says_so_does_the_calling_thread_make_each_copy() {
        let os = |text: &'static str| Some(OsStr::new(text));
        for mode in [os("cpu"), os("avx2")] {
            for threads in [None, os(""), os("1"), os("many"), os("0")] {
                assert_eq!(limits_of(mode, threads), None, "{mode:?} {threads:?}");
            }
        }
        for mode in [None, os(""), os("auto")] {
            let limits = limits_of(mode, None).unwrap();
            assert_eq!(limits, PathLimits::all(NonZeroU16::MIN), "{mode:?}");
        }
        let four = NonZeroU16::new(4).unwrap();
        assert_eq!(limits_of(os("auto"), os("4")), Some(PathLimits::all(four)));
        let cpu = limits_of(os("cpu"), os("4")).unwrap();
        assert_eq!(
            (cpu.max_threads, cpu.copy_engine),
            (four, CopyEngineUse::Forbidden)
        );
    }

    #[test]
    fn a_simulated_mapping_has_no_faster_path_and_so_no_long_copies() {
        let driver: Arc<SimDriver> = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, 1 << 20).unwrap();
        let context = Context::open_for(&gpu).unwrap();
        let mapping = context
            .pin(buffer.ptr(), buffer.len())
            .unwrap()
            .map()
            .unwrap();
        let driver: Arc<dyn Driver> = driver;
        let limits = PathLimits::all(NonZeroU16::MIN);
        assert!(
            LongCopies::of(&Arc::new(mapping), &driver, limits)
                .unwrap()
                .is_none()
        );
    }
}
