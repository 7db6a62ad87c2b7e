//! The checksum of a publication.
//!
//! It is the sum, modulo 2^64, of a mixed value for each word of 8 bytes, which depends on the word and
//! on its index, and of the length. So the parts of a publication can be summed in any order, and a
//! change, a move or a loss of bytes changes the sum. It detects errors, not forgery.

use gdr_rdma::Buffer;

use crate::error::Result;

/// Bytes that are read at a time, a multiple of 8.
const PIECE: usize = 256 << 10;
/// 2^64 divided by the golden ratio, odd: the step of SplitMix64 (Steele, Lea and Flood, 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The checksum of `len` bytes at `offset`.
pub(crate) fn of(buffer: &Buffer, offset: u64, len: u64) -> Result<u64> {
    let mut bytes = vec![0; PIECE.min(usize::try_from(len).unwrap_or(PIECE))];
    let (mut sum, mut at) = (mix(len), 0);
    while at < len {
        let left = usize::try_from(len - at).unwrap_or(PIECE);
        let piece = &mut bytes[..left.min(PIECE)];
        buffer.read_at(offset + at, piece)?;
        sum = sum.wrapping_add(of_words(at / 8, piece));
        at += piece.len() as u64;
    }
    Ok(sum)
}

/// The sum of the words of `bytes`, the first of which has the index `first`. The last one is filled up
/// with zeros.
fn of_words(first: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    (first..).zip(words).fold(0, |sum: u64, (index, word)| {
        let place = index.wrapping_add(1).wrapping_mul(STEP);
        sum.wrapping_add(mix(word ^ mix(place)))
    })
}

/// The finalizer of SplitMix64, a bijection.
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        let buffer = Buffer::host(bytes.len() + 3).unwrap();
        buffer.write_at(3, bytes).unwrap();
        of(&buffer, 3, bytes.len() as u64).unwrap()
    }

    #[test]
    fn the_sum_does_not_change_between_versions() {
        assert_eq!(sum(b"gdr-object"), 0x83f9_f56d_e243_0355);
    }

    #[test]
    fn long_content_is_summed_piece_by_piece() {
        let mut bytes: Vec<u8> = (0..2 * PIECE + 5).map(|at| at as u8).collect();
        let whole = sum(&bytes);
        let parts = of_words(0, &bytes[..PIECE])
            .wrapping_add(of_words(PIECE as u64 / 8, &bytes[PIECE..]))
            .wrapping_add(mix(bytes.len() as u64));
        assert_eq!(whole, parts);
        bytes.swap(0, PIECE + 1);
        assert_ne!(sum(&bytes), whole);
    }

    proptest! {
        #[test]
        fn a_change_a_move_or_a_loss_changes_the_sum(
            mut bytes in prop::collection::vec(any::<u8>(), 16..100),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let whole = sum(&bytes);
            prop_assert_ne!(sum(&bytes[..bytes.len() - 1]), whole);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_ne!(sum(&bytes), whole);
            bytes[at] ^= 1 << bit;
            if bytes[..8] != bytes[8..16] {
                bytes[..16].rotate_left(8);
                prop_assert_ne!(sum(&bytes), whole);
            }
        }
    }
}
