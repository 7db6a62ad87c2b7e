//! Hazard pointers: a mapping is not unmapped while a copy uses it.
//!
//! A copy takes nanoseconds, so it can afford neither a lock, nor a reference count (an atomic read-modify-write on a
//! shared line), nor a full fence. It *announces* the mapping in a cell that only its own thread writes, checks that
//! the handle still refers to the mapping, and clears the cell when done. An unmapping thread first makes the mapping
//! unreachable, then waits until no cell announces it, and then unmaps it.
//!
//! # Why that is enough
//!
//! The copy does A1: store the cell, A2: load the handle's entry again. The unmapper does
//! U1: clear the entry, U2: load the cells. If A2 still sees the mapping and U2 does not see the
//! announcement, both loads were performed before the other side's store. Plain stores and loads allow
//! this outcome, which would be an error. A full fence between A1 and A2, and one between U1 and U2,
//! exclude it.
//!
//! The fence of the copy is moved to the unmapper: `membarrier(PRIVATE_EXPEDITED)` runs a full
//! fence on every CPU that runs a thread of this process, at some moment M of each, between U1
//! and U2 (Linux, `Documentation` of membarrier(2): "program-ordered before" on one side becomes
//! "before" on the other). If A1 was executed before M, U2 sees the announcement. If it was not,
//! A2 comes after M too (a compiler fence keeps the two in program order), and sees U1. So the
//! copy costs two plain accesses. Where the kernel does not have the call (before Linux 4.14, or where
//! a filter forbids it), every copy runs a fence itself.
//!
//! The stores that end an announcement, by clearing the cell or by putting another one in its
//! place, are release stores, and U2 is an acquire load: every access of the copy comes before
//! the unmapping.
//!
//! If the kernel refuses the barrier later (a filter was installed since), copies that start from then
//! on run a fence themselves, and their record says so. A copy that began before may have an
//! announcement that is still invisible, so no mapping is destroyed before the records of all copying
//! threads say so.
//!
//! # Life of a record
//!
//! Each thread that has copied has a record of cells, in a list that only grows and is never freed. When a thread ends,
//! another thread can claim its record. The list is therefore as long as the maximum number of threads that have copied
//! at the same time. More than one cell is used only if a signal handler copies while its thread is copying.
//!
//! # Copies left by longjmp
//!
//! A handler may leave the copy that it interrupted with `siglongjmp`, and the announcement stays. Therefore a cell
//! also contains the stack depth of its copy. The thread itself withdraws the announcements of left copies
//! ([`stack`](crate::stack)) when it next finds its first cell in use, and when it unmaps.
//!
//! A long copy that was left may also hold a slot of the copy engine's thread. Its lease is in the cell as well, and
//! ends with the announcement.
//!
//! A cell is free when its depth is 0. Only its thread (with its signal handlers) writes the
//! depth, before it announces and after it has withdrawn. A handler that interrupts at any point
//! in between therefore finds a cell either free, and leaves it free, or in use at a depth above
//! its own.

use std::ptr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::primitives::{
    AtomicBool, AtomicPtr, AtomicUsize, CELLS, Lease, fence, forever, process_fence,
    register_process_fence, relax, thread_fence,
};
use crate::stack::{Depth, OwnStack, Range};

/// The address in an announcement: compared, never dereferenced.
pub(crate) type Announced = *mut ();

/// One announcement.
#[derive(Debug)]
struct Cell {
    what: AtomicPtr<()>,
    /// 0 when the cell is free. Only the cell's thread accesses it.
    depth: AtomicUsize,
    /// Used by a long copy. Only the cell's thread accesses it.
    lease: Lease,
}

impl Cell {
    fn free() -> Self {
        Self {
            what: AtomicPtr::new(ptr::null_mut()),
            depth: AtomicUsize::new(0),
            lease: Lease::new(),
        }
    }

    /// Returns the depth of the copy that uses it.
    #[inline(always)]
    fn depth(&self) -> Option<Depth> {
        let depth = self.depth.load(Ordering::Relaxed);
        (depth != 0).then_some(Depth::new(depth))
    }

