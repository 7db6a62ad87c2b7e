//! The entries of a completion queue, and the shards that add them.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gdr_process::lock::lock;
use gdr_roce::{Completion, Qpn, WcOpcode, WcStatus};

use crate::bounded_queue::{BoundedQueue, Loss, Pushed};
use crate::shard::clock::monotonic_clock;
use crate::types::CqNumber;
use gdr_udp::MOST_SHARDS;

const _: () = assert!(MOST_SHARDS <= u32::BITS as usize);

/// Called after a completion was stored in a queue. It may run while the engine is locked, so it must neither call the
/// engine nor block.
pub type OnCompletion = Box<dyn Fn(&Completion) -> Announcement + Send + Sync>;

/// Whether a completion was announced to the program, which may sleep until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// Not announced: the program polls.
    None,
    /// Announced.
    Sent,
}

/// The entries of a completion queue. The engines of several shards may add entries.
#[derive(Debug)]
pub(crate) struct CqEntries {
    number: CqNumber,
    queue: BoundedQueue<Completion>,
    on_completion: Option<Hook>,
    /// Whether entries are timestamped.
    is_timed: AtomicBool,
    /// The number of queue pairs of each shard that add entries; counted twice if used for both sends and receives.
    producers: Mutex<[u32; MOST_SHARDS]>,
    /// A bit for each shard with producers, as every post and every poll checks them.
    shards: AtomicU32,
    /// The device's total of received bytes whose completions were removed.
    untaken: Arc<AtomicU64>,
}

struct Hook(OnCompletion);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

/// Returns the bytes that a receive placed in its memory; none for a WRITE with immediate data.
pub(crate) fn received_bytes(completion: &Completion) -> u64 {
    match (completion.opcode, completion.status) {
        (WcOpcode::Recv, WcStatus::Success) => u64::from(completion.byte_len),
        _ => 0,
    }
}

/// The shards that add to a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Producers {
    None,
    /// A single shard, which a thread polling the queue drives.
    Shard(usize),
    /// Several, which a thread polling the queue leaves to their progress threads.
    Several,
}

impl CqEntries {
    pub(crate) fn new(
        capacity: usize,
        on_completion: Option<OnCompletion>,
        untaken: Arc<AtomicU64>,
    ) -> Self {
        Self {
            number: CqNumber::new(),
            queue: BoundedQueue::new(capacity, Loss::Fatal),
            on_completion: on_completion.map(Hook),
            is_timed: AtomicBool::new(false),
            producers: Mutex::default(),
            shards: AtomicU32::new(0),
            untaken,
        }
    }

    /// Timestamps all further entries.
    pub(crate) fn take_times(&self) {
        self.is_timed.store(true, Ordering::Relaxed);
    }

    /// Returns its number, as carried by its events.
    pub(crate) fn number(&self) -> CqNumber {
        self.number
    }

    /// Adds an entry, which is lost if the queue is full.
    // Inlined for the more frequent of its two callers.
    #[inline(always)]
    pub(crate) fn push(&self, mut completion: Completion) -> (Pushed, Announcement) {
        if self.is_timed.load(Ordering::Relaxed) {
            completion.time = NonZeroU64::new(monotonic_clock());
        }
        let pushed = self.queue.push(completion);
        let announcement = match (pushed, &self.on_completion) {
            (Pushed::Stored, Some(Hook(call))) => call(&completion),
            (Pushed::Stored, None) => Announcement::None,
            (Pushed::FirstLost | Pushed::Lost, _) => {
                // The bytes have arrived, but the program will never take their completion.
                self.count_untaken(&completion);
                Announcement::None
            }
        };
        (pushed, announcement)
    }

    /// Removes the entries of a queue pair.
    pub(crate) fn remove(&self, qpn: Qpn) {
        self.queue.retain(|completion| {
            let is_other = completion.qpn != qpn;
            if !is_other {
                self.count_untaken(completion);
            }
            is_other
        });
    }

    /// Returns the received bytes of all stored completions.
    pub(crate) fn received_bytes(&self) -> u64 {
        let mut sum = 0;
        self.queue
            .for_each(|completion| sum += received_bytes(completion));
        sum
    }

    fn count_untaken(&self, completion: &Completion) {
        self.untaken
            .fetch_add(received_bytes(completion), Ordering::Relaxed);
    }

    pub(crate) fn producers(&self) -> Producers {
        let shards = self.shards.load(Ordering::Relaxed);
        match shards.count_ones() {
            0 => Producers::None,
            1 => Producers::Shard(shards.trailing_zeros() as usize),
            _ => Producers::Several,
        }
    }

    /// Changes the number of producers in a shard.
    fn count_producers(&self, shard: usize, change: impl FnOnce(u32) -> u32) {
        let mut producers = lock(&self.producers);
        // The bit changes together with the count, under the lock, so that two changes by one shard cannot
        // be reordered.
        producers[shard] = change(producers[shard]);
        let bit = 1 << shard;
        match producers[shard] {
            0 => self.shards.fetch_and(!bit, Ordering::Relaxed),
            _ => self.shards.fetch_or(bit, Ordering::Relaxed),
        };
    }
}

impl Deref for CqEntries {
    type Target = BoundedQueue<Completion>;

    fn deref(&self) -> &BoundedQueue<Completion> {
        &self.queue
    }
}

impl Drop for CqEntries {
    fn drop(&mut self) {
        self.queue.pop_many(usize::MAX, &mut |completion| {
            self.count_untaken(&completion)
        });
    }
}

/// A queue pair's registration as a producer of entries.
#[derive(Debug)]
pub(crate) struct CqProducer {
    entries: Arc<CqEntries>,
    shard: usize,
}

impl CqProducer {
    /// Registers a queue pair of a shard.
    pub(crate) fn new(entries: Arc<CqEntries>, shard: usize) -> Self {
        entries.count_producers(shard, |count| count + 1);
        Self { entries, shard }
    }
}

impl Deref for CqProducer {
    type Target = CqEntries;

    fn deref(&self) -> &CqEntries {
        &self.entries
    }
}

impl Drop for CqProducer {
    fn drop(&mut self) {
        self.entries.count_producers(self.shard, |count| count - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_of_one_shard_while_no_queue_pair_of_another_adds_to_it() {
        let entries = Arc::new(CqEntries::new(4, None, Arc::default()));
        assert_eq!(entries.producers(), Producers::None);
        let add = |shard| CqProducer::new(Arc::clone(&entries), shard);
        let first = [add(3), add(3)];
        assert_eq!(entries.producers(), Producers::Shard(3));
        let other = add(0);
        assert_eq!(entries.producers(), Producers::Several);
        drop(first);
        assert_eq!(other.producers(), Producers::Shard(0));
        drop(other);
        assert_eq!(entries.producers(), Producers::None);
    }
}
