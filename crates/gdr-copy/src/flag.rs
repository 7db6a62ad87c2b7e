//! Flags: words by which the CPU and the GPU signal each other.

use std::fmt::Debug;
use std::marker::PhantomData;

use crate::cpu::{fence, trace};
use crate::error::{Error, Result};
use gdr_process::ProcessId;

mod sealed {
    pub trait Sealed {}
}

/// An unsigned integer of 1, 2, 4 or 8 bytes, which a single bus transaction carries.
pub trait FlagWord: sealed::Sealed + Copy + Debug + PartialEq + Send + Sync + 'static {}

macro_rules! flag_word {
    ($($word:ty),*) => {$(
        impl sealed::Sealed for $word {}
        impl FlagWord for $word {}
    )*};
}
flag_word!(u8, u16, u32, u64);

/// A naturally aligned word in GPU memory that is stored and loaded by single instructions.
///
/// Values are never torn. Each method documents its ordering.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'mapping, T> {
    at: *mut T,
    origin: ProcessId,
    mapping: PhantomData<&'mapping ()>,
}

// SAFETY: the address is in a mapping that outlives the flag (by the lifetime), and any thread may make device
// accesses.
unsafe impl<T: FlagWord> Send for Flag<'_, T> {}
// SAFETY: as above; a flag has no interior state.
unsafe impl<T: FlagWord> Sync for Flag<'_, T> {}

impl<T: FlagWord> Flag<'_, T> {
    pub(crate) fn new(at: *mut u8, offset: u64, origin: ProcessId) -> Result<Self> {
        let at = at.cast::<T>();
        if !at.is_aligned() {
            return Err(Error::Unaligned {
                offset,
                address: at.addr(),
                size: size_of::<T>(),
            });
        }
        Ok(Self {
            at,
            origin,
            mapping: PhantomData,
        })
    }

    fn check(&self) {
        assert!(self.origin.is_current_fast(), "{}", Error::ForkedChild);
    }

    /// Stores `value` with a single instruction, after all earlier stores of this thread to the mapping, and flushes it
    /// from the write-combining buffer. Use it to write data, then a flag.
    ///
    /// # Panics
    /// In a forked child, which has no mapping.
    #[inline]
    pub fn store(&self, value: T) {
        self.check();
        // Write-combined stores leave the CPU in any order; the flag must not overtake the data.
        fence::store_fence();
        trace::step!(trace::STORE);
        // SAFETY: aligned, inside a live mapping, and not Rust memory.
        unsafe { self.at.write_volatile(value) };
        fence::store_fence();
    }

    /// Reads the word with a single load, which takes a PCIe round trip. Does not order other accesses; see
    /// [`Flag::load_acquire`].
    ///
    /// # Panics
    /// In a forked child, which has no mapping.
    #[inline]
    pub fn load(&self) -> T {
        self.check();
        trace::step!(trace::LOAD);
        // SAFETY: aligned, inside a live mapping, and not Rust memory.
        unsafe { self.at.read_volatile() }
    }

    /// Reads the word. Later reads of the mapping by this thread never return older data. Use it to read a flag, then
    /// data.
    ///
    /// # Panics
    /// In a forked child, which has no mapping.
    #[inline]
    pub fn load_acquire(&self) -> T {
        let value = self.load();
        // After the load, so that later reads are not served from a buffer that was filled before it.
        fence::fresh_load_fence();
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trace::{LOAD, STORE, barrier, steps_of};

    #[test]
    fn a_flag_is_stored_between_two_fences_and_acquired_before_one() {
        let mut word = 0u32;
        let at = std::ptr::from_mut(&mut word).cast();
        let flag = Flag::<u32>::new(at, 0, ProcessId::current()).unwrap();
        let steps = steps_of(|| flag.store(7));
        assert_eq!(steps, [barrier::STORE, STORE, barrier::STORE]);
        let steps = steps_of(|| assert_eq!(flag.load_acquire(), 7));
        assert_eq!(steps, [LOAD, barrier::FRESH_LOAD]);
        assert_eq!(steps_of(|| assert_eq!(flag.load(), 7)), [LOAD]);
    }

    #[test]
    fn a_flag_is_refused_where_its_word_is_not_aligned() {
        let mut words = [0u64; 2];
        let at = words.as_mut_ptr().cast::<u8>();
        for (offset, fits) in [
            (0, true),
            (4, true),
            (8, true),
            (1, false),
            (2, false),
            (6, false),
        ] {
            let flag =
                Flag::<u32>::new(at.wrapping_add(offset), offset as u64, ProcessId::current());
            assert_eq!(flag.is_ok(), fits, "{offset}");
        }
    }
}
