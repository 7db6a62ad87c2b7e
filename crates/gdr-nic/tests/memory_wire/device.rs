//! Payloads that the receiver's GPU copies from the sender's memory.

use std::sync::{Arc, Weak};
use std::time::Instant;

use gdr_copy::Mapping;
use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_nic::{Buffer, CopyEngineThreshold, CopyThread, Region};

use super::*;

/// Not a multiple of the path MTU.
const LEN: usize = (1 << 20) + 5;

/// Registered memory of a simulated GPU, which its program may free.
struct Registered {
    memory: Arc<DeviceBuffer>,
    mapped: Weak<Mapping>,
    region: Region,
}

/// A simulated GPU of one process, and the thread that copies its memory.
struct SimGpu {
    gpu: Gpu,
    driver: Arc<SimDriver>,
    /// `None` if the thread that reads the memory calls the driver itself.
    thread: Option<CopyThread>,
}

impl SimGpu {
    fn new() -> Self {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let thread = CopyThread::new(&gpu);
        Self {
            gpu,
            driver,
            thread: Some(thread),
        }
    }

    fn read_by_reader() -> Self {
        Self {
            thread: None,
            ..Self::new()
        }
    }

    fn register(&self, side: &Side, kind: MemoryKind) -> Registered {
        let memory = Arc::new(self.gpu.allocate(kind, LEN as u64).unwrap());
        let context = gdr_copy::Context::builder().simulated(self.driver.clone());
        let context = context.backend(gdr_copy::BackendKind::Sim).open().unwrap();
        let pinned = context.pin(memory.ptr(), memory.len()).unwrap();
        let mapping = Arc::new(pinned.map().unwrap());
        let mapped = Arc::downgrade(&mapping);
        // SAFETY: only the region uses it, and is dropped before the memory.
        let borrowed = unsafe { DeviceBuffer::borrowed(&self.gpu, memory.ptr(), memory.len()) };
        let from = CopyEngineThreshold::From(1 << 16);
        let buffer = match &self.thread {
            Some(thread) => {
                Buffer::direct_with_copy_thread(mapping, borrowed.unwrap(), thread, from)
            }
            None => Buffer::direct_with_copies(mapping, Arc::clone(&memory), from),
        };
        let whole = (buffer.unwrap(), 0, LEN as u64);
        let region = side
            .device
            .register_buffer(side.domain, whole, 0, Access::all());
        let region = region.unwrap();
        Registered {
            memory,
            mapped,
            region,
        }
    }
}

impl Registered {
    fn all(&self) -> Segment {
        Segment {
            lkey: Lkey(self.region.key()),
            addr: 0,
            len: LEN as u32,
        }
    }

    fn remote(&self) -> Remote {
        Remote {
            rkey: Rkey(self.region.key()),
            addr: 0,
        }
    }

    fn fill(&self, seed: u8) {
        self.memory.write(0, &bytes(seed)).unwrap();
    }

    fn has(&self, seed: u8) -> bool {
        let mut content = vec![0; LEN];
        self.memory.read(0, &mut content).unwrap();
        content == bytes(seed)
    }
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at / 8 + at) as u8 ^ seed).collect()
}

/// Posts an operation on `a` and waits for its completion.
fn run(a: &Side, operation: Operation, segment: Segment) {
    let request = SendRequest {
        id: WrId(9),
        operation,
        data: Data::Segments(&[segment]),
        flags: SendFlags::SIGNALLED,
    };
    let posted = a.pair.post_sends(|queue| queue.push(&request));
    posted.unwrap().unwrap();
    assert_eq!(a.completion().status, WcStatus::Success);
}

fn write_to(to: &Registered) -> Operation {
    Operation::Write {
        remote: to.remote(),
        immediate: None,
    }
}

/// Writes until packets refer to GPU memory; they carry copies until the other side has opened that memory.
fn until_by_reference(a: &Side, from: &Registered, to: &Registered) {
    let limit = Instant::now() + Duration::from_secs(60);
    while a.device.counters().sent_by_reference == 0 {
        assert!(Instant::now() < limit, "nothing is sent by reference");
        run(a, write_to(to), from.all());
    }
}

/// Returns two connected devices with memory of one GPU each, between which messages go by reference.
fn by_reference(gpu: impl Fn() -> SimGpu) -> ([Side; 2], [Registered; 2]) {
    of_kind_by_reference(gpu, MemoryKind::Plain)
}

fn of_kind_by_reference(
    gpu: impl Fn() -> SimGpu,
    kind: MemoryKind,
) -> ([Side; 2], [Registered; 2]) {
    let sides = connected(Wires::All, Wires::All);
    let memories = sides.each_ref().map(|side| gpu().register(side, kind));
    until_by_reference(&sides[0], &memories[0], &memories[1]);
    (sides, memories)
}

#[test]
fn every_operation_between_gpus_copies_by_the_receivers_gpu() {
    let _alone = alone();
    every_operation(by_reference(SimGpu::new));
    every_operation(by_reference(SimGpu::read_by_reader));
    // The descriptors of such memory are passed over the socket of the ring.
    every_operation(of_kind_by_reference(SimGpu::new, MemoryKind::VmmPosixFd));
}

