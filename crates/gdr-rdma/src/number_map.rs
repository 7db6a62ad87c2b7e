//! Maps by numbers that no stranger chooses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by queue pair number or region key, looked up for every packet.
///
/// Both kinds of number are given out by this process, keys at random, so nobody can make many of
/// them collide, and the costly hash that guards against that is not needed.
pub(crate) type NumberMap<T> = HashMap<u32, T, BuildHasherDefault<NumberHasher>>;

/// Spreads a number over all bits by one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u32(&mut self, number: u32) {
        /// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let spread = (self.0 ^ u64::from(number)).wrapping_mul(GOLDEN);
        // The map picks its place by the low bits, which depend on the number's low bits only.
        self.0 = spread.rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }
}
