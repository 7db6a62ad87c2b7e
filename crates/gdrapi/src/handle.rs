//! Handles: slot numbers with generations.
//!
//! A `gdr_mh_t` is passed by value, and callers may pass a wrong one: after unpinning, twice to unpin, or one that was
//! never returned. All of these must return `EINVAL`. Therefore a handle consists of a slot number and a generation,
//! which are checked against the slot, and is never dereferenced.
//!
//! Some callers know that GDRCopy's handle points to a private structure of 104 bytes, and read it. Therefore the
//! number is also an *address* in a range that is reserved for this purpose and reads as zeros.
//!
//! ```text
//! handle = base + 8 * (generation * SLOTS + slot)
//! ```
//!
//! `base` is a multiple of `8 * SLOTS`, so that a copy finds the slot without knowing it
//! ([`likely_slot`]).
//!
//! Each pair of slot and generation has its own address. Freeing a slot increments its generation, and a freed slot is
//! reused only after [`QUARANTINE`] others have been freed. The usual 4 GiB of address space, which take no memory,
//! hold 2048 generations, so a stale handle is recognized for at least the next two million pins. After that, its
//! number may be reused.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

/// Maximum number of pinned buffers: more than BAR1 has room for on most machines, and more than Linux lets a process
/// map (`vm.max_map_count`).
pub(crate) const SLOTS: usize = 1 << 18;
/// The number of freed slots before the oldest of them is reused.
const QUARANTINE: usize = 1024;
/// Distance of two handles.
const STEP: usize = 8;
/// The alignment of the first handle.
const ALIGNMENT: usize = STEP * SLOTS;
/// Readable bytes at every handle.
const READABLE: usize = 128;
/// Sizes of the address range to try, largest first: a limit on address space may forbid the first.
const SIZES: [usize; 3] = [4 << 30, 256 << 20, 16 << 20];

/// Returns the slot of `handle`, if it is a handle; any slot for other numbers.
#[inline(always)]
pub(crate) fn likely_slot(handle: u64) -> usize {
    handle as usize / STEP % SLOTS
}

/// A slot and the generation of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotId {
    index: u32,
    generation: u32,
}

impl SlotId {
    pub(crate) fn index(self) -> usize {
        self.index as usize
    }
}

/// Converts handles to slots and back: the arithmetic of the module page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandleSpace {
    /// Start and length of the reserved address range.
    reserved: (usize, usize),
    base: usize,
    bytes: usize,
}

