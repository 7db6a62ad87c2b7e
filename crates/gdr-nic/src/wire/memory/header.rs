//! What both ends know of a ring.

use std::sync::atomic::Ordering;

use super::primitives::{AtomicU32, AtomicU64, fence, yield_now};
use crate::deadline::Deadline;

/// What both ends know of a ring, at the start of the segment. Each group of fields has cache lines of its
/// own, two of them, as processors fetch pairs.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Header {
    consumer: ConsumerState,
    producer: ProducerState,
}

/// What the consumer writes.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct ConsumerState {
    /// How many bytes of the ring it has given back, since the beginning.
    head: AtomicU64,
    idle: Line<AtomicU32>,
    /// Odd while the consumer reads the memory of the producer.
    reads: Line<AtomicU64>,
    /// Not 0 once the consumer has found that it can.
    takes_references: AtomicU32,
}

/// What the producer writes, besides the ring.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct ProducerState {
    waiting: AtomicU32,
    /// References in records before this position are void.
    void_before: Line<AtomicU64>,
}

/// A value in cache lines of its own.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Line<T>(T);

impl Header {
    pub(super) fn head(&self) -> &AtomicU64 {
        &self.consumer.head
    }

    /// Not 0 while the consumer sleeps, and must be woken for a record.
    pub(super) fn consumer_idle(&self) -> &AtomicU32 {
        &self.consumer.idle.0
    }

    /// Not 0 while the producer waits for room, and must be woken for it.
    pub(super) fn waiting(&self) -> &AtomicU32 {
        &self.producer.waiting
    }

    /// Shows the producer that the consumer can read its memory.
    pub(super) fn accept_references(&self) {
        self.consumer.takes_references.store(1, Ordering::Release);
    }

    /// Reverses [`Header::accept_references`].
    pub(super) fn refuse_references(&self) {
        self.consumer.takes_references.store(0, Ordering::Release);
    }

    pub(super) fn takes_references(&self) -> bool {
        self.consumer.takes_references.load(Ordering::Acquire) != 0
    }

    /// Begins to read the memory of the producer; returns before which position references are void.
    pub(super) fn begin_reads(&self) -> u64 {
        self.consumer.reads.0.fetch_add(1, Ordering::Relaxed);
        // The producer stores what is void, and then looks whether it is being read.
        fence(Ordering::SeqCst);
        self.producer.void_before.0.load(Ordering::Relaxed)
    }

    pub(super) fn end_reads(&self) {
        self.consumer.reads.0.fetch_add(1, Ordering::Release);
    }

    /// Makes the references before `position` void, and waits until none of them is being read; returns whether
    /// that is so.
    pub(super) fn void_references(&self, position: u64, deadline: Deadline) -> bool {
        if self.consumer.head.load(Ordering::Acquire) >= position {
            return true;
        }
        let void = &self.producer.void_before.0;
        void.fetch_max(position, Ordering::Relaxed);
        // The consumer stores that it reads, and then looks what is void.
        fence(Ordering::SeqCst);
        let reads = &self.consumer.reads.0;
        let begun = reads.load(Ordering::Acquire);
        while begun % 2 == 1 && reads.load(Ordering::Acquire) == begun {
            if deadline.has_passed() {
                return false;
            }
            yield_now();
        }
        true
    }
}
