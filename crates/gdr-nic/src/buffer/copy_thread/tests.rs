//! Tests of the hand-over, with a simulated GPU.

mod incoming;

use std::slice;
use std::sync::MutexGuard;
use std::sync::mpsc::{Sender, channel};

use gdr_cuda::{DeviceBuffer, MemoryKind, Ordinal, SimDriver, Stream};

use super::*;
use crate::buffer::read_ahead::FIRST;

const PACKET: usize = 4096;
const LEN: usize = 2 * RING;
/// Nothing of a test takes so long.
const FOREVER: Duration = Duration::from_secs(3600);
/// Waits for copies that are held up would not end.
const NEVER_LATE: Duration = FOREVER;
/// A copy that is not complete at once is late.
const LATE_AT_ONCE: Duration = Duration::ZERO;

struct Setup {
    source: Arc<ReadSource>,
    memory: Arc<DeviceBuffer>,
    thread: CopyThread,
}

/// Returns the bytes at an offset.
fn pattern(offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| (at / 7 + at / PACKET as u64) as u8;
    (offset..offset + len as u64).map(byte).collect()
}

/// Returns a buffer with the pattern, and a copy thread that is ready.
fn setup(limit: Duration) -> Setup {
    setup_on(SimDriver::new(1), limit)
}

fn setup_on(driver: Arc<SimDriver>, limit: Duration) -> Setup {
    let gpu = Gpu::open(driver, Ordinal(0)).unwrap();
    let memory = Arc::new(gpu.allocate(MemoryKind::Plain, LEN as u64).unwrap());
    memory.write(0, &pattern(0, LEN)).unwrap();
    let setup = Setup {
        source: source(&memory),
        memory,
        thread: CopyThread::with_limit(&gpu, limit, PeerCopies::Off),
    };
    lock(&setup.thread.0.ahead).copies().start();
    setup.is_ready();
    setup
}

/// Waits until nothing is in progress.
fn settle(thread: &CopyThread) {
    loop {
        let mut ahead = lock(&thread.0.ahead);
        let copies = ahead.copies();
        let all: Vec<Ticket> = (0..copies.next).map(Ticket).collect();
        if copies.are_complete(&all) {
            return;
        }
        assert!(!copies.link.has_failed.load(Ordering::Relaxed));
        drop(ahead);
        thread::yield_now();
    }
}

/// Holds up all streams until the senders are dropped.
fn hold_up(link: &Link) -> Vec<Sender<()>> {
    let streams = lock(&link.streams);
    let hold = |stream: &Arc<Stream>| {
        let (release, released) = channel::<()>();
        let queued = stream.queue_call(move || assert!(released.recv().is_err()));
        queued.unwrap();
        release
    };
    streams.iter().map(hold).collect()
}

impl CopyThread {
    /// Holds up all of its streams until the senders are dropped.
    /// Holds up its calls of the driver until the guard is dropped.
    pub(crate) fn hold_up_calls(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.link.driver)
    }

    pub(crate) fn hold_up(&self) -> Vec<Sender<()>> {
        hold_up(&self.0.link)
    }
}

/// As a region: memory that another library owns.
fn source(memory: &DeviceBuffer) -> Arc<ReadSource> {
    // SAFETY: tests that free it do so to see that it is not used then.
    let borrowed =
        unsafe { DeviceBuffer::borrowed(memory.gpu(), memory.ptr(), memory.len()) }.unwrap();
    Arc::new(ReadSource::foreign(Arc::new(borrowed)).unwrap())
}

impl Setup {
    fn link(&self) -> Arc<Link> {
        Arc::clone(&lock(&self.thread.0.ahead).copies().link)
    }

    /// Waits until copies can be made.
    fn is_ready(&self) {
        while self.link().memory.get().is_none() {
            thread::yield_now();
        }
    }

    fn expect(&self, offset: usize, len: usize) {
        let ahead = self.thread.ahead();
        let expected = lock(&ahead).expect(&self.source, offset as u64, len as u64);
        expected.unwrap();
    }

    /// Serves a packet; returns how many of its bytes were copied, which are right.
    fn packet(&self, offset: usize) -> usize {
        let mut bytes = [0; PACKET];
        let ahead = self.thread.ahead();
        let served = lock(&ahead).serve(&self.source, offset as u64, &mut bytes);
        let len = served.unwrap();
        assert_eq!(bytes[..len], pattern(offset as u64, len), "at {offset}");
        len
    }

