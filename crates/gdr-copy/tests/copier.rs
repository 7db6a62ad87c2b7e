//! Copies on every path, on the simulated GPU.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_copy::plan::{
    Calibration, CopyDirection, CopyEngineUse, CopyPath, HostMemory, Machine, PathLimits, Planner,
    ResidentUse,
};
use gdr_copy::{Context, Copier, Error};
use gdr_cuda::{DeviceBuffer, Gpu, HostBuffer, MemoryKind, Ordinal, SimDriver};
use snapshot::assert_contains;

const LEN: usize = 5 << 20;
/// A limit that even a slow machine does not reach.
const LIMIT: Duration = Duration::from_secs(60);

struct Machinery {
    driver: Arc<SimDriver>,
    gpu: Gpu,
    buffer: Arc<DeviceBuffer>,
    copier: Copier,
}

fn threads(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

fn machinery(limits: PathLimits) -> Machinery {
    machinery_of(LEN, limits)
}

fn machinery_of(len: usize, limits: PathLimits) -> Machinery {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let buffer = Arc::new(gpu.allocate(MemoryKind::Plain, len as u64).unwrap());
    let context = Context::open_for(&gpu).unwrap();
    let mapping = context.pin_buffer(&buffer).unwrap().map().unwrap();
    // Uses the costs of PCIe, so that the planner chooses the copy engine.
    let planner = Planner::new(&Calibration::built_in(Machine::Pcie), limits);
    let copier = Copier::new(mapping, Arc::clone(&buffer), planner).unwrap();
    Machinery {
        driver,
        gpu,
        buffer,
        copier: copier.with_limit(LIMIT),
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 7 + at / 251 + seed) % 255) as u8)
        .collect()
}

