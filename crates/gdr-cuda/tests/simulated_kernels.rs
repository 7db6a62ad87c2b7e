//! Streams and kernels of the simulated GPU through the crate's public interface.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::time::{Duration, Instant};

use gdr_cuda::{
    CuResult, DeviceBuffer, DevicePtr, Direction, Error, Gpu, HostBuffer, Launch, MemoryKind,
    Ordinal, SimDriver, Stream, Sum64, VerifyReport, pattern_word,
};

/// A limit that only a test that hangs reaches.
const LIMIT: Duration = Duration::from_secs(60);

fn gpu() -> Gpu {
    Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap()
}

fn at(ptr: DevicePtr, offset: u64) -> DevicePtr {
    ptr.checked_add(offset).unwrap()
}

#[test]
fn queued_copies_run_in_order_and_keep_both_sides_allocated() {
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let host = std::sync::Arc::new(gpu.allocate_host(4096).unwrap());
    let back = std::sync::Arc::new(gpu.allocate_host(4096).unwrap());
    let buffer = gpu.allocate(MemoryKind::Plain, 8192).unwrap();
    host.write(1, b"over and back").unwrap();

    stream.queue_write(&host, 1, &buffer, 4097, 13).unwrap();
    stream.queue_read(&buffer, 4097, &back, 7, 13).unwrap();
    drop((host, buffer));
    stream.wait(LIMIT).unwrap();

    let mut seen = [0; 13];
    back.read(7, &mut seen).unwrap();
    assert_eq!(&seen, b"over and back");
}

#[test]
fn a_queued_copy_outside_either_side_is_refused() {
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let host = std::sync::Arc::new(gpu.allocate_host(64).unwrap());
    let buffer = gpu.allocate(MemoryKind::Plain, 64).unwrap();
    for (at, to, len) in [(0, 0, 65), (60, 0, 5), (0, 60, 5), (usize::MAX, 0, 2)] {
        let refused = stream.queue_write(&host, at, &buffer, to, len);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })));
        let refused = stream.queue_read(&buffer, to, &host, at, len);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn a_pattern_verifies_and_the_first_mismatch_is_reported() {
    let gpu = gpu();
    let (stream, buffer) = (
        gpu.stream().unwrap(),
        gpu.allocate(MemoryKind::Vmm, 4096).unwrap(),
    );
    stream.fill_pattern(&buffer, 8, 1000, 42, LIMIT).unwrap();
    let clean = VerifyReport {
        first: u64::MAX,
        ..VerifyReport::default()
    };
    assert_eq!(
        stream.verify_pattern(&buffer, 8, 1000, 42, LIMIT).unwrap(),
        clean
    );

    buffer
        .write(8 + 4 * 700, &0xdead_beef_u32.to_ne_bytes())
        .unwrap();
    buffer
        .write(8 + 4 * 123, &0x1234_5678_u32.to_ne_bytes())
        .unwrap();
    let report = stream.verify_pattern(&buffer, 8, 1000, 42, LIMIT).unwrap();
    let expected = pattern_word(42, 123);
    let found = 0x1234_5678;
    assert_eq!(
        report,
        VerifyReport {
            mismatches: 2,
            first: 123,
            expected,
            found
        }
    );
    let other_seed = stream.verify_pattern(&buffer, 8, 1000, 43, LIMIT).unwrap();
    assert!(other_seed.mismatches > 990, "{other_seed:?}");
}

#[test]
fn a_pattern_of_no_words_always_matches() {
    let gpu = gpu();
    let (stream, buffer) = (
        gpu.stream().unwrap(),
        gpu.allocate(MemoryKind::Plain, 4).unwrap(),
    );
    stream.fill_pattern(&buffer, 4, 0, 1, LIMIT).unwrap();
    let report = stream.verify_pattern(&buffer, 4, 0, 1, LIMIT).unwrap();
    assert_eq!((report.mismatches, report.first), (0, u64::MAX));
}

#[test]
fn a_kernel_and_the_cpu_compute_the_same_checksum() {
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let buffer = gpu.allocate(MemoryKind::Plain, 20_000).unwrap();
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at * at) as u8).collect();
    buffer.write(0, &bytes).unwrap();
    let sum = gpu.allocate(MemoryKind::Plain, 16).unwrap();
    for (offset, len) in [
        (0, 20_000),
        (8, 4096),
        (16, 4097),
        (24, 7),
        (32, 8),
        (40, 0),
    ] {
        stream.queue_sum64(&buffer, offset, len, &sum, 8).unwrap();
        stream.wait(LIMIT).unwrap();
        let mut word = [0; 8];
        sum.read(8, &mut word).unwrap();
        let expected = Sum64::of(&bytes[offset as usize..][..len as usize]);
        assert_eq!(u64::from_le_bytes(word), expected.get(), "{offset} {len}");
    }
    for (offset, len, to) in [(4, 8, 0), (0, 8, 4)] {
        let refused = stream.queue_sum64(&buffer, offset, len, &sum, to);
        assert!(matches!(refused, Err(Error::Misaligned { .. })));
    }
    for (offset, len, to) in [(8, 20_000, 0), (0, 8, 16)] {
        let refused = stream.queue_sum64(&buffer, offset, len, &sum, to);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    }
    let refused = stream.queue_sum64(&buffer, 0, 24, &buffer, 16);
    assert!(matches!(refused, Err(Error::Overlap { .. })));
}

