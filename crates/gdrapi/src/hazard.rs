//! Hazard pointers: a copy keeps the mapping it works on from being unmapped under it.
//!
//! A copy takes nanoseconds, so it can afford neither a lock nor a reference count (an atomic
//! read-modify-write on a shared line) nor a full fence. It *announces* the mapping in a cell
//! that only its own thread writes, checks that the mapping is still the handle's, and clears
//! the cell when done. Whoever unmaps first makes the mapping unreachable, then waits until no
//! cell announces it, then unmaps.
//!
//! # Why that is enough
//!
//! The copy does A1: store the cell, A2: load the handle's entry again. The unmapper does
//! U1: clear the entry, U2: load the cells. If A2 still sees the mapping and U2 does not see the
//! announcement, both loads were performed before the other side's store: the one outcome that
//! plain stores and loads allow and that must not be. A full fence between A1 and A2, and one
//! between U1 and U2, rule it out.
//!
//! The fence of the copy is moved to the unmapper: `membarrier(PRIVATE_EXPEDITED)` runs a full
//! fence on every CPU that runs a thread of this process, at some moment M of each, between U1
//! and U2 (Linux, `Documentation` of membarrier(2): "program-ordered before" on one side becomes
//! "before" on the other). If A1 was executed before M, U2 sees the announcement. If it was not,
//! A2 comes after M too (a compiler fence keeps the two in program order), and sees U1. So the
//! copy pays for two plain accesses. Where the kernel has no such call (before Linux 4.14, or a
//! filter forbids it), every copy runs a fence itself.
//!
//! The last store of a copy, which clears the cell, is a release store, and U2 is an acquire
//! load: every access of the copy comes before the unmapping.
//!
//! # Life of a record
//!
//! Each thread that ever copies has a record of a few cells, in a list that only grows and is
//! never freed; when a thread ends, its record is up for another. The list is as long as the
//! most threads that copied at one time. More than one cell is used only when a signal handler
//! copies while its thread was in a copy.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

use crate::own_record;

/// Copies of one thread that may be in progress at once: its own, and those of signal handlers
/// that interrupt each other.
const CELLS: usize = 4;

/// What cells announce: an address to compare, never to follow.
pub(crate) type Announced = *mut ();

/// One thread's cells, on cache lines of their own (two, as CPUs fetch them in pairs).
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Record {
    cells: [AtomicPtr<()>; CELLS],
    claimed: AtomicBool,
    /// Written before the record is published, and never again.
    next: AtomicPtr<Record>,
}

static RECORDS: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
/// Whether every copy must run its own fence.
static SYMMETRIC: AtomicBool = AtomicBool::new(true);

thread_local! {
    static AT_EXIT: GiveBack = const { GiveBack };
}

/// Returns the thread's record when the thread ends.
struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(record) = own_record::get() {
            own_record::set(None);
            record.give_back();
        }
    }
}

