//! Checks the hazard pointers under every interleaving and every reordering that Rust's memory model allows. Run by
//! `cargo xtask loom`.
#![cfg(loom)]
#![allow(dead_code, reason = "the library uses the rest")]

#[path = "../src/hazard_pointer.rs"]
mod hazard_pointer;
#[path = "../src/stack.rs"]
mod stack;

/// The atomics of the model checker, in place of `src/primitives.rs`.
mod primitives {
    use std::sync::atomic::Ordering::AcqRel;

    pub(crate) use gdr_copy::Lease;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};

    pub(crate) const CELLS: usize = 2;

    loom::lazy_static! {
        /// The kernel's barrier runs a full fence on another thread at some moment. A copy reaches its compiler fence
        /// either before that moment, and its announcement is visible, or after it, and the copy sees the removal.
        /// Therefore both are operations in one total order.
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

    pub(crate) fn forever<T>(value: T) -> Option<&'static T> {
        Some(Box::leak(Box::new(value)))
    }

    pub(crate) fn relax(_: u32) {
        loom::thread::yield_now();
    }
}

use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hazard_pointer::{Domain, NotProtected, Protected, Quiet};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use primitives::{AtomicBool, AtomicPtr};
use stack::Depth;

const ALIVE: u64 = 1;
const HERE: Depth = Depth::new(0x10_0000);

/// Destroying it during a read is a data race, which the checker reports.
struct Canary(UnsafeCell<u64>);

// SAFETY: the checker watches every access.
unsafe impl Sync for Canary {}
// SAFETY: as above.
unsafe impl Send for Canary {}

fn canary() -> *mut Canary {
    Box::into_raw(Box::new(Canary(UnsafeCell::new(ALIVE))))
}

struct Shared {
    domain: Domain,
    entry: AtomicPtr<Canary>,
}

/// Which side runs the fence between the announcement and the second load.
#[derive(Clone, Copy)]
enum Fences {
    OfTheCopies,
    OfTheKernel,
}

fn shared(fences: Fences) -> Arc<Shared> {
    Arc::new(Shared {
        domain: Domain {
            records: AtomicPtr::new(ptr::null_mut()),
            symmetric: AtomicBool::new(matches!(fences, Fences::OfTheCopies)),
        },
        entry: AtomicPtr::new(canary()),
    })
}

/// Copies `times` times in one thread.
fn copy(shared: &Shared, times: usize) {
    let record = shared.domain.claim().expect("memory");
    for _ in 0..times {
        read(shared.domain.protect(record, HERE, &shared.entry));
    }
    record.release();
}

/// Stores few bytes `times` times in one thread, first by the fast path, then like other copies.
fn store_few(shared: &Shared, times: usize) {
    let record = shared.domain.claim().expect("memory");
    for _ in 0..times {
        match shared.domain.protect_at_once(record, HERE, &shared.entry) {
            Some(protected) => read(Ok(protected)),
            None => read(shared.domain.protect(record, HERE, &shared.entry)),
        }
    }
    record.release();
}

fn read(protected: Result<Protected<'_, Canary>, NotProtected>) {
    match protected {
        Ok(canary) => canary.0.with(|value| {
            // SAFETY: protected, which the checker verifies.
            assert_eq!(unsafe { *value }, ALIVE);
        }),
        Err(why) => assert_eq!(why, NotProtected::Empty),
    }
}

/// Removes the canary and destroys it, unless a copy may use it.
fn destroy(shared: &Shared, next: *mut Canary) {
    let canary = shared.entry.swap(next, Ordering::SeqCst);
    let quiet = shared
        .domain
        .wait_for(canary.cast(), None, HERE, Duration::ZERO);
    if quiet == Quiet::Yes {
        // SAFETY: from `canary` and never freed in the model. The checker verifies that it is not destroyed during the
        // read.
        unsafe { &*canary }
            .0
            .with_mut(|value| unsafe { *value = 0 });
    }
}

fn check(fences: Fences, model: impl Fn(Arc<Shared>) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Every execution with at most three preemptions.
    builder.preemption_bound = Some(3);
    builder.check(move || model(shared(fences)));
}

