//! A lock for data that is read all the time and seldom changed.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::Ordering;

use crate::lending::{Lending, Lent};
use crate::primitives::{
    AtomicBool, AtomicU32, BIASED_AFTER, MOST_TURNS, RwLock, RwLockReadGuard, RwLockWriteGuard,
    process_fence, read, register_process_fence, wait_for_stores, write,
};
use crate::reader::{Address, Mark};
use crate::this_reader::{readers, this_reader};

/// A readers-writer lock whose readers execute no atomic read-modify-write operation, and write only to memory of their
/// own thread. Such an operation waits until all earlier stores of its thread are visible, which may take longer than
/// what the lock protects.
///
/// A change takes microseconds more than with an `RwLock`, unless there was another one shortly before. As with an
/// `RwLock`, a thread must not read again, or write, while it reads.
///
/// # Why it is correct
/// While the lock is *biased*, a reader does R1: mark the lock in a cell of its own, R2: load whether the lock is still
/// biased. A writer does W1: end the bias, W2: load all cells. If R2 sees the bias and W2 misses the mark, both loads
/// were performed before the other side's store. A full fence on each side excludes that; the reader's is moved to the
/// writer, which has [`process_fence`] run it between W1 and W2, as in gdrapi's hazard pointers. Where the kernel does not
/// have that fence, no lock is ever biased.
///
/// Without the bias, readers use an `RwLock`. They restore the bias after a number of reads without a change, while
/// they hold that lock, so that no writer is present.
///
/// Follows D. Dice and A. Kogan, *BRAVO: Biased Locking for Reader-Writer Locks* (2019). There, threads share the cells.
pub struct BiasedLock<T> {
    has_fence: AtomicBool,
    is_biased: AtomicBool,
    /// Reads since the last change, up to [`BIASED_AFTER`].
    reads: AtomicU32,
    lock: RwLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: like `RwLock`: readers on several threads share the value, and a writer, which has it alone, may be on any
// thread.
unsafe impl<T: Send + Sync> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// Returns a lock that protects `value`. The first one of a process with several threads takes milliseconds.
    pub fn new(value: T) -> Self {
        Self {
            // Here rather than in a reader: the first registration of a process with threads takes milliseconds.
            has_fence: AtomicBool::new(register_process_fence()),
            is_biased: AtomicBool::new(false),
            reads: AtomicU32::new(0),
            lock: RwLock::new(()),
            value: UnsafeCell::new(value),
        }
    }

    fn address(&self) -> Address {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Locks for reading.
    #[inline]
    pub fn read(&self) -> BiasedReadGuard<'_, T> {
        match self.mark() {
            Some(mark) => self.read_guard(ReadBy::Mark { mark }),
            None => self.read_by_lock(),
        }
    }

    /// Locks for reading, unless a thread writes or waits for that.
    pub fn try_read(&self) -> Option<BiasedReadGuard<'_, T>> {
        match self.mark() {
            Some(mark) => Some(self.read_guard(ReadBy::Mark { mark })),
            None => {
                let lock = self.lock.try_read().ok()?;
                Some(self.read_guard(ReadBy::Lock { _lock: lock }))
            }
        }
    }

    /// Marks the lock as read by this thread, if it is biased.
    #[inline]
    fn mark(&self) -> Option<Mark<'static>> {
        if !self.is_biased.load(Ordering::Relaxed) {
            return None;
        }
        let mark = this_reader()?.mark(self.address())?;
        // Acquire: the changes before the bias was restored are visible.
        self.is_biased.load(Ordering::Acquire).then_some(mark)
    }

    fn read_guard<'a>(&'a self, by: ReadBy<'a>) -> BiasedReadGuard<'a, T> {
        BiasedReadGuard {
            // SAFETY: no writer has the value while a thread that has seen the bias after it marked the lock keeps the
            // mark (see above), or while a thread holds the `RwLock`.
            value: unsafe { &*self.value.get() },
            by,
            _thread: PhantomData,
        }
    }

    #[cold]
    fn read_by_lock(&self) -> BiasedReadGuard<'_, T> {
        let lock = read(&self.lock);
        let reads = self.reads.load(Ordering::Relaxed);
        // Imprecise when several threads read, which does no harm.
        self.reads.store(reads.saturating_add(1), Ordering::Relaxed);
        if reads == BIASED_AFTER && self.has_fence.load(Ordering::Relaxed) {
            // Release: a reader that sees this sees the changes before it.
            self.is_biased.store(true, Ordering::Release);
        }
        self.read_guard(ReadBy::Lock { _lock: lock })
    }

    /// Locks for writing.
    pub fn write(&self) -> BiasedWriteGuard<'_, T> {
        let lock = write(&self.lock);
        self.reads.store(0, Ordering::Relaxed);
        if self.is_biased.load(Ordering::Relaxed) {
            self.end_bias();
        }
        BiasedWriteGuard {
            // SAFETY: no other writer and no reader has the `RwLock`, and no thread has marked the lock.
            value: unsafe { &mut *self.value.get() },
            _lock: lock,
        }
    }

    /// Ends the bias, and waits for the threads that read by it.
    #[cold]
    fn end_bias(&self) {
        self.is_biased.store(false, Ordering::Relaxed);
        if !process_fence() {
            // A filter was installed since the process was registered.
            self.has_fence.store(false, Ordering::Relaxed);
            wait_for_stores();
        }
        // As an `RwLock` would, however long they take.
        while !readers().wait_for(self.address(), MOST_TURNS) {}
    }
}

impl<T: Default> Default for BiasedLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedLock").finish_non_exhaustive()
    }
}

