//! The rings between two processes and the intake of an engine, under every interleaving and reordering that Rust's
//! memory model allows. `cargo xtask loom` runs them.
#![cfg(loom)]
#![allow(dead_code, reason = "the library uses the rest")]

#[path = "../src/wire/memory/header.rs"]
mod header;
#[path = "../src/int_map.rs"]
mod int_map;
#[path = "../src/shard/intake.rs"]
mod intake;
#[path = "../src/wire/memory/ring.rs"]
mod ring;

/// The atomics and the lock of the model checker, instead of `src/wire/memory/primitives.rs` and
/// `src/shard/primitives.rs`.
mod primitives {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(super) use loom::thread::yield_now;

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
        mutex.lock().expect("no panic")
    }

    /// Deadlines of models never pass.
    #[derive(Clone, Copy)]
    pub(super) struct Deadline;

    impl Deadline {
        pub(super) fn after(_: std::time::Duration) -> Self {
            Self
        }

        pub(super) fn has_passed(self) -> bool {
            false
        }
    }
}

/// Memory of one process, instead of `src/wire/memory/segment.rs`.
mod segment {
    use std::cell::UnsafeCell;
    use std::ptr::NonNull;

    use super::header::Header;
    use super::primitives::AtomicU32;
    use super::ring::{FetchedTo, LINE};

    /// Room for two of the longest records.
    const LINES: usize = 4;

    #[derive(Debug, Default)]
    pub(super) struct Segment {
        header: Header,
        words: [AtomicU32; LINES],
        bytes: UnsafeCell<[[u64; LINE / 8]; LINES]>,
    }

    // SAFETY: the checker runs one thread at a time and switches only at atomics.
    unsafe impl Sync for Segment {}

    impl Segment {
        pub(super) fn header(&self) -> &Header {
            &self.header
        }

        pub(super) fn ring_len(&self) -> usize {
            LINES * LINE
        }

        pub(super) fn word(&self, offset: usize) -> Option<&AtomicU32> {
            self.words.get(offset / LINE)
        }

        pub(super) fn fetch(&self, _: usize, _: FetchedTo) {}

        pub(super) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
            let start = NonNull::new(self.bytes.get().cast::<u8>())?;
            // SAFETY: the offset is inside the array.
            (offset + len <= self.ring_len()).then(|| unsafe { start.add(offset) })
        }
    }
}

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gdr_roce::Extent;
use intake::{Intake, Terms};
use loom::thread;
use primitives::AtomicU32;
use primitives::Deadline;
use ring::{Consumer, Producer, Record};
use segment::Segment;

/// The length of each record.
const LEN: usize = 8;
/// The number of records.
const N: u32 = 4;

/// Checks every execution with at most this many preemptions.
fn check<T: Default>(preemptions: usize, model: impl Fn(Arc<T>) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || model(Arc::default()));
}

/// Models an eventfd: a thread waits until it is notified.
type Doorbell = loom::sync::Notify;

/// Adds a record; waits for room.
fn add(producer: &mut Producer, room: &Doorbell) {
    while !producer.has_room().expect("sound") {
        producer.ask_for_room();
        if !producer.has_room().expect("sound") {
            room.wait();
        }
    }
    producer.room().expect("sound").expect("room");
    producer.push(LEN);
}

/// Takes a record; waits until there is one.
fn take(consumer: &mut Consumer, record: &Doorbell) -> Record {
    loop {
        if let Some(taken) = consumer.take(&mut [0; _], |_| false).expect("sound") {
            return taken;
        }
        consumer.sleep();
        if !consumer.has_record() {
            record.wait();
        }
        consumer.wake();
    }
}

#[test]
fn no_wake_up_is_lost_and_what_was_written_before_a_record_is_seen() {
    check(2, |segment: Arc<Segment>| {
        let written = Arc::new(AtomicU32::new(0));
        let doorbells = [Arc::new(Doorbell::new()), Arc::new(Doorbell::new())];
        let mut producer = Producer::new(Arc::clone(&segment), LEN);
        // The third of the four records fills the ring.
        for _ in 0..2 {
            add(&mut producer, &doorbells[1]);
        }
        written.store(2, Relaxed);
        assert!(!producer.flush(), "nothing sleeps");
        let sender = {
            let (written, [record, room]) = (Arc::clone(&written), doorbells.clone());
            thread::spawn(move || {
                for n in 3..=N {
                    written.store(n, Relaxed);
                    add(&mut producer, &room);
                    if producer.flush() {
                        record.notify();
                    }
                }
            })
        };
        let mut consumer = Consumer::new(segment, LEN);
        let [record, room] = doorbells;
        for n in 1..=N {
            assert_eq!(take(&mut consumer, &record), Record::Whole(LEN));
            assert!(written.load(Relaxed) >= n);
            if consumer.give_back(None) {
                room.notify();
            }
        }
        sender.join().expect("no panic");
    });
}

