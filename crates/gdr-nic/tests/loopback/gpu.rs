//! Simulated GPU memory, direct and staged.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use gdr_copy::plan::{CopyDirection, HostMemory, PathLimits, Planner};
use gdr_copy::{BackendKind, Context, Mapping};
use gdr_cuda::{DeviceBuffer, Driver, Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_rdma::{
    AtomicOp, Buffer, BufferKind, CopyEngineThreshold, CopyThread, Immediate, MemoryRegion,
    NicError, RecvRequest, SendRequest, WrId,
};

use crate::fixture::*;

const LEN: u64 = 3 << 20;

/// One range of simulated memory, accessible to CUDA and to RDMA.
struct GpuMemory {
    driver: Arc<SimDriver>,
    device: Arc<DeviceBuffer>,
    region: MemoryRegion,
}

/// How the soft provider accesses the memory.
#[derive(Clone, Copy, Debug)]
enum Method {
    Direct,
    /// Direct, with all reads by the copy engine on the engine's thread.
    DirectWithCopies,
    /// Direct, with all reads by a dedicated copy thread.
    DirectWithCopyThread,
    Staged,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

fn map(driver: &Arc<SimDriver>, device: &DeviceBuffer, skip: u64, len: u64) -> Mapping {
    let builder = Context::builder().simulated(driver.clone());
    let context = builder.backend(BackendKind::Sim).open().unwrap();
    let pinned = context.pin(device.ptr().checked_add(skip).unwrap(), len);
    pinned.unwrap().map().unwrap()
}

/// Wraps the first bytes of `device` as a library does that did not allocate them.
fn borrowed(gpu: &Gpu, device: &DeviceBuffer, len: u64) -> DeviceBuffer {
    // SAFETY: only tests use the memory. Those that free it do so to check that it is not used afterwards.
    unsafe { DeviceBuffer::borrowed(gpu, device.ptr(), len) }.unwrap()
}

impl GpuMemory {
    fn new(side: &Side, method: Method) -> Self {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let device = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
        let mapping = || map(&driver, &device, 0, LEN);
        let (buffer, kind) = match method {
            Method::Direct => (Buffer::direct(mapping()), BufferKind::Direct),
            Method::DirectWithCopies => {
                let device = Arc::clone(&device);
                let from = CopyEngineThreshold::From(1);
                let buffer = Buffer::direct_with_copies(mapping(), device, from);
                (buffer, BufferKind::Direct)
            }
            Method::DirectWithCopyThread => {
                let from = CopyEngineThreshold::From(1);
                let (thread, memory) = (CopyThread::new(&gpu), borrowed(&gpu, &device, LEN));
                let buffer = Buffer::direct_with_copy_thread(mapping(), memory, &thread, from);
                (buffer, BufferKind::Direct)
            }
            Method::Staged => (Buffer::staged(Arc::clone(&device)), BufferKind::Staged),
        };
        let buffer = buffer.unwrap();
        assert_eq!(buffer.kind(), kind);
        assert_eq!((buffer.len(), buffer.address()), (LEN, device.ptr().get()));
        let region = side.domain.register(&buffer, EVERYTHING).unwrap();
        Self {
            driver,
            device,
            region,
        }
    }

    /// Returns what cudaMemcpy reads.
    fn as_cuda_sees_it(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.device.read(offset, &mut bytes).unwrap();
        bytes
    }
}

const METHODS: [Method; 4] = [
    Method::Direct,
    Method::DirectWithCopies,
    Method::DirectWithCopyThread,
    Method::Staged,
];

#[test]
fn writes_are_in_gpu_memory_when_they_complete() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let source = a.memory(LEN as usize);
        let sent = fill(&source, 1);
        for (offset, len) in [(0, 1), (3, 2), (64, 64), (1001, 70_000), (4096, 2 << 20)] {
            let write = SendRequest::write(WrId(0), gpu.region.remote().at(offset))
                .segment(source.segment(0, len).unwrap());
            a.pair.post_send(write).unwrap();
            a.done();
            let seen = gpu.as_cuda_sees_it(offset, len as usize);
            assert!(seen == sent[..len as usize], "{method}: {len} bytes");
        }
    }
}

