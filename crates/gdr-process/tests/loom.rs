//! The biased lock and lent objects under every interleaving and reordering that Rust's memory model allows. `cargo xtask loom` runs
//! this.
#![cfg(loom)]
#![allow(dead_code, reason = "the library uses the rest")]

#[path = "../src/biased_lock.rs"]
mod biased_lock;
#[path = "../src/lending.rs"]
mod lending;
#[path = "../src/reader.rs"]
mod reader;

/// The atomics and the lock of the model checker, instead of `src/primitives.rs`.
mod primitives {
    use std::sync::atomic::Ordering::AcqRel;

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};
    pub(crate) use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    pub(crate) const BIASED_AFTER: u32 = 0;
    pub(crate) const MOST_TURNS: u32 = u32::MAX;

    loom::lazy_static! {
        /// The kernel's fence runs on another thread at some moment. A reader reaches its compiler fence either before
        /// that moment, and its mark is visible, or after it, and the reader sees the end of the bias. Therefore both
        /// are operations in one total order.
        static ref MOMENT: AtomicUsize = AtomicUsize::new(0);
    }

    pub(crate) fn thread_fence() {
        MOMENT.fetch_add(1, AcqRel);
    }

    pub(crate) fn process_fence() -> bool {
        MOMENT.fetch_add(1, AcqRel);
        true
    }

    pub(crate) fn register_process_fence() -> bool {
        true
    }

    pub(crate) fn wait_for_stores() {}

    pub(crate) fn relax(_: u32) {
        loom::thread::yield_now();
    }

    pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
        lock.read().expect("no panic")
    }

    pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
        lock.write().expect("no panic")
    }
}

/// The thread's reader, instead of `src/this_reader.rs`.
mod this_reader {
    use super::reader::{Reader, Readers};

    loom::lazy_static! {
        static ref READERS: Readers = Readers::default();
    }

    loom::thread_local! {
        static OWN: &'static Reader = READERS.claim();
    }

    pub(crate) fn readers() -> &'static Readers {
        &READERS
    }

    pub(crate) fn this_reader() -> Option<&'static Reader> {
        Some(OWN.with(|own| *own))
    }
}

use biased_lock::BiasedLock;
use lending::{Lending, Lent};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A number that is written in two steps. An access during a change is a data race, which the checker reports.
#[derive(Default)]
struct Watched(UnsafeCell<u64>);

// SAFETY: the checker watches every access.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

fn read(lock: &BiasedLock<Watched>) -> u64 {
    // SAFETY: under the lock, as the checker confirms.
    lock.read().0.with(|value| unsafe { *value })
}

fn write(lock: &BiasedLock<Watched>, new: u64) {
    // SAFETY: as above.
    lock.write().0.with_mut(|value| unsafe { *value = new });
}

/// Checks every execution with at most three preemptions.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn no_thread_reads_during_a_change() {
    check(|| {
        let lock = Arc::new(BiasedLock::<Watched>::default());
        // Biased from here on.
        assert_eq!(read(&lock), 0);
        let reader = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let first = read(&lock);
                assert!(first <= read(&lock), "the value went back");
            })
        };
        write(&lock, 1);
        assert_eq!(read(&lock), 1);
        reader.join().expect("no panic");
    });
}

#[test]
fn two_writers_and_a_reader_that_restores_the_bias() {
    check(|| {
        let lock = Arc::new(BiasedLock::<Watched>::default());
        assert_eq!(read(&lock), 0);
        let writer = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || write(&lock, 1))
        };
        write(&lock, 2);
        assert!(read(&lock) > 0);
        writer.join().expect("no panic");
    });
}

#[test]
fn a_read_of_another_lock_uses_the_same_mark() {
    check(|| {
        let locks = Arc::new([(); 2].map(|()| BiasedLock::<Watched>::default()));
        for lock in &*locks {
            assert_eq!(read(lock), 0);
        }
        let reader = {
            let locks = Arc::clone(&locks);
            thread::spawn(move || {
                for lock in &*locks {
                    read(lock);
                }
            })
        };
        write(&locks[0], 1);
        reader.join().expect("no panic");
    });
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value = u64::MAX });
    }
}

type Table = BiasedLock<Option<Lending<Watched>>>;

/// Removes an object from a table, after `begin`, while a call borrows it by `lend`.
fn check_lending(begin: fn(&Table), lend: fn(&Table) -> Option<Lent<Watched>>) {
    check(move || {
        let object = std::sync::Arc::new(Watched::default());
        let table = Arc::new(BiasedLock::new(Some(Lending::new(object))));
        begin(&table);
        let call = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                if let Some(lent) = lend(&table) {
                    // SAFETY: as above.
                    assert_eq!(lent.0.with(|value| unsafe { *value }), 0);
                }
            })
        };
        let removed = table.write().take();
        drop(removed);
        call.join().expect("no panic");
    });
}

#[test]
fn no_call_has_an_object_that_ended() {
    check_lending(|_| {}, |table| table.read().as_ref().map(Lending::lend));
}

#[test]
fn no_call_that_gives_up_the_lock_has_an_object_that_ended() {
    check_lending(|_| {}, |table| table.read().lend(Option::as_ref));
}

#[test]
fn no_call_that_gives_up_its_mark_of_the_lock_has_an_object_that_ended() {
    // Biased after a read.
    check_lending(
        |table| drop(table.read()),
        |table| table.read().lend(Option::as_ref),
    );
}
