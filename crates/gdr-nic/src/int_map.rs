//! Maps with integer keys that no remote party chooses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by queue pair number or region key, looked up for every packet.
///
/// This process assigns both, region keys at random, so no remote party can make many of them
/// collide, and a hash that resists collisions is not needed.
pub(crate) type IntMap<T> = HashMap<u32, T, BuildHasherDefault<IntHasher>>;

/// Spreads a number over all bits by one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IntHasher(u64);

impl Hasher for IntHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u32(&mut self, number: u32) {
        /// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let spread = (self.0 ^ u64::from(number)).wrapping_mul(GOLDEN);
        // The map selects the bucket by the low bits, which depend only on the number's low bits.
        self.0 = spread.rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }
}
