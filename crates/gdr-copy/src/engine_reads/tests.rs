use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};

use super::engine_thread::DESKS;
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
    // SAFETY: the tests free the buffer only where that is what they are about.
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

/// Reads, and compares with what `machinery` wrote.
fn read(reads: &EngineReads, lease: &Lease, offset: usize, len: usize) {
    let mut bytes = vec![0xEE; len + 2];
    // SAFETY: the memory has the bytes.
    unsafe { reads.read(lease, offset as u64, bytes.as_mut_ptr().add(1), len) }.unwrap();
    let wrong = (0..len).find(|&at| bytes[at + 1] != byte(offset + at));
    assert_eq!(wrong, None, "{len} bytes at {offset}");
    assert_eq!((bytes[0], bytes[len + 1]), (0xEE, 0xEE));
}

/// Reads until some bytes come by the copy engine.
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
    // SAFETY: nothing is read.
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
        for number in 0..DESKS + 2 {
            let reads = &reads;
            scope.spawn(move || {
                let lease = Lease::new();
                (0..5).for_each(|turn| read(reads, &lease, number * 4099 + turn, 600_000));
            });
        }
    });
}

#[test]
fn reads_that_were_left_keep_their_desks_until_their_leases_end() {
    let Machinery {
        reads,
        buffer: _buffer,
        ..
    } = machinery();
    let left: Vec<_> = (0..DESKS).map(|_| Lease::new()).collect();
    for lease in &left {
        let desk = reads.thread.claim(lease).unwrap();
        let request = Request {
            source: reads.source,
            offset: 0,
            len: LEN as u64,
        };
        desk.post(request, 0);
        reads.thread.wake();
    }
    let lease = Lease::new();
    read(&reads, &lease, 5, LEN - 5);
    assert_eq!(reads.taken(), 0, "every desk is in use");
    left.iter().for_each(Lease::end);
    read_until_taken(&reads);
}

#[test]
fn a_read_whose_request_is_not_taken_is_made_by_loads() {
    let Machinery {
        reads,
        buffer: _buffer,
        ..
    } = machinery();
    let desk: &'static Desk = Box::leak(Box::default());
    let lease = Lease::new();
    assert!(desk.claim(&lease));
    let request = Request {
        source: 0,
        offset: 0,
        len: LEN as u64,
    };
    desk.post(request, 0);
    let mut bytes = vec![0; LEN];
    let reader = Reader {
        window: reads.mapping.window_at(0, LEN).unwrap(),
        host: bytes.as_mut_ptr(),
        len: LEN as u64,
        routine: reads.mapping.routine(),
        caching: reads.mapping.caching(),
        is_simulated: false,
    };
    assert_eq!(reader.go_on(desk, &pieces_of(&request, 0), 0), 0);
    assert!((0..LEN).all(|at| bytes[at] == byte(at)));
    lease.end();
    assert!(desk.is_free());
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
    let desk = thread.claim(&lease).unwrap();
    let request = Request {
        source,
        offset: 0,
        len: LEN as u64,
    };
    desk.post(request, 0);
    thread.wake();
    let start = Instant::now();
    while desk.is_posted() {
        assert!(start.elapsed() < LIMIT);
        thread::yield_now();
    }
    drop(reads);
    assert!(!desk.serves(source));
    lease.end();
}