/// What keeps writers away.
#[derive(Debug)]
enum ReadBy<'a> {
    Mark { mark: Mark<'static> },
    Lock { _lock: RwLockReadGuard<'a, ()> },
}

/// Guard of a [`BiasedLock`] that is locked for reading. Marks belong to threads, so it stays on its thread.
#[derive(Debug)]
#[must_use]
pub struct BiasedReadGuard<'a, T> {
    value: &'a T,
    by: ReadBy<'a>,
    _thread: PhantomData<*const ()>,
}

impl<T> BiasedReadGuard<'_, T> {
    /// Unlocks, and lends an object that the lock protects to a call of this thread. Faster than [`Lending::lend`] and
    /// an unlock: a single store replaces the lock's mark with one for the object.
    // Inlined: a result that is stored by parts and loaded as a whole has to leave the CPU's store buffer first.
    #[inline(always)]
    pub fn lend<U: Send + Sync>(
        self,
        find: impl FnOnce(&T) -> Option<&Lending<U>>,
    ) -> Option<Lent<U>> {
        let lending = find(self.value)?;
        Some(match self.by {
            ReadBy::Mark { mark } => lending.lend_by(mark),
            ReadBy::Lock { _lock } => lending.lend(),
        })
    }
}

impl<T> Deref for BiasedReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

/// Guard of a [`BiasedLock`] that is locked for writing.
#[derive(Debug)]
#[must_use]
pub struct BiasedWriteGuard<'a, T> {
    value: &'a mut T,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl<T> Deref for BiasedWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for BiasedWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;

    /// A lock that has its bias, if the kernel has the fence.
    fn biased<T>(value: T) -> BiasedLock<T> {
        let lock = BiasedLock::new(value);
        for _ in 0..=BIASED_AFTER {
            let _ = lock.read();
        }
        assert_eq!(lock.is_biased(), register_process_fence());
        lock
    }

    impl<T> BiasedLock<T> {
        fn is_biased(&self) -> bool {
            self.is_biased.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn readers_never_see_half_a_change() {
        let lock = biased([0_u64; 8]);
        thread::scope(|scope| {
            let changes = AtomicU64::new(0);
            let readers = [(); 3].map(|()| {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 1000 {
                        let seen = lock.read();
                        assert!(seen.iter().all(|each| *each == seen[0]) && seen[0] >= last);
                        last = seen[0];
                    }
                })
            });
            while changes.fetch_add(1, Ordering::Relaxed) < 1000 {
                let before = changes.load(Ordering::Relaxed);
                *lock.write() = [before; 8];
                // So that some changes find the bias restored.
                for _ in 0..(before % 2) * 40 {
                    assert_eq!(lock.read()[7], before);
                }
            }
            for reader in readers {
                reader.join().unwrap();
            }
        });
    }

    #[test]
    fn a_change_ends_the_bias_and_many_reads_restore_it() {
        let lock = biased(1);
        *lock.write() += 1;
        assert!(!lock.is_biased());
        for _ in 0..BIASED_AFTER {
            assert_eq!(*lock.read(), 2);
        }
        assert!(!lock.is_biased(), "another change may follow");
        assert_eq!(*lock.read(), 2);
        assert_eq!(lock.is_biased(), register_process_fence());
    }

    #[test]
    fn a_writer_waits_for_each_kind_of_reader() {
        let unbiased = BiasedLock::new(0);
        let biased = biased(0);
        for lock in [&unbiased, &biased] {
            let has_read = AtomicBool::new(false);
            let reading = lock.read();
            thread::scope(|scope| {
                scope.spawn(|| {
                    *lock.write() = 1;
                    assert!(has_read.load(Ordering::Relaxed));
                });
                for _ in 0..1000 {
                    assert_eq!(*reading, 0);
                    thread::yield_now();
                }
                has_read.store(true, Ordering::Relaxed);
                drop(reading);
            });
            assert_eq!(*lock.read(), 1);
        }
    }

    #[test]
    fn an_object_is_lent_for_the_lock() {
        let unbiased = BiasedLock::new(Some(Lending::new(Arc::new(7))));
        let biased = biased(Some(Lending::new(Arc::new(7))));
        for table in [&unbiased, &biased] {
            let is_over = AtomicBool::new(false);
            let lent = table.read().lend(Option::as_ref).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    // The call has given up the lock, but not the object.
                    let removed = table.write().take();
                    drop(removed);
                    assert!(is_over.load(Ordering::Relaxed));
                });
                while table.read().is_some() {
                    thread::yield_now();
                }
                for _ in 0..1000 {
                    assert_eq!(*lent, 7);
                    thread::yield_now();
                }
                is_over.store(true, Ordering::Relaxed);
                drop(lent);
            });
            assert!(table.read().lend(Option::as_ref).is_none());
            *table.write() = None;
        }
    }

    #[test]
    fn a_try_fails_during_a_change_only() {
        let lock = biased(0);
        assert!(lock.try_read().is_some());
        let writing = lock.write();
        thread::scope(|scope| {
            scope.spawn(|| assert!(lock.try_read().is_none()));
        });
        drop(writing);
        assert!(lock.try_read().is_some());
    }

    #[test]
    fn a_thread_may_hold_more_locks_than_it_has_marks() {
        let locks: Vec<_> = (0..20).map(biased).collect();
        let held: Vec<_> = locks.iter().map(BiasedLock::read).collect();
        assert!(held.iter().enumerate().all(|(index, held)| **held == index));
        drop(held);
        for lock in &locks {
            *lock.write() += 1;
        }
    }
}
