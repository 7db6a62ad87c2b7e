//! Queues of events with a descriptor that programs poll.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::io::ReadWriteFlags;

use crate::errno::Errno;
use crate::table::Table;

/// Events, and a descriptor that is readable while there are any. Its users hold no engine, so the
/// hooks of an engine may hold it.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    /// A semaphore that counts the events.
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// A queue with a descriptor for the program. It is blocking, as in libibverbs; the program may
    /// change that.
    pub(crate) fn new() -> Result<Self, Errno> {
        Self::with_flags(EventfdFlags::empty())
    }

    /// A queue that shares a descriptor of something else.
    pub(crate) fn nonblocking() -> Result<Self, Errno> {
        Self::with_flags(EventfdFlags::NONBLOCK)
    }

    fn with_flags(flags: EventfdFlags) -> Result<Self, Errno> {
        let flags = flags | EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        Ok(Self {
            fd: rustix::event::eventfd(0, flags)?,
            events: Mutex::new(VecDeque::new()),
        })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn push(&self, event: T) {
        self.lock().push_back(event);
        // This fails only at 2^64 - 1 events.
        if let Err(error) = rustix::io::write(&self.fd, &1_u64.to_ne_bytes()) {
            tracing::debug!(%error, "an event was not announced");
        }
    }

    /// Takes the oldest event. Waits for one unless the descriptor is non-blocking: `EAGAIN` then.
    ///
    /// `count` runs before another thread can see that the event is gone: an event is either in the
    /// queue or counted as unacknowledged, and the destruction of its object waits for it.
    pub(crate) fn take<R>(&self, count: impl FnOnce(T) -> R) -> Result<R, Errno> {
        loop {
            rustix::io::read(&self.fd, &mut [0; 8])?;
            let mut events = self.lock();
            // The event for this token may have belonged to an object that has been destroyed meanwhile.
            if let Some(event) = events.pop_front() {
                return Ok(count(event));
            }
        }
    }

    /// Removes the events of a destroyed object.
    pub(crate) fn forget(&self, of: impl Fn(&T) -> bool) {
        let mut events = self.lock();
        let before = events.len();
        events.retain(|event| !of(event));
        for _ in events.len()..before {
            self.take_token();
        }
    }

    /// Takes a token without waiting, if the kernel can. A thread that has taken it already finds no
    /// event, and waits again.
    fn take_token(&self) {
        let mut count = [0; 8];
        let mut room = [IoSliceMut::new(&mut count)];
        // At the offset -1 it is a read of something without offsets.
        let taken = rustix::io::preadv2(&self.fd, &mut room, u64::MAX, ReadWriteFlags::NOWAIT);
        if let Err(error) = taken {
            tracing::debug!(%error, "a wake-up without an event remains");
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long the destruction of an object waits for the acknowledgement of its events. libibverbs has
/// no limit.
const LIMIT: Duration = Duration::from_secs(20);

/// The unacknowledged asynchronous events of queues and queue pairs, until their destruction returns:
/// the thread that acknowledges may do so while another destroys.
pub(crate) static ASYNC_EVENTS: Table<Unacknowledged> = Table::new();
/// Like [`ASYNC_EVENTS`], the completion events of completion queues.
pub(crate) static COMPLETION_EVENTS: Table<Unacknowledged> = Table::new();

/// The events of an object that the program has taken and not acknowledged.
#[derive(Debug)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    changed: Condvar,
    /// The address of the field where its structure of C counts those that were acknowledged, which programs read.
    completed: usize,
}

impl Unacknowledged {
    /// # Safety
    /// `completed` is a field of a [`CObject`](crate::slab::CObject).
    pub(crate) unsafe fn new(completed: *mut u32) -> Self {
        Self {
            count: Mutex::default(),
            changed: Condvar::new(),
            completed: completed.expose_provenance(),
        }
    }

    pub(crate) fn add(&self) {
        *self.lock() += 1;
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        let mut count = self.lock();
        *count = count.saturating_sub(events);
        let completed = ptr::with_exposed_provenance_mut(self.completed);
        // SAFETY: by the contract of `new` in memory that is never freed. Programs only read it.
        unsafe { AtomicU32::from_ptr(completed) }.fetch_add(events, Ordering::Relaxed);
        drop(count);
        self.changed.notify_all();
    }

    /// Waits until all are acknowledged, or for [`LIMIT`].
    pub(crate) fn wait(&self) {
        let until = Instant::now() + LIMIT;
        let mut count = self.lock();
        while *count > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(events = *count, "destroyed an object with events in use");
                return;
            }
            let waited = self.changed.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