#[test]
fn after_the_completion_a_receiver_finds_the_message_in_gpu_memory() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let source = a.memory(100_000);
        let sent = fill(&source, 2);
        let place = gpu.region.segment(500, 100_000).unwrap();
        b.pair
            .post_recv(RecvRequest::new(WrId(0)).segment(place))
            .unwrap();
        b.pair.post_recv(RecvRequest::new(WrId(1))).unwrap();
        let whole = || source.segment(0, 100_000).unwrap();
        a.pair
            .post_send(SendRequest::send(WrId(0)).segment(whole()))
            .unwrap();
        b.done();
        assert!(gpu.as_cuda_sees_it(500, 100_000) == sent, "{method}: SEND");
        let write = SendRequest::write(WrId(1), gpu.region.remote().at(1 << 20))
            .segment(whole())
            .immediate(Immediate(1));
        a.pair.post_send(write).unwrap();
        b.done();
        assert!(
            gpu.as_cuda_sees_it(1 << 20, 100_000) == sent,
            "{method}: WRITE"
        );
    }
}

#[test]
fn reads_return_the_latest_bytes_that_the_gpu_wrote() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let target = a.memory(2 << 20);
        let stream = gpu.device.gpu().stream().unwrap();
        for value in [1, 2, 3] {
            stream
                .fill(&gpu.device, value, Duration::from_secs(60))
                .unwrap();
            let read = SendRequest::read(WrId(0), gpu.region.remote().at(77))
                .segment(target.segment(0, 2 << 20).unwrap());
            a.pair.post_send(read).unwrap();
            a.done();
            assert!(bytes(&target).iter().all(|byte| *byte == value), "{method}");
        }
    }
}

#[test]
fn gpu_memory_is_a_source_and_a_destination_of_this_sides_requests() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&a, method);
        let far = b.memory(1 << 20);
        let kept = pattern(1 << 20, 3);
        gpu.device.write(12_345, &kept).unwrap();
        let write = SendRequest::write(WrId(0), far.remote().at(0))
            .segment(gpu.region.segment(12_345, 1 << 20).unwrap());
        a.pair.post_send(write).unwrap();
        a.done();
        assert!(bytes(&far) == kept, "{method}: WRITE from");

        let sent = fill(&far, 4);
        let read = SendRequest::read(WrId(1), far.remote().at(0))
            .segment(gpu.region.segment(1, 1 << 20).unwrap());
        a.pair.post_send(read).unwrap();
        a.done();
        assert!(
            gpu.as_cuda_sees_it(1, 1 << 20) == sent,
            "{method}: READ into"
        );
    }
}

#[test]
fn atomics_work_on_gpu_memory() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let answer = a.memory(8);
        gpu.device.write(64, &5_u64.to_ne_bytes()).unwrap();
        for expected in [5, 8, 11] {
            let request = SendRequest::atomic(
                WrId(0),
                gpu.region.remote().at(64),
                AtomicOp::FetchAdd { add: 3 },
            );
            let request = request.segment(answer.segment(0, 8).unwrap());
            a.pair.post_send(request).unwrap();
            a.done();
            assert_eq!(answer.buffer().load_u64(0).unwrap(), expected, "{method}");
        }
        assert_eq!(gpu.as_cuda_sees_it(64, 8), 14_u64.to_ne_bytes());
    }
}

