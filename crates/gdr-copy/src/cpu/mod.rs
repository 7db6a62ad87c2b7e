//! Copies between host memory and a window: GPU memory mapped into this process through PCIe BAR1
//! or a coherent link.
//!
//! A window is not ordinary memory. Usually it is write-combined: stores gather in buffers of one
//! 64-byte line and leave as PCIe writes, loads each wait for a PCIe read, about a microsecond. So
//! the routines here store whole lines in address order, each byte exactly once, and load every
//! line once with as many in flight as registers allow.
//!
//! [`copy_to`] and [`copy_from`] are complete operations. [`Routine`] has the bare movements
//! without fences, for callers that do several and fence once ([`fence`]).
//!
//! # What a call touches
//!
//! | | host memory | window |
//! |---|---|---|
//! | [`copy_to`] | reads exactly the range | writes exactly the range, every byte once, ascending |
//! | [`copy_from`] | writes exactly the range | may read the rest of the 64-byte lines that hold the range; only the range if [`Caching::Device`] |
//!
//! A range that lies in one line costs one load, whatever its alignment; a store takes the fewest
//! naturally aligned powers of two up to 64 (masked routines: one for each line).
//!
//! # Tearing
//!
//! A range that is one naturally aligned word of 1, 2, 4 or 8 bytes is moved by exactly one
//! instruction of that width, in both directions and for every [`Caching`]: no other observer ever
//! sees a part of it. This is the way to pass flags, sequence numbers and doorbells. Larger pieces
//! may be seen in parts, except whole lines stored by the `movdir64b` routines and by `ls64`, which
//! arrive in one piece (as does a line loaded by `ls64`).
//!
//! # Order
//!
//! Inside one call: none. The parts of a write-combined range may become visible in any order.
//!
//! Between calls on one thread, for [`Caching::WriteCombined`] and [`Caching::Device`]:
//!
//! | earlier | later | kept in order by |
//! |---|---|---|
//! | [`copy_to`] | [`copy_to`], or any other store | the [store fence](fence::store_fence) that ends [`copy_to`] |
//! | any load, [`copy_from`] too | [`copy_from`] | the fence that begins it: [`load_fence`](fence::load_fence), or [`fresh_load_fence`](fence::fresh_load_fence) where streaming loads could be answered from a buffer |
//! | [`copy_from`] | [`copy_to`] | x86-64: stores are not performed before earlier loads; aarch64: the data has arrived when the call returns if the program looks at it, otherwise [`full_fence`](fence::full_fence) |
//! | [`copy_to`] | [`copy_from`] of the same bytes | the CPU: a thread sees its own stores |
//! | [`copy_to`] | [`copy_from`] of other bytes | only [`full_fence`](fence::full_fence) between them |
//!
//! For [`Caching::Cached`] a call is an ordinary `memcpy` (or one word access) and is ordered as one:
//! publish by atomics or the fences of [`fence`].
//!
//! # What others see
//!
//! - *A kernel launched afterwards* sees everything that [`copy_to`] calls before the launch stored.
//! - *A kernel already running* sees it at some later time if it reads past its own caches
//!   (`volatile`, or acquire loads of system scope). It sees the stores of two calls in the order of
//!   the calls: data first, then a flag in a call of its own. PCIe keeps posted writes in order.
//! - *This CPU* through another mapping of the same memory: after a [`full_fence`](fence::full_fence)
//!   if the mappings differ in caching.
//! - [`copy_from`] returns data no older than the call. What a running kernel wrote is there once it
//!   is visible at system scope (`__threadfence_system`, or the kernel has ended and was waited for).
//!   A reader that first polls a flag and then reads the data gets the data that belongs to it.
//! - A copy races with everything else that touches the same bytes; it may then mix old and new, but
//!   is not undefined behaviour: the window is reached by volatile accesses and assembly only.
//!
//! # Safety, and how it is kept
//!
//! No `&[u8]` of a window ever exists here. Words are volatile accesses and vectors are assembly, so
//! each access in the source is one access of the machine: not merged, split, repeated or left out.

mod access;
pub mod fence;
mod plan;
mod routine;
mod scalar;
mod transfer;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use routine::{Choice, Reason, Routine, choice};