impl Record {
    fn all() -> impl Iterator<Item = &'static Record> {
        let mut next = RECORDS.load(Ordering::SeqCst);
        std::iter::from_fn(move || {
            // SAFETY: records come from `Box::leak`, are published complete by a release
            // operation, and are never freed.
            let record = unsafe { next.as_ref() }?;
            next = record.next.load(Ordering::Relaxed);
            Some(record)
        })
    }

    #[cold]
    fn claim() -> &'static Record {
        let free = Self::all().find(|record| {
            !record.claimed.load(Ordering::Relaxed) && !record.claimed.swap(true, Ordering::SeqCst)
        });
        let record = free.unwrap_or_else(|| {
            let record: &'static Record = Box::leak(Box::new(Record {
                cells: [const { AtomicPtr::new(ptr::null_mut()) }; CELLS],
                claimed: AtomicBool::new(true),
                next: AtomicPtr::new(ptr::null_mut()),
            }));
            let mut head = RECORDS.load(Ordering::Relaxed);
            loop {
                record.next.store(head, Ordering::Relaxed);
                let new = ptr::from_ref(record).cast_mut();
                match RECORDS.compare_exchange(head, new, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => break record,
                    Err(now) => head = now,
                }
            }
        });
        // An unmapper that does not see this claim runs no barrier for this thread; this fence
        // makes the thread's first copy see what that unmapper cleared before it looked.
        fence(Ordering::SeqCst);
        record
    }

    /// Ends the thread's use of the record.
    fn give_back(&self) {
        // A copy that was left by longjmp out of a signal handler still stands announced.
        for cell in &self.cells {
            cell.store(ptr::null_mut(), Ordering::Release);
        }
        self.claimed.store(false, Ordering::Release);
    }

    /// The cell for a copy that starts now; `None` when signal handlers are nested too deep.
    #[inline(always)]
    fn free_cell(&self) -> Option<&AtomicPtr<()>> {
        // Only this thread writes its cells, and a handler leaves them as it found them.
        if self.cells[0].load(Ordering::Relaxed).is_null() {
            return Some(&self.cells[0]);
        }
        self.nested_cell()
    }

    #[cold]
    fn nested_cell(&self) -> Option<&AtomicPtr<()>> {
        self.cells
            .iter()
            .find(|cell| cell.load(Ordering::Relaxed).is_null())
    }

    fn announces(&self, what: Announced) -> bool {
        self.cells
            .iter()
            .any(|cell| cell.load(Ordering::Acquire) == what)
    }
}

/// Why nothing could be announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotProtected {
    /// The entry is empty.
    Empty,
    /// Signal handlers that copy interrupt each other too deeply.
    TooDeep,
}

/// What an entry holds, announced until this is dropped: nobody who goes through [`wait_for`]
/// destroys it meanwhile.
pub(crate) struct Protected<'a, T> {
    cell: &'a AtomicPtr<()>,
    value: &'a T,
}

impl<T> std::ops::Deref for Protected<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Drop for Protected<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.cell.store(ptr::null_mut(), Ordering::Release);
    }
}

/// A record for a thread that had none.
#[derive(Debug)]
pub(crate) struct FirstRecord {
    record: &'static Record,
    /// Whether the thread keeps it until it ends.
    kept: bool,
}

impl FirstRecord {
    pub(crate) fn claim() -> Self {
        let record = Record::claim();
        // A thread whose destructors have run would not give the record back later.
        let kept = AT_EXIT.try_with(|_| own_record::set(Some(record))).is_ok();
        Self { record, kept }
    }

    pub(crate) fn record(&self) -> &Record {
        self.record
    }
}

impl Drop for FirstRecord {
    fn drop(&mut self) {
        if !self.kept {
            self.record.give_back();
        }
    }
}

impl Record {
    /// Announces what `entry` holds. For the thread that the record belongs to.
    #[inline(always)]
    pub(crate) fn protect<'a, T>(
        &'a self,
        entry: &'a AtomicPtr<T>,
    ) -> Result<Protected<'a, T>, NotProtected> {
        let cell = self.free_cell().ok_or(NotProtected::TooDeep)?;
        let mut seen = entry.load(Ordering::Relaxed);
        loop {
            if seen.is_null() {
                cell.store(ptr::null_mut(), Ordering::Release);
                return Err(NotProtected::Empty);
            }
            cell.store(seen.cast(), Ordering::Relaxed);
            if SYMMETRIC.load(Ordering::Relaxed) {
                fence(Ordering::SeqCst);
            } else {
                compiler_fence(Ordering::SeqCst);
            }
            // Acquire: what the mapper wrote before it published the pointer is seen through it.
            let again = entry.load(Ordering::Acquire);
            if again == seen {
                // SAFETY: the entry held `seen` after it was announced, so by the module's
                // argument whoever removes it finds the announcement and waits for it to be
                // withdrawn, which happens when the answer is dropped.
                let value = unsafe { &*seen };
                return Ok(Protected { cell, value });
            }
            // Somebody unmapped and mapped in between, so this loop goes round only as often as
            // others get something done.
            seen = again;
        }
    }
}