#[test]
fn copies_of_the_program_are_ordered_with_those_of_the_network() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let buffer = gpu.region.buffer();
        buffer.write_at(10, b"from the program").unwrap();
        assert_eq!(gpu.as_cuda_sees_it(10, 16), b"from the program");
        let write = SendRequest::write(WrId(0), gpu.region.remote().at(15)).inline(b"net");
        a.pair.post_send(write).unwrap();
        a.done();
        let mut seen = [0; 16];
        buffer.read_at(10, &mut seen).unwrap();
        assert_eq!(&seen, b"from net program");
        assert_eq!(buffer.load_u8(10).unwrap(), b'f');
        assert!(buffer.load_u32(2).is_err());
        assert!(buffer.write_at(LEN - 1, &[0; 2]).is_err());
    }
}

#[test]
fn a_later_read_returns_the_later_bytes_of_any_writer() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let here = a.memory(LEN as usize);
        let remote = gpu.region.remote();
        // Each READ overlaps staging windows of an earlier one; the first leaves some windows unread.
        for (round, offset, len) in [(1, 0, 1 << 20), (2, 4096, 100_000), (3, 100, 2 << 20)] {
            let sent = pattern(len as usize, round);
            match round {
                2 => {
                    here.buffer().write_at(0, &sent).unwrap();
                    let segment = here.segment(0, len).unwrap();
                    let write = SendRequest::write(WrId(0), remote.at(offset));
                    a.pair.post_send(write.segment(segment)).unwrap();
                }
                _ => gpu.device.write(offset, &sent).unwrap(),
            }
            let read = SendRequest::read(WrId(1), remote.at(offset));
            let read = read.segment(here.segment(0, len).unwrap());
            a.pair.post_send(read).unwrap();
            if round == 2 {
                a.done();
            }
            a.done();
            assert!(bytes(&here)[..len as usize] == sent, "{method}: {round}");
        }
    }
}

#[test]
fn each_of_many_outstanding_reads_returns_its_own_bytes() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let kept = pattern(LEN as usize, 9);
        gpu.device.write(0, &kept).unwrap();
        let here = a.memory(LEN as usize);
        let part = 100_000;
        let parts = LEN / part;
        for n in 0..parts {
            let read = SendRequest::read(WrId(n), gpu.region.remote().at(n * part));
            let read = read.segment(here.segment(n * part, part).unwrap());
            a.pair.post_send(read).unwrap();
        }
        for _ in 0..parts {
            a.done();
        }
        let len = (parts * part) as usize;
        assert!(bytes(&here)[..len] == kept[..len], "{method}");
    }
}

#[test]
fn a_mapping_inside_its_allocation_reads_at_the_right_offset() {
    let Some((a, b)) = sides() else { return };
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let device = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    let kept = pattern(LEN as usize, 5);
    device.write(0, &kept).unwrap();
    let (skip, len) = (70_000, 1 << 20);
    let mapping = map(&driver, &device, skip, len);
    let buffer =
        Buffer::direct_with_copies(mapping, device.clone(), CopyEngineThreshold::From(1000));
    let buffer = buffer.unwrap();
    assert_eq!(buffer.long_reads_from(), Some(1000));
    let region = b.domain.register(&buffer, EVERYTHING).unwrap();
    let here = a.memory(len as usize);
    for (offset, len) in [(0, len), (10, 999), (5000, 300_000)] {
        let read = SendRequest::read(WrId(0), region.remote().at(offset));
        let read = read.segment(here.segment(0, len).unwrap());
        a.pair.post_send(read).unwrap();
        a.done();
        let from = (skip + offset) as usize;
        assert!(bytes(&here)[..len as usize] == kept[from..from + len as usize]);
        let mut seen = vec![0; len as usize];
        buffer.read_at(offset, &mut seen).unwrap();
        assert!(seen == kept[from..from + len as usize]);
    }

    let other = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    let mapping = map(&driver, &other, 0, LEN);
    let elsewhere = Buffer::direct_with_copies(mapping, device, CopyEngineThreshold::Planned);
    assert!(matches!(elsewhere, Err(NicError::MappedElsewhere { .. })));
}

