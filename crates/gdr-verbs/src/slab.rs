//! Memory of the structures of C to which programs have handles.
//!
//! Its chunks are never returned to the allocator, so an address in one of them belongs to a structure
//! of this library: one that exists, one that was destroyed, or one of the parent of a forked process.
//! None of these may be passed on to the installed libibverbs, which reads the structure of a handle and
//! calls the functions that it finds there.

use std::alloc::{Layout, alloc, handle_alloc_error};
use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use gdr_copy::{PerProcess, ProcessId};

use crate::device::lock;

/// A structure of C at a fixed address, whose memory is used again some time after this value
/// was dropped. Programs
/// read and write its public fields, so there is no reference to it.
#[derive(Debug)]
pub(crate) struct CObject<T>(NonNull<T>);

// SAFETY: the value is only an address; its users access the structure by rules of their own.
unsafe impl<T> Send for CObject<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for CObject<T> {}

impl<T> CObject<T> {
    /// A new structure of zeros, which `fill` completes.
    ///
    /// # Safety
    /// `T` may be all zeros.
    pub(crate) unsafe fn new(fill: impl FnOnce(&mut T)) -> Self {
        // SAFETY: the contract of this function.
        let mut filled: T = unsafe { mem::zeroed() };
        fill(&mut filled);
        let slot = Self::class().take().cast::<T>();
        // SAFETY: the slot is as large and as aligned as its class, and no one else has it.
        unsafe { slot.write(filled) };
        Self(slot)
    }

    const fn class() -> Class {
        const { Class::of(Layout::new::<T>()) }
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for CObject<T> {
    fn drop(&mut self) {
        const { assert!(!mem::needs_drop::<T>()) };
        Self::class().give_back(self.0.cast());
    }
}

/// Returns whether a handle is one of this library: of an object that exists or of one that is gone,
/// of this process or of its parent. It takes no lock.
pub(crate) fn is_own<C>(handle: *mut C) -> bool {
    chunk_of(handle).is_some()
}

/// Returns whether a handle is one of this library in a parent of this process.
pub(crate) fn is_inherited<C>(handle: *mut C) -> bool {
    chunk_of(handle).is_some_and(|chunk| !chunk.origin.is_current())
}

fn chunk_of<C>(handle: *mut C) -> Option<&'static Chunk> {
    let mut next = CHUNKS.load(Ordering::Acquire);
    // SAFETY: null, or a chunk that was leaked before it was published.
    while let Some(chunk) = unsafe { next.as_ref() } {
        if chunk.addresses.contains(&handle.addr()) {
            return Some(chunk);
        }
        next = chunk.next;
    }
    None
}

/// Memory that has been taken from the allocator.
struct Chunk {
    addresses: Range<usize>,
    origin: ProcessId,
    /// The chunk that was taken before it.
    next: *mut Chunk,
}

/// The last chunk. A forked child inherits the list.
static CHUNKS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());

impl Chunk {
    /// Memory that is never freed.
    fn take(layout: Layout) -> NonNull<u8> {
        // SAFETY: the layout is not empty.
        let Some(memory) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout);
        };
        let first = memory.addr().get();
        let chunk = Box::leak(Box::new(Self {
            addresses: first..first + layout.size(),
            origin: ProcessId::current(),
            next: CHUNKS.load(Ordering::Relaxed),
        }));
        while let Err(newer) =
            CHUNKS.compare_exchange_weak(chunk.next, chunk, Ordering::Release, Ordering::Relaxed)
        {
            chunk.next = newer;
        }
        memory
    }
}

/// Slots of one size, a power of two.
#[derive(Clone, Copy)]
struct Class(usize);

/// The exponents of the smallest and the largest size.
const SMALLEST: u32 = 5;
const LARGEST: u32 = 10;
/// The slots of the first chunk of a class. Each further one has as many as there are.
const FIRST: usize = 32;

/// How many slots of a class stay unused after the last one that a structure left. Until then a stale
/// handle is invalid, and does not name another object.
const HELD: usize = 4096;

/// The slots of a class that no structure is in.
#[derive(Default)]
struct Free {
    /// Those that none was in yet.
    fresh: Vec<Slot>,
    /// Those that one has left, the first of them in front.
    left: VecDeque<Slot>,
    /// How many slots there are, used or not.
    total: usize,
}

struct Slot(NonNull<u8>);

// SAFETY: memory that the owner of this value may use, in any thread.
unsafe impl Send for Slot {}