/// Returns page-locked memory with these bytes.
fn page_locked(gpu: &Gpu, bytes: &[u8]) -> Arc<HostBuffer> {
    let memory = gpu.allocate_host(bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    Arc::new(memory)
}

fn paths() -> [CopyPath; 4] {
    let cpu = |number| CopyPath::cpu(threads(number));
    [cpu(1), cpu(2), cpu(5), CopyPath::CopyEngine]
}

/// Ranges that need one piece, several, and more than the ring has slots; none is aligned.
const RANGES: [(u64, usize); 5] = [
    (3, 0),
    (1, 5),
    (4099, 70_001),
    (65_533, 700_003),
    (777, LEN - 1000),
];

#[test]
fn every_path_copies_exactly_its_range_from_and_to_pageable_memory() {
    let Machinery { buffer, copier, .. } = machinery(PathLimits::all(threads(5)));
    for path in paths() {
        for (offset, len) in RANGES {
            let (before, bytes) = (pattern(LEN, 1), pattern(len, 9));
            buffer.write(0, &before).unwrap();
            copier.write_at_by(path, offset, &bytes).unwrap();
            let mut expected = before;
            expected[offset as usize..offset as usize + len].copy_from_slice(&bytes);
            let mut seen = vec![0; LEN];
            buffer.read(0, &mut seen).unwrap();
            assert!(seen == expected, "{path}: {len} bytes to {offset}");

            let mut read = vec![0xEE; len + 2];
            copier.read_at_by(path, offset, &mut read[1..=len]).unwrap();
            assert!(read[1..=len] == bytes, "{path}: {len} bytes from {offset}");
            assert_eq!((read[0], read[len + 1]), (0xEE, 0xEE));
        }
    }
}

#[test]
fn a_read_that_is_longer_than_caches_is_exact_by_one_thread_and_by_several() {
    const LEN: usize = 17 << 20;
    for number in [1, 4] {
        let Machinery { buffer, copier, .. } = machinery_of(LEN, PathLimits::all(threads(number)));
        let bytes = pattern(LEN, number.into());
        buffer.write(0, &bytes).unwrap();
        let mut read = vec![0xEE; LEN];
        copier.read_at(5, &mut read[2..LEN - 3]).unwrap();
        assert!(read[2..LEN - 3] == bytes[5..], "{number} threads");
        assert_eq!([read[0], read[1], read[LEN - 3], read[LEN - 1]], [0xEE; 4]);
    }
}

#[test]
fn every_path_copies_exactly_its_range_from_and_to_page_locked_memory() {
    let Machinery {
        gpu,
        buffer,
        copier,
        ..
    } = machinery(PathLimits::all(threads(5)));
    for path in paths() {
        for (offset, len) in RANGES {
            let (before, bytes) = (pattern(LEN, 1), pattern(len + 7, 9));
            buffer.write(0, &before).unwrap();
            let source = page_locked(&gpu, &bytes);
            let mut write = copier
                .start_by(path, CopyDirection::ToGpu, offset, &source, 7, len)
                .unwrap();
            write.wait(LIMIT).unwrap();
            assert!(write.is_complete().unwrap());
            let mut expected = before;
            expected[offset as usize..offset as usize + len].copy_from_slice(&bytes[7..]);
            let mut seen = vec![0; LEN];
            buffer.read(0, &mut seen).unwrap();
            assert!(seen == expected, "{path}: {len} bytes to {offset}");

            let sink = page_locked(&gpu, &vec![0xEE; len + 2]);
            let mut read = copier
                .start_by(path, CopyDirection::FromGpu, offset, &sink, 1, len)
                .unwrap();
            read.wait(LIMIT).unwrap();
            let mut seen = vec![0; len + 2];
            sink.read(0, &mut seen).unwrap();
            assert!(seen[1..=len] == bytes[7..], "{path}: {len} from {offset}");
            assert_eq!((seen[0], seen[len + 1]), (0xEE, 0xEE));
        }
    }
}

#[test]
fn planned_copies_are_exact_whatever_the_limits() {
    for limits in [
        PathLimits::ONE_THREAD,
        PathLimits::all(threads(1)),
        PathLimits {
            max_threads: threads(4),
            copy_engine: CopyEngineUse::Forbidden,
            resident: ResidentUse::Forbidden,
        },
        PathLimits::all(threads(4)),
    ] {
        let Machinery { gpu, copier, .. } = machinery(limits);
        let bytes = pattern(LEN, 3);
        copier.write_at(0, &bytes).unwrap();
        let mut seen = vec![0; LEN];
        copier.read_at(0, &mut seen).unwrap();
        assert!(seen == bytes, "{limits:?}");
        let (source, sink) = (page_locked(&gpu, &bytes), page_locked(&gpu, &[0; LEN]));
        copier.write_from(5, &source, 5, LEN - 5).unwrap();
        copier.read_into(0, &sink, 0, LEN).unwrap();
        sink.read(0, &mut seen).unwrap();
        assert!(seen == bytes, "{limits:?}");
    }
}

#[test]
fn a_read_by_the_copy_engine_sees_the_stores_before_it() {
    let Machinery { copier, .. } = machinery(PathLimits::all(threads(1)));
    let mut seen = vec![0; 100_000];
    for round in 1..20_u8 {
        copier
            .write_at_by(CopyPath::ONE_THREAD, 10, &[round; 100_000])
            .unwrap();
        copier
            .read_at_by(CopyPath::CopyEngine, 10, &mut seen)
            .unwrap();
        assert!(seen.iter().all(|&byte| byte == round));
    }
}

#[test]
fn copies_of_several_threads_on_one_copier_are_each_exact() {
    let Machinery { copier, .. } = machinery(PathLimits::all(threads(5)));
    let part = LEN / 8;
    std::thread::scope(|scope| {
        for number in 0..8 {
            let copier = &copier;
            scope.spawn(move || {
                let path = paths()[number % 4];
                let offset = (number * part) as u64;
                for round in 0..3 {
                    let bytes = pattern(part, number + round);
                    copier.write_at_by(path, offset, &bytes).unwrap();
                    let mut seen = vec![0; part];
                    copier.read_at(offset, &mut seen).unwrap();
                    assert!(seen == bytes);
                }
            });
        }
    });
}

#[test]
fn no_path_waits_for_a_kernel_that_runs() {
    let Machinery { driver, copier, .. } = machinery(PathLimits::all(threads(5)));
    let bytes = pattern(LEN, 5);
    let kernel = driver.blocking_kernel();
    for path in paths() {
        copier.write_at_by(path, 0, &bytes).unwrap();
    }
    let mut seen = vec![0; LEN];
    copier.read_at(0, &mut seen).unwrap();
    assert!(seen == bytes);
    assert_eq!(kernel.waiting(), 0);
}

#[test]
fn a_path_that_is_not_allowed_is_refused() {
    let Machinery { copier, .. } = machinery(PathLimits::ONE_THREAD);
    for path in [CopyPath::CopyEngine, CopyPath::cpu(threads(2))] {
        let refused = copier.write_at_by(path, 0, &[1]).unwrap_err();
        assert!(matches!(refused, Error::PathForbidden { path: of } if of == path));
    }
    for direction in CopyDirection::ALL {
        let plan = copier.plan(direction, HostMemory::Pageable, 0, 1 << 40);
        assert_eq!(plan.path(), CopyPath::ONE_THREAD);
    }
}

#[test]
fn a_simulated_gpu_has_no_resident_kernel_and_the_planner_leaves_it_out() {
    let limits = PathLimits::all(threads(1)).with_resident(ResidentUse::Allowed);
    let Machinery {
        gpu, mut copier, ..
    } = machinery(limits);
    let context = Context::open_for(&gpu).unwrap();
    let refused = copier.allow_resident_kernel(&context).unwrap_err();
    assert!(
        matches!(refused, Error::NoResidentKernel { .. }),
        "{refused}"
    );
    assert_contains!(refused.to_string(), "the GPU is simulated", "{refused}");
    for len in [1, 4 << 10, 32 << 10] {
        let plan = copier.plan(CopyDirection::FromGpu, HostMemory::PageLocked, 0, len);
        assert_ne!(plan.path(), CopyPath::Resident);
    }
    let refused = copier.read_at_by(CopyPath::Resident, 0, &mut [0]);
    assert!(matches!(refused, Err(Error::PathForbidden { .. })));
}

#[test]
fn a_range_outside_of_the_mapping_or_of_the_host_memory_is_refused_on_every_path() {
    let Machinery { gpu, copier, .. } = machinery(PathLimits::all(threads(5)));
    let host = page_locked(&gpu, &[0; 100]);
    let end = LEN as u64;
    for path in paths() {
        for (offset, len) in [(end, 1), (end - 1, 2), (u64::MAX, 2)] {
            let refused = copier.write_at_by(path, offset, &vec![0; len]).unwrap_err();
            assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
            let refused = copier.read_at_by(path, offset, &mut vec![0; len]);
            assert!(matches!(refused, Err(Error::OutOfRange { .. })));
        }
        for direction in CopyDirection::ALL {
            let refused = copier.start_by(path, direction, 0, &host, 99, 2);
            assert!(matches!(refused, Err(Error::Gpu(_))), "{path} {direction}");
        }
    }
}

#[test]
fn freed_memory_is_not_reached_by_the_copy_engine() {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver, Ordinal(0)).unwrap();
    let memory = gpu.allocate(MemoryKind::Plain, LEN as u64).unwrap();
    let context = Context::open_for(&gpu).unwrap();
    let mapping = context
        .pin(memory.ptr(), memory.len())
        .unwrap()
        .map()
        .unwrap();
    // SAFETY: the memory is freed below; the copier detects that before each copy, and no copy is queued at that point.
    let borrowed = unsafe { DeviceBuffer::borrowed(&gpu, memory.ptr(), memory.len()) }.unwrap();
    let limits = PathLimits::all(threads(1));
    let planner = Planner::new(&Calibration::built_in(Machine::Pcie), limits);
    let copier = Copier::new(mapping, borrowed, planner).unwrap();
    let mut bytes = vec![7; 1 << 20];
    copier.read_at(0, &mut bytes).unwrap();
    drop(memory);
    let host = page_locked(&gpu, &[0; 1 << 20]);
    for refused in [
        copier.read_at_by(CopyPath::CopyEngine, 0, &mut bytes),
        copier.write_at_by(CopyPath::CopyEngine, 0, &bytes),
        copier
            .start_by(
                CopyPath::CopyEngine,
                CopyDirection::ToGpu,
                0,
                &host,
                0,
                4096,
            )
            .map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Freed { .. }), "{error}");
    }
    // The mapping itself keeps the memory.
    copier
        .write_at_by(CopyPath::ONE_THREAD, 0, &[1; 64])
        .unwrap();
}