#[test]
fn a_fill_writes_every_byte_of_its_buffer_and_no_other() {
    let gpu = gpu();
    let [before, filled, after] =
        [(); 3].map(|()| gpu.allocate(MemoryKind::Plain, 10_000).unwrap());
    let stream = gpu.stream().unwrap();
    for buffer in [&before, &filled, &after] {
        stream.fill(buffer, 0x11, LIMIT).unwrap();
    }
    stream.fill(&filled, 0xee, LIMIT).unwrap();
    for (buffer, value) in [(&before, 0x11), (&filled, 0xee), (&after, 0x11)] {
        let mut back = vec![0; 10_000];
        buffer.read(0, &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == value));
    }
}

#[test]
fn a_stream_refuses_odd_offsets_other_gpus_and_other_drivers() {
    let gpus = Gpu::all(SimDriver::new(2)).unwrap();
    let stream = gpus[0].stream().unwrap();
    let own = gpus[0].allocate(MemoryKind::Plain, 64).unwrap();
    let error = stream.fill_pattern(&own, 2, 1, 0, LIMIT).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Misaligned {
                offset: 2,
                alignment: 4
            }
        ),
        "{error}"
    );
    let error = stream
        .verify_pattern(&own, 0, u64::MAX, 0, LIMIT)
        .unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    for other in [&gpus[1], &gpu()] {
        let foreign = other.allocate(MemoryKind::Plain, 64).unwrap();
        let error = stream.fill(&foreign, 0, LIMIT).unwrap_err();
        assert!(matches!(error, Error::ForeignBuffer { .. }), "{error}");
    }
}

/// A round trip between this thread and a kernel, with payload and flags in memory that both access.
struct RoundTrip {
    gpu: Gpu,
    stream: Stream,
    /// `ping`, `pong` and `stop`, 64 bytes apart.
    flags: HostBuffer,
    data: HostBuffer,
    /// The barrier and the count of mismatches.
    counters: DeviceBuffer,
}

const PING: usize = 0;
const PONG: usize = 64;
const STOP: usize = 128;

impl RoundTrip {
    const WORDS: usize = 100;

    fn launch(direction: Direction, iterations: u32) -> Self {
        let gpu = gpu();
        let round_trip = Self {
            stream: gpu.stream().unwrap(),
            flags: gpu.allocate_host(192).unwrap(),
            data: gpu.allocate_host(4 * Self::WORDS).unwrap(),
            counters: gpu.allocate(MemoryKind::Plain, 16).unwrap(),
            gpu,
        };
        round_trip.flags.write(0, &[0; 192]).unwrap();
        round_trip.counters.write(0, &[0; 16]).unwrap();
        let launch = Launch::PingPong {
            ping: at(round_trip.flags.gpu_ptr(), PING as u64),
            pong: at(round_trip.flags.gpu_ptr(), PONG as u64),
            stop: at(round_trip.flags.gpu_ptr(), STOP as u64),
            iterations,
            data: round_trip.data.gpu_ptr(),
            data_words: Self::WORDS as u64,
            direction,
            blocks: 2,
            threads: 32,
            barrier: round_trip.counters.ptr(),
            mismatches: at(round_trip.counters.ptr(), 8),
        };
        // SAFETY: all addresses are in buffers of `round_trip`, which each test keeps until the stream is idle.
        unsafe { round_trip.stream.launch(&launch) }.unwrap();
        round_trip
    }

    fn await_pong(&self, round: u32) {
        let start = Instant::now();
        while self.flags.load_u32(PONG).unwrap() != round {
            assert!(start.elapsed() < LIMIT, "no answer to round {round}");
            std::thread::yield_now();
        }
    }

