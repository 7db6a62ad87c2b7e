//! A map of numbers that is read without a lock, for lookups at every request.

use std::hint;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A map from keys that are not 0 to values. Threads that change it take turns; readers take no lock.
pub(crate) struct KeyMap {
    slots: AtomicPtr<Slots>,
    /// Odd while entries are moved.
    sequence: AtomicU64,
    /// The number of entries.
    len: Mutex<usize>,
}

/// Open addressing with linear probing. A table that is outgrown is not freed, as a reader may be in
/// it: together they are smaller than the current one.
struct Slots {
    entries: Box<[Entry]>,
}

#[derive(Default)]
struct Entry {
    /// 0 where it is free.
    key: AtomicU64,
    value: AtomicU64,
}

/// The entries of a new table.
const FIRST_SIZE: usize = 64;
/// How often a reader tries again at once while entries are moved. That takes far less, unless the
/// thread that moves them has lost its CPU.
const SPINS: u32 = 1 << 10;
/// How often it tries after that, and what it waits in between. If the thread never ends, it does not
/// exist in this process: it forked meanwhile.
const PAUSES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

impl Slots {
    fn new(size: usize) -> *mut Self {
        let entries = (0..size).map(|_| Entry::default()).collect();
        Box::into_raw(Box::new(Self { entries }))
    }

    /// The entries from the first one for a key on, each once.
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

    /// Where a key is, or the free entry where it would be. A table always has a free entry.
    fn find(&self, key: u64) -> Option<(usize, &Entry)> {
        self.probe(key).find(|(_, entry)| {
            let found = entry.key.load(Ordering::Acquire);
            found == key || found == 0
        })
    }

    fn put(&self, key: u64, value: u64) {
        if let Some((_, entry)) = self.find(key) {
            entry.value.store(value, Ordering::Relaxed);
            entry.key.store(key, Ordering::Release);
        }
    }
}

impl KeyMap {
    pub(crate) const fn new() -> Self {
        Self {
            slots: AtomicPtr::new(std::ptr::null_mut()),
            sequence: AtomicU64::new(0),
            len: Mutex::new(0),
        }
    }

    fn slots(&self) -> Option<&Slots> {
        // SAFETY: null, or from a box that is never freed.
        unsafe { self.slots.load(Ordering::Acquire).as_ref() }
    }

    /// The value of a key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<u64> {
        for attempt in 0..SPINS + PAUSES {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let (_, entry) = self.slots()?.find(key)?;
                let found = entry.key.load(Ordering::Relaxed) == key;
                let value = entry.value.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return found.then_some(value);
                }
            }
            if attempt < SPINS {
                hint::spin_loop();
            } else {
                thread::sleep(PAUSE);
            }
        }
        None
    }

    /// Sets the value of a key.
    pub(crate) fn insert(&self, key: u64, value: u64) {
        let mut len = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = match self.slots() {
            // At most half of the entries are in use.
            Some(slots) if (*len + 1) * 2 <= slots.entries.len() => slots,
            other => {
                let size = other.map_or(FIRST_SIZE, |slots| slots.entries.len() * 2);
                let larger = Slots::new(size);
                // SAFETY: just made, and never freed.
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
        *len += usize::from(is_new);
    }

    /// Removes a key; returns its value.
    pub(crate) fn remove(&self, key: u64) -> Option<u64> {
        let mut len = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = self.slots()?;
        let (mut hole, entry) = slots.find(key)?;
        if entry.key.load(Ordering::Relaxed) != key {
            return None;
        }
        let value = entry.value.load(Ordering::Relaxed);
        self.sequence.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::Release);
        // Entries behind the hole that belong before it move into it, so no search ends early.
        let mask = slots.entries.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let next = &slots.entries[at];
            let moved = next.key.load(Ordering::Relaxed);
            if moved == 0 {
                break;
            }
            let wanted = slots.first(moved);
            if (at.wrapping_sub(wanted) & mask) >= (at.wrapping_sub(hole) & mask) {
                let to = &slots.entries[hole];
                let value = next.value.load(Ordering::Relaxed);
                to.value.store(value, Ordering::Relaxed);
                to.key.store(moved, Ordering::Relaxed);
                hole = at;
            }
        }
        slots.entries[hole].key.store(0, Ordering::Relaxed);
        self.sequence.fetch_add(1, Ordering::Release);
        *len -= 1;
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
