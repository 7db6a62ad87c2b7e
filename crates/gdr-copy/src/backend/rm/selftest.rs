//! The proof that a route leads where it should, on memory of our own.
//!
//! A route names memory by numbers that CUDA does not document. Before it is used on anybody's
//! memory, it has to find scratch buffers of this process (sub-allocated, large, in the middle of
//! an allocation): bytes that the CPU writes through the mapping must be what CUDA copies out,
//! and bytes that CUDA copies in must be what the CPU reads. Once per process, GPU and route.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdr_cuda::{Bdf, Cuda, DevicePtr, Driver, MemoryKind, PointerInfo, Scratch};

use super::Mapped;
use super::device::Device;
use super::resolve::{Range, by_route};
use crate::cpu::{self, Routine};
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::pinned::Route;

/// What was proved, or why not.
static VERDICTS: PerProcess<Mutex<Verdicts>> = PerProcess::new();

/// By route and GPU: proved, or why not.
type Verdicts = HashMap<(Route, Bdf), Result<(), String>>;

/// Proves `route` on the GPU behind `device`, on which `user`'s memory is, or recalls the verdict.
pub(super) fn prove(
    cuda: &Cuda,
    device: &Arc<Device>,
    user: &PointerInfo,
    route: Route,
) -> Result<()> {
    // Held during the proof: a second thread waits for the verdict instead of proving again.
    let mut verdicts = VERDICTS
        .get()
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let verdict = verdicts
        .entry((route, device.bdf()))
        .or_insert_with(|| {
            let verdict = try_prove(cuda, device, user, route);
            match &verdict {
                Ok(()) => tracing::info!("route {route} proved itself on GPU {}", device.bdf()),
                Err(reason) => tracing::warn!("route {route} on GPU {}: {reason}", device.bdf()),
            }
            verdict
        })
        .clone();
    verdict.map_err(|reason| Error::SelfTest {
        route,
        driver: device.client().version().to_owned(),
        reason,
    })
}

/// The whole proof takes milliseconds; a GPU that needs longer is hung.
const LIMIT: Duration = Duration::from_secs(10);

fn try_prove(
    cuda: &Cuda,
    device: &Arc<Device>,
    user: &PointerInfo,
    route: Route,
) -> Result<(), String> {
    let kinds: &[MemoryKind] = match route {
        Route::PosixFd => &[MemoryKind::VmmPosixFd],
        Route::IpcHandle => &[MemoryKind::Plain],
        _ => &[MemoryKind::Vmm, MemoryKind::Pool],
    };
    let proof = |scratch: &mut Scratch<'_>| {
        // The verdict of a comparison is no error of the driver's.
        Ok(kinds
            .iter()
            .try_for_each(|&kind| try_kind(cuda, device, scratch, route, kind)))
    };
    cuda.with_scratch(user.device, user.base, proof)
        .map_err(text)?
}

fn try_kind(
    cuda: &Cuda,
    device: &Arc<Device>,
    scratch: &mut Scratch<'_>,
    route: Route,
    kind: MemoryKind,
) -> Result<(), String> {
    // Two small buffers share a memory object, so that their offsets in it matter.
    for (number, len) in [4 << 10, 12 << 10, 4 << 20].into_iter().enumerate() {
        let ptr = scratch.allocate(kind, len).map_err(text)?;
        let middle = ptr.checked_add(len / 2).ok_or("an address out of range")?;
        for (part, ptr, len) in [("all", ptr, len), ("half", middle, len / 2)] {
            let seed = 16 * number as u8 + part.len() as u8;
            check(cuda, device, scratch, route, ptr, len, seed).map_err(|problem| {
                format!(
                    "{part} of a buffer of {}, {len} bytes: {problem}",
                    kind.function()
                )
            })?;
        }
    }
    Ok(())
}

/// Bytes that no other buffer or position shares by chance.
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
    cuda: &Cuda,
    device: &Arc<Device>,
    scratch: &Scratch<'_>,
    route: Route,
    ptr: DevicePtr,
    len: u64,
    seed: u8,
) -> Result<(), String> {
    const PROBE: usize = 256;
    let info = cuda.pointer_info(ptr).map_err(text)?;
    let range = Range {
        ptr,
        len,
        info,
        further: Vec::new(),
    };
    let pieces = by_route(cuda, device, &range, route)?;
    let (start, skip, _) = range.widening();
    let total: u64 = pieces.iter().map(|piece| piece.len).sum();
    let mapped = Mapped::new(&pieces, total).map_err(text)?;
    let window = mapped.window().map_err(text)?;
    let caching = window.caching();
    let routine = Routine::best();
    debug_assert_eq!(start.get() + skip, ptr.get());

    for at in [0, len - PROBE as u64] {
        let device_at = ptr.checked_add(at).ok_or("an address out of range")?;
        // SAFETY: `skip + at + PROBE <= skip + len`, which the window covers: the pieces are the
        // range widened to whole pages.
        let cpu_at = unsafe { window.as_ptr().add((skip + at) as usize) };

        let written = pattern(seed, PROBE);
        let mut seen = [0; PROBE];
        // SAFETY: `PROBE` bytes of the window, as above, and of `written`.
        unsafe {
            cpu::copy_to(routine, caching, cpu_at, written.as_ptr(), PROBE);
        }
        scratch.read(device_at, &mut seen, LIMIT).map_err(text)?;
        if seen[..] != written[..] {
            return Err(format!("the CPU's bytes at {at} are not what CUDA reads"));
        }

        let written = pattern(!seed, PROBE);
        scratch.write(device_at, &written, LIMIT).map_err(text)?;
        // SAFETY: as above, the other way round.
        unsafe {
            cpu::copy_from(routine, caching, seen.as_mut_ptr(), cpu_at, PROBE);
        }
        if seen[..] != written[..] {
            return Err(format!("CUDA's bytes at {at} are not what the CPU reads"));
        }
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
