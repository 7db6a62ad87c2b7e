//! Tests of copies of another process's memory: its part is played by another simulated driver.

use gdr_copy::Context;

use super::*;
use crate::buffer::copy_thread::incoming_copy::INCOMING;
use crate::buffer::{Buffer, CopyEngineThreshold};

/// The offset of the destination.
const AT: u64 = 12;
/// The offset of the source.
const FROM: u64 = 777;
const MESSAGE: u64 = 5000;

/// Memory of the other process, and registered memory of this one.
struct Ends {
    driver: Arc<SimDriver>,
    theirs: DeviceBuffer,
    memory: DeviceBuffer,
    buffer: Buffer,
    thread: CopyThread,
}

impl Ends {
    fn new() -> Self {
        let other = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let theirs = other.allocate(MemoryKind::Plain, LEN as u64).unwrap();
        theirs.write(0, &pattern(0, LEN)).unwrap();
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let memory = gpu.allocate(MemoryKind::Plain, LEN as u64).unwrap();
        let thread = CopyThread::new(&gpu);
        Self {
            buffer: register(&memory, &thread),
            driver,
            theirs,
            memory,
            thread,
        }
    }

    /// Returns their memory, which is open.
    fn peer(&self) -> PeerMemory {
        let peer = self
            .thread
            .import(*self.theirs.export().unwrap().export(), None);
        assert_eq!(end_of(&peer), PeerState::Ready);
        peer
    }

    fn begin(&self, peer: &PeerMemory) -> Option<IncomingCopy> {
        let from = self.theirs.ptr().get() + FROM;
        self.buffer.begin_copy_from(AT, peer, from, MESSAGE)
    }

    /// Returns whether the message is there; else the memory is untouched.
    fn has_message(&self) -> bool {
        let mut bytes = vec![0; LEN];
        self.memory.read(0, &mut bytes).unwrap();
        let (before, rest) = bytes.split_at(AT as usize);
        let (message, behind) = rest.split_at(MESSAGE as usize);
        assert!(before.iter().chain(behind).all(|byte| *byte == 0));
        let is_there = message == pattern(FROM, MESSAGE as usize);
        assert!(is_there || message.iter().all(|byte| *byte == 0));
        is_there
    }

    fn link(&self) -> &Arc<Link> {
        &self.thread.0.link
    }

    /// Holds up all streams until the senders are dropped.
    fn hold_up(&self) -> Vec<Sender<()>> {
        self.thread.hold_up()
    }

    fn settle(&self) {
        settle(&self.thread);
    }
}

/// As a region: memory that another library owns.
fn register(memory: &DeviceBuffer, thread: &CopyThread) -> Buffer {
    let gpu = memory.gpu();
    // SAFETY: tests that free it do so to see that it is not used then.
    let borrowed = unsafe { DeviceBuffer::borrowed(gpu, memory.ptr(), memory.len()) };
    let borrowed = Arc::new(borrowed.unwrap());
    let pin = Context::open_for(gpu).unwrap().pin_buffer(&borrowed);
    let mapping = pin.unwrap().map().unwrap();
    let never = CopyEngineThreshold::From(u64::MAX);
    Buffer::direct_with_copy_thread(mapping, borrowed, thread, never).unwrap()
}

fn end_of(peer: &PeerMemory) -> PeerState {
    while peer.state() == PeerState::Pending {
        thread::yield_now();
    }
    peer.state()
}

fn end(copy: &IncomingCopy) -> IncomingState {
    while copy.state() == IncomingState::InProgress {
        thread::yield_now();
    }
    copy.state()
}

#[test]
fn the_bytes_of_the_other_process_are_there_when_the_copy_is_complete() {
    let ends = Ends::new();
    let peer = ends.peer();
    let held = ends.hold_up();
    let copy = ends.begin(&peer).unwrap();
    assert_eq!(copy.state(), IncomingState::InProgress);
    assert!(!ends.has_message());
    drop(held);
    assert_eq!(end(&copy), IncomingState::Complete);
    assert!(ends.has_message());
    assert_eq!(copy.cancel(), IncomingState::Complete);
}