    /// Returns how many copies were handed over.
    fn handed(&self) -> u64 {
        lock(&self.thread.0.ahead).copies().next
    }

    /// Holds up all streams until the sender is dropped.
    fn hold_up(&self) -> Vec<Sender<()>> {
        hold_up(&self.link())
    }

    fn set_limit(&self, limit: Duration) {
        lock(&self.thread.0.ahead).copies().limit = limit;
    }

    /// Waits until nothing is in progress.
    fn settle(&self) {
        settle(&self.thread);
    }
}

#[test]
fn long_messages_are_copied_chunk_by_chunk() {
    let setup = setup(NEVER_LATE);
    for message in [CHUNK, 3 * CHUNK + 5 * PACKET, RING + CHUNK] {
        setup.expect(0, message);
        for at in (0..message).step_by(PACKET) {
            assert_eq!(setup.packet(at), PACKET, "{at} of {message}");
        }
    }
}

#[test]
fn a_stream_that_is_held_up_does_not_hold_up_the_engine() {
    let setup = setup(LATE_AT_ONCE);
    let held = setup.hold_up();
    setup.expect(0, 4 * CHUNK);
    let handed = setup.handed();
    for at in (0..4 * CHUNK).step_by(PACKET) {
        assert_eq!(setup.packet(at), 0, "the CPU loads it");
    }
    assert_eq!(setup.handed(), handed, "no more are asked for");
    drop(held);
    setup.settle();
    // What came late is as new as its request, and is not copied again.
    assert_eq!(setup.packet(0), PACKET);
    assert_eq!(setup.handed(), handed);
}

#[test]
fn a_driver_that_is_blocked_does_not_hold_up_the_engine() {
    let setup = setup(LATE_AT_ONCE);
    let link = setup.link();
    let driver = lock(&link.driver);
    setup.expect(0, 4 * CHUNK);
    for at in (0..4 * CHUNK).step_by(PACKET) {
        assert_eq!(setup.packet(at), 0, "the CPU loads it");
    }
    // Nor does the end of a region wait for it.
    setup.thread.end_reads(&setup.source, Duration::ZERO);
    drop(driver);
    setup.settle();
    assert_eq!(setup.packet(0), 0, "it was ended");
}

#[test]
fn the_place_of_a_late_copy_is_not_used_before_it_is_complete() {
    let setup = setup(LATE_AT_ONCE);
    let held = setup.hold_up();
    let in_progress = || lock(&setup.thread.ahead()).in_progress();
    // More requests than the ring has slots for; the peer gives each of them up.
    for chunk in 0..LEN / CHUNK {
        setup.expect(chunk * CHUNK, CHUNK);
        let all = (setup.source.id(), 0, u64::MAX);
        lock(&setup.thread.ahead()).forget(all.0, all.1, all.2);
        let parts = in_progress();
        assert_eq!(parts.len() as u64, setup.handed(), "all are kept");
        for (number, part) in parts.iter().enumerate() {
            let mut others = parts[number + 1..].iter();
            assert!(!others.any(|it| it.start < part.end && part.start < it.end));
        }
    }
    let handed = setup.handed();
    assert!(handed >= (RING / CHUNK) as u64, "{handed}");
    drop(held);
    setup.settle();
    setup.expect(0, CHUNK);
    assert!(setup.handed() > handed, "places are free again");
}

#[test]
fn no_slot_is_used_before_its_copy_is_complete() {
    let setup = setup(NEVER_LATE);
    let held = setup.hold_up();
    for number in 0..2 * SLOTS {
        setup.expect(number * PACKET, PACKET);
    }
    assert_eq!(setup.handed(), SLOTS as u64);
    drop(held);
    setup.settle();
    setup.expect(0, PACKET);
    assert_eq!(setup.handed(), SLOTS as u64 + 1);
}

