//! A map of numbers that is read without a lock, for lookups at every request.
//!
//! A forked child has the map in the state of that moment, possibly in the middle of a change. It only synchronizes
//! with its own threads, and each store of a change leaves every remaining key where a search finds it.

use std::hint;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use gdr_process::PerProcess;

use crate::nesting::keep_errno;

/// A map from nonzero keys to values. Writers take turns; readers take no lock.
pub(crate) struct KeyMap {
    slots: AtomicPtr<Slots>,
    /// Number of entries. May be off by one in a child forked during a change.
    len: AtomicUsize,
    lock: PerProcess<WriterLock>,
}

/// Serializes the writers of the map.
#[derive(Default)]
struct WriterLock {
    writer: Mutex<()>,
    /// Odd while entries are being moved.
    sequence: AtomicU64,
}

/// Open addressing with linear probing. An outgrown table is not freed, because a reader may still use it; together,
/// these are smaller than the current one.
struct Slots {
    entries: Box<[Entry]>,
}

#[derive(Default)]
struct Entry {
    /// 0 if the entry is free.
    key: AtomicU64,
    value: AtomicU64,
}

/// Entries of a new table.
const FIRST_SIZE: usize = 64;
/// How often a reader retries at once while entries are being moved. A move takes far less time, unless the moving
/// thread has lost its CPU.
const SPINS: u32 = 1 << 10;
/// How often it retries after that, and how long it waits in between.
const PAUSES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

impl Slots {
    fn new(size: usize) -> *mut Self {
        let entries = (0..size).map(|_| Entry::default()).collect();
        Box::into_raw(Box::new(Self { entries }))
    }

    /// Returns the entries from the first one for a key on, each once.
    fn probe(&self, key: u64) -> impl Iterator<Item = (usize, &Entry)> {
        let mask = self.entries.len() - 1;
        let first = self.first(key);
        (0..self.entries.len()).map(move |step| {
            let at = (first + step) & mask;
            (at, &self.entries[at])
        })
    }

    fn first(&self, key: u64) -> usize {
        // Fibonacci hashing: pointers differ in their middle bits.
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (64 - self.entries.len().trailing_zeros())) as usize
    }

    /// Returns the entry of a key, or the free entry where it would be. A table always has a free entry.
    fn find(&self, key: u64) -> Option<(usize, &Entry)> {
        self.probe(key).find(|(_, entry)| {
            let found = entry.key.load(Ordering::Acquire);
            found == key || found == 0
        })
    }

    fn value_of(&self, key: u64) -> Option<u64> {
        let (_, entry) = self.find(key)?;
        let found = entry.key.load(Ordering::Relaxed) == key;
        found.then(|| entry.value.load(Ordering::Relaxed))
    }

    /// Removes the first entry of a key.
    fn take_out(&self, key: u64) {
        let Some((mut hole, _)) = self.find(key) else {
            return;
        };
        // Later entries of the same probe sequence move into the hole, so that no search ends early.
        let mask = self.entries.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let next = &self.entries[at];
            let moved = next.key.load(Ordering::Relaxed);
            if moved == 0 {
                break;
            }
            let wanted = self.first(moved);
            if (at.wrapping_sub(wanted) & mask) >= (at.wrapping_sub(hole) & mask) {
                // It also stays in its old place until that becomes the hole.
                self.entries[hole].set(moved, next.value.load(Ordering::Relaxed));
                hole = at;
            }
        }
        self.entries[hole].key.store(0, Ordering::Release);
    }

    fn put(&self, key: u64, value: u64) {
        if let Some((_, entry)) = self.find(key) {
            entry.set(key, value);
        }
    }
}

impl Entry {
    /// Sets the value first: what has a key has its value.
    fn set(&self, key: u64, value: u64) {
        self.value.store(value, Ordering::Release);
        self.key.store(key, Ordering::Release);
    }
}

impl WriterLock {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyMap {
    pub(crate) const fn new() -> Self {
        Self {
            slots: AtomicPtr::new(std::ptr::null_mut()),
            len: AtomicUsize::new(0),
            lock: PerProcess::new(),
        }
    }