#[test]
fn a_copy_that_no_one_waits_for_any_more_writes_nothing() {
    let ends = Ends::new();
    let peer = ends.peer();
    let held = ends.hold_up();
    let copy = ends.begin(&peer).unwrap();
    let progress = copy.progress.clone();
    drop(copy);
    drop(held);
    while !progress.copy.has_ended() {
        thread::yield_now();
    }
    assert!(!ends.has_message());
}

#[test]
fn a_driver_that_is_blocked_leaves_copies_in_progress_and_the_engine_free() {
    let ends = Ends::new();
    let peer = ends.peer();
    let driver = lock(&ends.link().driver);
    let copies = [(); 2].map(|()| ends.begin(&peer).unwrap());
    let late = ends
        .thread
        .import(*ends.theirs.export().unwrap().export(), None);
    assert_eq!(late.state(), PeerState::Pending);
    assert!(ends.begin(&late).is_none(), "it is not open yet");
    for copy in &copies {
        assert_eq!(copy.state(), IncomingState::InProgress);
        // What is taken back is not made later.
        assert_eq!(copy.cancel(), IncomingState::Failed);
    }
    drop((peer, late));
    drop(driver);
    ends.settle();
    assert!(!ends.has_message());
}

#[test]
fn memory_that_was_freed_is_not_written() {
    let ends = Ends::new();
    let peer = ends.peer();
    let freed = ends.memory.gpu().allocate(MemoryKind::Plain, LEN as u64);
    let freed = freed.unwrap();
    let buffer = register(&freed, &ends.thread);
    drop(freed);
    // For the other memory. A copy into this one would take it.
    ends.driver.destroy_context_after(1);
    let begin = || buffer.begin_copy_from(0, &peer, ends.theirs.ptr().get(), MESSAGE);
    assert_eq!(end(&begin().unwrap()), IncomingState::Failed);
    let mut bytes = [0; MESSAGE as usize];
    // The mapping keeps the pages.
    buffer.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; MESSAGE as usize]);
    assert!(begin().is_none(), "it is not tried again");
    let copy = ends.begin(&peer).unwrap();
    assert_eq!(end(&copy), IncomingState::Complete);
}

#[test]
fn what_is_no_export_is_refused() {
    let ends = Ends::new();
    for bytes in [[0; DeviceExport::LEN], [0xff; DeviceExport::LEN]] {
        let peer = ends.thread.import(DeviceExport::from_bytes(&bytes), None);
        assert_eq!(end_of(&peer), PeerState::Refused);
        assert!(ends.begin(&peer).is_none());
    }
    // The thread goes on.
    assert_eq!(
        end(&ends.begin(&ends.peer()).unwrap()),
        IncomingState::Complete
    );
}

#[test]
fn ranges_threads_and_kinds_of_memory_are_checked() {
    let ends = Ends::new();
    let (peer, all) = (ends.peer(), LEN as u64);
    let base = peer.export().base().get();
    assert_eq!(peer.export().len(), all);
    for (offset, from, len) in [
        (0, base - 1, 2),
        (0, base, all + 1),
        (0, base + all, 1),
        (0, base + 1, all),
        (0, 0, 1),
        (0, u64::MAX, 2),
        (1, base, all),
        (u64::MAX, base, 2),
        (0, base, 0),
    ] {
        let begun = ends.buffer.begin_copy_from(offset, &peer, from, len);
        assert!(begun.is_none(), "{offset} {from:#x} {len}");
    }
    let foreign = Ends::new();
    assert!(ends.begin(&foreign.peer()).is_none());
    let host = Buffer::host(LEN).unwrap();
    assert!(host.begin_copy_from(0, &peer, base, 1).is_none());
    assert!(host.export().is_none() && host.copy_thread().is_none());
    assert!(ends.buffer.copy_thread().is_some());
    let export = ends.memory.export().unwrap();
    assert_eq!(ends.buffer.export().unwrap().export(), export.export());
    let pool = ends.memory.gpu().allocate(MemoryKind::Pool, all).unwrap();
    assert!(register(&pool, &ends.thread).export().is_none());
}

