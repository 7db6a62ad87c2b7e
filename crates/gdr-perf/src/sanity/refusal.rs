//! Checks that invalid requests are refused with a useful error.

use std::path::Path;

use gdr_copy::{BackendKind, Error};
use gdr_cuda::{DevicePtr, MemoryKind, PointerKind};

use super::outcome::{Outcome, Stop, allocate, require, require_refusal};
use super::pattern;
use crate::bench_target::BenchTarget;

const KIB: u64 = 1 << 10;

/// Checks that managed memory is refused, because it migrates.
pub(super) fn managed(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Managed, 64 * KIB)?;
    let refused = target.pin(buffer.ptr(), buffer.len());
    let text = require_refusal("managed memory", refused, |error| {
        matches!(
            error,
            Error::NotDeviceMemory {
                kind: PointerKind::Managed,
                ..
            }
        )
    })?;
    require!(
        text.contains("managed"),
        "`{text}` does not say that the memory is managed"
    );
    Ok(())
}

/// Checks that host memory is refused, whether CUDA knows it or not.
pub(super) fn host(target: &BenchTarget) -> Outcome {
    let ordinary = vec![0_u8; 1 << 20];
    let ptr = DevicePtr::new(ordinary.as_ptr().addr() as u64);
    require_refusal("ordinary host memory", target.pin(ptr, 4096), |error| {
        matches!(error, Error::Gpu(gdr_cuda::Error::UnknownPointer { .. }))
            || matches!(error, Error::NotDeviceMemory { .. })
    })?;
    let locked = target.gpu().allocate_host(4096)?;
    require_refusal(
        "page-locked host memory",
        target.pin(locked.gpu_ptr(), 4096),
        |error| {
            matches!(
                error,
                Error::NotDeviceMemory {
                    kind: PointerKind::Host,
                    ..
                }
            )
        },
    )?;
    Ok(())
}

/// Checks that a freed pointer is refused, and so is one that never was.
pub(super) fn freed(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let unknown =
        |error: &Error| matches!(error, Error::Gpu(gdr_cuda::Error::UnknownPointer { .. }));
    let buffer = allocate(target, kind, 4 << 20)?;
    let (ptr, len) = (buffer.ptr(), buffer.len());
    drop(target.map(&buffer)?);
    drop(buffer);
    let text = require_refusal("a freed pointer", target.pin(ptr, len), unknown)?;
    require!(
        text.contains(&ptr.to_string()),
        "`{text}` does not name {ptr}"
    );
    require_refusal(
        "the null pointer",
        target.pin(DevicePtr::new(0), 4096),
        unknown,
    )?;
    Ok(())
}

/// Checks that a range past the end of its allocation is refused and nothing stays held.
pub(super) fn past_the_end(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 64 * KIB)?;
    let past = |error: &Error| matches!(error, Error::PastAllocation { .. });
    require_refusal(
        "1 TiB of a small buffer",
        target.pin(buffer.ptr(), 1 << 40),
        past,
    )?;
    require_refusal(
        "a range past all addresses",
        target.pin(buffer.ptr(), u64::MAX - buffer.ptr().get()),
        |error| past(error) || matches!(error, Error::EmptyRange { .. }),
    )?;
    pattern::require_same_memory(&target.map(&buffer)?, &buffer, 50)
}

/// Checks that a range of 0 bytes is refused.
pub(super) fn zero_length(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Plain, 64 * KIB)?;
    let empty = |error: &Error| matches!(error, Error::EmptyRange { .. });
    require_refusal("a pin of no bytes", target.pin(buffer.ptr(), 0), empty)?;
    // Copying 0 bytes, on the other hand, is valid.
    let mapping = target.map(&buffer)?;
    mapping.write_at(buffer.len(), &[])?;
    mapping.read_at(buffer.len(), &mut [])?;
    Ok(())
}

/// Waives the check of peer-to-peer tokens, which gdr does not use.
pub(super) fn tokens(target: &BenchTarget) -> Outcome {
    Err(Stop::waived(
        match target.context()?.attributes().persistent {
            true => "mappings of this backend are persistent, which CUDA's tokens are not for",
            false => "gdr pins without CUDA's tokens, which no driver since CUDA 6.0 needs",
        },
    ))
}

/// Waives the check that another process gets no descriptor to pin or map with: there is none to pass on.
pub(super) fn shared_descriptor(target: &BenchTarget, _kind: MemoryKind) -> Outcome {
    Err(Stop::waived(match target.context()?.backend() {
        BackendKind::Gdrdrv => {
            "the descriptor of gdrdrv is inside gdr and closed on exec, so there is none to pass on"
        }
        _ => "no kernel module is used, so there is no descriptor of one to pass on",
    }))
}

/// Checks that an unknown backend name is refused with the known ones.
pub(super) fn backend_name(_site: &BenchTarget) -> Outcome {
    for nonsense in ["nonsense", "", "gdr drv", "rm,sim"] {
        let refused = nonsense.parse::<BackendKind>().map_err(Error::from);
        let text = require_refusal("a backend's name", refused, |error| {
            matches!(error, Error::BackendName(_))
        })?;
        for kind in BackendKind::ORDER {
            require!(text.contains(kind.name()), "`{text}` does not offer {kind}");
        }
    }
    Ok(())
}

/// Checks that a backend that this machine lacks is refused by name and with the reason.
pub(super) fn absent_backend(_site: &BenchTarget) -> Outcome {
    if Path::new("/dev/gdrdrv").exists() {
        return Err(Stop::waived("the gdrdrv module is loaded here"));
    }
    let refused = gdr_copy::Context::builder()
        .backend(BackendKind::Gdrdrv)
        .open();
    let text = require_refusal("the gdrdrv backend", refused, |error| {
        matches!(
            error,
            Error::BackendUnavailable {
                backend: BackendKind::Gdrdrv,
                ..
            }
        )
    })?;
    require!(text.contains("gdrdrv"), "`{text}` does not name gdrdrv");
    let refused = gdr_copy::Context::builder()
        .backend(BackendKind::Sim)
        .open();
    require_refusal("a simulation that was not requested", refused, |error| {
        matches!(
            error,
            Error::BackendUnavailable {
                backend: BackendKind::Sim,
                ..
            }
        )
    })?;
    Ok(())
}
