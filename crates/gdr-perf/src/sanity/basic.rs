//! Basic pinning and mapping, for every kind of memory, size, pointer and GPU.

use gdr_copy::cpu::Routine;
use gdr_copy::{Bus, Error, PinOptions};
use gdr_cuda::{Gpu, MemoryKind};

use super::outcome::{Outcome, Stop, allocate, require};
use super::pattern;
use crate::bench_target::BenchTarget;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Checks that the pinned pages cover the requested range, before and after mapping.
pub(super) fn pin_and_unpin(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 256 * KIB)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let info = pinned.info();
    let skip = buffer.ptr().offset_from(info.va);
    require!(
        skip.is_some_and(|skip| skip + buffer.len() <= info.mapped_size),
        "{} bytes from {} are pinned, but {} bytes at {} were requested",
        info.mapped_size,
        info.va,
        buffer.len(),
        buffer.ptr()
    );
    require!(
        info.page_size.is_power_of_two(),
        "pages of {} bytes",
        info.page_size
    );
    require!(!pinned.is_mapped(), "a new pin reports that it is mapped");
    let mapping = pinned.map()?;
    require!(
        pinned.is_mapped(),
        "a mapped pin reports that it is not mapped"
    );
    require!(
        mapping.device_ptr() == buffer.ptr(),
        "the mapping starts at {}",
        mapping.device_ptr()
    );
    drop(mapping);
    require!(
        !pinned.is_mapped(),
        "an unmapped pin reports that it is mapped"
    );
    Ok(())
}

/// Checks that the backend answers for its own properties.
pub(super) fn attributes(target: &BenchTarget) -> Outcome {
    let context = target.context()?;
    let attributes = context.attributes();
    require!(
        context.choice().backend == context.backend(),
        "{} is in use, but the choice is {}",
        context.backend(),
        context.choice()
    );
    require!(
        !context.choice().reason.is_empty(),
        "the choice of {} has no reason",
        context.backend()
    );
    let module = context.backend() == gdr_copy::BackendKind::Gdrdrv;
    require!(
        attributes.module.is_some() == module,
        "backend {} reports module version {:?}",
        context.backend(),
        attributes.module
    );
    Ok(())
}

