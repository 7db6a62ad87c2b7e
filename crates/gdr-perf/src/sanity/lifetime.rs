//! Checks in which order objects may be dropped, and what a mapping shows after its buffer was freed.

use gdr_copy::{Caching, Context, Error, MapOptions};
use gdr_cuda::MemoryKind;

use super::WAIT;
use super::fork::is_mapped;
use super::outcome::{Outcome, Stop, allocate, require, require_refusal};
use super::pattern;
use crate::bench_target::BenchTarget;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Large enough to have memory of its own. A shared block belongs to the caller that suballocates it, which does not
/// know of pins.
pub(super) const OWN_BLOCK: u64 = 32 * MIB;

/// Checks that a freed buffer's memory stays readable and writable through its mapping.
pub(super) fn access_after_free(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    require_persistent(target)?;
    let buffer = allocate(target, kind, 256 * KIB)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let mapping = pinned.map()?;
    let bytes = pattern::bytes(20, buffer.len());
    buffer.write(0, &bytes)?;
    drop(buffer);
    require!(
        !pinned.invalidated()?,
        "a persistent pin reports that it was invalidated"
    );
    pattern::require_mapped("the view of freed memory", &mapping, 0, &bytes)?;
    let bytes = pattern::bytes(21, mapping.len());
    mapping.write_at(0, &bytes)?;
    pattern::require_mapped("the view of freed memory, rewritten", &mapping, 0, &bytes)
}

/// Checks that a mapping outlives its context, and nothing is mapped once both are gone.
pub(super) fn access_after_close(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    const ATTEMPTS: u32 = 3;
    let buffer = allocate(target, kind, 256 * KIB)?;
    // Another thread may map something at the address at once, but not every time.
    for seed in 0..ATTEMPTS {
        let context = Context::builder()
            .backend(target.context()?.backend())
            .gpu(target.gpu())?
            .open()?;
        let mapping = context.pin(buffer.ptr(), buffer.len())?.map()?;
        drop(context);
        pattern::require_same_memory(&mapping, &buffer, 24 + seed)?;
        let window = mapping.window();
        drop(mapping);
        if !is_mapped(window) {
            return pattern::require_same_memory(&target.map(&buffer)?, &buffer, 28);
        }
    }
    Err(Stop::failed(
        "the address range is still mapped after its context and mapping are gone",
    ))
}

/// Checks that no new allocation gets memory that a mapping still shows.
pub(super) fn freed_memory_is_not_reused(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    require_persistent(target)?;
    const LEN: u64 = OWN_BLOCK;
    let buffer = allocate(target, kind, LEN)?;
    let mapping = target.map(&buffer)?;
    let old = pattern::bytes(22, 64 * KIB);
    mapping.write_at(0, &old)?;
    mapping.write_at(LEN - 64 * KIB, &old)?;
    drop(buffer);
    let stream = target.gpu().stream()?;
    let mut taken = Vec::new();
    for seed in 23..27 {
        let other = allocate(target, kind, LEN)?;
        stream.fill_pattern(&other, 0, LEN / 4, seed, WAIT)?;
        taken.push((seed, other));
    }
    pattern::require_mapped("freed memory beside new allocations", &mapping, 0, &old)?;
    pattern::require_mapped("the end of freed memory", &mapping, LEN - 64 * KIB, &old)?;
    mapping.write_at(0, &vec![0x77; 64 * KIB as usize])?;
    for (seed, other) in &taken {
        let seen = stream.verify_pattern(other, 0, LEN / 4, *seed, WAIT)?;
        require!(
            seen.mismatches == 0,
            "a write through the mapping of freed memory reached a new allocation at {}",
            other.ptr()
        );
    }
    Ok(())
}

/// Checks that freeing one buffer leaves its neighbour's mapping intact.
pub(super) fn two_mappings(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let first = allocate(target, kind, 128 * KIB)?;
    let second = allocate(target, kind, 128 * KIB)?;
    let first_mapping = target.map(&first)?;
    let second_mapping = target.map(&second)?;
    let (one, two) = (pattern::bytes(30, 128 * KIB), pattern::bytes(31, 128 * KIB));
    first_mapping.write_at(0, &one)?;
    second_mapping.write_at(0, &two)?;
    pattern::require_contents("the first buffer", &first, &one)?;
    pattern::require_contents("the second buffer", &second, &two)?;
    drop(first);
    pattern::require_mapped("the second view", &second_mapping, 0, &two)?;
    drop(first_mapping);
    pattern::require_mapped("the second view, alone", &second_mapping, 0, &two)?;
    pattern::require_same_memory(&second_mapping, &second, 32)
}

/// Checks that two pins of one buffer show the same memory.
pub(super) fn two_pins(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Plain, 128 * KIB)?;
    let (first, second) = (target.map(&buffer)?, target.map(&buffer)?);
    let bytes = pattern::bytes(33, buffer.len());
    first.write_at(0, &bytes)?;
    pattern::require_mapped("the second view of one buffer", &second, 0, &bytes)?;
    drop(first);
    pattern::require_same_memory(&second, &buffer, 34)
}