#[test]
fn records_that_are_shown_together_are_there_with_the_first() {
    check(2, |segment: Arc<Segment>| {
        let written = Arc::new(AtomicU32::new(0));
        let doorbells = [Arc::new(Doorbell::new()), Arc::new(Doorbell::new())];
        let sender = {
            let (segment, written) = (Arc::clone(&segment), Arc::clone(&written));
            let [record, room] = doorbells.clone();
            let mut producer = Producer::new(segment, LEN);
            thread::spawn(move || {
                for n in 1..=3 {
                    written.store(n, Relaxed);
                    add(&mut producer, &room);
                }
                if producer.flush() {
                    record.notify();
                }
            })
        };
        let mut consumer = Consumer::new(segment, LEN);
        // The first record is published before the others.
        for least in [1, 3] {
            assert_eq!(take(&mut consumer, &doorbells[0]), Record::Whole(LEN));
            assert!(written.load(Relaxed) >= least);
        }
        let third = consumer.take(&mut [0; _], |_| false);
        assert_eq!(third, Ok(Some(Record::Whole(LEN))));
        sender.join().expect("no panic");
    });
}

#[test]
fn memory_is_not_read_after_its_references_were_made_void() {
    check(3, |segment: Arc<Segment>| {
        let payload = Extent { addr: 1, len: 2 };
        let mut producer = Producer::new(Arc::clone(&segment), LEN + 12);
        producer.room().expect("sound").expect("room");
        let end = producer.push_reference(LEN, payload);
        // The memory that the reference points to: 1 while it may be read.
        let memory = Arc::new(loom::cell::UnsafeCell::new(1));
        let reader = {
            let (segment, memory) = (Arc::clone(&segment), Arc::clone(&memory));
            let mut consumer = Consumer::new(segment, LEN + 12);
            thread::spawn(move || {
                let taken = consumer
                    .take(&mut [0; _], |_| false)
                    .expect("sound")
                    .expect("a record");
                if taken == Record::Referring(LEN, payload) {
                    // SAFETY: the checker reports a concurrent write.
                    memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
                } else {
                    assert_eq!(taken, Record::Void);
                }
                consumer.end_reads();
                consumer.give_back(None);
            })
        };
        assert!(segment.header().void_references(end, Deadline));
        // SAFETY: the checker reports a concurrent read.
        memory.with_mut(|memory| unsafe { *memory = 0 });
        reader.join().expect("no panic");
    });
}

/// The requests that an engine has posted, and its intake.
struct Engine {
    posted: loom::sync::Mutex<Vec<u32>>,
    intake: Intake<u32>,
    due: AtomicU32,
}

/// The queue pair that the requests are for.
const QPN: u32 = 1;

impl Default for Engine {
    fn default() -> Self {
        let intake = Intake::new();
        let terms = Terms {
            room: 2,
            max_inline: 0,
            takes_reads: false,
        };
        intake.open(QPN, terms);
        Self {
            posted: loom::sync::Mutex::default(),
            intake,
            due: AtomicU32::default(),
        }
    }
}

impl Engine {
    /// Posts the requests in the intake and unlocks the engine.
    fn take(&self, mut posted: loom::sync::MutexGuard<'_, Vec<u32>>) {
        let mut taken = Vec::new();
        self.intake.take(&mut taken);
        posted.extend(taken.into_iter().map(|left| left.request));
        // Lets other threads run before the engine is unlocked.
        self.due.store(0, Relaxed);
    }

    fn serve(&self) {
        let try_lock = || self.posted.try_lock().ok();
        self.intake.serve(try_lock, |posted| self.take(posted));
    }

    /// Uses the engine for another purpose.
    fn hold(&self) {
        self.take(self.posted.lock().expect("no panic"));
        self.serve();
    }

    fn leave(&self, request: u32) {
        assert!(self.intake.leave(QPN, |_| Some(request)), "room");
        self.serve();
    }
}

#[test]
fn what_is_left_while_another_thread_has_the_engine_is_posted_in_order() {
    check(3, |engine: Arc<Engine>| {
        let poster = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                engine.leave(1);
                engine.leave(2);
            })
        };
        engine.hold();
        poster.join().expect("no panic");
        assert_eq!(*engine.posted.lock().expect("no panic"), [1, 2]);
    });
}

#[test]
fn what_two_threads_leave_is_posted_once() {
    check(2, |engine: Arc<Engine>| {
        let poster = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.leave(1))
        };
        let holder = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.hold())
        };
        engine.leave(2);
        poster.join().expect("no panic");
        holder.join().expect("no panic");
        let mut posted = engine.posted.lock().expect("no panic").clone();
        posted.sort_unstable();
        assert_eq!(posted, [1, 2]);
    });
}