    fn slots(&self) -> Option<&Slots> {
        // SAFETY: null, or from a box that is never freed.
        unsafe { self.slots.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value of a key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<u64> {
        // 0 marks free entries, so it is never a key.
        self.slots().filter(|_| key != 0)?;
        let lock = self.lock.get_fast();
        for attempt in 0..SPINS + PAUSES {
            let before = lock.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let (_, entry) = self.slots()?.find(key)?;
                let found = entry.key.load(Ordering::Relaxed) == key;
                let value = entry.value.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                if lock.sequence.load(Ordering::Relaxed) == before {
                    return found.then_some(value);
                }
            }
            if attempt < SPINS {
                hint::spin_loop();
            } else {
                keep_errno(|| thread::sleep(PAUSE));
            }
        }
        None
    }

    /// Sets the value of a key.
    pub(crate) fn insert(&self, key: u64, value: u64) {
        if key == 0 {
            return;
        }
        let _writing = self.lock.get_fast().lock();
        let len = self.len.load(Ordering::Relaxed);
        let slots = match self.slots() {
            // At most half of the entries are in use.
            Some(slots) if (len + 1) * 2 <= slots.entries.len() => slots,
            other => {
                let size = other.map_or(FIRST_SIZE, |slots| slots.entries.len() * 2);
                let larger = Slots::new(size);
                // SAFETY: just allocated, and never freed.
                let grown = unsafe { &*larger };
                for entry in other.iter().flat_map(|slots| &slots.entries) {
                    let key = entry.key.load(Ordering::Relaxed);
                    if key != 0 {
                        grown.put(key, entry.value.load(Ordering::Relaxed));
                    }
                }
                self.slots.store(larger, Ordering::Release);
                grown
            }
        };
        let is_new = slots
            .find(key)
            .is_some_and(|(_, entry)| entry.key.load(Ordering::Relaxed) == 0);
        slots.put(key, value);
        self.len.store(len + usize::from(is_new), Ordering::Relaxed);
    }

    /// Removes a key; returns its value.
    pub(crate) fn remove(&self, key: u64) -> Option<u64> {
        self.slots().filter(|_| key != 0)?;
        let lock = self.lock.get_fast();
        let _writing = lock.lock();
        let slots = self.slots()?;
        let value = slots.value_of(key)?;
        // A key that was being moved during the fork is present twice.
        while slots.value_of(key).is_some() {
            lock.sequence.fetch_add(1, Ordering::AcqRel);
            fence(Ordering::Release);
            slots.take_out(key);
            lock.sequence.fetch_add(1, Ordering::Release);
        }
        let len = self.len.load(Ordering::Relaxed);
        self.len.store(len.saturating_sub(1), Ordering::Relaxed);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn it_holds_what_an_ordinary_map_holds() {
        let (map, mut model) = (KeyMap::new(), BTreeMap::new());
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let key = (random >> 33) % 300 + 1;
            if random & (1 << 20) == 0 {
                map.insert(key, random);
                model.insert(key, random);
            } else {
                assert_eq!(map.remove(key), model.remove(&key));
            }
            for key in [key, key % 300 + 1] {
                assert_eq!(map.get(key), model.get(&key).copied());
            }
        }
        for key in 1..=300 {
            assert_eq!(map.get(key), model.get(&key).copied());
        }
    }

    #[test]
    fn nothing_has_the_key_0() {
        let map = KeyMap::new();
        map.insert(1, 1);
        map.insert(0, 2);
        assert_eq!((map.get(0), map.remove(0)), (None, None));
        assert_eq!(map.remove(1), Some(1));
    }

    #[test]
    fn a_reader_finds_its_key_while_others_come_and_go() {
        let map = KeyMap::new();
        for key in 1..=8 {
            map.insert(key << 6, key);
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = || {
                while !stop.load(Ordering::Relaxed) {
                    for key in 1..=8 {
                        assert_eq!(map.get(key << 6), Some(key));
                    }
                }
            };
            let readers = [scope.spawn(reader), scope.spawn(reader)];
            for round in 0..20_000_u64 {
                let key = (round % 100 + 1000) << 6;
                map.insert(key, round);
                assert_eq!(map.remove(key), Some(round));
            }
            stop.store(true, Ordering::Relaxed);
            for reader in readers {
                reader.join().unwrap();
            }
        });
    }
}