#[test]
fn a_context_that_is_destroyed_during_a_copy_ends_it_with_the_bytes_that_were_copied() {
    for number in [1, 4] {
        a_destroyed_context_ends_a_copy(threads(number));
    }
}

fn a_destroyed_context_ends_a_copy(threads: NonZeroU16) {
    let Machinery {
        driver,
        gpu,
        buffer,
        copier,
    } = machinery(PathLimits::all(threads));
    let bytes = pattern(LEN, 3);
    buffer.write(0, &bytes).unwrap();
    let plan = copier.plan(CopyDirection::FromGpu, HostMemory::Pageable, 0, LEN as u64);
    assert_eq!(plan.path(), CopyPath::CopyEngine);
    let ends: Vec<u64> = plan.pieces().map(|piece| piece.end).collect();
    assert!(ends.len() > 9);
    for queued in [0, 1, 4, 5, 8, 9] {
        driver.destroy_context_after(queued);
        let mut seen = vec![0; LEN];
        let error = copier.read_at(0, &mut seen).unwrap_err();
        let Error::Incomplete { copied, len, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*len, LEN as u64);
        // The first eight chunks are queued in order; with several threads, later ones are queued in any order.
        let counted = ends.partition_point(|end| end <= copied) as u64;
        let least = if threads.get() == 1 {
            queued
        } else {
            queued.min(8)
        };
        assert!(
            (least..=queued).contains(&counted),
            "{counted} of {queued} chunks"
        );
        assert!(*copied == 0 || ends.contains(copied), "{copied}");
        let copied = *copied as usize;
        assert!(seen[..copied] == bytes[..copied], "{copied}");
        assert_contains!(error.to_string(), "CONTEXT_IS_DESTROYED", "{error}");

        driver.destroy_context_after(queued);
        let error = copier
            .write_at_by(CopyPath::CopyEngine, 0, &bytes)
            .unwrap_err();
        assert!(matches!(error, Error::Incomplete { .. }), "{error}");
    }
    driver.destroy_context_after(0);
    let host = page_locked(&gpu, &[0; 1 << 20]);
    let refused = copier.start_read(0, &host, 0, 1 << 20);
    assert!(matches!(refused, Err(Error::Gpu(_))));
    driver.destroy_context_after(u64::MAX);
    copier.read_at(0, &mut vec![0; LEN]).unwrap();
}

