//! Bytes of a completion are visible in GPU memory, whatever order the GPU guarantees.

use std::sync::Arc;

use fake_ibverbs::{DeviceSpec, GpuPath};
use gdr_cuda::{RemoteWrites, SimDriver, WritesOrdering};
use gdr_rdma::{
    Error, FlushPolicy, Immediate, MemoryRegion, RecvRequest, SendRequest, VerbsError, WrId,
};

use crate::fixture::*;
use crate::gpu_memory::GpuMemory;

/// Two sides; the second has registered memory of a GPU with the given write ordering.
struct Pair {
    region: MemoryRegion,
    driver: Arc<SimDriver>,
    a: Side,
    b: Side,
    fake: CleanFake,
}

impl Pair {
    fn new(ordering: WritesOrdering, host_flush: bool, dma_buf: GpuPath) -> Self {
        let fake = clean_fake();
        let spec = DeviceSpec { dma_buf, ..roce() };
        let (a, b) = connected(&fake, &roce(), &spec);
        let driver = SimDriver::with_remote_writes(
            1,
            RemoteWrites {
                ordering,
                host_flush,
            },
        );
        let memory = GpuMemory::new(&fake, &driver, 1 << 16);
        let region = memory.register(&b).unwrap();
        Self {
            fake,
            a,
            b,
            driver,
            region,
        }
    }

    fn policy(&self) -> FlushPolicy {
        self.region.flush_policy().unwrap().0
    }

    /// Performs a WRITE with immediate into the GPU's memory, and leaves its completion in the queue.
    fn arrive(&self) {
        self.b.pair.post_recv(RecvRequest::new(WrId(7))).unwrap();
        let source = self.a.memory(64);
        let write = SendRequest::write(WrId(1), self.region.remote().at(0)).immediate(Immediate(3));
        let write = write.segment(source.segment(0, 64).unwrap());
        self.a.pair.post_send(write).unwrap();
        self.a.done();
    }

    /// Returns the number of requests posted to the second side's device.
    fn posted(&self) -> usize {
        calls(&self.fake, &self.b.name(), &POSTING).len()
    }
}

#[test]
fn a_gpu_that_orders_writes_of_devices_is_not_flushed() {
    let ends = Pair::new(WritesOrdering::Owner, true, GpuPath::Works);
    assert_eq!(ends.policy(), FlushPolicy::Ordered);
    let posted = ends.posted();
    ends.arrive();
    assert_eq!(ends.b.done().id, WrId(7));
    assert_eq!((ends.driver.flushes(), ends.posted()), (0, posted));
}

#[test]
fn the_driver_flushes_exactly_for_completions_of_received_bytes() {
    let ends = Pair::new(WritesOrdering::None, true, GpuPath::Works);
    assert_eq!(ends.policy(), FlushPolicy::Driver);
    let (b, there) = (&ends.b, ends.a.memory(64));
    let mut before = ends.driver.flushes();
    let mut flushed = || {
        let now = ends.driver.flushes();
        now - std::mem::replace(&mut before, now)
    };
    let mine = || ends.region.segment(64, 64).unwrap();

    ends.arrive();
    b.done();
    assert_eq!(flushed(), 1, "a WRITE with an immediate");

    b.pair
        .post_recv(RecvRequest::new(WrId(8)).segment(mine()))
        .unwrap();
    let send = SendRequest::send(WrId(2)).segment(there.segment(0, 64).unwrap());
    ends.a.pair.post_send(send).unwrap();
    ends.a.done();
    b.done();
    assert_eq!(flushed(), 1, "a SEND");

    let read = SendRequest::read(WrId(3), there.remote().at(0)).segment(mine());
    b.pair.post_send(read).unwrap();
    b.done();
    assert_eq!(flushed(), 1, "a READ");

    let write = SendRequest::write(WrId(4), there.remote().at(0)).segment(mine());
    b.pair.post_send(write).unwrap();
    b.done();
    assert_eq!(flushed(), 0, "a WRITE, to the peer");
}