    #[inline(always)]
    fn take(&self, here: Depth) {
        self.depth.store(here.get(), Ordering::Relaxed);
        // A handler that interrupts from here on finds the cell in use.
        thread_fence();
    }

    #[inline(always)]
    fn release(&self) {
        self.what.store(ptr::null_mut(), Ordering::Release);
        thread_fence();
        self.depth.store(0, Ordering::Relaxed);
    }

    /// Releases the cell of a copy that was left.
    fn release_left(&self) {
        self.lease.end();
        self.release();
    }
}

/// Cells of a thread, on pages of their own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Record {
    /// Number of cells, from the first one on, that may hold announcements; at least 1.
    used: AtomicUsize,
    claimed: AtomicBool,
    /// Whether the thread runs fences itself (see the module page) or has not copied yet.
    fences: AtomicBool,
    stack: OwnStack,
    /// Written before the record is published, and never again.
    next: AtomicPtr<Record>,
    cells: [Cell; CELLS],
}

impl Record {
    fn claimed() -> Self {
        Self {
            used: AtomicUsize::new(1),
            claimed: AtomicBool::new(true),
            fences: AtomicBool::new(true),
            stack: OwnStack::unknown(),
            next: AtomicPtr::new(ptr::null_mut()),
            cells: std::array::from_fn(|_| Cell::free()),
        }
    }

    /// Sets the stack with which the record's thread was created.
    pub(crate) fn set_stack(&self, range: Range) {
        self.stack.set(range);
    }

    /// Ends the thread's use of the record.
    pub(crate) fn release(&self) {
        // A copy that was left by longjmp is still announced.
        for cell in self.in_use() {
            cell.release_left();
        }
        self.used.store(1, Ordering::Relaxed);
        self.stack.set(Range::default());
        // Release: an unmapper that loads this sees that the thread's copies have ended.
        self.fences.store(true, Ordering::Release);
        self.claimed.store(false, Ordering::Release);
    }

    fn in_use(&self) -> &[Cell] {
        let used = self.used.load(Ordering::Relaxed);
        self.cells.get(..used).unwrap_or(&self.cells)
    }

    /// Returns a cell for a copy that starts now at `here`; `None` if all are in use.
    #[inline(always)]
    fn cell(&self, here: Depth) -> Option<&Cell> {
        match self.first_cell(here) {
            Some(first) => Some(first),
            None => self.nested_cell(here),
        }
    }

    /// Returns the first cell for a copy that starts now at `here`, if no other is in use.
    #[inline(always)]
    fn first_cell(&self, here: Depth) -> Option<&Cell> {
        let [first, ..] = &self.cells;
        let is_free = self.used.load(Ordering::Relaxed) == 1 && first.depth().is_none();
        is_free.then(|| {
            first.take(here);
            first
        })
    }

    #[cold]
    #[inline(never)]
    fn nested_cell(&self, here: Depth) -> Option<&Cell> {
        self.withdraw_left_copies(here);
        let free = self.cells.iter().position(|cell| cell.depth().is_none())?;
        let cell = self.cells.get(free)?;
        cell.take(here);
        // Store this before the announcement, so that a waiter which sees the announcement also sees this.
        if self.used.load(Ordering::Relaxed) <= free {
            self.used.store(free + 1, Ordering::Release);
            thread_fence();
        }
        Some(cell)
    }

    /// Withdraws the announcements of copies that were left by longjmp, as far as a call at `here`
    /// proves it. For the thread that owns the record.
    fn withdraw_left_copies(&self, here: Depth) {
        let mut used = 1;
        for (index, cell) in self.in_use().iter().enumerate() {
            match cell.depth() {
                None => {}
                Some(depth) if self.stack.has_left(depth, here) => cell.release_left(),
                Some(_) => used = index + 1,
            }
        }
        // Copies of handlers that ran meanwhile are complete.
        self.used.store(used, Ordering::Release);
    }

