//! A bounded queue for completions and events.

use std::collections::VecDeque;
use std::fmt;
use std::iter;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use gdr_process::lock::lock;

use gdr_udp::Deadline;

/// What a lost entry means for waiting threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Once the stored entries have been taken, every wait ends at once.
    Fatal,
    /// Later entries are stored as soon as there is room.
    Tolerated,
}

/// The result of adding an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The entry was stored.
    Stored,
    /// The entry was lost, the first since the queue was created.
    FirstLost,
    /// The entry was lost, as others were before.
    Lost,
}

/// Entries in the order in which they were added; any thread may take them.
pub struct BoundedQueue<T> {
    capacity: AtomicUsize,
    loss: Loss,
    entries: Mutex<Entries<T>>,
    arrived: Condvar,
    /// The number of entries, readable without the lock.
    len: AtomicUsize,
    /// The number of lost entries, which changes only while the lock is held.
    lost: AtomicU64,
}

#[derive(Debug)]
struct Entries<T> {
    queue: VecDeque<T>,
    sleepers: usize,
}

impl<T: Copy> BoundedQueue<T> {
    /// Creates an empty queue.
    pub fn new(capacity: usize, loss: Loss) -> Self {
        Self {
            capacity: AtomicUsize::new(capacity),
            loss,
            entries: Mutex::new(Entries {
                queue: VecDeque::new(),
                sleepers: 0,
            }),
            arrived: Condvar::new(),
            len: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Returns how many entries the queue can hold.
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Changes the capacity, unless the queue holds more entries now. Returns whether it did.
    pub fn resize(&self, capacity: usize) -> bool {
        let entries = lock(&self.entries);
        let fits = entries.queue.len() <= capacity;
        if fits {
            self.capacity.store(capacity, Ordering::Relaxed);
        }
        fits
    }

    /// Adds an entry; if the queue is full, the entry is lost.
    pub fn push(&self, entry: T) -> Pushed {
        let mut entries = lock(&self.entries);
        if entries.queue.len() >= self.capacity() {
            let before = self.lost.fetch_add(1, Ordering::Release);
            // Wake all threads: after a fatal loss every wait ends.
            self.arrived.notify_all();
            return match before {
                0 => Pushed::FirstLost,
                _ => Pushed::Lost,
            };
        }
        entries.queue.push_back(entry);
        // Store with the lock held, so that an older length never overwrites a newer one.
        self.len.store(entries.queue.len(), Ordering::Release);
        // Skip the wake-up system call if no thread sleeps.
        if entries.sleepers > 0 {
            self.arrived.notify_one();
        }
        Pushed::Stored
    }

    /// Returns whether the queue is empty, as far as this thread has seen.
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Takes the oldest entry.
    pub fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        self.take(&mut lock(&self.entries))
    }

    /// Takes up to `most` of the oldest entries, and returns how many.
    pub fn pop_many(&self, most: usize, take: &mut dyn FnMut(T)) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut entries = lock(&self.entries);
        let count = most.min(entries.queue.len());
        // `drain` would be slower for the usual few entries.
        for entry in iter::from_fn(|| entries.queue.pop_front()).take(count) {
            take(entry);
        }
        self.len.store(entries.queue.len(), Ordering::Release);
        count
    }

