//! Words that the CPU and the GPU signal each other with.

use std::fmt::Debug;
use std::marker::PhantomData;

use crate::cpu::fence;
use crate::error::{Error, Result};
use crate::fork::Origin;

mod sealed {
    pub trait Sealed {}
}

/// An unsigned integer of 1, 2, 4 or 8 bytes: what one bus transaction carries whole.
pub trait FlagWord: sealed::Sealed + Copy + Debug + PartialEq + Send + Sync + 'static {}

macro_rules! flag_word {
    ($($word:ty),*) => {$(
        impl sealed::Sealed for $word {}
        impl FlagWord for $word {}
    )*};
}
flag_word!(u8, u16, u32, u64);

/// A naturally aligned word in GPU memory, stored with one instruction and read with one.
///
/// Neither end ever sees a torn value. See each method for what is ordered.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'mapping, T> {
    at: *mut T,
    origin: Origin,
    mapping: PhantomData<&'mapping ()>,
}

// SAFETY: the address lies in a mapping that outlives the flag (by the lifetime), and device
// accesses may come from any thread.
unsafe impl<T: FlagWord> Send for Flag<'_, T> {}
// SAFETY: as above; a flag has no interior state.
unsafe impl<T: FlagWord> Sync for Flag<'_, T> {}

impl<T: FlagWord> Flag<'_, T> {
    pub(crate) fn new(at: *mut u8, offset: u64, origin: Origin) -> Result<Self> {
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

    /// Stores `value` with one instruction, after everything this thread wrote to the mapping
    /// before, and pushes it out: the usual "data, then flag".
    ///
    /// # Panics
    /// In a forked child, which has no mapping.
    #[inline]
    pub fn store(&self, value: T) {
        self.check();
        // Earlier write-combined stores may leave the CPU in any order; they must not pass.
        fence::store_fence();
        // SAFETY: aligned, inside a live mapping, and not Rust memory.
        unsafe { self.at.write_volatile(value) };
        fence::store_fence();
    }

    /// Reads the word with one load: a PCIe round trip. Nothing is ordered by it; see
    /// [`Flag::load_acquire`].
    ///
    /// # Panics
    /// In a forked child, which has no mapping.
    #[inline]
    pub fn load(&self) -> T {
        self.check();
        // SAFETY: aligned, inside a live mapping, and not Rust memory.
        unsafe { self.at.read_volatile() }
    }

    /// Reads the word, and lets no later read of the mapping by this thread see older data: the
    /// usual "flag, then data".
    ///
    /// # Panics
    /// In a forked child, which has no mapping.
    #[inline]
    pub fn load_acquire(&self) -> T {
        let value = self.load();
        fence::fresh_load_fence();
        value
    }
}
