//! A bounded queue from the engine to waiting threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::deadline::Deadline;

/// Entries in the order of their arrival; any thread may take them.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    capacity: usize,
    entries: Mutex<Entries<T>>,
    arrived: Condvar,
    /// How many there are, to be looked at without the lock.
    len: AtomicUsize,
}

#[derive(Debug)]
struct Entries<T> {
    queue: VecDeque<T>,
    sleepers: usize,
    overrun: bool,
}

impl<T> Mailbox<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: Mutex::new(Entries {
                queue: VecDeque::new(),
                sleepers: 0,
                overrun: false,
            }),
            arrived: Condvar::new(),
            len: AtomicUsize::new(0),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds an entry; `false`, once, when there was no room for it and it is lost.
    pub(crate) fn push(&self, entry: T) -> bool {
        let mut entries = self.lock();
        if entries.queue.len() >= self.capacity {
            let first = !entries.overrun;
            entries.overrun = true;
            self.arrived.notify_all();
            return !first;
        }
        entries.queue.push_back(entry);
        self.len.store(entries.queue.len(), Ordering::Release);
        if entries.sleepers > 0 {
            self.arrived.notify_one();
        }
        true
    }

    /// Whether there is nothing to take, as far as this thread can tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Takes the oldest entry.
    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        self.take(&mut self.lock())
    }

    /// Whether an entry was ever lost.
    pub(crate) fn has_overrun(&self) -> bool {
        self.lock().overrun
    }

    /// Takes the oldest entry, asleep until there is one; `None` when the deadline passes or the
    /// queue has overrun.
    pub(crate) fn pop_asleep(&self, deadline: Deadline) -> Option<T> {
        let mut entries = self.lock();
        loop {
            if let Some(entry) = self.take(&mut entries) {
                return Some(entry);
            }
            let remaining = deadline.remaining();
            if remaining.is_zero() || entries.overrun {
                return None;
            }
            entries.sleepers += 1;
            entries = self
                .arrived
                .wait_timeout(entries, remaining)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            entries.sleepers -= 1;
        }
    }

    fn take(&self, entries: &mut Entries<T>) -> Option<T> {
        let entry = entries.queue.pop_front()?;
        self.len.store(entries.queue.len(), Ordering::Release);
        Some(entry)
    }

    /// The queue is never half changed, so a panic elsewhere in a holder does not matter.
    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn entries_come_out_in_order() {
        let mailbox = Mailbox::new(3);
        assert_eq!(mailbox.pop(), None);
        assert!((0..3).all(|n| mailbox.push(n)));
        assert_eq!(
            [(); 4].map(|()| mailbox.pop()),
            [Some(0), Some(1), Some(2), None]
        );
    }

    #[test]
    fn an_overrun_is_told_once_to_the_sender_and_for_ever_to_the_receiver() {
        let mailbox = Mailbox::new(1);
        assert!(mailbox.push(1));
        assert!(!mailbox.push(2));
        assert!(mailbox.push(3));
        assert_eq!(mailbox.pop(), Some(1));
        assert!(mailbox.has_overrun());
        let soon = Deadline::after(Duration::from_secs(60));
        assert_eq!(mailbox.pop_asleep(soon), None);
        assert!(!soon.has_passed());
    }

    #[test]
    fn a_sleeper_wakes_for_an_entry() {
        let mailbox = Arc::new(Mailbox::new(1));
        let other = Arc::clone(&mailbox);
        let sleeper =
            thread::spawn(move || other.pop_asleep(Deadline::after(Duration::from_secs(60))));
        assert!(mailbox.push(7));
        assert_eq!(sleeper.join().ok().flatten(), Some(7));
    }

    #[test]
    fn a_sleeper_gives_up_at_its_deadline() {
        let mailbox = Mailbox::<u8>::new(1);
        assert_eq!(
            mailbox.pop_asleep(Deadline::after(Duration::from_millis(5))),
            None
        );
    }
}
