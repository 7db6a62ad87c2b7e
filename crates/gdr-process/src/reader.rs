//! Marks of threads that use what a [`BiasedLock`](crate::BiasedLock) protects, or a [`Lending`](crate::Lending) lends.

use std::ptr;
use std::sync::atomic::Ordering;

use crate::primitives::{AtomicBool, AtomicPtr, relax, thread_fence};

/// The address of a lock or an object: compared, never dereferenced.
pub(crate) type Address = *mut ();

/// The most that a thread marks at a time. For others it uses the usual lock or count.
const MARKS: usize = 8;

/// A thread that reads and borrows. It alone writes here.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Reader {
    /// Each holds what the thread uses, or null.
    marks: [AtomicPtr<()>; MARKS],
    is_claimed: AtomicBool,
    /// Written before the reader is published, and never again.
    next: AtomicPtr<Reader>,
}

impl Reader {
    /// Marks what the thread uses from now on; `None` if that is too much.
    #[inline]
    pub(crate) fn mark(&self, what: Address) -> Option<Mark<'_>> {
        let free = self
            .marks
            .iter()
            .find(|mark| mark.load(Ordering::Relaxed).is_null())?;
        // Release: a writer that loads this instead of the null before it sees the accesses of the previous use.
        free.store(what, Ordering::Release);
        thread_fence();
        Some(Mark(free))
    }

    /// Ends the thread's use of it.
    pub(crate) fn release(&self) {
        self.is_claimed.store(false, Ordering::Release);
    }

    fn has_marked(&self, what: Address) -> bool {
        self.marks
            .iter()
            .any(|mark| mark.load(Ordering::Acquire) == what)
    }
}

/// A mark, until dropped.
#[derive(Debug)]
pub(crate) struct Mark<'a>(&'a AtomicPtr<()>);

impl<'a> Mark<'a> {
    /// Ends the thread's use of what is marked, and marks something else.
    #[inline]
    pub(crate) fn exchange(self, what: Address) -> Self {
        // Release, as in the drop.
        self.0.store(what, Ordering::Release);
        self
    }
}

impl Drop for Mark<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: a writer that loads this sees the accesses of the use.
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}

/// All readers of a process, as many as ever read at the same time. They are never freed.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    first: AtomicPtr<Reader>,
}

impl Readers {
    fn iter(&self) -> impl Iterator<Item = &'static Reader> {
        let mut next = self.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or a reader that was leaked, and published complete by the release half of the exchange.
            let reader = unsafe { next.as_ref() }?;
            next = reader.next.load(Ordering::Relaxed);
            Some(reader)
        })
    }

    /// Returns a reader for the calling thread, which releases it when it ends.
    #[cold]
    pub(crate) fn claim(&self) -> &'static Reader {
        let claim = |reader: &&Reader| {
            !reader.is_claimed.load(Ordering::Relaxed)
                && !reader.is_claimed.swap(true, Ordering::Acquire)
        };
        self.iter().find(claim).unwrap_or_else(|| self.publish())
    }

    fn publish(&self) -> &'static Reader {
        let reader: &'static Reader = Box::leak(Box::new(Reader {
            marks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            is_claimed: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let new = ptr::from_ref(reader).cast_mut();
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            reader.next.store(first, Ordering::Relaxed);
            match self
                .first
                .compare_exchange(first, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return reader,
                Err(other) => first = other,
            }
        }
    }

    /// Waits until no thread uses it, for `turns` turns. Returns whether that is so.
    pub(crate) fn wait_for(&self, what: Address, turns: u32) -> bool {
        (0..turns).any(|turn| {
            let is_unused = !self.iter().any(|reader| reader.has_marked(what));
            if !is_unused {
                relax(turn);
            }
            is_unused
        })
    }
}
