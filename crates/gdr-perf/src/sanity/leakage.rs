//! Checks that nothing is left behind.

use std::fs;

use gdr_cuda::{CuResult, MemoryKind};

use super::outcome::{Outcome, Stop, allocate, require};
use super::pattern;
use crate::bench_target::BenchTarget;

const KIB: u64 = 1 << 10;

/// What a process holds: open descriptors, shared mappings (which all windows are, and no stack or heap is), and free
/// BAR1 space of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    mappings: usize,
    /// Free bytes of the GPU's BAR1, if the backend reports them.
    bar1: Option<u64>,
}

impl Holdings {
    fn now(target: &BenchTarget) -> Outcome<Self> {
        let descriptors = fs::read_dir("/proc/self/fd")?.count();
        let maps = fs::read_to_string("/proc/self/maps")?;
        Ok(Self {
            descriptors,
            mappings: maps.lines().filter(|line| is_shared(line)).count(),
            bar1: target
                .context()?
                .bar1(target.gpu().info().ordinal)?
                .map(|bar1| bar1.free),
        })
    }
}

/// Returns whether a line of `/proc/PID/maps` is a shared mapping: the fourth letter of its second
/// field.
fn is_shared(line: &str) -> bool {
    line.split_whitespace()
        .nth(1)
        .is_some_and(|mode| mode.ends_with('s'))
}

/// Checks that the module's count of pinned ranges is 0 again although a child of fork has its descriptor too.
pub(super) fn pins_and_fork(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    const COUNT: &str = "/proc/driver/gdrdrv/nv_get_pages_refcount";
    let count = || fs::read_to_string(COUNT).map(|text| text.trim().to_owned());
    match count() {
        Ok(count) if count == "0" => {}
        Ok(count) => {
            let busy = format!("{COUNT} is {count}: another process has pins of the module");
            return Err(Stop::waived(busy));
        }
        Err(error) => return Err(Stop::waived(format!("{COUNT}: {error}"))),
    }
    let buffer = allocate(target, kind, 64 * KIB)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    super::fork::beside_child(|| {
        drop(pinned);
        drop(buffer);
        let count = count()?;
        require!(
            count == "0",
            "{COUNT} is {count} after the memory was freed"
        );
        Ok(())
    })
}

/// Repeats `work` until a run leaves nothing behind. A leak leaves something every time, whereas a driver or an
/// allocator that opens something to keep does so once or twice.
pub(super) fn watch(target: &BenchTarget, what: &str, work: impl Fn() -> Outcome) -> Outcome {
    const RUNS: u32 = 4;
    work()?;
    let first = Holdings::now(target)?;
    let mut before = first;
    for _ in 1..RUNS {
        work()?;
        let after = Holdings::now(target)?;
        if after == before {
            return Ok(());
        }
        before = after;
    }
    Err(Stop::failed(format!(
        "{} runs of {what} went from {first:?} to {before:?}",
        RUNS - 1
    )))
}

fn rounds(target: &BenchTarget, kind: MemoryKind, count: u32) -> Outcome {
    let buffer = allocate(target, kind, 256 * KIB)?;
    let what = format!("{count} rounds of pin, map, unmap, unpin");
    watch(target, &what, || {
        for round in 0..count {
            let mapping = target.map(&buffer)?;
            mapping.write_at(0, &round.to_le_bytes())?;
        }
        Ok(())
    })?;
    pattern::require_same_memory(&target.map(&buffer)?, &buffer, 70)
}

/// Checks that 1,000 rounds leave descriptors and mappings unchanged.
pub(super) fn thousand_rounds(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    // Once to settle and once to count.
    rounds(target, kind, 500)
}

/// Like [`thousand_rounds`], ten times as long.
pub(super) fn ten_thousand_rounds(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    rounds(target, kind, 5_000)
}

/// Checks that refused pins leave nothing behind.
pub(super) fn refusals(target: &BenchTarget) -> Outcome {
    let buffer = allocate(target, MemoryKind::Plain, 64 * KIB)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    watch(target, "100 refused calls of each sort", || {
        for _ in 0..100 {
            let refused =
                target.pin(buffer.ptr(), 1 << 40).is_err() && target.pin(buffer.ptr(), 0).is_err();
            require!(refused, "an impossible range was pinned");
            let mapping = pinned.map()?;
            require!(pinned.map().is_err(), "a pin was mapped twice");
            drop(mapping);
        }
        Ok(())
    })
}

/// Checks that memory which was freed while pinned is available again once it is unpinned. In total, the rounds take
/// more memory than the GPU has.
pub(super) fn gpu_memory(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let total = target.gpu().info().total_memory;
    let len = (total / 16).next_multiple_of(2 << 20);
    for round in 0..40 {
        let buffer = match target.gpu().allocate(kind, len) {
            Ok(buffer) => buffer,
            Err(error) if round > 0 && error.cu_result() == Some(CuResult::OUT_OF_MEMORY) => {
                return Err(Stop::failed(format!(
                    "after {round} buffers of {len} bytes were pinned, mapped and freed, the GPU \
                     has no room for another: {error}"
                )));
            }
            Err(_) => allocate(target, kind, len)?,
        };
        // Pinning a part is enough to hold the whole buffer, and fits every BAR1.
        let ptr = buffer
            .ptr()
            .checked_add(len / 2)
            .ok_or_else(|| Stop::failed("no such address"))?;
        let mapping = target.pin(ptr, 64 * KIB)?.map()?;
        mapping.write_at(0, &[1; 64])?;
        drop(buffer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_and_heaps_are_not() {
        assert!(is_shared(
            "7f00-7f01 rw-s 00000000 00:01 2048 /memfd:gpu (deleted)"
        ));
        assert!(!is_shared("7f00-7f01 rw-p 00000000 00:00 0 [heap]"));
        assert!(!is_shared(""));
    }
}
