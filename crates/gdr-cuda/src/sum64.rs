//! A checksum that kernels and CPUs compute in the same way.

/// 2^64 divided by the golden ratio, odd: the step of SplitMix64 (Steele, Lea and Flood, 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The checksum of some content, to which its parts can be added in any order.
///
/// It is the sum, modulo 2^64, of a mixed value of the length and a mixed value for each little-endian word of 8 bytes,
/// which depends on the word and on its index. The last word is padded with zeros. Changing, moving or losing bytes
/// therefore changes the sum. It detects errors, not forgery.
///
/// ```
/// use gdr_cuda::Sum64;
///
/// let mut sum = Sum64::new(12);
/// sum.add(8, b"rder");
/// sum.add(0, b"in any o");
/// assert_eq!(sum, Sum64::of(b"in any order"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sum64(u64);

impl Sum64 {
    /// Starts the checksum of content of `len` bytes, before any bytes are added.
    pub const fn new(len: u64) -> Self {
        Self(mix(len))
    }

    /// Returns the checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::new(bytes.len() as u64);
        sum.add(0, bytes);
        sum
    }

    /// Adds the bytes at `offset`, a multiple of 8. Only the last bytes of the content may have a length that is not a
    /// multiple of 8.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        debug_assert!(offset.is_multiple_of(8), "words begin at multiples of 8");
        let (words, rest) = bytes.as_chunks();
        let first = offset / 8;
        self.0 = self.0.wrapping_add(sum_of(first, words));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            let index = first.wrapping_add(words.len() as u64);
            self.0 = self.0.wrapping_add(sum_of_words(index, &[last]));
        }
    }

    /// Returns the value of the checksum.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Returns the sum of the words, starting with the content's word number `first`.
fn sum_of(first: u64, words: &[[u8; 8]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
        // SAFETY: the CPU has these instructions.
        return unsafe { sum_of_words_by_avx512(first, words) };
    }
    sum_of_words(first, words)
}

/// Like [`sum_of_words`], but the compiler vectorizes it: AVX-512DQ multiplies 64-bit words.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn sum_of_words_by_avx512(first: u64, words: &[[u8; 8]]) -> u64 {
    sum_of_words(first, words)
}

#[inline(always)]
fn sum_of_words(first: u64, words: &[[u8; 8]]) -> u64 {
    let mut sum = 0_u64;
    for (index, word) in words.iter().enumerate() {
        let place = first
            .wrapping_add(index as u64)
            .wrapping_add(1)
            .wrapping_mul(STEP);
        sum = sum.wrapping_add(mix(u64::from_le_bytes(*word) ^ mix(place)));
    }
    sum
}

/// Returns the finalizer of SplitMix64, a bijection.
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        Sum64::of(bytes).get()
    }

    #[test]
    fn the_sum_does_not_change_between_versions() {
        assert_eq!(sum(b"gdr-object"), 0x83f9_f56d_e243_0355);
    }

    #[test]
    fn parts_are_added_in_any_order() {
        let bytes: Vec<u8> = (0..5003_u32).map(|at| (at * at) as u8).collect();
        let mut parts = Sum64::new(bytes.len() as u64);
        for start in [4000, 0, 2000] {
            let end = (start + 2000).min(bytes.len());
            parts.add(start as u64, &bytes[start..end]);
        }
        assert_eq!(parts, Sum64::of(&bytes));
    }

    #[test]
    fn many_words_at_once_are_the_sum_of_each() {
        let words: Vec<[u8; 8]> = (0..1003_u64).map(|at| mix(at).to_le_bytes()).collect();
        let each = (5..)
            .zip(&words)
            .map(|(at, word)| sum_of_words(at, &[*word]));
        assert_eq!(sum_of(5, &words), each.fold(0, u64::wrapping_add));
    }

    #[test]
    fn a_change_a_move_or_a_loss_changes_the_sum() {
        let bytes: Vec<u8> = (0..77).map(|at| at * 3).collect();
        let whole = sum(&bytes);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert_ne!(sum(&changed), whole, "bit {bit} of byte {at}");
            }
            assert_ne!(sum(&bytes[..at]), whole, "{at} bytes");
        }
        for at in (8..72).step_by(8) {
            let mut moved = bytes.clone();
            for byte in 0..8 {
                moved.swap(byte, at + byte);
            }
            assert_ne!(sum(&moved), whole, "words 0 and {}", at / 8);
        }
        // Trailing zeros change the checksum, too.
        assert_ne!(sum(&[0; 8]), sum(&[0; 7]));
    }
}
