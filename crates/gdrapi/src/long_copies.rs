//! Long copies on faster paths than stores and loads by the calling thread, unless the environment forbids
//! them.
//!
//! | variable | meaning |
//! |---|---|
//! | `GDR_COPY` unset or `auto` | copies that the planner finds faster so are made by the GPU's copy engine |
//! | `GDR_COPY=cpu`, or a copy routine | the calling thread makes each copy |
//! | `GDR_COPY_THREADS=N` | long copies by CPU may use N threads, the caller's included |
//!
//! A copy that is not long costs one comparison more. A long one takes locks and allocates, so it must not
//! be made in a signal handler, or be left by a jump.

use std::ffi::OsStr;
use std::num::NonZeroU16;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gdr_copy::plan::{CopyDirection, CopyEngineUse, HostMemory, PathLimits, Planner, ResidentUse};
use gdr_copy::{Copier, Mapping, built_in_calibration, calibration_for};
use gdr_cuda::{DeviceBuffer, Driver, Gpu};

use crate::copy_error::CopyError;

/// The most time of a copy by the copy engine: `gdr_unmap` waits 20 seconds for copies in progress.
const LIMIT: Duration = Duration::from_secs(10);

/// The copies of a mapping that are not made by the calling thread alone.
#[derive(Debug)]
pub(crate) struct LongCopies {
    copier: Copier,
    to: usize,
    from: usize,
}

/// The limits that the environment sets; `None` where each copy is made by the calling thread.
pub(crate) fn limits() -> Option<PathLimits> {
    static LIMITS: OnceLock<Option<PathLimits>> = OnceLock::new();
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
    /// For the mapping of a pin, on the GPU of `driver`. `None` where no copy would take another path.
    pub(crate) fn of(
        mapping: &Arc<Mapping>,
        driver: &Arc<dyn Driver>,
        limits: PathLimits,
    ) -> gdr_copy::Result<Option<Self>> {
        let ptr = mapping.device_ptr();
        let info = driver.pointer_info(ptr)?;
        let gpu = Gpu::open(Arc::clone(driver), info.device)?;
        let (calibration, source) = calibration_for(&gpu, mapping).unwrap_or_else(|error| {
            tracing::warn!(%error, "built-in costs are used");
            built_in_calibration(mapping)
        });
        let planner = Planner::new(&calibration, limits);
        let long_from = |direction| {
            let from = planner.one_thread_below(direction, HostMemory::Pageable);
            from.map_or(usize::MAX, |from| {
                usize::try_from(from).unwrap_or(usize::MAX)
            })
        };
        let [to, from] = CopyDirection::ALL.map(long_from);
        if to == usize::MAX && from == usize::MAX {
            return Ok(None);
        }
        tracing::info!(to, from, %source, "long copies");
        // SAFETY: the program keeps memory allocated while it copies it, as the interface requires. If
        // it has freed the memory before a copy, the copier finds that out and does not reach it.
        let buffer = unsafe { DeviceBuffer::borrowed_part(&gpu, ptr, mapping.len()) }?;
        let copier = Copier::new(Arc::clone(mapping), buffer, planner)?.with_limit(LIMIT);
        copier.prepare()?;
        Ok(Some(Self { copier, to, from }))
    }

    /// Bytes from which on copies to the GPU, and copies from it, are long.
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
    ) -> Result<(), CopyError> {
        // SAFETY: the caller's promise.
        let written = contained(|| unsafe { self.copier.write_raw(offset, host, len) });
        written.map_err(|error| match error {
            // Nothing was queued, and the mapping keeps the memory.
            Some(gdr_copy::Error::Freed { .. }) => CopyError::LeftToCpu,
            _ => CopyError::CopyEngine,
        })
    }

    /// Copies from `offset` of the mapping.
    ///
    /// # Safety
    /// `host` is valid for writing `len` bytes, and does not overlap the mapping.
    pub(crate) unsafe fn read(
        &self,
        offset: u64,
        host: *mut u8,
        len: usize,
    ) -> Result<(), CopyError> {
        // SAFETY: the caller's promise.
        let read = contained(|| unsafe { self.copier.read_raw(offset, host, len) });
        // What the copy engine still writes goes to memory of this library.
        read.map_err(|_| CopyError::LeftToCpu)
    }
}

/// No panic crosses the C interface; `None` is one.
fn contained(copy: impl FnOnce() -> gdr_copy::Result<()>) -> Result<(), Option<gdr_copy::Error>> {
    match panic::catch_unwind(AssertUnwindSafe(copy)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "a long copy");
            Err(Some(error))
        }
        Err(_) => Err(None),
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
