//! The self-test of a route, on memory of this library.
//!
//! A route identifies memory by numbers that CUDA does not document. Before it is used on a caller's memory, it has to
//! reach probe buffers (sub-allocated, large, in the middle of an allocation): CUDA must read what the CPU writes
//! through the mapping, and the CPU must read what CUDA writes. The test runs once per process, GPU and route.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdr_cuda::{Bdf, DevicePtr, MemoryKind, PointerInfo};

use super::Mapped;
use super::cuda::{CudaCalls, ProbeMemory};
use super::device::Device;
use super::resolve::{Range, RouteError, by_route};
use crate::cpu::{self, Routine};
use crate::error::{Error, Result};
use crate::report::Route;
use gdr_process::PerProcess;

/// The results of the self-tests of this process.
pub(super) static VERDICTS: Verdicts = PerProcess::new();

/// The results by route and GPU: passed, or the reason for the failure.
pub(super) type Verdicts = PerProcess<Mutex<HashMap<(Route, Bdf), Result<(), String>>>>;

/// Tests `route` on the GPU of `device`, which holds `user`'s memory, or returns the earlier result.
pub(super) fn prove(
    verdicts: &Verdicts,
    cuda: &dyn CudaCalls,
    device: &Arc<Device>,
    user: &PointerInfo,
    route: Route,
) -> Result<()> {
    // Locked during the test: a second thread waits for the result instead of testing again.
    let mut verdicts = verdicts
        .get()
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let verdict = verdicts
        .entry((route, device.bdf()))
        .or_insert_with(|| {
            let verdict = try_prove(cuda, device, user, route);
            match &verdict {
                Ok(()) => tracing::info!("route {route} passed its test on GPU {}", device.bdf()),
                Err(reason) => tracing::warn!("route {route} on GPU {}: {reason}", device.bdf()),
            }
            verdict.map_err(|failure| failure.to_string())
        })
        .clone();
    verdict.map_err(|reason| Error::SelfTest {
        route,
        driver: device.client().version().to_owned(),
        reason,
    })
}

/// The time limit: the whole test takes milliseconds, so a GPU that needs longer hangs.
const LIMIT: Duration = Duration::from_secs(10);

/// Why a route fails its test.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{part} of a buffer of {}, {len} bytes: {source}", .kind.function())]
    Buffer {
        part: &'static str,
        kind: MemoryKind,
        len: u64,
        source: Box<Failure>,
    },
    #[error("CUDA does not read the bytes that the CPU wrote at {0}")]
    CpuBytes(u64),
    #[error("the CPU does not read the bytes that CUDA wrote at {0}")]
    CudaBytes(u64),
    #[error("an address is out of range")]
    Address,
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Cuda(#[from] gdr_cuda::Error),
    #[error(transparent)]
    Driver(#[from] Error),
}

fn try_prove(
    cuda: &dyn CudaCalls,
    device: &Arc<Device>,
    user: &PointerInfo,
    route: Route,
) -> Result<(), Failure> {
    let kinds: &[MemoryKind] = match route {
        Route::PosixFd => &[MemoryKind::VmmPosixFd],
        Route::IpcHandle => &[MemoryKind::Plain],
        _ => &[MemoryKind::Vmm, MemoryKind::Pool],
    };
    let mut verdict = Ok(());
    cuda.with_probe_memory(user.device, user.base, &mut |probe| {
        verdict = kinds
            .iter()
            .try_for_each(|&kind| try_kind(cuda, device, probe, route, kind));
    })?;
    verdict
}

fn try_kind(
    cuda: &dyn CudaCalls,
    device: &Arc<Device>,
    probe: &mut dyn ProbeMemory,
    route: Route,
    kind: MemoryKind,
) -> Result<(), Failure> {
    // Two small buffers share a memory object, so that their offsets in it are tested.
    for (number, len) in [4 << 10, 12 << 10, 4 << 20].into_iter().enumerate() {
        let ptr = probe.allocate(kind, len)?;
        let middle = ptr.checked_add(len / 2).ok_or(Failure::Address)?;
        for (part, ptr, len) in [("all", ptr, len), ("half", middle, len / 2)] {
            // Differs for each part, so that the bytes of another part do not pass.
            let seed = 16 * number as u8 + part.len() as u8;
            check(cuda, device, &*probe, route, ptr, len, seed).map_err(|failure| {
                Failure::Buffer {
                    part,
                    kind,
                    len,
                    source: Box::new(failure),
                }
            })?;
        }
    }
    Ok(())
}

/// Returns bytes that differ from other buffers' bytes and from the bytes at other positions.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| {
            (i as u8 ^ (i >> 8) as u8)
                .wrapping_mul(167)
                .wrapping_add(seed)
        })
        .collect()
}

/// Compares both directions at the start and the end of `ptr..ptr + len`.
fn check(
    cuda: &dyn CudaCalls,
    device: &Arc<Device>,
    probe: &dyn ProbeMemory,
    route: Route,
    ptr: DevicePtr,
    len: u64,
    seed: u8,
) -> Result<(), Failure> {
    const PROBE: usize = 256;
    let info = cuda.pointer_info(ptr)?;
    let range = Range {
        ptr,
        len,
        info,
        further: Vec::new(),
    };
    let extents = by_route(cuda, device, &range, route)?;
    let (start, skip, _) = range.widening();
    let total: u64 = extents.iter().map(|extent| extent.len).sum();
    let mapped = Mapped::new(&extents, total)?;
    let mapping = mapped.bar_mapping()?;
    let caching = mapping.caching();
    let routine = Routine::best();
    debug_assert_eq!(start.get() + skip, ptr.get());

    // Checks both ends: with a wrong offset or length, one of them is other memory.
    for at in [0, len - PROBE as u64] {
        let device_at = ptr.checked_add(at).ok_or(Failure::Address)?;
        // SAFETY: `skip + at + PROBE <= skip + len`, which the mapping covers: the extents are the range widened to
        // whole pages.
        let cpu_at = unsafe { mapping.as_ptr().add((skip + at) as usize) };

        let written = pattern(seed, PROBE);
        let mut seen = [0; PROBE];
        // SAFETY: `PROBE` bytes of the mapping, as above, and of `written`.
        unsafe {
            cpu::copy_to(routine, caching, cpu_at, written.as_ptr(), PROBE);
        }
        probe.read(device_at, &mut seen, LIMIT)?;
        if seen[..] != written[..] {
            return Err(Failure::CpuBytes(at));
        }

        // Differs from the CPU's bytes, which must not pass as CUDA's.
        let written = pattern(!seed, PROBE);
        probe.write(device_at, &written, LIMIT)?;
        // SAFETY: as above, the other way round.
        unsafe {
            cpu::copy_from(routine, caching, seen.as_mut_ptr(), cpu_at, PROBE);
        }
        if seen[..] != written[..] {
            return Err(Failure::CudaBytes(at));
        }
    }
    Ok(())
}