/// By class. A forked child has slots of its own, and takes no lock that a thread of the parent may hold.
static FREE: PerProcess<[Mutex<Free>; (LARGEST - SMALLEST + 1) as usize]> = PerProcess::new();

impl Class {
    /// The class of structures of this layout.
    const fn of(structure: Layout) -> Self {
        let exponent = structure.size().next_power_of_two().ilog2();
        assert!(exponent <= LARGEST && structure.align() <= 1 << SMALLEST);
        Self(exponent.saturating_sub(SMALLEST) as usize)
    }

    fn free(self) -> &'static Mutex<Free> {
        &FREE.get_fast()[self.0]
    }

    /// A slot that nothing else uses, aligned to its size.
    fn take(self) -> NonNull<u8> {
        let mut free = lock(self.free());
        if free.left.len() > HELD
            && let Some(Slot(slot)) = free.left.pop_front()
        {
            return slot;
        }
        if free.fresh.is_empty() {
            let size = 1 << (self.0 as u32 + SMALLEST);
            let count = free.total.max(FIRST);
            let layout = Layout::from_size_align(size * count, size)
                .unwrap_or_else(|_| handle_alloc_error(Layout::new::<Free>()));
            let chunk = Chunk::take(layout);
            // SAFETY: the chunk has room for this many slots.
            let slots = (0..count).map(|n| Slot(unsafe { chunk.add(n * size) }));
            free.fresh.extend(slots);
            free.total += count;
        }
        match free.fresh.pop() {
            Some(Slot(slot)) => slot,
            None => unreachable!("a chunk has slots"),
        }
    }

    fn give_back(self, slot: NonNull<u8>) {
        lock(self.free()).left.push_back(Slot(slot));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn object<T>() -> CObject<T> {
        // SAFETY: the tests use arrays of numbers.
        unsafe { CObject::new(|_| ()) }
    }

    #[test]
    fn handles_of_destroyed_objects_stay_those_of_the_library() {
        let object = object::<[u64; 40]>();
        let handle = object.as_ptr();
        assert!(is_own(handle));
        drop(object);
        assert!(is_own(handle));
    }

    #[test]
    fn foreign_addresses_are_not_those_of_the_library() {
        let _own = object::<u64>();
        let mut foreign = Box::new(0_u64);
        assert!(!is_own(ptr::null_mut::<u64>()));
        assert!(!is_own(&raw mut *foreign));
        assert!(!is_own(ptr::without_provenance_mut::<u64>(usize::MAX)));
    }

    /// Objects whose every word is `value`.
    fn filled<const WORDS: usize>(values: Range<u64>) -> Vec<CObject<[u64; WORDS]>> {
        let fill = |value| {
            // SAFETY: numbers.
            unsafe { CObject::new(|words: &mut [u64; WORDS]| words.fill(value)) }
        };
        values.map(fill).collect()
    }

    #[test]
    fn objects_of_every_size_are_apart() {
        let (small, large) = (filled::<1>(0..500), filled::<128>(500..1000));
        let mut seen = BTreeSet::new();
        for object in &small {
            // SAFETY: the object is alive, and nothing else accesses it.
            seen.extend(unsafe { object.as_ptr().read() });
        }
        for object in &large {
            // SAFETY: as above.
            let words = unsafe { object.as_ptr().read() };
            assert!(words.iter().all(|word| *word == words[0]));
            seen.insert(words[0]);
        }
        assert_eq!(seen, (0..1000).collect());
    }

    #[test]
    fn memory_of_destroyed_objects_is_used_again_but_not_at_once() {
        const COUNT: u64 = HELD as u64 + 1000;
        let first: BTreeSet<_> = filled::<20>(0..COUNT)
            .iter()
            .map(|object| object.as_ptr().addr())
            .collect();
        let reused = |again: &[CObject<[u64; 20]>]| {
            let again = again.iter().map(|object| object.as_ptr().addr());
            again.filter(|address| first.contains(address)).count()
        };
        let again = filled::<20>(0..COUNT);
        // No other test has objects of this class.
        assert_eq!(reused(&again), 1000);
    }

    #[test]
    fn objects_are_zero_before_they_are_filled() {
        drop(filled::<64>(7..40));
        for _ in 0..40 {
            // SAFETY: numbers.
            let object: CObject<[u64; 64]> =
                unsafe { CObject::new(|words| assert_eq!(*words, [0; 64])) };
            drop(object);
        }
    }
}
