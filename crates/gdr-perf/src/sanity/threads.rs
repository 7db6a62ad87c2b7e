//! Checks that any thread may pin, map and copy.

use std::thread;

use gdr_cuda::{DeviceBuffer, MemoryKind};

use super::outcome::{Outcome, Stop, allocate};
use super::pattern;
use crate::bench_target::BenchTarget;

const KIB: u64 = 1 << 10;

/// Runs `work` on a thread of its own.
fn elsewhere<T: Send>(work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|_| Err(Stop::failed("a thread panicked")))
    })
}

/// Checks that pinning, mapping, copying and unmapping work on a thread each.
pub(super) fn child_thread(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 256 * KIB)?;
    let pinned = elsewhere(|| Ok(target.pin(buffer.ptr(), buffer.len())?))?;
    let mapping = elsewhere(|| Ok(pinned.map()?))?;
    elsewhere(|| pattern::require_same_memory(&mapping, &buffer, 60))?;
    pattern::require_same_memory(&mapping, &buffer, 61)?;
    elsewhere(move || {
        drop(mapping);
        Ok(())
    })?;
    pattern::require_same_memory(&pinned.map()?, &buffer, 62)?;
    elsewhere(move || {
        drop(pinned);
        Ok(())
    })
}

/// Checks that a thread without a current CUDA context can do everything.
pub(super) fn without_context(target: &BenchTarget) -> Outcome {
    elsewhere(|| {
        let buffer = allocate(target, MemoryKind::Plain, 256 * KIB)?;
        pattern::require_same_memory(&target.map(&buffer)?, &buffer, 63)
    })
}

/// Checks that eight threads can pin, map, copy, unmap and unpin at once.
pub(super) fn concurrent_rounds(target: &BenchTarget) -> Outcome {
    rounds(target, 50)
}

/// Like [`concurrent_rounds`], 10,000 times on each thread.
pub(super) fn many_concurrent_rounds(target: &BenchTarget) -> Outcome {
    // Once to settle and once to count.
    rounds(target, 5_000)
}

fn rounds(target: &BenchTarget, count: u32) -> Outcome {
    const THREADS: u32 = 8;
    let round = |buffer: &DeviceBuffer, seed: u32| -> Outcome {
        pattern::require_same_memory(&target.map(buffer)?, buffer, seed)
    };
    let work = |number: u32| -> Outcome {
        // Small buffers of one kind share GPU pages, so the threads contend in the driver.
        let kind = MemoryKind::DEVICE[number as usize % 2];
        let buffer = allocate(target, kind, 4 * KIB)?;
        (0..count).try_for_each(|i| round(&buffer, number * count + i))
    };
    let what = format!("{THREADS} threads of {count} rounds");
    super::leakage::watch(target, &what, || {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|number| scope.spawn(move || work(number)))
                .collect();
            workers.into_iter().try_for_each(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|_| Err(Stop::failed("a thread panicked")))
            })
        })
    })
}
