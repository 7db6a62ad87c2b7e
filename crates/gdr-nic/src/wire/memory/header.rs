//! What both ends know of a ring.

use std::sync::atomic::Ordering;

use super::primitives::{AtomicU32, AtomicU64, Deadline, fence, yield_now};

/// What both ends know of a ring, at the start of the segment. Each group of fields has cache lines of its
/// own, two of them, as processors fetch pairs.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Header {
    consumer: ConsumerState,
    producer: ProducerState,
    exports: [ExportSlot; EXPORTS],
}

/// How much GPU memory of the producer the consumer can import at a time.
pub(super) const EXPORTS: usize = 16;
/// How many words describe it.
const EXPORT_WORDS: usize = 11;
/// What describes GPU memory of the producer.
pub(super) type ExportWords = [u64; EXPORT_WORDS];

/// GPU memory of the producer.
#[derive(Debug, Default)]
#[repr(C)]
struct ExportSlot {
    /// Written by the producer: which export this is, in the order of all of them; 0 for none.
    number: AtomicU64,
    words: [AtomicU64; EXPORT_WORDS],
    /// Written by the consumer: the number of an export that it has answered, and its answer.
    answered: AtomicU64,
    answer: AtomicU32,
}

/// What the consumer says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing yet.
    Pending,
    /// It takes references to that memory.
    Imported,
    /// It does not.
    Refused,
    /// It does not now: it says itself when it does again.
    Paused,
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
    /// Grows when an export is added or ends.
    exports_changed: AtomicU32,
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

    /// Before which position references are void, after what was read of them.
    pub(super) fn void_before(&self) -> u64 {
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

    /// How many times the exports have changed.
    pub(super) fn exports_changed(&self) -> u32 {
        self.producer.exports_changed.load(Ordering::Acquire)
    }

    /// Puts an export into a slot, under a new number, or with number 0 takes out the one that is there.
    pub(super) fn set_export(&self, slot: usize, number: u64, words: &ExportWords) {
        let Some(slot) = self.exports.get(slot) else {
            return;
        };
        slot.number.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for (word, value) in slot.words.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        slot.number.store(number, Ordering::Release);
        let changed = &self.producer.exports_changed;
        changed.fetch_add(1, Ordering::Release);
        // The consumer stores that it sleeps, and then looks for changes.
        fence(Ordering::SeqCst);
    }

    /// The export of a slot and its number, if there is one.
    pub(super) fn export(&self, slot: usize) -> Option<(u64, ExportWords)> {
        let slot = self.exports.get(slot)?;
        let number = slot.number.load(Ordering::Acquire);
        let words = slot.words.each_ref();
        let words = words.map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        // The slot is being changed, so the consumer will look again.
        let is_whole = number != 0 && slot.number.load(Ordering::Relaxed) == number;
        is_whole.then_some((number, words))
    }

    /// Answers an export.
    pub(super) fn answer(&self, slot: usize, number: u64, answer: Answer) {
        let Some(slot) = self.exports.get(slot) else {
            return;
        };
        slot.answer.store(answer as u32, Ordering::Relaxed);
        slot.answered.store(number, Ordering::Release);
    }

    /// What the consumer says of an export.
    pub(super) fn answer_to(&self, slot: usize, number: u64) -> Answer {
        let Some(slot) = self.exports.get(slot) else {
            return Answer::Refused;
        };
        if slot.answered.load(Ordering::Acquire) != number {
            return Answer::Pending;
        }
        match slot.answer.load(Ordering::Relaxed) {
            answer if answer == Answer::Pending as u32 => Answer::Pending,
            answer if answer == Answer::Imported as u32 => Answer::Imported,
            answer if answer == Answer::Paused as u32 => Answer::Paused,
            _ => Answer::Refused,
        }
    }
}