#[test]
fn a_copy_that_runs_when_the_context_is_destroyed_ends_with_an_error() {
    let Machinery {
        driver,
        gpu,
        copier,
        ..
    } = machinery(PathLimits::all(threads(4)));
    let host = page_locked(&gpu, &[0; 1 << 20]);
    let mut running = copier.start_read(0, &host, 0, 1 << 20).unwrap();
    driver.destroy_context();
    for error in [
        running.wait(LIMIT).unwrap_err(),
        running.is_complete().unwrap_err(),
    ] {
        let is_whole = matches!(error, Error::Incomplete { copied: 0, len, .. } if len == 1 << 20);
        assert!(is_whole, "{error}");
        assert_contains!(error.to_string(), "CONTEXT_IS_DESTROYED", "{error}");
    }
    let refused = copier.read_at_by(CopyPath::CopyEngine, 0, &mut vec![0; LEN]);
    assert!(matches!(refused, Err(Error::Incomplete { copied: 0, .. })));
    // Loads by the CPU need no context.
    copier
        .read_at_by(CopyPath::ONE_THREAD, 0, &mut [0; 64])
        .unwrap();
}

#[test]
fn a_transfer_ends_by_itself_and_may_be_dropped_before() {
    let Machinery { gpu, copier, .. } = machinery(PathLimits::all(threads(1)));
    let bytes = pattern(1 << 20, 3);
    copier.write_at(0, &bytes).unwrap();
    let mut all = Vec::new();
    for _ in 0..10 {
        let host = page_locked(&gpu, &[0; 1 << 20]);
        let read = copier.start_read(0, &host, 0, 1 << 20).unwrap();
        assert_eq!(read.len(), 1 << 20);
        all.push((host, read));
    }
    drop(copier.start_read(0, &all[0].0, 0, 1 << 20).unwrap());
    let started = Instant::now();
    for (host, read) in &mut all {
        while !read.is_complete().unwrap() {
            assert!(started.elapsed() < LIMIT);
            std::thread::yield_now();
        }
        let mut seen = vec![0; 1 << 20];
        host.read(0, &mut seen).unwrap();
        assert!(seen == bytes);
    }
}