/// How waiting for copies ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Quiet {
    /// No copy uses it, and none ever will.
    Yes,
    /// A copy still does, or it cannot be told. It must not be destroyed.
    NotYet,
}

/// Waits, at most `limit`, until no copy uses `what`, which the caller has made unreachable with
/// a sequentially consistent store before.
pub(crate) fn wait_for(what: Announced, limit: Duration) -> Quiet {
    if !barrier() {
        return Quiet::NotYet;
    }
    let own = own_record::get();
    let mut deadline = None;
    let mut turns = 0u32;
    for record in Record::all() {
        while record.announces(what) {
            if own.is_some_and(|own| ptr::eq(own, record)) {
                // This thread is in a signal handler that interrupted its own copy, or left that
                // copy by longjmp: waiting would change nothing.
                return Quiet::NotYet;
            }
            turns = turns.saturating_add(1);
            if turns < 128 {
                std::hint::spin_loop();
                continue;
            }
            let end = *deadline.get_or_insert_with(|| Instant::now() + limit);
            if Instant::now() >= end {
                return Quiet::NotYet;
            }
            std::thread::yield_now();
        }
    }
    Quiet::Yes
}

/// Runs a full fence on every thread that may be copying, this one included.
fn barrier() -> bool {
    fence(Ordering::SeqCst);
    if SYMMETRIC.load(Ordering::Relaxed) {
        return true;
    }
    // A thread whose claim is not seen here has not copied yet (see `claim`).
    let own = own_record::get();
    let others = Record::all().any(|record| {
        record.claimed.load(Ordering::SeqCst) && own.is_none_or(|own| !ptr::eq(own, record))
    });
    if !others {
        return true;
    }
    if membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        return true;
    }
    // It was registered, so only a filter installed since can have refused it. What is announced
    // at this moment cannot be told, so nothing is destroyed now. Copies that start from here on
    // fence themselves, and announcements of those under way are long out of the CPUs' store
    // buffers when the next waiter looks.
    SYMMETRIC.store(true, Ordering::SeqCst);
    tracing::warn!("membarrier is no longer allowed: copies run a fence each from now on");
    false
}

