//! Copies between host memory and a window: GPU memory mapped into this process through PCIe BAR1 or a coherent link.
//!
//! A window is not ordinary memory. Usually it is write-combined: stores gather in buffers of one 64-byte line and
//! leave as PCIe writes, and each load waits for a PCIe read, about a microsecond. The routines here therefore store
//! whole lines in address order, each byte exactly once, and load every line once, with as many loads in flight as
//! registers allow.
//!
//! [`copy_to`] and [`copy_from`] are complete operations. [`Routine`] has the copies without fences, for callers that
//! do several copies and use one fence ([`fence`]).
//!
//! # Accessed memory
//!
//! | | host memory | window |
//! |---|---|---|
//! | [`copy_to`] | reads exactly the range | writes exactly the range, every byte once, ascending |
//! | [`copy_from`] | writes exactly the range | may read the rest of the 64-byte lines that hold the range; only the range if [`Caching::Device`] |
//!
//! A range that lies in one line takes one load, whatever its alignment; a store takes as few naturally aligned powers
//! of two up to 64 as possible (masked routines: one store for each line).
//!
//! # Tearing
//!
//! A range that is one naturally aligned word of 1, 2, 4 or 8 bytes is copied by exactly one instruction of that width,
//! in both directions and for every [`Caching`]: no other observer ever sees a part of it. Flags, sequence numbers and
//! doorbells should be such words. Larger pieces may be seen in parts, except whole lines stored by the `movdir64b`
//! routines and by `ls64`, which arrive in one piece (as does a line loaded by `ls64`).
//!
//! # Order
//!
//! Within one call, the parts of a write-combined range may become visible in any order.
//!
//! Between calls on one thread:
//!
//! | earlier | later | kept in order by |
//! |---|---|---|
//! | [`copy_to`] | [`copy_to`], or any other store | the [store fence](fence::store_fence) that ends [`copy_to`] |
//! | any load, [`copy_from`] too | [`copy_from`] | the fence that begins it: [`load_fence`](fence::load_fence), or [`fresh_load_fence`](fence::fresh_load_fence) where streaming loads could be answered from a buffer |
//! | [`copy_from`] | [`copy_to`] | x86-64: stores are not performed before earlier loads; aarch64: the data has arrived when the call returns if the program looks at it, otherwise [`full_fence`](fence::full_fence) |
//! | [`copy_to`] | [`copy_from`] of the same bytes | the CPU: a thread sees its own stores |
//! | [`copy_to`] | [`copy_from`] of other bytes | only [`full_fence`](fence::full_fence) between them |
//!
//! This holds for every [`Caching`]. On a coherent link (aarch64), the CPU by itself orders neither loads nor stores,
//! so the fences are needed there as well.
//!
//! # Visibility
//!
//! - *A kernel launched afterwards* sees everything that [`copy_to`] calls before the launch stored.
//! - *A kernel already running* sees it at some later time if it reads past its own caches
//!   (`volatile`, or acquire loads of system scope). It sees the stores of two calls in the order of
//!   the calls: data first, then a flag in a call of its own. PCIe keeps posted writes in order.
//! - *This CPU* through another mapping of the same memory: after a [`full_fence`](fence::full_fence)
//!   if the mappings differ in caching.
//! - [`copy_from`] returns data no older than the call. The stores of a running kernel are included once they are
//!   visible at system scope (`__threadfence_system`, or the kernel has ended and was waited for). A reader that first
//!   polls a flag and then reads the data gets the data that belongs to it.
//! - A copy races with all other accesses to the same bytes. It may then mix old and new bytes, but this is not
//!   undefined behaviour: the window is accessed only by volatile accesses and assembly.
//!
//! # Safety
//!
//! No `&[u8]` of a window ever exists here. Words are volatile accesses and vectors are assembly, so each access in the
//! source is one access of the machine: not merged, split, repeated or omitted. This applies to cached windows, too:
//! the GPU writes to them while they are copied.

mod copy;
pub mod fence;
mod isa;
mod routine;
mod scalar;
mod split;
pub(crate) mod trace;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
pub(crate) use routine::FOR_UNCACHED_ONLY;
pub use routine::{ChoiceReason, Routine, RoutineChoice, choice};

/// How a window is mapped, which determines the permitted accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caching {
    /// Write-combined (x86-64) or Normal non-cacheable (aarch64): weakly ordered, with accesses of any size; adjacent
    /// bytes may be read.
    WriteCombined,
    /// Ordinary coherent memory, such as a GPU on a coherent link, or host memory that replaces it.
    Cached,
    /// Device memory (aarch64): only naturally aligned words, and only the requested bytes may be read.
    Device,
}

impl Caching {
    /// Returns its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteCombined => "write-combined",
            Self::Cached => "cached",
            Self::Device => "device",
        }
    }
}