    /// Like [`Self::pop_many`], but appends the entries to a list, in less time if they are many.
    pub fn pop_into(&self, most: usize, list: &mut Vec<T>) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut entries = lock(&self.entries);
        let count = most.min(entries.queue.len());
        let (front, back) = entries.queue.as_slices();
        let of_front = count.min(front.len());
        list.extend_from_slice(&front[..of_front]);
        list.extend_from_slice(&back[..count - of_front]);
        entries.queue.drain(..count);
        self.len.store(entries.queue.len(), Ordering::Release);
        count
    }

    /// Passes each entry to `see`, and leaves it in the queue.
    pub fn for_each(&self, see: impl FnMut(&T)) {
        lock(&self.entries).queue.iter().for_each(see);
    }

    /// Removes the entries for which `keep` is false.
    pub fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut entries = lock(&self.entries);
        entries.queue.retain(keep);
        self.len.store(entries.queue.len(), Ordering::Release);
    }

    /// Returns how many entries were lost, as far as this thread has seen.
    pub fn lost(&self) -> u64 {
        // Read without the lock: every poll that finds no entry asks.
        self.lost.load(Ordering::Acquire)
    }

    /// Takes the oldest entry, sleeping until there is one. Returns `None` after the deadline, or at once after a
    /// fatal loss.
    pub fn pop_wait(&self, deadline: Deadline) -> Option<T> {
        let mut entries = lock(&self.entries);
        loop {
            if let Some(entry) = self.take(&mut entries) {
                return Some(entry);
            }
            let remaining = deadline.remaining();
            let ended = self.loss == Loss::Fatal && self.lost() > 0;
            if remaining.is_zero() || ended {
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
}

impl<T> fmt::Debug for BoundedQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedQueue")
            .field("capacity", &self.capacity)
            .field("len", &self.len)
            .finish_non_exhaustive()
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
        let queue = BoundedQueue::new(3, Loss::Fatal);
        assert_eq!(queue.pop(), None);
        assert_eq!([0, 1, 2].map(|n| queue.push(n)), [Pushed::Stored; 3]);
        assert_eq!(
            [(); 4].map(|()| queue.pop()),
            [Some(0), Some(1), Some(2), None]
        );
    }

    #[test]
    fn entries_are_appended_to_a_list_in_order_wherever_they_are_stored() {
        let queue = BoundedQueue::new(8, Loss::Fatal);
        let (mut list, mut next) = (Vec::new(), 0);
        // The entries wrap around the end of the queue's memory again and again.
        for (pushed, most) in [(5, 3), (6, 8), (8, 7), (3, 2), (2, 0), (4, 9), (0, 1)] {
            for _ in 0..pushed {
                assert_eq!(queue.push(next), Pushed::Stored);
                next += 1;
            }
            let before = list.len();
            let expected = most.min(next - before);
            assert_eq!(queue.pop_into(most, &mut list), expected);
            assert_eq!(list.len(), before + expected);
            assert_eq!(queue.is_empty(), list.len() == next);
        }
        assert!(list.into_iter().eq(0..next));
    }

    #[test]
    fn removed_entries_make_room() {
        let queue = BoundedQueue::new(3, Loss::Fatal);
        assert_eq!([0, 1, 2].map(|n| queue.push(n)), [Pushed::Stored; 3]);
        queue.retain(|n| n % 2 == 1);
        assert_eq!([3, 4].map(|n| queue.push(n)), [Pushed::Stored; 2]);
        assert_eq!(
            [(); 4].map(|()| queue.pop()),
            [Some(1), Some(3), Some(4), None]
        );
        queue.push(5);
        queue.retain(|_| false);
        assert!(queue.is_empty());
    }

    #[test]
    fn every_lost_entry_is_reported_to_the_sender_and_ends_all_waits() {
        let queue = BoundedQueue::new(1, Loss::Fatal);
        let pushed = [1, 2, 3].map(|n| queue.push(n));
        assert_eq!(pushed, [Pushed::Stored, Pushed::FirstLost, Pushed::Lost]);
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.lost(), 2);
        let soon = Deadline::after(Duration::from_secs(60));
        assert_eq!(queue.pop_wait(soon), None);
        assert!(!soon.has_passed());
    }

    #[test]
    fn a_wait_after_a_tolerated_loss_lasts_until_the_next_entry() {
        let queue = Arc::new(BoundedQueue::new(1, Loss::Tolerated));
        let pushed = [1, 2].map(|n| queue.push(n));
        assert_eq!(pushed, [Pushed::Stored, Pushed::FirstLost]);
        assert_eq!(queue.pop(), Some(1));
        let other = Arc::clone(&queue);
        let sleeper =
            thread::spawn(move || other.pop_wait(Deadline::after(Duration::from_secs(60))));
        while lock(&queue.entries).sleepers == 0 {
            assert!(!sleeper.is_finished(), "it did not wait");
            thread::yield_now();
        }
        assert_eq!(queue.push(3), Pushed::Stored);
        assert_eq!(sleeper.join().ok().flatten(), Some(3));
    }

    #[test]
    fn a_sleeper_wakes_for_an_entry() {
        let queue = Arc::new(BoundedQueue::new(1, Loss::Fatal));
        let other = Arc::clone(&queue);
        let sleeper =
            thread::spawn(move || other.pop_wait(Deadline::after(Duration::from_secs(60))));
        assert_eq!(queue.push(7), Pushed::Stored);
        assert_eq!(sleeper.join().ok().flatten(), Some(7));
    }

    #[test]
    fn a_sleeper_gives_up_at_its_deadline() {
        let queue = BoundedQueue::<u8>::new(1, Loss::Fatal);
        assert_eq!(
            queue.pop_wait(Deadline::after(Duration::from_millis(5))),
            None
        );
    }
}