fn every_operation(([a, b], [from, to]): ([Side; 2], [Registered; 2])) {
    for seed in 1..20 {
        from.fill(seed);
        run(&a, write_to(&to), from.all());
        assert!(to.has(seed), "WRITE {seed}");

        from.fill(seed ^ 0x55);
        let receive = RecvRequest {
            id: WrId(2),
            segments: &[to.all()],
        };
        let posted = b.pair.post_recvs(|queue| queue.push(&receive));
        posted.unwrap().unwrap();
        run(&a, Operation::Send { immediate: None }, from.all());
        assert_eq!(b.completion().status, WcStatus::Success);
        assert!(to.has(seed ^ 0x55), "SEND {seed}");

        to.fill(seed ^ 0xaa);
        let remote = to.remote();
        run(&a, Operation::Read { remote }, from.all());
        assert!(from.has(seed ^ 0xaa), "READ {seed}");
    }
    assert!(b.device.counters().sent_by_reference > 0, "of a READ");
}

#[test]
fn memory_that_is_not_exported_and_host_memory_get_copies() {
    let _alone = alone();
    let [a, b] = connected(Wires::All, Wires::All);
    let [one, two] = [SimGpu::new(), SimGpu::new()];
    let pool = one.register(&a, MemoryKind::Pool);
    let plain = one.register(&a, MemoryKind::Plain);
    let to = two.register(&b, MemoryKind::Plain);
    let ((host, region), remote) = references::zeros(&b);
    for seed in 1..6 {
        pool.fill(seed);
        run(&a, write_to(&to), pool.all());
        assert!(to.has(seed), "of a pool, {seed}");

        plain.fill(seed);
        let operation = Operation::Write {
            remote,
            immediate: None,
        };
        run(&a, operation, plain.all());
        let mut content = vec![0; LEN];
        host.read_at(0, &mut content).unwrap();
        assert!(content == bytes(seed), "into host memory, {seed}");
    }
    drop(region);
}

#[test]
fn page_locked_memory_is_copied_into_by_the_gpu_that_uses_it() {
    let _alone = alone();
    let [a, b] = connected(Wires::All, Wires::All);
    let [one, two] = [SimGpu::new(), SimGpu::new()];
    let from = two.register(&b, MemoryKind::Plain);
    let host = Arc::new(one.gpu.allocate_host(LEN).unwrap());
    let whole = (
        Buffer::page_locked(Arc::clone(&host)).unwrap(),
        0,
        LEN as u64,
    );
    let region = a.device.register_buffer(a.domain, whole, 0, Access::all());
    let region = region.unwrap();
    let segment = Segment {
        lkey: Lkey(region.key()),
        addr: 0,
        len: LEN as u32,
    };
    let limit = Instant::now() + Duration::from_secs(60);
    let mut seed = 0;
    while b.device.counters().sent_by_reference < 20 {
        assert!(Instant::now() < limit, "nothing is sent by reference");
        seed = if seed == 100 { 1 } else { seed + 1 };
        from.fill(seed);
        let remote = from.remote();
        run(&a, Operation::Read { remote }, segment);
        let mut content = vec![0; LEN];
        host.read(0, &mut content).unwrap();
        assert!(content == bytes(seed), "READ {seed}");
    }
}

#[test]
fn a_region_that_ends_is_closed_by_the_other_side() {
    let _alone = alone();
    let [a, b] = connected(Wires::All, Wires::All);
    let [one, two] = [SimGpu::new(), SimGpu::new()];
    let to = two.register(&b, MemoryKind::Plain);
    let limit = Instant::now() + Duration::from_secs(60);
    for seed in 0..3 {
        let from = one.register(&a, MemoryKind::Plain);
        let sent = a.device.counters().sent_by_reference;
        while a.device.counters().sent_by_reference == sent {
            assert!(Instant::now() < limit);
            run(&a, write_to(&to), from.all());
        }
        from.fill(seed);
        run(&a, write_to(&to), from.all());
        assert!(to.has(seed));
        drop(from.region);
        drop(from.memory);
        // Deregistration wakes the other side even though no packet is sent.
        while two.driver.imports() > 0 {
            assert!(Instant::now() < limit, "it stays open");
            std::thread::yield_now();
        }
    }
}

#[test]
fn nothing_keeps_the_mapping_of_a_region_that_has_ended() {
    let _alone = alone();
    let (_sides, memories) = by_reference(SimGpu::new);
    let limit = Instant::now() + Duration::from_secs(60);
    for Registered { mapped, region, .. } in memories {
        drop(region);
        while mapped.strong_count() > 0 {
            assert!(Instant::now() < limit, "it is kept");
            std::thread::yield_now();
        }
    }
}

/// The receiver refuses the first messages into that memory, and the sender then offers its own memory again.
#[test]
fn memory_of_a_gpu_that_is_registered_later_is_copied_into_by_that_gpu() {
    let _alone = alone();
    let ([a, b], [from, _first]) = by_reference(SimGpu::new);
    let later = SimGpu::new();
    let to = later.register(&b, MemoryKind::Plain);
    let limit = Instant::now() + Duration::from_secs(60);
    let mut seed = 0;
    while later.driver.imports() == 0 {
        assert!(Instant::now() < limit, "that GPU opens nothing");
        seed = if seed == 100 { 1 } else { seed + 1 };
        from.fill(seed);
        run(&a, write_to(&to), from.all());
        assert!(to.has(seed), "WRITE {seed}");
    }
}