/// Checks that a pin has one mapping at a time, and may be mapped again after.
pub(super) fn one_mapping_at_a_time(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Plain, 128 * KIB)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let mapping = pinned.map()?;
    require_refusal("a second mapping", pinned.map(), |e| {
        matches!(e, Error::AlreadyMapped)
    })?;
    pattern::require_same_memory(&mapping, &buffer, 35)?;
    drop(mapping);
    for seed in 36..40 {
        pattern::require_same_memory(&pinned.map()?, &buffer, seed)?;
    }
    Ok(())
}

/// Checks that a mapping shorter than its pin shows the start and no more.
pub(super) fn partial_mapping(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::VmmPosixFd, 2 * MIB)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let bytes = pattern::bytes(41, buffer.len());
    buffer.write(0, &bytes)?;
    let mapping = pinned.map_with(MapOptions::new().with_len(64 * KIB))?;
    pattern::require_mapped("the first 64 KiB", &mapping, 0, &bytes[..64 * KIB as usize])?;
    let past = mapping.read_at(64 * KIB, &mut [0]);
    require_refusal("a read past a short mapping", past, |e| {
        matches!(e, Error::OutOfRange { .. })
    })?;
    drop(mapping);
    let too_long = pinned.map_with(MapOptions::new().with_len(1 << 40));
    require_refusal("a mapping of 1 TiB", too_long, |e| {
        matches!(e, Error::MapLength { .. })
    })?;
    // The refused mapping must not count as mapped.
    pattern::require_same_memory(&pinned.map()?, &buffer, 42)
}

/// Checks that write-combined and cached mappings of one buffer show the same memory.
pub(super) fn mixed_caching(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Plain, 64 * KIB)?;
    let map = |caching| {
        let pinned = target.pin(buffer.ptr(), buffer.len())?;
        match pinned.map_with(MapOptions::new().with_caching(caching)) {
            Err(error @ Error::Caching { .. }) => Err(Stop::waived(error.to_string())),
            other => Ok(other?),
        }
    };
    let (combined, cached) = (map(Caching::WriteCombined)?, map(Caching::Cached)?);
    for (seed, (from, to)) in (45..).zip([(&combined, &cached), (&cached, &combined)]) {
        let bytes = pattern::bytes(seed, buffer.len());
        from.write_at(0, &bytes)?;
        pattern::require_mapped("the other view of the buffer", to, 0, &bytes)?;
        pattern::require_contents("the buffer", &buffer, &bytes)?;
    }
    Ok(())
}

/// Checks that a kind of mapping that this memory does not have is refused by name.
pub(super) fn other_caching(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Plain, 64 * KIB)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let own = pinned.map()?.caching();
    for caching in [Caching::WriteCombined, Caching::Cached, Caching::Device] {
        match pinned.map_with(MapOptions::new().with_caching(caching)) {
            Ok(mapping) => {
                require!(
                    mapping.caching() == caching,
                    "{caching} was requested, not {}",
                    mapping.caching()
                );
                pattern::require_same_memory(&mapping, &buffer, 43)?;
            }
            Err(error) => {
                require!(
                    caching != own,
                    "the backend's own kind of mapping is refused: {error}"
                );
                require_refusal("another kind of mapping", Err::<(), _>(error), |e| {
                    matches!(e, Error::Caching { .. })
                })?;
            }
        }
    }
    Ok(())
}

/// Checks that buffer, pin and mapping may be dropped in any order.
pub(super) fn any_order(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    const ORDERS: [[usize; 3]; 6] = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for order in ORDERS {
        let buffer = allocate(target, kind, 64 * KIB)?;
        let bytes = pattern::bytes(44, buffer.len());
        buffer.write(0, &bytes)?;
        let pinned = target.pin(buffer.ptr(), buffer.len())?;
        let (mut mapping, mut pinned, mut buffer) =
            (Some(pinned.map()?), Some(pinned), Some(buffer));
        for step in order {
            match step {
                0 => drop(buffer.take()),
                1 => drop(pinned.take()),
                _ => drop(mapping.take()),
            }
            let readable = buffer.is_some() || target.context()?.attributes().persistent;
            if let Some(mapping) = mapping.as_ref().filter(|_| readable) {
                pattern::require_mapped("the view after a drop", mapping, 0, &bytes)?;
            }
            if let Some(buffer) = &buffer {
                pattern::require_contents("the buffer after a drop", buffer, &bytes)?;
            }
        }
    }
    Ok(())
}

pub(super) fn require_persistent(target: &BenchTarget) -> Outcome {
    if target.context()?.attributes().persistent {
        return Ok(());
    }
    Err(Stop::waived(
        "this backend's mappings end when the memory is freed",
    ))
}
