//! A forked child that uses the verbs devices of its parent: every operation is refused, and no verb is called. In a
//! test binary of its own, because it really forks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a fixture that fails is a test that fails"
)]

#[path = "../verbs_fake/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fixture;

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fake_ibverbs::{Fake, Fault};
use forked::{check, in_child, refused};
use gdr_cuda::{DeviceBuffer, Gpu, MemoryKind, Ordinal, RemoteWrites, SimDriver, WritesOrdering};
use gdr_rdma::{
    Access, AsyncEvent, Buffer, FlushPolicy, MemoryRegion, QueuePairOptions, RecvRequest,
    RingConfig, SendRequest, StagingRing, State, WrId,
};

use crate::fixture::*;

/// Serializes the tests: a lock that another test's thread holds at a fork stays locked in the child.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops a value of the parent in the child.
///
/// # Safety
/// The caller is a child that leaves by `_exit` and does not use the value again.
unsafe fn drop_inherited<T>(value: &T) {
    // SAFETY: the caller's promise; the parent's value is another copy of the memory.
    unsafe { ptr::drop_in_place(ptr::from_ref(value).cast_mut()) };
}

/// Returns the number of verbs calls that the library has received.
fn count_calls(fake: &Fake) -> usize {
    fake.report().calls.len()
}

/// Returns GPU memory of a driver that can flush a device's writes to it.
fn gpu_memory(len: u64) -> Arc<DeviceBuffer> {
    let writes = RemoteWrites {
        ordering: WritesOrdering::None,
        host_flush: true,
    };
    let driver = SimDriver::with_remote_writes(1, writes);
    let gpu = Gpu::open(driver, Ordinal(0)).unwrap();
    Arc::new(gpu.allocate(MemoryKind::Plain, len).unwrap())
}

#[test]
fn a_child_is_refused_every_operation_and_its_drops_change_nothing() {
    let _alone = alone();
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    let sent = fill(&source, 1);
    let write = || {
        SendRequest::write(WrId(1), target.remote().at(0)).segment(source.segment(0, 64).unwrap())
    };
    // A queue pair in INIT, and one in RTR that could proceed to RTS.
    let fresh = a.domain.queue_pair(&QueuePairOptions::new(&a.queue));
    let fresh = fresh.unwrap();
    let half = a.domain.queue_pair(&QueuePairOptions::new(&a.queue));
    let half = half.unwrap();
    half.to_rtr(&b.pair.endpoint(), &options()).unwrap();
    // A request in flight, a completion and an event, which all remain the parent's.
    hold(&fake, &a.name(), true);
    a.pair.post_send(write()).unwrap();
    fake.fault(&a.name(), Fault::Raise(4242, None));
    let buffer = Buffer::host(64).unwrap();
    in_child(|| {
        let before = count_calls(&fake);
        refused(a.pair.post_send(write()), "post_send")?;
        let receive = RecvRequest::new(WrId(2));
        refused(a.pair.post_recv(receive), "post_recv")?;
        refused(fresh.to_rtr(&b.pair.endpoint(), &options()), "to_rtr")?;
        refused(half.to_rts(&options()), "to_rts")?;
        refused(a.queue.poll(), "poll")?;
        refused(a.queue.wait(soon()), "wait")?;
        refused(a.device.wait_event(soon()), "wait_event")?;
        refused(a.domain.register(&buffer, Access::all()), "register")?;
        let options = QueuePairOptions::new(&a.queue);
        refused(a.domain.queue_pair(&options), "queue_pair")?;
        a.pair.to_error();
        check(a.pair.state() == State::Error, "state")?;
        check(a.device.poll_event().is_none(), "poll_event")?;
        // SAFETY: the child leaves by `_exit` and does not use them again.
        unsafe {
            drop_inherited(&fresh);
            drop_inherited(&half);
            drop_inherited(&source);
            drop_inherited(&target);
            drop_inherited(&a);
            drop_inherited(&b);
        }
        check(count_calls(&fake) == before, "a verb was called")
    });
    let event = AsyncEvent::Other { number: 4242 };
    assert_eq!(a.device.wait_event(soon()).unwrap(), event);
    hold(&fake, &a.name(), false);
    a.done();
    assert!(bytes(&target) == sent);
    assert_eq!([a.pair.state(), b.pair.state()], [State::ReadyToSend; 2]);
    assert_eq!(
        [fresh.state(), half.state()],
        [State::Init, State::ReadyToReceive]
    );
}

