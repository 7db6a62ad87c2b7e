use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::engine_thread::SLOTS;
use super::*;
use crate::context::Context;

const LEN: usize = 9 << 20;
const LIMIT: Duration = Duration::from_secs(60);

struct Machinery {
    driver: Arc<SimDriver>,
    buffer: DeviceBuffer,
    reads: EngineReads,
}

fn machinery() -> Machinery {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let buffer = gpu.allocate(MemoryKind::Plain, LEN as u64).unwrap();
    let bytes: Vec<_> = (0..LEN).map(byte).collect();
    buffer.write(0, &bytes).unwrap();
    let context = Context::open_for(&gpu).unwrap();
    let pinned = context.pin(buffer.ptr(), buffer.len()).unwrap();
    let mapping = Arc::new(pinned.map().unwrap());
    // SAFETY: a test frees the buffer only to check that freed memory is not read.
    let part = unsafe { DeviceBuffer::borrowed_part(&gpu, buffer.ptr(), mapping.len()) }.unwrap();
    let reads = EngineReads::new(mapping, part).unwrap();
    Machinery {
        driver,
        buffer,
        reads,
    }
}

fn byte(at: usize) -> u8 {
    (at * 7 + at / 251 + at / 65_536) as u8
}

/// Reads, and compares with what `machinery` has written.
fn read(reads: &EngineReads, lease: &Lease, offset: usize, len: usize) {
    let mut bytes = vec![0xEE; len + 2];
    // SAFETY: the memory is as long as the read.
    unsafe { reads.read(lease, offset as u64, bytes.as_mut_ptr().add(1), len) }.unwrap();
    let wrong = (0..len).find(|&at| bytes[at + 1] != byte(offset + at));
    assert_eq!(wrong, None, "{len} bytes at {offset}");
    assert_eq!((bytes[0], bytes[len + 1]), (0xEE, 0xEE));
}

/// Reads until the copy engine has delivered some bytes.
fn read_until_taken(reads: &EngineReads) {
    let (start, before, lease) = (Instant::now(), reads.taken(), Lease::new());
    while reads.taken() == before {
        assert!(start.elapsed() < LIMIT, "the copy engine is never used");
        read(reads, &lease, 777, LEN - 1000);
    }
}

#[test]
fn reads_are_exact_and_long_ones_come_by_the_copy_engine() {
    let Machinery {
        reads,
        buffer: _buffer,
        ..
    } = machinery();
    read_until_taken(&reads);
    let lease = Lease::new();
    for (offset, len) in [
        (0, 0),
        (63, 2),
        (4099, 70_001),
        (65_533, 700_003),
        (1, 1 << 20),
        (0, LEN),
    ] {
        read(&reads, &lease, offset, len);
    }
    let mut byte = 0;
    // SAFETY: the range is outside the mapping, so nothing is read.
    let beyond = unsafe { reads.read(&lease, LEN as u64, &mut byte, 1) };
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })));
}

#[test]
fn reads_of_several_threads_do_not_mix() {
    let Machinery {
        reads,
        buffer: _buffer,
        ..
    } = machinery();
    thread::scope(|scope| {
        for number in 0..SLOTS + 2 {
            let reads = &reads;
            scope.spawn(move || {
                let lease = Lease::new();
                (0..5).for_each(|turn| read(reads, &lease, number * 4099 + turn, 600_000));
            });
        }
    });
}

#[test]
fn reads_that_were_left_keep_their_slots_until_their_leases_end() {
    let Machinery {
        reads,
        buffer: _buffer,
        ..
    } = machinery();
    let left: Vec<_> = (0..SLOTS).map(|_| Lease::new()).collect();
    for lease in &left {
        let slot = reads.thread.claim(lease).unwrap();
        let request = Request {
            source: reads.source,
            offset: 0,
            len: LEN as u64,
        };
        slot.post(request, 0);
        reads.thread.wake();
    }
    let lease = Lease::new();
    read(&reads, &lease, 5, LEN - 5);
    assert_eq!(reads.taken(), 0, "every slot is in use");
    left.iter().for_each(Lease::end);
    read_until_taken(&reads);
}