/// Asks the kernel for asymmetric fences. Called before the first mapping exists.
pub(crate) fn register() {
    if membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        SYMMETRIC.store(false, Ordering::SeqCst);
    } else {
        tracing::info!("membarrier is not available: every copy runs a fence");
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) takes two numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    const ALIVE: u64 = 0x616c_6976_6521_2121;
    const DEAD: u64 = 0xdead_dead_dead_dead;
    const LIMIT: Duration = Duration::from_secs(60);

    /// `SYMMETRIC` is one for the whole process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    struct Canary(AtomicU64);

    fn canary() -> *mut Canary {
        Box::into_raw(Box::new(Canary(AtomicU64::new(ALIVE))))
    }

    /// As copies do it.
    fn look(entry: &AtomicPtr<Canary>) -> Result<u64, NotProtected> {
        let look_with = |record: &Record| {
            record.protect(entry).map(|canary| {
                let first = canary.0.load(Ordering::Relaxed);
                std::hint::spin_loop();
                first & canary.0.load(Ordering::Relaxed)
            })
        };
        match own_record::get() {
            Some(record) => look_with(record),
            None => look_with(FirstRecord::claim().record()),
        }
    }

    fn destroy(canary: *mut Canary) {
        assert_eq!(wait_for(canary.cast(), LIMIT), Quiet::Yes);
        // SAFETY: unreachable and, as just waited for, not in use.
        let canary = unsafe { Box::from_raw(canary) };
        canary.0.store(DEAD, Ordering::Relaxed);
    }

    fn readers_never_see_a_destroyed_canary() {
        let entry = AtomicPtr::new(canary());
        let over = AtomicBool::new(false);
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        match look(&entry) {
                            Ok(value) => {
                                assert_eq!(value, ALIVE);
                                seen.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(why) => assert_eq!(why, NotProtected::Empty),
                        }
                    }
                });
            }
            for round in 0..2000 {
                let next = if round % 3 == 0 {
                    ptr::null_mut()
                } else {
                    canary()
                };
                let before = entry.swap(next, Ordering::SeqCst);
                if !before.is_null() {
                    destroy(before);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        let last = entry.swap(ptr::null_mut(), Ordering::SeqCst);
        if !last.is_null() {
            destroy(last);
        }
    }

    #[test]
    fn nothing_is_destroyed_in_use_with_the_kernels_barrier() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        register();
        readers_never_see_a_destroyed_canary();
    }

    #[test]
    fn nothing_is_destroyed_in_use_with_fences_in_the_readers() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        SYMMETRIC.store(true, Ordering::SeqCst);
        readers_never_see_a_destroyed_canary();
        register();
    }

    #[test]
    fn an_announcement_of_another_thread_is_waited_for_and_one_of_ones_own_is_not() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = AtomicPtr::new(canary());
        let what: Announced = entry.load(Ordering::Relaxed).cast();
        assert_eq!(look(&entry), Ok(ALIVE));
        assert_eq!(wait_for(what, LIMIT), Quiet::Yes);
        {
            let record = own_record::get().unwrap();
            let _kept = record.protect(&entry).unwrap();
            assert_eq!(wait_for(what, LIMIT), Quiet::NotYet, "and at once");
            let elsewhere = std::thread::scope(|scope| {
                let wait = || wait_for(entry.load(Ordering::Relaxed).cast(), Duration::ZERO);
                scope.spawn(wait).join().unwrap()
            });
            assert_eq!(elsewhere, Quiet::NotYet);
        }
        destroy(what.cast());
    }

    #[test]
    fn announcements_nest_and_end_in_order() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = AtomicPtr::new(canary());
        assert_eq!(look(&entry), Ok(ALIVE));
        let record = own_record::get().unwrap();
        let nested: Vec<_> = (0..CELLS)
            .map(|_| record.protect(&entry).unwrap())
            .collect();
        assert_eq!(record.protect(&entry).err(), Some(NotProtected::TooDeep));
        drop(nested);
        destroy(entry.load(Ordering::Relaxed));
    }

    #[test]
    fn records_of_threads_that_ended_are_used_again() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = AtomicPtr::new(canary());
        for _ in 0..200 {
            std::thread::scope(|scope| {
                scope
                    .spawn(|| assert_eq!(look(&entry), Ok(ALIVE)))
                    .join()
                    .unwrap();
            });
        }
        assert!(
            Record::all().count() < 50,
            "{} records",
            Record::all().count()
        );
        destroy(entry.load(Ordering::Relaxed));
    }

    #[test]
    fn a_thread_may_copy_in_its_last_moments() {
        static ENTRY: AtomicPtr<Canary> = AtomicPtr::new(ptr::null_mut());
        struct LooksAtTheEnd;
        impl Drop for LooksAtTheEnd {
            fn drop(&mut self) {
                assert_eq!(look(&ENTRY), Ok(ALIVE));
            }
        }
        thread_local! {
            static LAST: LooksAtTheEnd = const { LooksAtTheEnd };
        }
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        ENTRY.store(canary(), Ordering::SeqCst);
        let thread = std::thread::spawn(|| {
            LAST.with(|_| ());
            assert_eq!(look(&ENTRY), Ok(ALIVE));
        });
        thread.join().unwrap();
        destroy(ENTRY.swap(ptr::null_mut(), Ordering::SeqCst));
    }
}
