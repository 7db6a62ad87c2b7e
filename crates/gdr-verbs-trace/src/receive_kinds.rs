//! Kinds of memory of posted receives.
//!
//! A completion states its queue pair and its length, but not the memory. Receives of a queue complete in the order of
//! posting, so their kinds wait in a ring in that order.
//!
//! A kind is recorded once the real library has accepted the receive, which may by then have completed in another
//! thread. Both sides therefore meet in the entry for the receive's number, and whichever thread comes second counts
//! the receive.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gdr_process::PerProcess;
use gdr_trace::MemoryKind;

/// Maximum number of entries in a ring. A queue with more receives wraps around it.
const LARGEST: u32 = 1 << 16;

/// Kinds of the receives of one queue, oldest first.
pub(crate) struct ReceiveKinds {
    entries: Box<[AtomicU64]>,
    /// The number of the next receive that completes.
    head: AtomicU32,
    /// The number of the next receive whose kind is recorded.
    tail: AtomicU32,
    /// Posts that have not recorded their kinds yet.
    posting: AtomicU32,
}

/// A completed receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// The row of its queue pair.
    pub(crate) row: u32,
    pub(crate) bytes: u32,
}

/// What an entry holds.
#[derive(Clone, Copy)]
enum Entry {
    Empty,
    /// Kind of the receive with this number.
    Posted(u32, MemoryKind),
    /// A receive that completed before its kind was recorded.
    Completed(Received),
}

impl Entry {
    /// Values of the lowest two bits, which tell the variants apart.
    const POSTED: u64 = 1;
    const COMPLETED: u64 = 2;
    /// Bits of a row. There are fewer rows than that.
    const ROW: u32 = (1 << 30) - 1;

    fn pack(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Posted(number, kind) => {
                u64::from(number) << 32 | (kind.number() as u64) << 2 | Self::POSTED
            }
            Self::Completed(Received { row, bytes }) => {
                u64::from(bytes) << 32 | u64::from(row & Self::ROW) << 2 | Self::COMPLETED
            }
        }
    }

    fn unpack(word: u64) -> Self {
        let (high, low) = ((word >> 32) as u32, word as u32 >> 2);
        match word & 3 {
            Self::POSTED => {
                let kind = MemoryKind::from_number(low as usize);
                Self::Posted(high, kind.unwrap_or(MemoryKind::Unknown))
            }
            Self::COMPLETED => Self::Completed(Received {
                row: low,
                bytes: high,
            }),
            _ => Self::Empty,
        }
    }
}

/// A post whose kinds are not all recorded yet.
pub(crate) struct Posting<'a>(&'a ReceiveKinds);

impl Posting<'_> {
    /// Records the kind of an accepted receive. Calls `count` if it has completed in the meantime.
    pub(crate) fn record(&self, kind: MemoryKind, count: impl FnOnce(Received)) {
        let ring = self.0;
        let number = ring.tail.fetch_add(1, Ordering::AcqRel);
        let before = ring
            .entry(number)
            .swap(Entry::Posted(number, kind).pack(), Ordering::AcqRel);
        if let Entry::Completed(received) = Entry::unpack(before) {
            count(received);
        }
    }
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        self.0.posting.fetch_sub(1, Ordering::Release);
    }
}

/// Unused rings. A ring is not freed, because a completion may be looking at it.
fn free() -> MutexGuard<'static, Vec<&'static ReceiveKinds>> {
    static FREE: PerProcess<Mutex<Vec<&'static ReceiveKinds>>> = PerProcess::new();
    let free = FREE.get_fast().lock();
    free.unwrap_or_else(PoisonError::into_inner)
}