/// Reads through a slot that no thread serves; returns how many bytes came from there.
fn read_at_slot(reads: &EngineReads, slot: &'static Slot, lease: &Lease, bytes: &mut [u8]) -> u64 {
    assert!(slot.claim(lease));
    let request = Request {
        source: 0,
        offset: 0,
        len: LEN as u64,
    };
    slot.post(request, 0);
    let reader = Reader {
        window: reads.mapping.window_at(0, LEN).unwrap(),
        host: bytes.as_mut_ptr(),
        len: LEN as u64,
        routine: reads.mapping.routine(),
        caching: reads.mapping.caching(),
        is_simulated: false,
    };
    reader.go_on(slot, &pieces_of(&request, 0), 0)
}

#[test]
fn a_read_whose_request_is_not_taken_is_made_by_loads() {
    let Machinery {
        reads,
        buffer: _buffer,
        ..
    } = machinery();
    let slot: &'static Slot = Box::leak(Box::default());
    let lease = Lease::new();
    let mut bytes = vec![0; LEN];
    assert_eq!(read_at_slot(&reads, slot, &lease, &mut bytes), 0);
    assert!((0..LEN).all(|at| bytes[at] == byte(at)));
    lease.end();
    assert!(slot.is_free());
}

/// Binds this thread to the first CPU that the process may use.
fn bind_to_one_cpu() {
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.unwrap());
    sched_setaffinity(None, &one).unwrap();
}

/// Returns how often this thread was switched out.
fn switches() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the Linux kernel fills the structure, for which zeros are valid.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    usage.ru_nvcsw + usage.ru_nivcsw
}

#[test]
fn a_reader_lets_the_thread_run_where_both_have_one_cpu() {
    let Machinery {
        reads,
        buffer: _buffer,
        ..
    } = machinery();
    let slot: &'static Slot = Box::leak(Box::default());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Yields in a loop, as the copy engine's thread does.
        scope.spawn(|| {
            bind_to_one_cpu();
            while !is_over.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            bind_to_one_cpu();
            let (before, lease) = (switches(), Lease::new());
            read_at_slot(&reads, slot, &lease, &mut vec![0; LEN]);
            let switched = switches() - before;
            is_over.store(true, Ordering::Relaxed);
            lease.end();
            // The count includes each expired time slice: 3 ms, in a read of 20 ms.
            let blocks = LEN as i64 / BLOCK as i64;
            assert!(switched > blocks / 10, "{switched} in {blocks} blocks");
        });
    });
}

#[test]
fn freed_memory_is_left_to_the_mapping() {
    let Machinery { buffer, reads, .. } = machinery();
    read_until_taken(&reads);
    let before = reads.taken();
    drop(buffer);
    (0..3).for_each(|_| read(&reads, &Lease::new(), 0, LEN));
    assert_eq!(reads.taken(), before);
}

#[test]
fn streams_that_died_with_their_context_are_replaced() {
    let machinery = machinery();
    read_until_taken(&machinery.reads);
    machinery.driver.reset_context();
    read_until_taken(&machinery.reads);
}

#[test]
fn what_is_dropped_is_not_read_any_more() {
    let Machinery {
        reads,
        buffer: _buffer,
        ..
    } = machinery();
    let (thread, source, lease) = (reads.thread, reads.source, Lease::new());
    let slot = thread.claim(&lease).unwrap();
    let request = Request {
        source,
        offset: 0,
        len: LEN as u64,
    };
    slot.post(request, 0);
    thread.wake();
    let start = Instant::now();
    while slot.is_posted() {
        assert!(start.elapsed() < LIMIT);
        thread::yield_now();
    }
    drop(reads);
    assert!(!slot.serves(source));
    lease.end();
}
