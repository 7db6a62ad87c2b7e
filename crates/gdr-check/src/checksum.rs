//! A checksum of buffers, by which a change is seen.

/// The sum of some bytes. It is for finding changes, not for guarding against ones that are made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    lanes: [u64; 8],
}

impl Checksum {
    /// The sum of no bytes.
    pub const fn new() -> Self {
        Self {
            // The fractional digits of pi, which have no pattern.
            lanes: [
                0x243f_6a88_85a3_08d3,
                0x1319_8a2e_0370_7344,
                0xa409_3822_299f_31d0,
                0x082e_fa98_ec4e_6c89,
                0x4528_21e6_38d0_1377,
                0xbe54_66cf_34e9_0c6c,
                0xc0ac_29b7_c97c_50dd,
                0x3f84_d5b5_b547_0917,
            ],
        }
    }

    /// Adds bytes.
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks::<64>();
        for block in blocks {
            self.add(block);
        }
        if !rest.is_empty() {
            let mut last = [0; 64];
            last[..rest.len()].copy_from_slice(rest);
            self.add(&last);
        }
        // Bytes that are 0 count, too.
        self.lanes[0] = self.lanes[0].wrapping_add(bytes.len() as u64);
        self
    }

    fn add(&mut self, block: &[u8; 64]) {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in self.lanes.iter_mut().zip(words) {
            let mixed = *lane ^ u64::from_le_bytes(*word);
            // Times 2^25 + 1, which is odd and loses no bit; the rotation brings high bits down again. Shifts and additions, as
            // compilers make vectors of this loop, and SSE2 multiplies words of 64 bits in eight instructions.
            *lane = mixed.wrapping_add(mixed << 25).rotate_left(29);
        }
    }
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