impl ReceiveKinds {
    /// Returns a ring for a queue with room for this many receives.
    pub(crate) fn take_ring(receives: u32) -> &'static Self {
        let size = receives.clamp(1, LARGEST).next_power_of_two() as usize;
        let mut free = free();
        if let Some(at) = free.iter().position(|ring| ring.entries.len() == size) {
            let ring = free.swap_remove(at);
            for entry in &ring.entries {
                entry.store(0, Ordering::Relaxed);
            }
            ring.clear();
            return ring;
        }
        Box::leak(Box::new(Self {
            entries: (0..size).map(|_| AtomicU64::new(0)).collect(),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            posting: AtomicU32::new(0),
        }))
    }

    /// Gives a ring back.
    pub(crate) fn give_back(&'static self) {
        free().push(self);
    }

    fn entry(&self, number: u32) -> &AtomicU64 {
        &self.entries[number as usize & (self.entries.len() - 1)]
    }

    /// Begins a post, which lasts until its kinds are recorded. Call it before the real library sees the post.
    pub(crate) fn begin_post(&self) -> Posting<'_> {
        self.posting.fetch_add(1, Ordering::AcqRel);
        Posting(self)
    }

    /// Removes the oldest receive, which has completed. Calls `count` with its kind, now or when the kind is recorded.
    pub(crate) fn complete(&self, received: Received, mut count: impl FnMut(Received, MemoryKind)) {
        // Read this first: a post that has ended has recorded its kinds.
        let is_posting = self.posting.load(Ordering::Acquire) != 0;
        let mut number = self.head.load(Ordering::Acquire);
        loop {
            let waiting = self.tail.load(Ordering::Acquire).wrapping_sub(number);
            if waiting.cast_signed() <= 0 && !is_posting {
                // Posted past this library.
                return count(received, MemoryKind::Unknown);
            }
            let next = number.wrapping_add(1);
            match self
                .head
                .compare_exchange(number, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break,
                Err(head) => number = head,
            }
        }
        let entry = self.entry(number);
        let mut word = entry.load(Ordering::Acquire);
        loop {
            let found = Entry::unpack(word);
            if let Entry::Posted(of, kind) = found
                // A queue with more receives than ring entries has overwritten it.
                && of.wrapping_sub(number).cast_signed() >= 0
            {
                return count(received, kind);
            }
            let waits = Entry::Completed(received).pack();
            match entry.compare_exchange(word, waits, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // Its kind was not recorded within a full round of the ring.
                    if let Entry::Completed(older) = found {
                        count(older, MemoryKind::Unknown);
                    }
                    return;
                }
                Err(other) => word = other,
            }
        }
    }

    /// Forgets everything, because the queue pair has failed and its receives are flushed.
    pub(crate) fn clear(&self) {
        let tail = self.tail.load(Ordering::Acquire);
        self.head.store(tail, Ordering::Release);
    }
}

/// A place for a ring; it may be empty.
#[derive(Default)]
pub(crate) struct Slot(AtomicPtr<ReceiveKinds>);

impl Slot {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    pub(crate) fn set(&self, ring: Option<&'static ReceiveKinds>) {
        let ring = ring.map_or(std::ptr::null_mut(), |ring| {
            std::ptr::from_ref(ring).cast_mut()
        });
        self.0.store(ring, Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<&'static ReceiveKinds> {
        // SAFETY: null, or a ring, which is never freed and only used through shared references.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::thread;

    use super::*;

    fn received(bytes: u32) -> Received {
        Received { row: 7, bytes }
    }

    /// Completes a receive; returns what is counted at once.
    fn complete(ring: &ReceiveKinds, bytes: u32) -> Vec<(u32, MemoryKind)> {
        let mut counted = Vec::new();
        ring.complete(received(bytes), |it, kind| counted.push((it.bytes, kind)));
        counted
    }

    #[test]
    fn kinds_leave_in_the_order_in_which_they_came() {
        let ring = ReceiveKinds::take_ring(3);
        assert_eq!(complete(ring, 1), [(1, MemoryKind::Unknown)]);
        for _ in 0..5 {
            let posting = ring.begin_post();
            for kind in [MemoryKind::Host, MemoryKind::DmaBuf] {
                posting.record(kind, |_| panic!("it has not completed"));
            }
            drop(posting);
            assert_eq!(complete(ring, 1), [(1, MemoryKind::Host)]);
            assert_eq!(complete(ring, 2), [(2, MemoryKind::DmaBuf)]);
        }
        ring.begin_post().record(MemoryKind::Host, |_| ());
        ring.clear();
        assert_eq!(complete(ring, 3), [(3, MemoryKind::Unknown)]);
        ring.give_back();
    }

    #[test]
    fn a_receive_that_completes_before_its_kind_is_recorded_is_counted_by_that_kind() {
        let ring = ReceiveKinds::take_ring(4);
        for round in 0..10 {
            let posting = ring.begin_post();
            assert_eq!(complete(ring, round), []);
            let mut counted = None;
            posting.record(MemoryKind::DmaBuf, |it| counted = Some(it));
            assert_eq!(counted, Some(received(round)));
        }
    }

    #[test]
    fn every_receive_is_counted_once_by_its_kind_whichever_thread_is_first() {
        const RECEIVES: usize = 50_000;
        const WINDOW: usize = 64;
        let ring = ReceiveKinds::take_ring(WINDOW as u32);
        let (posted, completed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (counted, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let count = |it: Received, kind| {
            counted.fetch_add(1, Ordering::Relaxed);
            let wanted = [MemoryKind::Host, MemoryKind::DmaBuf][it.bytes as usize % 2];
            failed.fetch_or(kind != wanted, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..RECEIVES {
                    while number - completed.load(Ordering::Acquire) >= WINDOW {
                        thread::yield_now();
                    }
                    let posting = ring.begin_post();
                    posted.store(number + 1, Ordering::Release);
                    let kind = [MemoryKind::Host, MemoryKind::DmaBuf][number % 2];
                    posting.record(kind, |it| count(it, kind));
                }
            });
            for number in 0..RECEIVES {
                while posted.load(Ordering::Acquire) <= number {
                    thread::yield_now();
                }
                ring.complete(received(number as u32), count);
                completed.store(number + 1, Ordering::Release);
            }
        });
        assert_eq!(counted.load(Ordering::Relaxed), RECEIVES);
        assert!(!failed.load(Ordering::Relaxed));
    }
}