fn a_copy_and_an_unmapping(shared: Arc<Shared>) {
    let copier = thread::spawn({
        let shared = shared.clone();
        move || copy(&shared, 1)
    });
    destroy(&shared, ptr::null_mut());
    copier.join().expect("the copies are right");
}

fn a_store_of_few_bytes_and_an_unmapping(shared: Arc<Shared>) {
    let copier = thread::spawn({
        let shared = shared.clone();
        move || store_few(&shared, 1)
    });
    destroy(&shared, ptr::null_mut());
    copier.join().expect("the copies are right");
}

fn a_store_of_few_bytes_and_a_mapping_that_is_replaced(shared: Arc<Shared>) {
    let copier = thread::spawn({
        let shared = shared.clone();
        move || store_few(&shared, 1)
    });
    destroy(&shared, canary());
    destroy(&shared, ptr::null_mut());
    copier.join().expect("the copies are right");
}

fn a_copy_and_a_mapping_that_is_replaced(shared: Arc<Shared>) {
    let copier = thread::spawn({
        let shared = shared.clone();
        move || copy(&shared, 1)
    });
    destroy(&shared, canary());
    destroy(&shared, ptr::null_mut());
    copier.join().expect("the copies are right");
}

fn a_thread_that_ends_and_one_that_takes_its_record(shared: Arc<Shared>) {
    copy(&shared, 1);
    let copier = thread::spawn({
        let shared = shared.clone();
        move || copy(&shared, 1)
    });
    destroy(&shared, ptr::null_mut());
    copier.join().expect("the copies are right");
}

fn two_threads_that_copy(shared: Arc<Shared>) {
    let copiers = [(); 2].map(|()| {
        let shared = shared.clone();
        thread::spawn(move || copy(&shared, 1))
    });
    destroy(&shared, ptr::null_mut());
    for copier in copiers {
        copier.join().expect("the copies are right");
    }
}

/// The kernel refuses its barrier between two copies of a thread.
fn a_barrier_that_is_refused_in_mid_run(shared: Arc<Shared>) {
    let copier = thread::spawn({
        let shared = shared.clone();
        move || copy(&shared, 2)
    });
    shared.domain.symmetric.store(true, Ordering::SeqCst);
    destroy(&shared, ptr::null_mut());
    copier.join().expect("the copies are right");
}

/// As above, with stores of few bytes.
fn a_barrier_that_is_refused_between_stores_of_few_bytes(shared: Arc<Shared>) {
    let copier = thread::spawn({
        let shared = shared.clone();
        move || store_few(&shared, 2)
    });
    shared.domain.symmetric.store(true, Ordering::SeqCst);
    destroy(&shared, ptr::null_mut());
    copier.join().expect("the copies are right");
}

/// As above, and the thread takes the record of one that ended.
fn a_barrier_that_is_refused_while_a_record_is_taken(shared: Arc<Shared>) {
    copy(&shared, 1);
    let copier = thread::spawn({
        let shared = shared.clone();
        move || copy(&shared, 1)
    });
    shared.domain.symmetric.store(true, Ordering::SeqCst);
    destroy(&shared, ptr::null_mut());
    copier.join().expect("the copies are right");
}

macro_rules! models {
    ($($model:ident),*) => {
        mod with_fences_of_the_copies {
            $(#[test] fn $model() { super::check(super::Fences::OfTheCopies, super::$model); })*
        }
        mod with_the_kernels_barrier {
            $(#[test] fn $model() { super::check(super::Fences::OfTheKernel, super::$model); })*
        }
    };
}

models!(
    a_copy_and_an_unmapping,
    a_store_of_few_bytes_and_an_unmapping,
    a_store_of_few_bytes_and_a_mapping_that_is_replaced,
    a_barrier_that_is_refused_between_stores_of_few_bytes,
    a_copy_and_a_mapping_that_is_replaced,
    a_thread_that_ends_and_one_that_takes_its_record,
    two_threads_that_copy,
    a_barrier_that_is_refused_in_mid_run,
    a_barrier_that_is_refused_while_a_record_is_taken
);
