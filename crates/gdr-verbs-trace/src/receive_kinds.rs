//! The kinds of memory of posted receives.
//!
//! A completion names its queue pair and its length, and not the memory. Receives of a queue complete
//! in the order in which they were posted, so the kinds wait in a ring of that order.

use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use gdr_trace::MemoryKind;

/// The most entries of a ring; a queue with more receives repeats what is in the ring.
const LARGEST: u32 = 1 << 16;

/// The kinds of the receives of one queue, oldest first.
pub(crate) struct ReceiveKinds {
    kinds: Box<[AtomicU8]>,
    /// The oldest entry.
    head: AtomicU32,
    /// Behind the newest entry.
    tail: AtomicU32,
}

/// Rings that are not in use. A ring is not freed, as a completion may be looking at it.
static FREE: Mutex<Vec<&'static ReceiveKinds>> = Mutex::new(Vec::new());

impl ReceiveKinds {
    /// A ring for a queue with room for so many receives.
    pub(crate) fn take_ring(receives: u32) -> &'static Self {
        let size = receives.clamp(1, LARGEST).next_power_of_two() as usize;
        let mut free = FREE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(at) = free.iter().position(|ring| ring.kinds.len() == size) {
            let ring = free.swap_remove(at);
            ring.clear();
            return ring;
        }
        Box::leak(Box::new(Self {
            kinds: (0..size).map(|_| AtomicU8::new(0)).collect(),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
        }))
    }

    /// Gives a ring back.
    pub(crate) fn give_back(&'static self) {
        let mut free = FREE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        free.push(self);
    }

    fn entry(&self, number: u32) -> &AtomicU8 {
        &self.kinds[number as usize & (self.kinds.len() - 1)]
    }

    /// Adds the kind of a receive that is being posted.
    pub(crate) fn push(&self, kind: MemoryKind) {
        let at = self.tail.fetch_add(1, Ordering::AcqRel);
        self.entry(at).store(kind.number() as u8, Ordering::Release);
    }

    /// Removes the newest ones, which were refused.
    pub(crate) fn unpush(&self, count: u32) {
        self.tail.fetch_sub(count, Ordering::AcqRel);
    }

    /// Removes the oldest one, which has completed.
    pub(crate) fn pop(&self) -> MemoryKind {
        let head = self.head.load(Ordering::Acquire);
        if head == self.tail.load(Ordering::Acquire) {
            // Posted before it was traced.
            return MemoryKind::Unknown;
        }
        let kind = self.entry(head).load(Ordering::Acquire);
        self.head.fetch_add(1, Ordering::AcqRel);
        MemoryKind::from_number(kind.into()).unwrap_or(MemoryKind::Unknown)
    }

    /// Forgets all: the queue pair has failed, and its receives are flushed.
    pub(crate) fn clear(&self) {
        let tail = self.tail.load(Ordering::Acquire);
        self.head.store(tail, Ordering::Release);
    }
}

/// A place for a ring, which may be empty.
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
        // SAFETY: null, or a ring, which is never freed and only used by shared references.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_leave_in_the_order_in_which_they_came() {
        let ring = ReceiveKinds::take_ring(3);
        assert_eq!(ring.pop(), MemoryKind::Unknown);
        for _ in 0..5 {
            ring.push(MemoryKind::Host);
            ring.push(MemoryKind::DmaBuf);
            ring.push(MemoryKind::Inline);
            ring.unpush(1);
            assert_eq!(
                [ring.pop(), ring.pop()],
                [MemoryKind::Host, MemoryKind::DmaBuf]
            );
        }
        ring.push(MemoryKind::Host);
        ring.clear();
        assert_eq!(ring.pop(), MemoryKind::Unknown);
        ring.give_back();
    }
}