#[test]
fn a_batch_copies_all_of_its_pieces_or_says_how_much() {
    let Machinery {
        driver,
        buffer,
        copier,
        ..
    } = machinery(PathLimits::all(threads(2)));
    let bytes = pattern(LEN, 4);
    let ranges = [
        (0_usize, 8_usize),
        (100, 1),
        (4096, 300_000),
        (2 << 20, 2 << 20),
    ];
    let pieces: Vec<_> = ranges
        .iter()
        .map(|&(at, len)| (at as u64, &bytes[at..at + len]))
        .collect();
    buffer.write(0, &[0; LEN]).unwrap();
    copier.write_batch(&pieces).unwrap();
    let mut expected = vec![0; LEN];
    for (at, len) in ranges {
        expected[at..at + len].copy_from_slice(&bytes[at..at + len]);
    }
    let mut seen = vec![1; LEN];
    buffer.read(0, &mut seen).unwrap();
    assert!(seen == expected);

    let mut places = ranges.map(|(_, len)| vec![0; len]);
    let mut reads: Vec<_> = ranges
        .iter()
        .zip(&mut places)
        .map(|((at, _), place)| (*at as u64, &mut place[..]))
        .collect();
    copier.read_batch(&mut reads).unwrap();
    for ((at, len), place) in ranges.into_iter().zip(&places) {
        assert!(*place == bytes[at..at + len]);
    }

    // A piece outside the mapping is detected before anything is written.
    let refused = copier.write_batch(&[(0, &[9; 8]), (LEN as u64, &[9])]);
    assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    let mut first = [0; 8];
    buffer.read(0, &mut first).unwrap();
    assert!(first[..] == bytes[..8]);

    driver.destroy_context_after(0);
    let mut reads = [(0_u64, &mut first[..]), (0, &mut seen[..1 << 20])];
    let error = copier.read_batch(&mut reads).unwrap_err();
    let all = 8 + (1 << 20);
    assert!(matches!(error, Error::Incomplete { copied: 8, len, .. } if len == all));
}

#[test]
fn what_a_mapping_has_behind_its_buffer_is_copied_by_the_calling_thread() {
    let limits = PathLimits::all(threads(1));
    let Machinery { gpu, copier, .. } = machinery(limits);
    let (mapping, planner) = (Arc::clone(copier.mapping()), copier.planner().clone());
    let half = LEN as u64 / 2;
    // SAFETY: `copier` keeps the memory, and is dropped later.
    let first = unsafe { DeviceBuffer::borrowed(&gpu, mapping.device_ptr(), half) }.unwrap();
    let copier_of_half = Copier::new(mapping, first, planner).unwrap();
    let from = CopyDirection::FromGpu;
    let path = |offset, len| {
        let plan = copier_of_half.plan(from, HostMemory::Pageable, offset, len);
        plan.path()
    };
    assert_eq!(path(0, half), CopyPath::CopyEngine);
    assert_eq!(path(1, half), CopyPath::ONE_THREAD);
    assert_eq!(path(half, half), CopyPath::ONE_THREAD);
    let bytes = pattern(LEN, 3);
    copier_of_half.write_at(0, &bytes).unwrap();
    let mut seen = vec![0; LEN];
    copier_of_half.read_at(0, &mut seen).unwrap();
    assert!(seen == bytes);
    let mut forced = vec![0; LEN];
    let refused = copier_of_half.read_at_by(CopyPath::CopyEngine, 1, &mut forced[..half as usize]);
    assert!(matches!(refused, Err(Error::PathForbidden { .. })));
}

#[test]
fn a_mapping_of_another_buffer_is_refused() {
    let Machinery { gpu, copier, .. } = machinery(PathLimits::ONE_THREAD);
    let other = gpu.allocate(MemoryKind::Plain, LEN as u64).unwrap();
    let mapping = Arc::clone(copier.mapping());
    let refused = Copier::new(mapping, other, copier.planner().clone());
    assert!(matches!(refused, Err(Error::MappedElsewhere { .. })));
}