impl HandleSpace {
    /// Reserves the address range, until the process ends.
    pub(crate) fn reserve() -> rustix::io::Result<Self> {
        let mut refused = rustix::io::Errno::NOMEM;
        for bytes in SIZES {
            let len = ALIGNMENT + bytes + READABLE;
            match reserve(len) {
                Ok(start) => {
                    return Ok(Self {
                        reserved: (start.expose_provenance(), len),
                        base: start.addr().next_multiple_of(ALIGNMENT),
                        bytes,
                    });
                }
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    /// Unmaps the address range.
    ///
    /// # Safety
    /// No handle of this space, or of a copy of it, is used any more.
    pub(crate) unsafe fn release(self) {
        let (start, len) = self.reserved;
        // SAFETY: `reserve` made this range, and the caller promises that it is not read. After an
        // error it stays reserved.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(start), len) };
    }

    /// Returns the number of generations of a slot, after which its handles repeat.
    pub(crate) fn generations(&self) -> u32 {
        (self.bytes / STEP / SLOTS) as u32
    }

    pub(crate) fn handle(&self, id: SlotId) -> u64 {
        let number = id.generation as usize * SLOTS + id.index();
        (self.base + number * STEP) as u64
    }

    /// Returns the slot of a handle; `None` for a number that is not a handle.
    pub(crate) fn slot(&self, handle: u64) -> Option<SlotId> {
        let offset = (handle as usize).wrapping_sub(self.base);
        if offset >= self.bytes || !offset.is_multiple_of(STEP) {
            return None;
        }
        let number = offset / STEP;
        Some(SlotId {
            index: (number % SLOTS) as u32,
            generation: (number / SLOTS) as u32,
        })
    }
}

fn reserve(bytes: usize) -> rustix::io::Result<*mut c_void> {
    // Three steps, because of processes that have called mlockall(MCL_FUTURE): the kernel does not populate an
    // unreadable range at mmap, nor an unlocked range when it becomes readable.
    // SAFETY: the kernel chooses the address, so no other mapping is replaced.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    // SAFETY: the range was made above.
    let readable = unsafe {
        let unlocked = rustix::mm::munlock(base, bytes);
        unlocked.and_then(|()| rustix::mm::mprotect(base, bytes, MprotectFlags::READ))
    };
    readable.map(|()| base).inspect_err(|_| {
        // SAFETY: as above; the address was not returned yet. After an error it stays reserved.
        let _ = unsafe { rustix::mm::munmap(base, bytes) };
    })
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    content: Option<T>,
}

/// The contents of the slots.
#[derive(Debug)]
pub(crate) struct SlotTable<T> {
    slots: Vec<Slot<T>>,
    /// Free slots, in the order in which they were freed.
    free: VecDeque<u32>,
    generations: u32,
    most: usize,
}

impl<T> SlotTable<T> {
    /// Creates a table of at most `most` slots (up to [`SLOTS`]) with `generations` each.
    pub(crate) fn new(most: usize, generations: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            generations,
            most: most.min(SLOTS),
        }
    }

    /// Returns a slot for the next [`SlotTable::put`]; `None` when all are in use.
    fn next_free(&mut self) -> Option<u32> {
        let full = self.slots.len() >= self.most;
        if self.free.len() > QUARANTINE || full {
            return self.free.pop_front();
        }
        let index = u32::try_from(self.slots.len()).ok()?;
        self.slots.push(Slot {
            generation: 0,
            content: None,
        });
        Some(index)
    }

    /// Puts the value that `make` returns into a free slot; `None` when all are in use.
    pub(crate) fn put(&mut self, make: impl FnOnce(SlotId) -> T) -> Option<SlotId> {
        let index = self.next_free()?;
        let slot = self.slots.get_mut(index as usize)?;
        let id = SlotId {
            index,
            generation: slot.generation,
        };
        slot.content = Some(make(id));
        Some(id)
    }

    pub(crate) fn get(&self, id: SlotId) -> Option<&T> {
        let slot = self.slots.get(id.index())?;
        slot.content
            .as_ref()
            .filter(|_| slot.generation == id.generation)
    }

    /// Takes the content. The slot is not reused before [`SlotTable::free`]; `id` is stale from now on.
    pub(crate) fn take(&mut self, id: SlotId) -> Option<T> {
        let generations = self.generations;
        let slot = self.slots.get_mut(id.index())?;
        if slot.generation != id.generation {
            return None;
        }
        let content = slot.content.take()?;
        slot.generation = (slot.generation + 1) % generations;
        Some(content)
    }

    /// Makes a slot available again after [`SlotTable::take`].
    pub(crate) fn free(&mut self, id: SlotId) {
        self.free.push_back(id.index);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no unreadable mappings")]
    fn every_handle_is_readable_and_its_neighbours_are_not_handles() {
        let space = HandleSpace::reserve().unwrap();
        let last = SlotId {
            index: SLOTS as u32 - 1,
            generation: space.generations() - 1,
        };
        for id in [
            SlotId {
                index: 0,
                generation: 0,
            },
            SlotId {
                index: 7,
                generation: 3,
            },
            last,
        ] {
            let handle = space.handle(id);
            assert_ne!(handle, 0);
            assert_eq!(space.slot(handle), Some(id));
            assert_eq!(likely_slot(handle), id.index());
            for near in [handle - 1, handle + 1, handle + 4] {
                assert_eq!(space.slot(near), None);
            }
            let record = ptr::with_exposed_provenance::<[u8; READABLE]>(handle as usize);
            // SAFETY: the whole range is mapped readable, `READABLE` bytes past its end too.
            assert_eq!(unsafe { record.read_volatile() }, [0; READABLE]);
        }
        assert_eq!(space.slot(space.handle(last) + STEP as u64), None);
        for wild in [0, 1, u64::MAX, space.base as u64 - 8] {
            assert_eq!(space.slot(wild), None);
        }
    }

    #[test]
    fn a_slot_is_reused_only_after_its_quarantine() {
        let mut table = SlotTable::new(SLOTS, 4);
        let first = table.put(|_| ()).unwrap();
        table.take(first).unwrap();
        table.free(first);
        for _ in 0..QUARANTINE {
            let id = table.put(|_| ()).unwrap();
            assert_ne!(id.index, first.index);
            table.take(id).unwrap();
            table.free(id);
        }
        let again = table.put(|_| ()).unwrap();
        assert_eq!(
            again,
            SlotId {
                generation: 1,
                ..first
            }
        );
    }

    #[test]
    fn a_full_table_refuses_and_then_reuses() {
        let mut table = SlotTable::new(3, 2);
        let ids: Vec<_> = (0..3).map(|n| table.put(|_| n).unwrap()).collect();
        assert_eq!(table.put(|_| 3), None);
        assert_eq!(table.take(ids[1]), Some(1));
        assert_eq!(
            table.put(|_| 3),
            None,
            "a slot that is being emptied is not free"
        );
        table.free(ids[1]);
        let reused = table.put(|_| 4).unwrap();
        assert_eq!(reused.index, ids[1].index);
        assert_eq!(table.get(ids[1]), None);
        assert_eq!(table.get(reused), Some(&4));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u16),
        Take(usize),
        Get(usize),
        Forge(u32, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<u16>().prop_map(Step::Put),
            any::<usize>().prop_map(Step::Take),
            any::<usize>().prop_map(Step::Get),
            (0..12u32, 0..70u32).prop_map(|(index, generation)| Step::Forge(index, generation)),
        ]
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes there")]
        fn the_table_agrees_with_a_map_of_every_handle_that_was_returned(
            steps in prop::collection::vec(step(), 0..400)
        ) {
            // There are more generations than steps, so no handle is returned twice.
            let mut table = SlotTable::new(8, 1000);
            let mut live = HashMap::new();
            let mut given: Vec<SlotId> = Vec::new();
            let mut seen = HashSet::new();
            for step in steps {
                match step {
                    Step::Put(value) => match table.put(|_| value) {
                        Some(id) => {
                            prop_assert!(seen.insert(id), "{id:?} was returned before");
                            live.insert(id, value);
                            given.push(id);
                        }
                        None => prop_assert_eq!(live.len(), 8),
                    },
                    Step::Take(at) if !given.is_empty() => {
                        let id = given[at % given.len()];
                        let taken = table.take(id);
                        prop_assert_eq!(taken, live.remove(&id));
                        if taken.is_some() {
                            table.free(id);
                        }
                    }
                    Step::Get(at) if !given.is_empty() => {
                        let id = given[at % given.len()];
                        prop_assert_eq!(table.get(id), live.get(&id));
                    }
                    Step::Forge(index, generation) => {
                        let id = SlotId { index, generation };
                        prop_assert_eq!(table.get(id), live.get(&id));
                    }
                    Step::Take(_) | Step::Get(_) => {}
                }
            }
        }
    }
}