#[test]
fn copies_go_on_with_the_first_packet_after_a_late_one_is_complete() {
    const MESSAGE: usize = 6 * CHUNK;
    let setup = setup(NEVER_LATE);
    // Held up at each packet of a message in turn, for ever longer: what is lost is one wait, and the
    // packets that the CPU loads meanwhile.
    for (case, first) in (0..MESSAGE / PACKET).step_by(7).enumerate() {
        setup.expect(0, MESSAGE);
        for packet in 0..first {
            assert_eq!(setup.packet(packet * PACKET), PACKET, "{first}: {packet}");
        }
        setup.settle();
        let held = setup.hold_up();
        setup.set_limit(LATE_AT_ONCE);
        let last = (first + 11 * case).min(MESSAGE / PACKET);
        let handed = setup.handed();
        for packet in first..last {
            // What was copied before may be served.
            setup.packet(packet * PACKET);
        }
        let asked = setup.handed() - handed;
        assert!(asked <= 2, "{first}: {asked} copies after a late one");
        drop(held);
        setup.settle();
        setup.set_limit(NEVER_LATE);
        for packet in last..MESSAGE / PACKET {
            assert_eq!(setup.packet(packet * PACKET), PACKET, "{first}: {packet}");
        }
    }
}

#[test]
fn a_driver_that_is_held_up_for_long_is_waited_for_once() {
    let setup = setup(LATE_AT_ONCE);
    let held = setup.hold_up();
    let late = || lock(&setup.thread.0.ahead).copies().late;
    for at in (0..LEN).step_by(PACKET) {
        if at % CHUNK == 0 {
            setup.expect(at, CHUNK);
        }
        assert_eq!(setup.packet(at), 0, "the CPU loads it");
        assert_eq!(late(), Some(Ticket(0)), "only the first was waited for");
    }
    drop(held);
}

#[test]
fn memory_that_was_freed_is_not_copied() {
    let driver = SimDriver::new(1);
    let setup = setup_on(driver.clone(), NEVER_LATE);
    let other = setup.memory.gpu().allocate(MemoryKind::Plain, LEN as u64);
    let other = other.unwrap();
    other.write(0, &pattern(0, PACKET)).unwrap();
    let Setup {
        source: freed,
        memory,
        thread: copies,
    } = setup;
    let kept = source(&other);
    drop(memory);
    // For the other memory. A copy of the first one would take it.
    driver.destroy_context_after(1);
    let ahead = copies.ahead();
    lock(&ahead).expect(&freed, 0, CHUNK as u64).unwrap();
    let mut bytes = [0; PACKET];
    assert_eq!(lock(&ahead).serve(&freed, 0, &mut bytes).unwrap(), 0);
    assert!(freed.is_lost());
    let handed = lock(&ahead).copies().next;
    lock(&ahead).expect(&freed, 0, CHUNK as u64).unwrap();
    assert_eq!(lock(&ahead).copies().next, handed, "it is not tried again");
    lock(&ahead).expect(&kept, 0, PACKET as u64).unwrap();
    settle(&copies);
    assert_eq!(lock(&ahead).serve(&kept, 0, &mut bytes).unwrap(), PACKET);
    assert_eq!(bytes[..], pattern(0, PACKET));
}

#[test]
fn bytes_of_memory_that_was_freed_during_the_copy_are_not_served() {
    let Setup {
        source,
        memory,
        thread: copies,
    } = setup(NEVER_LATE);
    let ahead = copies.ahead();
    lock(&ahead).expect(&source, 0, FIRST as u64).unwrap();
    while !lock(&ahead).copies().are_complete(&[Ticket(0)]) {
        thread::yield_now();
    }
    drop(memory);
    assert!(!source.look(0, PACKET));
    let mut bytes = [0; PACKET];
    assert_eq!(lock(&ahead).serve(&source, 0, &mut bytes).unwrap(), 0);
}

#[test]
fn requests_of_a_region_that_ended_are_not_copied_any_more() {
    let gpu_driver = SimDriver::new(1);
    let setup = setup_on(gpu_driver.clone(), NEVER_LATE);
    let link = setup.link();
    let driver = lock(&link.driver);
    setup.expect(0, 4 * CHUNK);
    setup.thread.end_reads(&setup.source, Duration::ZERO);
    // For the later request. A copy of the first one would take it.
    gpu_driver.destroy_context_after(1);
    drop(driver);
    setup.settle();
    assert_eq!(setup.packet(0), 0);
    setup.expect(0, PACKET);
    setup.settle();
    assert_eq!(setup.packet(0), PACKET);
}

