//! The state that both ends of a ring share.

use std::sync::atomic::Ordering;

use super::primitives::{AtomicU32, AtomicU64, Deadline, fence, yield_now};

/// The state that both ends of a ring share, at the start of the segment. Each group of fields has its own pair of
/// cache lines, as processors prefetch pairs.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Header {
    consumer: ConsumerState,
    producer: ProducerState,
    exports: [ExportSlot; EXPORTS],
}

/// The maximum number of exports (GPU memory of the producer) that the consumer can import at a time.
pub(super) const EXPORTS: usize = 16;
/// The number of words that describe an export.
const EXPORT_WORDS: usize = 11;
/// The description of an export.
pub(super) type ExportWords = [u64; EXPORT_WORDS];

/// An export: GPU memory of the producer.
#[derive(Debug, Default)]
#[repr(C)]
struct ExportSlot {
    /// The number of the export, in the order in which exports are made; 0 for an empty slot. Written by the producer.
    number: AtomicU64,
    words: [AtomicU64; EXPORT_WORDS],
    /// The number of the export that was last answered. Written by the consumer, like `answer`.
    answered: AtomicU64,
    answer: AtomicU32,
}

/// The consumer's answer to an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The consumer has not answered yet.
    Pending,
    /// The consumer accepts references to the memory.
    Imported,
    /// The consumer does not accept references to the memory.
    Refused,
    /// The consumer accepts no references for now, and changes this answer once it does again.
    Paused,
}

/// The fields that the consumer writes.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct ConsumerState {
    /// The number of bytes that it has returned to the ring since the beginning.
    head: AtomicU64,
    idle: Line<AtomicU32>,
    /// Odd while the consumer reads the producer's memory.
    reads: Line<AtomicU64>,
    /// Nonzero while the consumer can read the producer's memory.
    takes_references: AtomicU32,
}

/// The fields that the producer writes, besides the ring.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct ProducerState {
    waiting: AtomicU32,
    /// Incremented when an export is added or ends.
    exports_changed: AtomicU32,
    /// References in records before this position are void.
    void_before: Line<AtomicU64>,
}

/// A value on its own pair of cache lines.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Line<T>(T);

impl Header {
    pub(super) fn head(&self) -> &AtomicU64 {
        &self.consumer.head
    }

    /// Returns the flag that is nonzero while the consumer sleeps and must be woken for a record.
    pub(super) fn consumer_idle(&self) -> &AtomicU32 {
        &self.consumer.idle.0
    }

    /// Returns the flag that is nonzero while the producer waits for room and must be woken for it.
    pub(super) fn waiting(&self) -> &AtomicU32 {
        &self.producer.waiting
    }

    /// Informs the producer that the consumer can read its memory.
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

    /// Begins to read the producer's memory. Returns the position before which references are void.
    pub(super) fn begin_reads(&self) -> u64 {
        self.consumer.reads.0.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `void_references`: the producer stores the position before it checks for reads.
        fence(Ordering::SeqCst);
        self.producer.void_before.0.load(Ordering::Relaxed)
    }

    /// Returns the position before which references are void, ordered after the caller's reads of the memory.
    pub(super) fn void_before(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.producer.void_before.0.load(Ordering::Relaxed)
    }

    pub(super) fn end_reads(&self) {
        self.consumer.reads.0.fetch_add(1, Ordering::Release);
    }

    /// Makes the references before `position` void, and waits until none of them is being read. Returns false if the
    /// deadline passes first.
    pub(super) fn void_references(&self, position: u64, deadline: Deadline) -> bool {
        if self.consumer.head.load(Ordering::Acquire) >= position {
            return true;
        }
        let void = &self.producer.void_before.0;
        void.fetch_max(position, Ordering::Relaxed);
        // Pairs with the fence in `begin_reads`: the consumer marks its reads before it checks what is void.
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

    /// Returns how many times the exports have changed.
    pub(super) fn exports_changed(&self) -> u32 {
        self.producer.exports_changed.load(Ordering::Acquire)
    }

    /// Stores an export in a slot under a new number. Number 0 removes the slot's export.
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
        // The consumer marks that it sleeps before it checks for changes.
        fence(Ordering::SeqCst);
    }

    /// Returns the export in a slot and its number, if there is one.
    pub(super) fn export(&self, slot: usize) -> Option<(u64, ExportWords)> {
        let slot = self.exports.get(slot)?;
        let number = slot.number.load(Ordering::Acquire);
        let words = slot.words.each_ref();
        let words = words.map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        // A slot that is being changed is skipped, as the consumer will look again.
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

    /// Returns the consumer's answer to an export.
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