#[test]
fn a_mapping_may_go_beyond_the_memory_that_a_thread_copies() {
    let Some((a, b)) = sides() else { return };
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let device = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    let kept = pattern(LEN as usize, 9);
    device.write(0, &kept).unwrap();
    let (thread, from) = (CopyThread::new(&gpu), CopyEngineThreshold::From(1));
    let inside = (1 << 20) + 100;
    let memory = borrowed(&gpu, &device, inside);
    let mapping = map(&driver, &device, 0, LEN);
    let buffer = Buffer::direct_with_copy_thread(mapping, memory, &thread, from).unwrap();
    assert_eq!(buffer.len(), LEN);
    assert!(buffer.device_memory().is_none());
    let region = b.domain.register(&buffer, EVERYTHING).unwrap();
    let here = a.memory(LEN as usize);
    for (offset, len) in [(0, LEN), (inside - 10, 20), (inside, 5000), (0, LEN)] {
        let read = SendRequest::read(WrId(0), region.remote().at(offset));
        let read = read.segment(here.segment(0, len).unwrap());
        a.pair.post_send(read).unwrap();
        a.done();
        let from = offset as usize;
        assert!(bytes(&here)[..len as usize] == kept[from..from + len as usize]);
    }

    let other = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    let mapping = || map(&driver, &other, 0, LEN);
    let memory = borrowed(&gpu, &device, LEN);
    let elsewhere = Buffer::direct_with_copy_thread(mapping(), memory, &thread, from);
    assert!(matches!(elsewhere, Err(NicError::MappedElsewhere { .. })));
    let strange = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
    let strange = CopyThread::new(&strange);
    let memory = borrowed(&gpu, &other, LEN);
    let foreign = Buffer::direct_with_copy_thread(mapping(), memory, &strange, from);
    assert!(matches!(foreign, Err(NicError::Cuda(_))), "{foreign:?}");
}

#[test]
fn memory_that_the_program_freed_is_read_through_its_mapping() {
    let Some((a, b)) = sides() else { return };
    let GpuMemory { device, region, .. } = GpuMemory::new(&b, Method::DirectWithCopyThread);
    let kept = pattern(LEN as usize, 4);
    device.write(0, &kept).unwrap();
    let here = a.memory(LEN as usize);
    let mut device = Some(device);
    for turn in 0..4 {
        fill(&here, turn);
        let read = SendRequest::read(WrId(0), region.remote().at(0));
        let read = read.segment(here.segment(0, LEN).unwrap());
        a.pair.post_send(read).unwrap();
        a.done();
        assert!(bytes(&here) == kept, "turn {turn}");
        // Frees the address range, which only the mapping still keeps.
        device.take();
    }
}

#[test]
fn a_planned_threshold_is_that_of_the_machine_and_needs_no_measurement() {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let device = Arc::new(gpu.allocate(MemoryKind::Plain, LEN).unwrap());
    let mapping = Arc::new(map(&driver, &device, 0, LEN));
    let (calibration, _) = gdr_copy::calibration_for(&gpu, &mapping).unwrap();
    let planner = Planner::new(&calibration, PathLimits::all(NonZeroU16::MIN));
    let planned = planner.copy_engine_from(CopyDirection::FromGpu, HostMemory::PageLocked);
    let buffer = Buffer::direct_with_copies(mapping, device, CopyEngineThreshold::Planned).unwrap();
    assert_eq!(buffer.long_reads_from(), planned);
}

#[test]
fn a_peers_atomic_does_not_wait_for_kernels_of_the_program() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        gpu.device.write(64, &5_u64.to_ne_bytes()).unwrap();
        let answer = a.memory(8);
        // The kernel stays resident until the end, on a stream that the default stream waits for.
        let kernel = gpu.driver.blocking_kernel();
        let op = AtomicOp::FetchAdd { add: 3 };
        let request = SendRequest::atomic(WrId(0), gpu.region.remote().at(64), op);
        let request = request.segment(answer.segment(0, 8).unwrap());
        a.pair.post_send(request).unwrap();
        a.done();
        assert_eq!(answer.buffer().load_u64(0).unwrap(), 5, "{method}");
        assert_eq!(kernel.waiting(), 0, "{method}");
        drop(kernel);
        assert_eq!(gpu.as_cuda_sees_it(64, 8), 8_u64.to_ne_bytes(), "{method}");
    }
}