    fn announces(&self, what: Announced) -> bool {
        let used = self.used.load(Ordering::Acquire);
        let cells = self.cells.get(..used).unwrap_or(&self.cells);
        cells
            .iter()
            .any(|cell| cell.what.load(Ordering::Acquire) == what)
    }
}

/// Why a mapping could not be announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotProtected {
    /// The entry is empty.
    Empty,
    /// Too many copies of this thread are in progress, each interrupted by a signal handler.
    TooDeep,
}

/// The value of an entry, announced until this is dropped: a thread that calls [`Domain::wait_for`]
/// does not destroy it meanwhile.
pub(crate) struct Protected<'a, T> {
    cell: &'a Cell,
    value: &'a T,
}

impl<T> Protected<'_, T> {
    /// Lease for a read that this copy may make with the copy engine.
    pub(crate) fn lease(&self) -> &Lease {
        &self.cell.lease
    }
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
        self.cell.release();
    }
}

/// The result of waiting for copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Quiet {
    /// No copy uses it, and no later copy can.
    Yes,
    /// A copy uses it, or may use it. It must not be destroyed.
    NotYet,
}

/// All records, and how their threads order an announcement before the second load. The library has
/// one domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) records: AtomicPtr<Record>,
    /// Whether every copy must run its own fence: at first; not after [`Domain::register`] has found
    /// the kernel's barrier; permanently if the kernel refuses it later.
    pub(crate) symmetric: AtomicBool,
}