    fn mismatches(&self) -> u64 {
        let mut bytes = [0; 8];
        self.counters.read(8, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }
}

#[test]
fn a_kernel_fills_the_payload_before_it_ends_a_round() {
    let trip = RoundTrip::launch(Direction::GpuToCpu, 100);
    for round in 1..=100 {
        trip.flags.store_u32(PING, round).unwrap();
        trip.await_pong(round);
        for word in 0..RoundTrip::WORDS {
            assert_eq!(trip.data.load_u32(4 * word).unwrap(), round);
        }
    }
    trip.stream.wait(LIMIT).unwrap();
}

#[test]
fn a_kernel_finds_exactly_the_payload_words_that_are_wrong() {
    let trip = RoundTrip::launch(Direction::CpuToGpu, 10);
    for round in 1..=10_u32 {
        for word in 0..RoundTrip::WORDS {
            let value = if round == 7 && word < 3 { 0 } else { round };
            trip.data.store_u32(4 * word, value).unwrap();
        }
        trip.flags.store_u32(PING, round).unwrap();
        trip.await_pong(round);
        assert_eq!(trip.mismatches(), if round < 7 { 0 } else { 3 });
    }
    trip.stream.wait(LIMIT).unwrap();
}

#[test]
fn a_stopped_kernel_ends_without_ending_its_round() {
    let trip = RoundTrip::launch(Direction::GpuToCpu, u32::MAX);
    trip.flags.store_u32(PING, 1).unwrap();
    trip.await_pong(1);
    let error = trip.stream.wait(Duration::ZERO).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(!trip.stream.is_idle().unwrap());
    trip.flags.store_u32(STOP, 1).unwrap();
    trip.stream.wait(LIMIT).unwrap();
    assert_eq!(trip.flags.load_u32(PONG).unwrap(), 1);
}

#[test]
fn memory_of_work_that_missed_its_deadline_stays_allocated_until_the_stream_is_idle() {
    let trip = RoundTrip::launch(Direction::GpuToCpu, 1);
    let buffer = trip.gpu.allocate(MemoryKind::Plain, 1 << 20).unwrap();
    let ptr = buffer.ptr();
    let error = trip.stream.fill(&buffer, 1, Duration::ZERO).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Deadline {
                what: "the fill",
                ..
            }
        ),
        "{error}"
    );
    drop(buffer);
    assert!(trip.gpu.driver().pointer_info(ptr).is_ok());
    trip.flags.store_u32(STOP, 1).unwrap();
    trip.stream.wait(LIMIT).unwrap();
    assert!(trip.gpu.driver().pointer_info(ptr).is_err());
}

#[test]
fn a_launch_at_a_wrong_address_is_refused() {
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let buffer = gpu.allocate(MemoryKind::Plain, 64).unwrap();
    let cases = [
        (buffer.ptr(), 17, CuResult::ILLEGAL_ADDRESS),
        (buffer.ptr(), u64::MAX, CuResult::ILLEGAL_ADDRESS),
        (at(buffer.ptr(), 64), 1, CuResult::ILLEGAL_ADDRESS),
        (at(buffer.ptr(), 1), 1, CuResult::MISALIGNED_ADDRESS),
    ];
    for (dst, words, result) in cases {
        // SAFETY: the simulation resolves every address before it accesses memory.
        let error = unsafe {
            stream.launch(&Launch::Fill {
                dst,
                words,
                seed: 0,
            })
        }
        .unwrap_err();
        assert_eq!(error.cu_result(), Some(result));
    }
    assert!(stream.is_idle().unwrap());
}

#[test]
fn buffers_move_between_threads_and_streams_run_concurrently() {
    let gpu = gpu();
    let buffers: Vec<_> = std::thread::scope(|scope| {
        let fill = |seed| {
            let gpu = gpu.clone();
            move || {
                let buffer = gpu.allocate(MemoryKind::Pool, 64 << 10).unwrap();
                let stream = gpu.stream().unwrap();
                stream
                    .fill_pattern(&buffer, 0, 16 << 10, seed, LIMIT)
                    .unwrap();
                buffer
            }
        };
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(fill(seed))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let stream = gpu.stream().unwrap();
    for (seed, buffer) in buffers.iter().enumerate() {
        let report = stream
            .verify_pattern(buffer, 0, 16 << 10, seed as u32, LIMIT)
            .unwrap();
        assert_eq!(report.mismatches, 0);
    }
}

#[test]
fn words_are_doubled_into_another_buffer_or_in_place_and_not_beyond() {
    let gpu = gpu();
    let stream = gpu.stream().unwrap();
    let [src, dst] = [64, 64].map(|len| gpu.allocate(MemoryKind::Plain, len).unwrap());
    let words = [1_u32, 0x8000_0001, u32::MAX, 7];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    src.write(0, &bytes).unwrap();
    dst.write(0, &[0xaa; 64]).unwrap();
    stream.queue_double(&src, &dst, 3).unwrap();
    stream.queue_double(&src, &src, 1).unwrap();
    stream.wait(LIMIT).unwrap();
    let read = |buffer: &DeviceBuffer| {
        let mut bytes = [0; 16];
        buffer.read(0, &mut bytes).unwrap();
        let word = |i: usize| u32::from_ne_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
        [word(0), word(1), word(2), word(3)]
    };
    assert_eq!(read(&dst), [2, 2, u32::MAX - 1, 0xaaaa_aaaa]);
    assert_eq!(read(&src), [2, 0x8000_0001, u32::MAX, 7]);
    let beyond = stream.queue_double(&src, &dst, 17);
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })));
}
