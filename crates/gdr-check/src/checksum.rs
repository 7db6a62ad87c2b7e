//! Checksums of buffers, used to detect changes.

/// The number of words added at a time: enough that no addition waits for the previous one.
const LANES: usize = 16;

/// A checksum. It detects accidental changes, not deliberate ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    lanes: [u64; LANES],
}

impl Checksum {
    /// The block size in bytes.
    pub const BLOCK: usize = 8 * LANES;

    /// Returns the checksum of no bytes.
    pub const fn new() -> Self {
        // Fractional digits of pi: a number without structure.
        let (mut lanes, mut lane) = ([0x243f_6a88_85a3_08d3; LANES], 1);
        while lane < LANES {
            lanes[lane] = mixed(lanes[lane - 1], 0x1319_8a2e_0370_7344);
            lane += 1;
        }
        Self { lanes }
    }

    /// Adds bytes.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks::<{ Self::BLOCK }>();
        self.with_blocks(blocks.iter().copied(), rest)
    }

    /// Adds whole blocks, and the remaining bytes, which must be fewer than a block.
    ///
    /// Always inlined, so that it is compiled for the vector extensions that the caller may use.
    #[inline(always)]
    #[must_use]
    pub fn with_blocks(
        mut self,
        blocks: impl ExactSizeIterator<Item = [u8; Self::BLOCK]>,
        rest: &[u8],
    ) -> Self {
        let len = blocks.len() * Self::BLOCK + rest.len();
        for block in blocks {
            self.add(&block);
        }
        if !rest.is_empty() {
            let mut last = [0; Self::BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            self.add(&last);
        }
        // The length makes trailing zeros count.
        self.lanes[0] = self.lanes[0].wrapping_add(len as u64);
        self
    }

    #[inline(always)]
    fn add(&mut self, block: &[u8; Self::BLOCK]) {
        let (words, _) = block.as_chunks::<8>();
        // Indexed, so that compilers see as many words as lanes, and use vectors.
        #[expect(clippy::needless_range_loop, reason = "an iterator hides the number")]
        for at in 0..LANES {
            self.lanes[at] = mixed(self.lanes[at], u64::from_le_bytes(words[at]));
        }
    }
}

/// Returns a lane after adding a word. For a given lane, different words give different results.
#[inline(always)]
const fn mixed(lane: u64, word: u64) -> u64 {
    let mixed = lane ^ word;
    // Multiplies by 2^25 + 1, which is odd and so loses no bit; the rotation brings high bits down. Written with shifts
    // and additions, because compilers vectorize this, and SSE2 takes eight instructions to multiply 64-bit words.
    mixed.wrapping_add(mixed << 25).rotate_left(29)
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_byte_that_changes_changes_the_sum(
            mut bytes in proptest::collection::vec(any::<u8>(), 1..200),
            at in any::<proptest::sample::Index>(),
            change in 1_u8..,
        ) {
            let before = Checksum::new().with(&bytes);
            prop_assert_eq!(Checksum::new().with(&bytes), before);
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            prop_assert_ne!(Checksum::new().with(&bytes), before);
        }
    }

    #[test]
    fn long_buffers_of_one_byte_each_have_sums_of_their_own() {
        let sums = (0..=u8::MAX).map(|byte| Checksum::new().with(&[byte; 1 << 16]).lanes);
        assert_eq!(sums.collect::<std::collections::BTreeSet<_>>().len(), 256);
    }

    #[test]
    fn zeros_count() {
        assert_ne!(Checksum::new().with(&[0; 3]), Checksum::new().with(&[0; 4]));
    }
}