impl Domain {
    fn all(&self) -> impl Iterator<Item = &'static Record> {
        let mut next = self.records.load(Ordering::SeqCst);
        std::iter::from_fn(move || {
            // SAFETY: records come from `forever`, are published complete by a release
            // operation, and are never freed.
            let record = unsafe { next.as_ref() }?;
            next = record.next.load(Ordering::Relaxed);
            Some(record)
        })
    }

    /// Claims a record for the calling thread. `None` if there is no memory for one.
    #[cold]
    pub(crate) fn claim(&self) -> Option<&'static Record> {
        let free = self.all().find(|record| {
            !record.claimed.load(Ordering::Relaxed) && !record.claimed.swap(true, Ordering::SeqCst)
        });
        let record = match free {
            Some(record) => record,
            None => self.publish(forever(Record::claimed())?),
        };
        if !self.symmetric.load(Ordering::SeqCst) {
            record.fences.store(false, Ordering::SeqCst);
        }
        // An unmapper that does not see this claim runs no barrier for this thread, and one that does
        // not see the store above does not wait for its copies. This fence makes the first copy of
        // this thread see the entry that the unmapper cleared before.
        fence(Ordering::SeqCst);
        Some(record)
    }

    fn publish(&self, record: &'static Record) -> &'static Record {
        let mut head = self.records.load(Ordering::Relaxed);
        loop {
            record.next.store(head, Ordering::Relaxed);
            let new = ptr::from_ref(record).cast_mut();
            let swapped =
                self.records
                    .compare_exchange(head, new, Ordering::SeqCst, Ordering::Relaxed);
            match swapped {
                Ok(_) => return record,
                Err(now) => head = now,
            }
        }
    }

    /// Announces the value of `entry` for a copy at `here`. For the thread that owns `record`.
    #[inline(always)]
    pub(crate) fn protect<'a, T>(
        &self,
        record: &'a Record,
        here: Depth,
        entry: &'a AtomicPtr<T>,
    ) -> Result<Protected<'a, T>, NotProtected> {
        let cell = record.cell(here).ok_or(NotProtected::TooDeep)?;
        let mut seen = entry.load(Ordering::Relaxed);
        loop {
            if seen.is_null() {
                cell.release();
                return Err(NotProtected::Empty);
            }
            // Release: an unmapper that loads this instead of the cell's previous announcement must
            // see all accesses of the previous copy.
            cell.what.store(seen.cast(), Ordering::Release);
            thread_fence();
            if self.symmetric.load(Ordering::Relaxed) {
                // Release: a thread that loads this sees the announcements of this thread.
                record.fences.store(true, Ordering::Release);
                fence(Ordering::SeqCst);
            }
            // Acquire: the writes of the mapping thread before it published the pointer are visible.
            let again = entry.load(Ordering::Acquire);
            if again == seen {
                // `again`, not `seen`: another mapping may have been allocated at the same address.
                // SAFETY: the entry held this pointer after its address was announced, so by the
                // module's argument the thread that removes it finds the announcement and waits
                // until it is withdrawn, which happens when the returned value is dropped.
                let value = unsafe { &*again };
                return Ok(Protected { cell, value });
            }
            // Another thread has unmapped and mapped in between, so the loop repeats only if other threads make
            // progress.
            seen = again;
        }
    }

    /// Like [`Domain::protect`], but without calls and loops. Returns `None`, without an announcement, if more than one
    /// attempt would be needed.
    #[inline(always)]
    pub(crate) fn protect_at_once<'a, T>(
        &self,
        record: &'a Record,
        here: Depth,
        entry: &'a AtomicPtr<T>,
    ) -> Option<Protected<'a, T>> {
        let seen = entry.load(Ordering::Relaxed);
        if seen.is_null() || self.symmetric.load(Ordering::Relaxed) {
            return None;
        }
        let cell = record.first_cell(here)?;
        // As in `protect`. A copy that finds `symmetric` set after the announcement runs a fence.
        cell.what.store(seen.cast(), Ordering::Release);
        thread_fence();
        let is_asymmetric = !self.symmetric.load(Ordering::Relaxed);
        let again = entry.load(Ordering::Acquire);
        if again == seen && is_asymmetric {
            // SAFETY: as in `protect`.
            let value = unsafe { &*again };
            return Some(Protected { cell, value });
        }
        cell.release();
        None
    }

    /// Waits, at most `limit`, until no copy uses `what`, which the caller has made unreachable by a
    /// sequentially consistent store before. `own` is the calling thread's record, `here` its depth.
    pub(crate) fn wait_for(
        &self,
        what: Announced,
        own: Option<&Record>,
        here: Depth,
        limit: Duration,
    ) -> Quiet {
        if let Some(own) = own {
            own.withdraw_left_copies(here);
        }
        if !self.barrier(own) {
            return Quiet::NotYet;
        }
        let mut deadline = None;
        let mut turn = 0u32;
        for record in self.all() {
            while record.announces(what) {
                if own.is_some_and(|own| ptr::eq(own, record)) {
                    // This thread is in a signal handler that interrupted its own copy, or left
                    // that copy for a deeper frame: the copy cannot end while it waits.
                    return Quiet::NotYet;
                }
                if limit.is_zero() {
                    return Quiet::NotYet;
                }
                let end = *deadline.get_or_insert_with(|| Instant::now() + limit);
                if turn % 16 == 15 && Instant::now() >= end {
                    return Quiet::NotYet;
                }
                relax(turn);
                turn = turn.saturating_add(1);
            }
        }
        Quiet::Yes
    }

    /// Orders the caller's removal before every later load of a copy, and every earlier announcement
    /// before the caller's later loads. False when some announcement may be invisible.
    fn barrier(&self, own: Option<&Record>) -> bool {
        fence(Ordering::SeqCst);
        let mut others = self.all().filter(|record| {
            record.claimed.load(Ordering::SeqCst) && own.is_none_or(|own| !ptr::eq(own, *record))
        });
        if self.symmetric.load(Ordering::SeqCst) {
            return others.all(|record| record.fences.load(Ordering::Acquire));
        }
        // A thread whose claim is not visible here has not copied yet (see `claim`).
        if others.next().is_none() || process_fence() {
            return true;
        }
        // The barrier had been registered, so only a filter installed since then can have refused it.
        self.symmetric.store(true, Ordering::SeqCst);
        false
    }

    /// Lets copies omit the fence if the kernel supports the barrier, and returns whether it does. Called
    /// before the first mapping of a process exists.
    pub(crate) fn register(&self) -> bool {
        let registered = register_process_fence();
        self.symmetric.store(!registered, Ordering::SeqCst);
        // A thread that claims a record later sees the store above.
        for record in self.all() {
            if record.claimed.load(Ordering::SeqCst) {
                record.fences.store(!registered, Ordering::SeqCst);
            }
        }
        registered
    }

    /// Releases the records of threads that do not exist in a forked child. May be called in a child
    /// of a process with threads.
    pub(crate) fn release_other_threads(&self, own: Option<&Record>) {
        for record in self.all() {
            if own.is_none_or(|own| !ptr::eq(own, record)) {
                record.release();
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    const ALIVE: u64 = 0x616c_6976_6521_2121;
    const DEAD: u64 = 0xdead_dead_dead_dead;
    const LIMIT: Duration = Duration::from_secs(60);
    const AT_ONCE: Duration = Duration::ZERO;
    /// Copies and destructions of a test that races them.
    const ROUNDS: usize = if cfg!(miri) { 10 } else { 2000 };
    /// Copies of one reader; few under an interpreter, whose scheduler may starve the unmapper.
    const MOST_COPIES: usize = if cfg!(miri) { 40 } else { usize::MAX };

    struct Canary(AtomicU64);

    fn canary() -> *mut Canary {
        Box::into_raw(Box::new(Canary(AtomicU64::new(ALIVE))))
    }

    fn domain() -> Domain {
        Domain {
            records: AtomicPtr::new(ptr::null_mut()),
            symmetric: AtomicBool::new(true),
        }
    }

    /// A domain, a record of this thread whose stack is `STACK`, and an entry with a canary.
    struct Fixture {
        domain: Domain,
        record: &'static Record,
        entry: AtomicPtr<Canary>,
    }

    const STACK: Range = Range::new(0x1_0000, 0x100_0000);
    /// Depths at which a copy may have been interrupted by a handler at the next depth.
    const NESTED: [Depth; 6] = [
        Depth::new(0xf0_0000),
        Depth::new(0xe0_0000),
        Depth::new(0xd0_0000),
        Depth::new(0xc0_0000),
        Depth::new(0xb0_0000),
        Depth::new(0xa0_0000),
    ];

    impl Fixture {
        fn new() -> Self {
            let domain = domain();
            let record = domain.claim().unwrap();
            record.set_stack(STACK);
            Self {
                domain,
                record,
                entry: AtomicPtr::new(canary()),
            }
        }

        fn copy(&self, here: Depth) -> Result<Protected<'_, Canary>, NotProtected> {
            self.domain.protect(self.record, here, &self.entry)
        }

        /// Makes a copy that a signal handler leaves with longjmp.
        fn left(&self, here: Depth) {
            std::mem::forget(self.copy(here).unwrap());
        }

        fn what(&self) -> Announced {
            self.entry.load(Ordering::Relaxed).cast()
        }

        /// Returns the result for the record's thread.
        fn quiet(&self, here: Depth) -> Quiet {
            self.domain
                .wait_for(self.what(), Some(self.record), here, AT_ONCE)
        }

        /// Returns the result for another thread.
        fn quiet_elsewhere(&self) -> Quiet {
            self.domain.wait_for(self.what(), None, NESTED[0], AT_ONCE)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            // SAFETY: from `canary`, and no thread of the test runs any more.
            drop(unsafe { Box::from_raw(self.entry.load(Ordering::Relaxed)) });
        }
    }

    fn destroy(domain: &Domain, canary: *mut Canary) {
        let quiet = domain.wait_for(canary.cast(), None, Depth::here(), LIMIT);
        assert_eq!(quiet, Quiet::Yes);
        // SAFETY: unreachable and, after the wait above, not in use.
        let canary = unsafe { Box::from_raw(canary) };
        canary.0.store(DEAD, Ordering::Relaxed);
    }

    fn readers_never_see_a_destroyed_canary(domain: &Domain) {
        let entry = AtomicPtr::new(canary());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let record = domain.claim().unwrap();
                    let mut copies = 0;
                    while copies < MOST_COPIES && !over.load(Ordering::Relaxed) {
                        copies += 1;
                        match domain.protect(record, Depth::here(), &entry) {
                            Ok(canary) => {
                                assert_eq!(canary.0.load(Ordering::Relaxed), ALIVE);
                                std::hint::spin_loop();
                                assert_eq!(canary.0.load(Ordering::Relaxed), ALIVE);
                            }
                            Err(why) => assert_eq!(why, NotProtected::Empty),
                        }
                    }
                });
            }
            for round in 0..ROUNDS {
                let next = if round % 3 == 0 {
                    ptr::null_mut()
                } else {
                    canary()
                };
                let before = entry.swap(next, Ordering::SeqCst);
                if !before.is_null() {
                    destroy(domain, before);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        let last = entry.swap(ptr::null_mut(), Ordering::SeqCst);
        if !last.is_null() {
            destroy(domain, last);
        }
    }

    #[test]
    fn nothing_is_destroyed_in_use_with_the_kernels_barrier() {
        let domain = domain();
        domain.register();
        readers_never_see_a_destroyed_canary(&domain);
    }

    #[test]
    fn nothing_is_destroyed_in_use_with_fences_in_the_readers() {
        readers_never_see_a_destroyed_canary(&domain());
    }

    #[test]
    fn an_announcement_of_another_thread_is_waited_for_and_an_own_one_is_not() {
        let fixture = Fixture::new();
        assert_eq!(fixture.quiet(NESTED[0]), Quiet::Yes);
        let copy = fixture.copy(NESTED[0]).unwrap();
        let (what, handler) = (fixture.what(), NESTED[1]);
        let own = Some(fixture.record);
        let quiet = fixture.domain.wait_for(what, own, handler, LIMIT);
        assert_eq!(quiet, Quiet::NotYet, "without waiting");
        assert_eq!(fixture.quiet_elsewhere(), Quiet::NotYet);
        drop(copy);
        assert_eq!(fixture.quiet_elsewhere(), Quiet::Yes);
    }

    #[test]
    fn copies_of_handlers_that_interrupt_each_other_nest_and_end_in_order() {
        let fixture = Fixture::new();
        let mut copies: Vec<_> = NESTED
            .iter()
            .map(|&here| fixture.copy(here).unwrap())
            .collect();
        while copies.pop().is_some() {
            let expected = if copies.is_empty() {
                Quiet::Yes
            } else {
                Quiet::NotYet
            };
            assert_eq!(fixture.quiet_elsewhere(), expected);
        }
    }

    #[test]
    fn a_copy_beyond_the_last_cell_is_refused_and_the_others_stay_protected() {
        let fixture = Fixture::new();
        let depth = |n: usize| Depth::new(0xf0_0000 - n * 0x1000);
        let copies: Vec<_> = (0..CELLS)
            .map(|n| fixture.copy(depth(n)).unwrap())
            .collect();
        let refused = fixture.copy(depth(CELLS)).err();
        assert_eq!(refused, Some(NotProtected::TooDeep));
        assert_eq!(fixture.quiet(depth(CELLS)), Quiet::NotYet);
        drop(copies);
        assert_eq!(fixture.quiet(depth(0)), Quiet::Yes);
    }

    #[test]
    fn a_copy_that_was_left_is_withdrawn_by_the_next_at_its_depth_every_time() {
        let fixture = Fixture::new();
        for _ in 0..3 * CELLS {
            fixture.left(NESTED[3]);
        }
        drop(fixture.copy(NESTED[3]).unwrap());
        assert_eq!(fixture.quiet_elsewhere(), Quiet::Yes);
    }

    #[test]
    fn a_copy_that_was_left_is_withdrawn_when_its_thread_unmaps() {
        let fixture = Fixture::new();
        fixture.left(NESTED[3]);
        assert_eq!(fixture.quiet_elsewhere(), Quiet::NotYet);
        assert_eq!(
            fixture.quiet(NESTED[4]),
            Quiet::NotYet,
            "it may be in progress"
        );
        assert_eq!(fixture.quiet(NESTED[2]), Quiet::Yes);
        assert_eq!(fixture.quiet_elsewhere(), Quiet::Yes);
    }

    #[test]
    fn copies_that_were_left_at_many_depths_are_withdrawn_by_one_above_them_all() {
        let fixture = Fixture::new();
        for here in NESTED {
            fixture.left(here);
        }
        drop(fixture.copy(NESTED[0]).unwrap());
        assert_eq!(fixture.quiet_elsewhere(), Quiet::Yes);
    }

    #[test]
    fn a_handlers_copy_that_was_left_is_withdrawn_though_the_interrupted_one_ended() {
        let fixture = Fixture::new();
        let interrupted = fixture.copy(NESTED[0]).unwrap();
        fixture.left(NESTED[1]);
        drop(interrupted);
        assert_eq!(fixture.quiet_elsewhere(), Quiet::NotYet);
        drop(fixture.copy(NESTED[0]).unwrap());
        assert_eq!(fixture.quiet_elsewhere(), Quiet::Yes);
    }

    #[test]
    fn a_copy_in_progress_is_never_withdrawn_by_a_handlers() {
        let fixture = Fixture::new();
        let interrupted = fixture.copy(NESTED[0]).unwrap();
        for _ in 0..CELLS {
            fixture.left(NESTED[1]);
            drop(fixture.copy(NESTED[2]).unwrap());
        }
        drop(fixture.copy(NESTED[1]).unwrap());
        assert_eq!(fixture.quiet_elsewhere(), Quiet::NotYet);
        drop(interrupted);
        assert_eq!(fixture.quiet(NESTED[0]), Quiet::Yes);
    }

    #[test]
    fn after_the_barrier_is_refused_nothing_is_destroyed_before_every_thread_has_run_a_fence() {
        let fixture = Fixture::new();
        fixture.domain.symmetric.store(false, Ordering::SeqCst);
        fixture.record.fences.store(false, Ordering::SeqCst);
        drop(fixture.copy(NESTED[0]).unwrap());
        // As `barrier` does if the kernel refuses.
        fixture.domain.symmetric.store(true, Ordering::SeqCst);
        assert_eq!(fixture.quiet_elsewhere(), Quiet::NotYet);
        assert_eq!(
            fixture.quiet(NESTED[0]),
            Quiet::Yes,
            "its own record is exempt"
        );
        drop(fixture.copy(NESTED[0]).unwrap());
        assert_eq!(fixture.quiet_elsewhere(), Quiet::Yes);
    }

    #[test]
    fn after_the_barrier_is_refused_a_thread_that_takes_a_record_defers_no_unmapping() {
        let fixture = Fixture::new();
        fixture.domain.symmetric.store(false, Ordering::SeqCst);
        let earlier = fixture.domain.claim().unwrap();
        drop(fixture.domain.protect(earlier, NESTED[0], &fixture.entry));
        earlier.release();
        fixture.domain.symmetric.store(true, Ordering::SeqCst);
        // The first step of `claim`.
        earlier.claimed.store(true, Ordering::SeqCst);
        assert_eq!(fixture.quiet(NESTED[0]), Quiet::Yes);
    }

    #[test]
    fn a_released_record_announces_nothing_and_is_reused() {
        let fixture = Fixture::new();
        fixture.left(NESTED[0]);
        fixture.left(NESTED[1]);
        fixture.record.release();
        assert_eq!(fixture.quiet_elsewhere(), Quiet::Yes);
        let again = fixture.domain.claim().unwrap();
        assert!(ptr::eq(again, fixture.record));
        assert_eq!(fixture.domain.all().count(), 1);
    }

    #[test]
    fn a_child_releases_the_records_of_threads_that_it_does_not_have() {
        let fixture = Fixture::new();
        let other = fixture.domain.claim().unwrap();
        let copy = fixture.domain.protect(other, NESTED[0], &fixture.entry);
        std::mem::forget(copy.unwrap());
        assert_eq!(fixture.quiet(NESTED[0]), Quiet::NotYet);
        fixture.domain.release_other_threads(Some(fixture.record));
        assert_eq!(fixture.quiet(NESTED[0]), Quiet::Yes);
        assert!(ptr::eq(fixture.domain.claim().unwrap(), other));
    }
}
