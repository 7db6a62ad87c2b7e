//! Objects that calls use without counting references.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::primitives::MOST_TURNS;
use crate::reader::{Address, Mark};
use crate::this_reader::{readers, this_reader};

/// An object in a table, usually behind a [`BiasedLock`](crate::BiasedLock), that is lent to calls.
///
/// A borrowing call marks the object, and releases the lock of the table. The drop of the `Lending` waits for the calls
/// that still have the object, for 20 seconds or more; after that, the object is never freed.
///
/// # Why it is correct
/// A call marks the object while it borrows the `Lending`. The thread that drops that has it alone by then, which it can
/// know only because it has synchronized with the end of the borrow: so it sees the mark. For
/// [`BiasedReadGuard::lend`](crate::BiasedReadGuard::lend) the store of the mark is the end of the borrow.
pub struct Lending<T>(Arc<T>);

impl<T: Send + Sync> Lending<T> {
    /// Returns an object that can be lent.
    pub fn new(object: Arc<T>) -> Self {
        Self(object)
    }

    /// Returns the object, for those who count references.
    pub fn object(&self) -> &Arc<T> {
        &self.0
    }

    /// Lends the object to a call of this thread, which may outlast this borrow.
    #[inline]
    pub fn lend(&self) -> Lent<T> {
        match this_reader().and_then(|reader| reader.mark(address(&self.0))) {
            Some(mark) => self.lent(mark),
            None => Lent::new(LentBy::Count(Arc::clone(&self.0))),
        }
    }

    /// Lends the object to a call that gives up the mark by which it borrows this.
    #[inline]
    pub(crate) fn lend_by(&self, mark: Mark<'static>) -> Lent<T> {
        self.lent(mark.exchange(address(&self.0)))
    }

    /// Lends the object by a mark that this thread has set on it.
    fn lent(&self, _mark: Mark<'static>) -> Lent<T> {
        let object = NonNull::from(&*self.0);
        Lent::new(LentBy::Mark { object, _mark })
    }
}

fn address<T>(object: &Arc<T>) -> Address {
    Arc::as_ptr(object).cast_mut().cast()
}

impl<T> Lending<T> {
    /// Waits for the calls that have the object, for `turns` turns. If one still has it then, for example because a
    /// signal handler left it by `longjmp`, the object never ends.
    fn end(&self, turns: u32) {
        if !readers().wait_for(address(&self.0), turns) {
            tracing::warn!("a call does not return: an object that it uses is never freed");
            mem::forget(Arc::clone(&self.0));
        }
    }
}

impl<T> Drop for Lending<T> {
    fn drop(&mut self) {
        self.end(MOST_TURNS);
    }
}

impl<T> fmt::Debug for Lending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending").finish_non_exhaustive()
    }
}

/// A lent object, until this is dropped. Marks belong to threads, so it stays on its thread.
pub struct Lent<T> {
    by: LentBy<T>,
    _thread: PhantomData<*const ()>,
}

impl<T> Lent<T> {
    fn new(by: LentBy<T>) -> Self {
        Self {
            by,
            _thread: PhantomData,
        }
    }
}

enum LentBy<T> {
    Mark {
        object: NonNull<T>,
        _mark: Mark<'static>,
    },
    /// The thread has too many marks, or ends.
    Count(Arc<T>),
}

impl<T> Deref for Lent<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.by {
            // SAFETY: the object was alive when it was marked. Its `Lending`, which owns a reference, ends only after
            // this value, which keeps the mark, or leaves a reference behind.
            LentBy::Mark { object, .. } => unsafe { object.as_ref() },
            LentBy::Count(object) => object,
        }
    }
}

impl<T> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("object", &ptr::from_ref(&**self))
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_end_of_an_object_waits_for_the_calls_that_have_it() {
        let (lending, other) = (Lending::new(Arc::new(7)), Lending::new(Arc::new(8)));
        let weak = Arc::downgrade(lending.object());
        let (lent, is_over) = (lending.lend(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                // No call has this one.
                drop(other);
                drop(lending);
                assert!(is_over.load(Ordering::Relaxed));
            });
            for _ in 0..1000 {
                assert_eq!(*lent, 7);
                thread::yield_now();
            }
            assert_eq!(weak.strong_count(), 1, "it is not counted");
            is_over.store(true, Ordering::Relaxed);
            drop(lent);
        });
        assert_eq!(weak.strong_count(), 0);
    }

    #[test]
    fn an_object_whose_call_never_returns_is_never_freed() {
        let lending = Lending::new(Arc::new(7));
        let weak = Arc::downgrade(lending.object());
        let lent = lending.lend();
        lending.end(3);
        // Without the wait of the drop.
        let object = Arc::clone(lending.object());
        mem::forget(lending);
        drop(object);
        assert_eq!(*lent, 7);
        assert_eq!(
            weak.strong_count(),
            2,
            "the test has one, and one was leaked"
        );
        drop(lent);
    }

    #[test]
    fn a_thread_may_have_more_objects_than_it_has_marks() {
        let lending = Lending::new(Arc::new(7));
        let lent: Vec<_> = (0..20).map(|_| lending.lend()).collect();
        assert!(lent.iter().all(|lent| **lent == 7));
        assert!(Arc::strong_count(lending.object()) > 1, "some are counted");
        drop(lent);
        assert_eq!(Arc::strong_count(lending.object()), 1);
    }
}