#[test]
fn the_copy_thread_closes_memory_after_its_last_user_is_gone() {
    let ends = Ends::new();
    let peer = ends.peer();
    let open = || ends.driver.imports();
    assert_eq!(open(), 1);
    let held = ends.hold_up();
    let copy = ends.begin(&peer).unwrap();
    drop(peer.clone());
    let driver = lock(&ends.link().driver);
    drop(peer);
    assert_eq!(open(), 1, "not by this thread");
    drop(driver);
    drop(held);
    while open() > 0 {
        thread::yield_now();
    }
    assert_eq!(end(&copy), IncomingState::Complete, "after its copies");
}

#[test]
fn page_locked_memory_gets_copies_until_its_registration_ends() {
    let ends = Ends::new();
    let host = Arc::new(ends.memory.gpu().allocate_host(LEN).unwrap());
    host.write(0, &[0; LEN]).unwrap();
    let buffer = Buffer::page_locked(Arc::clone(&host)).unwrap();
    let thread = buffer.copy_thread().unwrap().clone();
    let peer = thread.import(*ends.theirs.export().unwrap().export(), None);
    assert_eq!(end_of(&peer), PeerState::Ready);
    let begin = |at| buffer.begin_copy_from(at, &peer, ends.theirs.ptr().get() + FROM, MESSAGE);
    assert_eq!(end(&begin(AT).unwrap()), IncomingState::Complete);
    let mut bytes = vec![0; LEN];
    host.read(0, &mut bytes).unwrap();
    let mut expected = vec![0; LEN];
    expected[AT as usize..][..MESSAGE as usize].copy_from_slice(&pattern(FROM, MESSAGE as usize));
    assert_eq!(bytes, expected);
    assert!(begin(LEN as u64 - MESSAGE + 1).is_none(), "it is too long");

    let held = thread.hold_up();
    let copy = begin(0).unwrap();
    buffer.end_reads();
    assert_eq!(copy.state(), IncomingState::Failed);
    drop(held);
    settle(&thread);
    host.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, expected, "nothing is written after it");
}

#[test]
fn the_end_of_a_registration_takes_copies_back() {
    let ends = Ends::new();
    let peer = ends.peer();
    let driver = lock(&ends.link().driver);
    let copy = ends.begin(&peer).unwrap();
    // It was not begun, so nothing is waited for.
    ends.buffer.end_reads();
    assert_eq!(copy.state(), IncomingState::Failed);
    drop(driver);
    ends.settle();
    assert!(!ends.has_message());

    // Nor for one that the driver has taken, and the GPU has not come to.
    let held = ends.hold_up();
    let (into, from) = (source(&ends.memory), ends.theirs.ptr().get() + FROM);
    let target = IncomingTarget::Device(Arc::clone(&into));
    let begun = ends.thread.begin_incoming(&peer, from, target, AT, MESSAGE);
    let copy = begun.unwrap();
    // It was queued when the thread has done the next job.
    ends.peer();
    ends.thread.end_reads(&into, FOREVER);
    assert_eq!(copy.state(), IncomingState::Failed);
    drop(held);
    ends.settle();
    assert!(!ends.has_message());
}

#[test]
fn no_slot_is_used_before_its_copy_has_ended() {
    let ends = Ends::new();
    let peer = ends.peer();
    let held = ends.hold_up();
    let copies: Vec<_> = (0..2 * INCOMING).map_while(|_| ends.begin(&peer)).collect();
    assert_eq!(copies.len(), INCOMING);
    drop(held);
    for copy in &copies {
        assert_eq!(end(copy), IncomingState::Complete);
    }
    assert!(ends.begin(&peer).is_some());
}

#[test]
fn copies_fail_with_the_context() {
    let ends = Ends::new();
    let peer = ends.peer();
    let held = ends.hold_up();
    let copies = [(); 2].map(|()| ends.begin(&peer).unwrap());
    // The thread finds out by itself.
    ends.driver.destroy_context();
    for copy in &copies {
        assert_eq!(end(copy), IncomingState::Failed);
    }
    while !ends.link().has_failed.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    assert!(ends.begin(&peer).is_none());
    let peer = ends
        .thread
        .import(*ends.theirs.export().unwrap().export(), None);
    assert_eq!(end_of(&peer), PeerState::Refused);
    drop(held);
}