impl core::fmt::Display for Caching {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

/// Copies `len` bytes from host memory into a window, so that they are ordered before any later store of this thread
/// (see the [module page](self)).
///
/// # Safety
/// - `window` is valid for writing `len` bytes, is mapped with `caching` and stays mapped; the window consists of whole
///   64-byte lines; no reference into the range exists.
/// - If [`routine.needs_uncached_mapping()`](Routine::needs_uncached_mapping), a window with [`Caching::WriteCombined`]
///   is really write-combined, and not ordinary memory in its place.
/// - `host` is valid for reading `len` bytes, at any alignment.
/// - The two do not overlap.
#[inline]
pub unsafe fn copy_to(
    routine: &Routine,
    caching: Caching,
    window: *mut u8,
    host: *const u8,
    len: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { copy_to_unfenced(routine, caching, window, host, len) };
    fence::store_fence();
}

/// Like [`copy_to`] without the final fence, for batches that end with one [`store_fence`](fence::store_fence). Until
/// then the bytes may stay in the CPU's write-combining buffers, and later stores may pass them.
///
/// # Safety
/// Same as [`copy_to`].
#[inline]
pub unsafe fn copy_to_unfenced(
    routine: &Routine,
    caching: Caching,
    window: *mut u8,
    host: *const u8,
    len: usize,
) {
    trace::step!(trace::STORE);
    // SAFETY: the caller's promise covers each of these. `routine` may need an uncached window: it is used only if the
    // caller declares the window write-combined.
    unsafe {
        match caching {
            Caching::WriteCombined => routine.store(window, host, len),
            Caching::Device => scalar::store(window, host, len),
            Caching::Cached => Routine::for_cached().store(window, host, len),
        }
    }
}

/// Like [`copy_to`] for few bytes, without a function call: a caller that makes no other calls then has no registers to
/// save and restore, which takes as long as the copy. Copies bytes by general registers, and 16 bytes by a vector
/// register that every x86-64 CPU has, whichever routine is in use.
///
/// # Safety
/// Same as [`copy_to`]; and `len` is less than 16, or it is 16, the window is write-combined, `window` is a multiple of
/// 16, and the routine in use [has such a store](Routine::has_store_of_16).
#[inline(always)]
pub unsafe fn copy_few_to(window: *mut u8, host: *const u8, len: usize) {
    trace::step!(trace::STORE);
    // SAFETY: the caller's promise, and the condition of each branch.
    unsafe {
        // A word is stored by one store of its width, so that no observer sees a part of it.
        if scalar::is_word(window.addr(), len) {
            scalar::store_one(window, host, len);
        } else if cfg!(target_arch = "x86_64") && len == 16 {
            #[cfg(target_arch = "x86_64")]
            x86::store_16(window, host);
        } else {
            scalar::store_few(window, host, len);
        }
    }
    fence::store_fence();
}

/// Copies `len` bytes from a window into host memory. Loads the bytes as they are during the call, after every earlier
/// load of this thread (see the [module page](self)).
///
/// # Safety
/// - The 64-byte lines that contain the `len` bytes at `window` are mapped with `caching` and stay mapped; no `&mut`
///   into them exists.
/// - `routine` as for [`copy_to`].
/// - `host` is valid for writing `len` bytes, at any alignment.
/// - The two do not overlap.
#[inline]
pub unsafe fn copy_from(
    routine: &Routine,
    caching: Caching,
    host: *mut u8,
    window: *const u8,
    len: usize,
) {
    // The stronger fence costs more, so it is used only for loads that a buffer may serve.
    if caching == Caching::WriteCombined && routine.may_load_stale(window, len) {
        fence::fresh_load_fence();
    } else {
        fence::load_fence();
    }
    // SAFETY: the caller's promise.
    unsafe { copy_from_unfenced(routine, caching, host, window, len) };
}

/// Like [`copy_from`] without the initial fence, so that several such reads overlap, in any order. May return bytes as
/// they were at the last [`fresh_load_fence`](fence::fresh_load_fence) of this thread, but not older ones.
///
/// # Safety
/// Same as [`copy_from`].
#[inline]
pub unsafe fn copy_from_unfenced(
    routine: &Routine,
    caching: Caching,
    host: *mut u8,
    window: *const u8,
    len: usize,
) {
    trace::step!(trace::LOAD);
    // SAFETY: the caller's promise covers each of these; see `copy_to_unfenced`.
    unsafe {
        match caching {
            Caching::WriteCombined => routine.load(host, window, len),
            Caching::Device => scalar::load_exact(host, window, len),
            Caching::Cached => Routine::for_cached().load(host, window, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 512]);

    /// Returns the steps of a complete copy of `len` bytes at the start of a line, in each direction.
    fn steps(routine: &Routine, caching: Caching, len: usize) -> [Vec<&'static str>; 2] {
        let (mut window, mut host) = (Lines([0; 512]), [1; 512]);
        let place = window.0.as_mut_ptr();
        // SAFETY: both arrays hold `len` bytes; the window is whole lines of ordinary memory.
        unsafe {
            [
                trace::steps_of(|| copy_to(routine, caching, place, host.as_ptr(), len)),
                trace::steps_of(|| copy_from(routine, caching, host.as_mut_ptr(), place, len)),
            ]
        }
    }

    #[test]
    fn a_store_ends_with_its_fence_and_a_load_begins_with_its_own_for_every_kind_of_mapping() {
        use trace::{LOAD, STORE, barrier};
        for &routine in Routine::supported() {
            for caching in [Caching::WriteCombined, Caching::Cached, Caching::Device] {
                if routine.needs_uncached_mapping() && caching == Caching::WriteCombined {
                    continue;
                }
                for len in [1, 3, 8, 9, 16, 64, 65, 500] {
                    let [store, load] = steps(routine, caching, len);
                    let what = format!("{len} B by {} ({caching})", routine.name());
                    assert_eq!(store, [STORE, barrier::STORE], "{what}");
                    // Words are loaded by plain loads, and so is all memory that is not write-combined.
                    let streams =
                        routine.has_streaming_loads() && caching == Caching::WriteCombined;
                    let fence = match streams && len > 8 {
                        true => barrier::FRESH_LOAD,
                        false => barrier::LOAD,
                    };
                    assert_eq!(load, [fence, LOAD], "{what}");
                }
            }
        }
    }

    #[test]
    fn few_bytes_are_stored_exactly_and_with_a_fence_at_every_alignment() {
        let data: [u8; 32] = std::array::from_fn(|at| at as u8 ^ 0x5A);
        for offset in 0..32 {
            for len in 0..=16 {
                if len == 16 && offset % 16 != 0 {
                    continue;
                }
                let mut window = Lines([0xEE; 512]);
                let place = window.0.as_mut_ptr().wrapping_add(64 + offset);
                // SAFETY: both arrays hold the range, and 16 bytes are at a multiple of 16.
                let copy = || unsafe { copy_few_to(place, data.as_ptr().add(3), len) };
                let steps = trace::steps_of(copy);
                assert_eq!(steps, [trace::STORE, trace::barrier::STORE]);
                assert_eq!(window.0[64 + offset..64 + offset + len], data[3..3 + len]);
                assert!(window.0[..64 + offset].iter().all(|&b| b == 0xEE));
                assert!(window.0[64 + offset + len..].iter().all(|&b| b == 0xEE));
            }
        }
        let by_words = Routine::by_name("portable").unwrap();
        assert!(!by_words.has_store_of_16(), "it stores words only");
    }

    #[test]
    fn every_fence_is_the_instruction_that_its_page_names() {
        use fence::{fresh_load_fence, full_fence, load_fence, store_fence};
        use trace::barrier::{FRESH_LOAD, FULL, LOAD, STORE};
        let fences: [(fn(), _); 4] = [
            (store_fence, STORE),
            (load_fence, LOAD),
            (fresh_load_fence, FRESH_LOAD),
            (full_fence, FULL),
        ];
        for (fence, instruction) in fences {
            assert_eq!(trace::steps_of(fence), [instruction]);
        }
    }

    #[test]
    fn cached_memory_is_never_copied_by_a_routine_that_faults_on_it() {
        assert!(!Routine::for_cached().needs_uncached_mapping());
        assert!(!Routine::for_cached().has_streaming_loads());
        assert!(Routine::supported().contains(&Routine::for_cached()));
    }

    #[test]
    fn a_complete_copy_there_and_back_is_exact_for_every_kind_of_mapping() {
        let data: [u8; 200] = std::array::from_fn(|at| at as u8 ^ 0x5A);
        for &routine in Routine::supported() {
            for caching in [Caching::WriteCombined, Caching::Cached, Caching::Device] {
                if routine.needs_uncached_mapping() && caching == Caching::WriteCombined {
                    continue;
                }
                for offset in 0..16 {
                    for len in 0..data.len() - 4 {
                        let mut window = Lines([0xEE; 512]);
                        let place = window.0.as_mut_ptr().wrapping_add(64 + offset);
                        let mut back = [0xEE; 200];
                        // SAFETY: the ranges are inside the arrays; the window is whole lines of ordinary memory, on
                        // which every kind of access is allowed.
                        unsafe {
                            copy_to(routine, caching, place, data.as_ptr().add(3), len);
                            copy_from(routine, caching, back.as_mut_ptr().add(1), place, len);
                        }
                        assert_eq!(back[1..=len], data[3..3 + len]);
                        assert!(back[0] == 0xEE && back[len + 1..].iter().all(|&b| b == 0xEE));
                        assert!(window.0[..64 + offset].iter().all(|&b| b == 0xEE));
                        assert!(window.0[64 + offset + len..].iter().all(|&b| b == 0xEE));
                    }
                }
            }
        }
    }
}