#[test]
fn regions_of_one_gpu_share_the_ring_and_not_the_bytes() {
    let setup = setup(NEVER_LATE);
    let other = source(&setup.memory);
    setup.expect(0, CHUNK);
    let ahead = setup.thread.ahead();
    let mut bytes = [0; PACKET];
    assert_eq!(lock(&ahead).serve(&other, 0, &mut bytes).unwrap(), 0);
    lock(&ahead).expect(&other, 0, CHUNK as u64).unwrap();
    assert_eq!(lock(&ahead).serve(&other, 0, &mut bytes).unwrap(), PACKET);
    assert_eq!(setup.packet(0), PACKET);
}

#[test]
fn a_context_that_was_destroyed_leaves_the_bytes_to_the_cpu() {
    let driver = SimDriver::new(1);
    let setup = setup_on(driver.clone(), LATE_AT_ONCE);
    driver.destroy_context();
    setup.expect(0, CHUNK);
    assert_eq!(setup.packet(0), 0);
    let link = setup.link();
    while !link.has_failed.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    let handed = setup.handed();
    setup.expect(CHUNK, CHUNK);
    assert_eq!(setup.packet(CHUNK), 0);
    assert_eq!(setup.handed(), handed);
}

#[test]
fn the_thread_is_started_by_the_first_long_read() {
    let mut setup = setup(NEVER_LATE);
    setup.thread = CopyThread::with_limit(setup.memory.gpu(), NEVER_LATE, PeerCopies::Off);
    assert!(!lock(&setup.thread.0.ahead).copies().is_started);
    setup.expect(0, CHUNK);
    // Its bytes may be loaded by CPU; no call waits for a ring that is not there yet.
    setup.packet(0);
    setup.is_ready();
    setup.expect(0, CHUNK);
    assert_eq!(setup.packet(0), PACKET);
}

#[test]
fn the_thread_ends_with_its_last_user() {
    let setup = setup(NEVER_LATE);
    let link = Arc::clone(&setup.thread.0.link);
    drop(setup);
    // A program may destroy the context next.
    assert!(link.has_left());
}

#[test]
fn before_a_process_ends_its_copy_threads_leave_the_driver() {
    let setup = setup(NEVER_LATE);
    let link = Arc::clone(&setup.thread.0.link);
    assert!(!link.has_left());
    // Another thread's lock is not waited for.
    let held = lock(&setup.thread.0.ahead);
    process_end::end_all(slice::from_ref(&link), FOREVER);
    drop(held);
    assert!(link.has_left());
    // Only this test's own handles are left.
    let streams = mem::take(&mut *lock(&link.streams));
    assert!(streams.iter().all(|stream| Arc::strong_count(stream) == 1));
    let mut ahead = lock(&setup.thread.0.ahead);
    let queued = ahead.copies().queue(&setup.source, 0, 0, PACKET).unwrap();
    assert!(queued.is_none());
}

#[test]
fn of_a_context_that_was_destroyed_nothing_is_released() {
    let driver = SimDriver::new(1);
    let setup = setup_on(driver.clone(), NEVER_LATE);
    let link = Arc::clone(&setup.thread.0.link);
    driver.destroy_context();
    process_end::end_all(slice::from_ref(&link), FOREVER);
    assert!(link.has_left());
    let streams = mem::take(&mut *lock(&link.streams));
    assert!(streams.iter().all(|stream| Arc::strong_count(stream) == 2));
    // This test's own would be destroyed with them.
    mem::forget(streams);
}

#[test]
fn copies_go_before_memory_that_is_opened_or_closed() {
    use super::link::Next;

    let Setup { source, .. } = setup(NEVER_LATE);
    let link = Link::default();
    let close = || Job::Close {
        id: super::peer_memory::PeerId::next(),
    };
    let copy = HandOver {
        generation: source.generation(),
        source,
        offset: 0,
        at: 0,
        len: PACKET,
        ticket: Ticket(0),
    };
    assert!(link.push(close()) && link.push(Job::Read(copy)) && link.push(close()));
    let order: [bool; 3] = std::array::from_fn(|_| match link.next(true) {
        Next::Job(job) => job.is_copy(),
        Next::Look | Next::End => panic!("there are jobs"),
    });
    assert_eq!(order, [true, false, false]);
}