/// Registers GPU memory that is flushed before completions are returned.
fn flushed_memory(side: &Side) -> MemoryRegion {
    let buffer = Buffer::staged(gpu_memory(4096)).unwrap();
    let region = side.domain.register(&buffer, Access::all()).unwrap();
    let policy = region.flush_policy().map(|(policy, _)| policy);
    assert_eq!(policy, Some(FlushPolicy::Driver));
    region
}

#[test]
fn gpu_memory_that_a_child_drops_stays_registered_in_the_parent() {
    let _alone = alone();
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (region, source) = (flushed_memory(&b), a.memory(64));
    in_child(|| {
        let before = count_calls(&fake);
        // SAFETY: the child leaves by `_exit` and does not use it again.
        unsafe { drop_inherited(&region) };
        check(count_calls(&fake) == before, "a verb was called")
    });
    let write =
        SendRequest::write(WrId(1), region.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    a.done();
}

#[test]
fn a_staging_ring_is_refused_in_a_child_and_stays_usable_in_the_parent() {
    let _alone = alone();
    let fake = clean_fake();
    let (a, b) = (side(&fake, &without_gpu_memory()), side(&fake, &roce()));
    let shape = RingConfig {
        slot_len: 4096,
        slots: 3,
    };
    let memory = gpu_memory(16 << 10);
    let mut ring = StagingRing::new(&a.domain, Arc::clone(&memory), shape).unwrap();
    ring.pair().connect(&b.pair.endpoint(), &options()).unwrap();
    b.pair.connect(&ring.pair().endpoint(), &options()).unwrap();
    let there = b.memory(16 << 10);
    let sent = pattern(16 << 10, 3);
    memory.write(0, &sent).unwrap();
    let all = there.len();
    in_child(|| {
        let before = count_calls(&fake);
        refused(ring.write(0, &there.remote(), all, soon()), "write")?;
        refused(ring.read(0, &there.remote(), all, soon()), "read")?;
        // A call that the parent refuses for a different reason is refused, too.
        refused(ring.write(1, &there.remote(), all, soon()), "range")?;
        let made = StagingRing::new(&a.domain, Arc::clone(&memory), shape);
        refused(made.map(drop), "new")?;
        let owners = Arc::strong_count(&memory);
        // SAFETY: the child leaves by `_exit` and does not use it again.
        unsafe { drop_inherited(&ring) };
        // The ring's reference to the GPU memory remains, so the memory is not freed with the last owner.
        check(Arc::strong_count(&memory) == owners, "the ring was dropped")?;
        check(count_calls(&fake) == before, "a verb was called")
    });
    ring.write(0, &there.remote(), all, soon()).unwrap();
    assert!(bytes(&there) == sent);
}

#[test]
fn a_child_opens_verbs_devices_of_its_own() {
    let _alone = alone();
    let fake = clean_fake();
    let (_a, _b) = sides(&fake);
    in_child(|| {
        let (c, d) = sides(&fake);
        let (source, target) = (c.memory(64), d.memory(64));
        let write = SendRequest::write(WrId(1), target.remote().at(0));
        let segment = source.segment(0, 64).map_err(|_| "segment")?;
        let posted = c.pair.post_send(write.segment(segment));
        posted.map_err(|_| "post_send")?;
        check(c.done().id == WrId(1), "the completion")
    });
}