#[test]
fn one_flush_serves_all_completions_that_are_there() {
    let ends = Pair::new(WritesOrdering::None, true, GpuPath::Works);
    let before = ends.driver.flushes();
    for _ in 0..3 {
        ends.arrive();
    }
    for _ in 0..3 {
        assert_eq!(ends.b.done().id, WrId(7));
    }
    assert_eq!(ends.driver.flushes(), before + 1);
}

#[test]
fn a_completion_without_bytes_does_not_overtake_one_that_needs_a_flush() {
    let ends = Pair::new(WritesOrdering::None, true, GpuPath::Works);
    let there = ends.a.memory(64);
    ends.arrive();
    let write = SendRequest::write(WrId(4), there.remote().at(0)).inline(&[1]);
    ends.b.pair.post_send(write).unwrap();
    assert_eq!([(); 2].map(|()| ends.b.done().id), [WrId(7), WrId(4)]);
}

#[test]
fn nothing_is_flushed_after_the_memory_is_deregistered() {
    let ends = Pair::new(WritesOrdering::None, true, GpuPath::Works);
    let before = ends.driver.flushes();
    drop(ends.region);
    ends.b.pair.post_recv(RecvRequest::new(WrId(7))).unwrap();
    ends.a.pair.post_send(SendRequest::send(WrId(1))).unwrap();
    ends.a.done();
    ends.b.done();
    assert_eq!(ends.driver.flushes(), before);
}

#[test]
fn a_flush_that_the_driver_lacks_is_a_read_by_the_device() {
    let ends = Pair::new(WritesOrdering::None, false, GpuPath::Works);
    assert_eq!(ends.policy(), FlushPolicy::ReadBack);
    let posted = ends.posted();
    ends.arrive();
    assert_eq!(ends.b.done().id, WrId(7));
    assert_eq!(ends.posted(), posted + 1);
}

#[test]
fn no_thread_gets_a_completion_whose_flush_failed_as_a_success() {
    let ends = Pair::new(WritesOrdering::None, false, GpuPath::Fails);
    assert_eq!(ends.policy(), FlushPolicy::ReadBack);
    ends.b.pair.post_recv(RecvRequest::new(WrId(7))).unwrap();
    let send = SendRequest::send(WrId(1));
    ends.a.pair.post_send(send).unwrap();
    ends.a.done();
    let refused = |outcome: gdr_rdma::Result<_>| match outcome {
        Err(Error::Verbs(error @ VerbsError::Flush { .. })) => {
            let text = error.to_string();
            assert!(text.contains("reading GPU memory back"), "{text}");
        }
        other => panic!("{other:?}"),
    };
    refused(ends.b.queue.wait(soon()).map(Some));
    std::thread::scope(|scope| {
        let queue = ends.b.queue.clone();
        scope.spawn(move || refused(queue.poll()));
        let queue = ends.b.queue.clone();
        scope.spawn(move || refused(queue.wait(soon()).map(Some)));
    });
    refused(ends.b.queue.poll());
    // Memory that is no longer registered needs no flush, so nothing is lost.
    drop(ends.region);
    assert_eq!(ends.b.done().id, WrId(7));
}

#[test]
fn completions_without_received_bytes_are_returned_while_a_flush_fails() {
    let ends = Pair::new(WritesOrdering::None, false, GpuPath::Fails);
    let (a, b) = (&ends.a, &ends.b);
    a.pair.post_recv(RecvRequest::new(WrId(1))).unwrap();
    b.pair.post_recv(RecvRequest::new(WrId(7))).unwrap();
    b.pair.post_send(SendRequest::send(WrId(8))).unwrap();
    a.done();
    a.pair.post_send(SendRequest::send(WrId(2))).unwrap();
    a.done();
    assert_eq!(b.done().id, WrId(8), "the end of a SEND");
    assert!(b.queue.poll().is_err(), "the end of a receive");
}