/// Checks that forcing the mapping onto PCIe works, or is refused as unsupported.
pub(super) fn force_pcie(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 256 * KIB)?;
    let options = PinOptions::new().with_bus(Bus::Pcie);
    match target
        .context()?
        .pin_with(buffer.ptr(), buffer.len(), options)
    {
        Ok(pinned) => pattern::require_same_memory(&pinned.map()?, &buffer, 1),
        Err(error @ Error::ForcePcie { .. }) => Err(Stop::waived(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Checks that a large allocation is mapped whole.
pub(super) fn large(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 64 * MIB)?;
    pattern::require_same_memory(&target.map(&buffer)?, &buffer, 2)
}

/// Checks that each mapping of small allocations, which share GPU pages, shows its own.
pub(super) fn small_buffers(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    const LEN: u64 = 4 * KIB;
    // More than fit in one GPU page (64 KiB), so that some share a page and some do not.
    let buffers = (0..24)
        .map(|_| allocate(target, kind, LEN))
        .collect::<Outcome<Vec<_>>>()?;
    let mappings = buffers
        .iter()
        .map(|b| target.map(b))
        .collect::<crate::Result<Vec<_>>>()?;
    for (seed, mapping) in (0..).zip(&mappings) {
        mapping.write_at(0, &pattern::bytes(seed, LEN))?;
    }
    for (seed, (mapping, buffer)) in (0..).zip(mappings.iter().zip(&buffers)) {
        let expected = pattern::bytes(seed, LEN);
        pattern::require_contents("cuMemcpy of a small buffer", buffer, &expected)?;
        pattern::require_mapped("the CPU's view of a small buffer", mapping, 0, &expected)?;
    }
    Ok(())
}

/// Checks that a pointer into the middle of an allocation can be pinned, unaligned and of odd length.
pub(super) fn middle(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, MIB)?;
    let mut expected = pattern::bytes(3, buffer.len());
    buffer.write(0, &expected)?;
    for (offset, len) in [
        (512 * KIB, 64 * KIB),
        (300_001, 4099),
        (65_535, 2),
        (MIB - 1, 1),
    ] {
        let ptr = buffer
            .ptr()
            .checked_add(offset)
            .ok_or_else(|| Stop::failed("no such address"))?;
        let mapping = target.pin(ptr, len)?.map()?;
        require!(
            mapping.len() == len,
            "{} bytes are mapped instead of {len}",
            mapping.len()
        );
        let part = offset as usize..(offset + len) as usize;
        pattern::require_mapped(
            "the view of the middle",
            &mapping,
            0,
            &expected[part.clone()],
        )?;
        let bytes = pattern::bytes(offset as u32, len);
        mapping.write_at(0, &bytes)?;
        expected[part].copy_from_slice(&bytes);
        pattern::require_contents("the allocation round the middle", &buffer, &expected)?;
    }
    Ok(())
}

/// Checks that every GPU of this process can be mapped, and each mapping shows its own GPU.
pub(super) fn every_gpu(target: &BenchTarget) -> Outcome {
    let targets: Vec<BenchTarget> = Gpu::all(target.gpu().driver().clone())?
        .into_iter()
        .map(|gpu| target.on(gpu))
        .collect();
    let buffers = targets
        .iter()
        .map(|s| allocate(s, MemoryKind::Plain, MIB))
        .collect::<Outcome<Vec<_>>>()?;
    let mut mappings = Vec::new();
    for (seed, (target, buffer)) in (0..).zip(targets.iter().zip(&buffers)) {
        let mapping = target.map(buffer)?;
        mapping.write_at(0, &pattern::bytes(seed, MIB))?;
        mappings.push(mapping);
    }
    for (seed, (target, buffer)) in (0..).zip(targets.iter().zip(&buffers)) {
        let seen = target
            .gpu()
            .stream()?
            .verify_pattern(buffer, 0, MIB / 4, seed, super::WAIT)?;
        let gpu = target.gpu().info().ordinal;
        require!(
            seen.mismatches == 0,
            "GPU {gpu} sees {} wrong words",
            seen.mismatches
        );
    }
    Ok(())
}

/// Checks that every copy routine that this CPU can run moves the same bytes.
pub(super) fn every_routine(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Plain, 64 * KIB)?;
    let mut mapping = target.map(&buffer)?;
    for (seed, routine) in (1..).zip(Routine::supported()) {
        // A routine that faults on this kind of memory is refused.
        if mapping.set_routine(routine).is_err() {
            continue;
        }
        for (offset, len) in [(0, 64 * KIB), (1, 1), (3, 61), (63, 130), (4095, 8193)] {
            let mut expected = vec![0; buffer.len() as usize];
            buffer.write(0, &expected)?;
            let bytes = pattern::bytes(seed, len);
            mapping.write_at(offset, &bytes)?;
            expected[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
            let what = format!("{len} bytes at {offset} stored by `{}`", routine.name());
            pattern::require_contents(&what, &buffer, &expected)?;
            let what = format!("{len} bytes at {offset} loaded by `{}`", routine.name());
            pattern::require_mapped(&what, &mapping, offset, &bytes)?;
        }
    }
    Ok(())
}

/// Checks that an allocation larger than 32 bits can count is mapped whole.
pub(super) fn several_gib(target: &BenchTarget) -> Outcome {
    const LEN: u64 = 5 << 30;
    const PART: u64 = 16 * MIB;
    if target.simulated() {
        return Err(Stop::waived("the simulated GPU has not that much memory"));
    }
    let buffer = allocate(target, MemoryKind::Plain, LEN)?;
    let mapping = match target.map(&buffer) {
        Err(crate::Error::Copy(error @ Error::Bar1Exhausted { .. })) => {
            return Err(Stop::waived(error.to_string()));
        }
        other => other?,
    };
    // Both ends, and both sides of the 31-bit and 32-bit boundaries.
    for (seed, offset) in (1..).zip([0, (1 << 31) - PART / 2, (1 << 32) - PART / 2, LEN - PART]) {
        let bytes = pattern::bytes(seed, PART);
        mapping.write_at(offset, &bytes)?;
        let stream = target.gpu().stream()?;
        let seen = stream.verify_pattern(&buffer, offset, PART / 4, seed, super::WAIT)?;
        require!(
            seen.mismatches == 0,
            "{} wrong words from byte {offset} on",
            seen.mismatches
        );
        stream.fill_pattern(&buffer, offset, PART / 4, !seed, super::WAIT)?;
        let expected = pattern::bytes(!seed, PART);
        pattern::require_mapped("the view of a large buffer", &mapping, offset, &expected)?;
    }
    Ok(())
}