#[test]
fn freeing_gpu_memory_that_a_request_held_last_waits_for_no_kernel() {
    // With a mapping alone, no request holds device memory.
    for method in [Method::DirectWithCopies, Method::Staged] {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let other = Side::on(b.device.clone());
        let peer = Side::on(a.device.clone());
        connect(&peer, &other, &options());
        let place = gpu.region.segment(0, 5).unwrap();
        b.pair
            .post_recv(RecvRequest::new(WrId(0)).segment(place))
            .unwrap();
        let GpuMemory {
            driver,
            device,
            region,
        } = gpu;
        let ptr = device.ptr();
        // From here on, only the receive holds the memory.
        drop((device, region));
        let kernel = driver.blocking_kernel();
        std::thread::scope(|scope| {
            // Dropped when the scope ends, also if a check fails, so that no wait for the kernel blocks.
            let kernel = kernel;
            let transfers = scope.spawn(|| {
                let send = SendRequest::send(WrId(0)).inline(b"hello");
                a.pair.post_send(send).unwrap();
                b.done();
                a.done();
                let target = other.memory(8);
                let write = SendRequest::write(WrId(1), target.remote().at(0)).inline(&[1; 8]);
                peer.pair.post_send(write).unwrap();
                peer.done();
            });
            wait_until(|| transfers.is_finished());
            transfers.join().unwrap();
            wait_until(|| driver.pointer_info(ptr).is_err());
            drop(kernel);
        });
    }
}

#[test]
fn a_copy_of_the_program_that_waits_for_a_kernel_delays_no_packet() {
    for method in METHODS {
        let Some((a, b)) = sides() else { return };
        let gpu = GpuMemory::new(&b, method);
        let kernel = gpu.driver.blocking_kernel();
        std::thread::scope(|scope| {
            // Dropped when the scope ends, also if a check fails, so that the copies end.
            let kernel = kernel;
            let copies = [
                scope.spawn(|| gpu.region.buffer().write_at(100, &[7; 100])),
                scope.spawn(|| gpu.region.buffer().read_at(300, &mut [0; 100])),
            ];
            let wait = match method {
                Method::Direct | Method::DirectWithCopyThread => 0,
                Method::DirectWithCopies => 1,
                Method::Staged => 2,
            };
            wait_until(|| kernel.waiting() == wait);
            let write = SendRequest::write(WrId(0), gpu.region.remote().at(0)).inline(b"hello");
            a.pair.post_send(write).unwrap();
            a.done();
            drop(kernel);
            for copy in copies {
                copy.join().unwrap().unwrap();
            }
        });
        assert_eq!(gpu.as_cuda_sees_it(0, 5), b"hello", "{method}");
        assert_eq!(gpu.as_cuda_sees_it(100, 100), [7; 100], "{method}");
    }
}

#[test]
fn dropping_a_buffer_waits_for_no_kernel() {
    for method in [Method::DirectWithCopies, Method::Staged] {
        let Some((_, b)) = sides() else { return };
        let GpuMemory {
            driver,
            device,
            region,
        } = GpuMemory::new(&b, method);
        let kernel = driver.blocking_kernel();
        std::thread::scope(|scope| {
            // Dropped when the scope ends, also if a check fails, so that no wait for the kernel blocks.
            let kernel = kernel;
            // The program keeps its own memory; only what the buffer allocated is freed.
            let end = scope.spawn(|| drop(region));
            wait_until(|| end.is_finished());
            drop(kernel);
        });
        drop(device);
    }
}