/// How a window is mapped, hence what may be done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caching {
    /// Write-combined (x86-64) or Normal non-cacheable (aarch64): weakly ordered, any access size,
    /// bytes round a range may be read.
    WriteCombined,
    /// Ordinary coherent memory, such as a GPU behind a coherent link or host memory in its place.
    Cached,
    /// Device memory (aarch64): naturally aligned words only, and nothing may be read that was not
    /// asked for.
    Device,
}

impl Caching {
    /// Its name in reports.
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

/// Copies `len` bytes from host memory into a window, so that they are ordered before any later
/// store of this thread (see the [module page](self)).
///
/// # Safety
/// - `window` is valid for writing `len` bytes, is mapped as `caching` says and stays mapped; the
///   window consists of whole 64-byte lines; no reference into the range exists.
/// - `host` is valid for reading `len` bytes, any alignment.
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
    if caching != Caching::Cached {
        fence::store_fence();
    }
}

/// As [`copy_to`] without the final fence: for batches that end with one
/// [`store_fence`](fence::store_fence). Until then the bytes may linger in the CPU's
/// write-combining buffers, and later stores may pass them.
///
/// # Safety
/// As [`copy_to`].
#[inline]
pub unsafe fn copy_to_unfenced(
    routine: &Routine,
    caching: Caching,
    window: *mut u8,
    host: *const u8,
    len: usize,
) {
    // SAFETY: the caller's promise covers each of these; a routine that needs an uncached window
    // is used only on one that is write-combined, not on cached or device memory.
    unsafe {
        match caching {
            Caching::WriteCombined => routine.store(window, host, len),
            Caching::Device => scalar::store(window, host, len),
            Caching::Cached => {
                if scalar::is_word(window.addr(), len) {
                    scalar::store_one(window, host, len);
                } else {
                    host.copy_to_nonoverlapping(window, len);
                }
            }
        }
    }
}

/// Copies `len` bytes from a window into host memory: data no older than the call, loaded after
/// every earlier load of this thread (see the [module page](self)).
///
/// # Safety
/// - The 64-byte lines that hold the `len` bytes at `window` are mapped as `caching` says and stay
///   mapped; no `&mut` into them exists.
/// - `host` is valid for writing `len` bytes, any alignment.
/// - The two do not overlap.
#[inline]
pub unsafe fn copy_from(
    routine: &Routine,
    caching: Caching,
    host: *mut u8,
    window: *const u8,
    len: usize,
) {
    if caching == Caching::WriteCombined && routine.may_load_stale(window, len) {
        fence::fresh_load_fence();
    } else if caching != Caching::Cached {
        fence::load_fence();
    }
    // SAFETY: the caller's promise.
    unsafe { copy_from_unfenced(routine, caching, host, window, len) };
}

/// As [`copy_from`] without the fence before it, so that several such reads overlap. The data is
/// no older than the last [`fresh_load_fence`](fence::fresh_load_fence) of this thread, and two
/// such reads are in no order.
///
/// # Safety
/// As [`copy_from`].
#[inline]
pub unsafe fn copy_from_unfenced(
    routine: &Routine,
    caching: Caching,
    host: *mut u8,
    window: *const u8,
    len: usize,
) {
    // SAFETY: the caller's promise covers each of these; see `copy_to`.
    unsafe {
        match caching {
            Caching::WriteCombined => routine.load(host, window, len),
            Caching::Device => scalar::load_exact(host, window, len),
            Caching::Cached => {
                if scalar::is_word(window.addr(), len) {
                    scalar::load_one(host, window, len);
                } else {
                    window.copy_to_nonoverlapping(host, len);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Window([u8; 512]);

    #[test]
    fn a_complete_copy_there_and_back_is_exact_for_every_kind_of_mapping() {
        let data: [u8; 200] = std::array::from_fn(|at| at as u8 ^ 0x5A);
        for &routine in Routine::supported() {
            for caching in [Caching::WriteCombined, Caching::Cached, Caching::Device] {
                if routine.needs_uncached_window() && caching == Caching::WriteCombined {
                    continue;
                }
                for offset in 0..16 {
                    for len in 0..data.len() - 4 {
                        let mut window = Window([0xEE; 512]);
                        let place = window.0.as_mut_ptr().wrapping_add(64 + offset);
                        let mut back = [0xEE; 200];
                        // SAFETY: the ranges are inside the arrays; the window is whole lines of
                        // ordinary memory, on which every kind of access is allowed.
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
