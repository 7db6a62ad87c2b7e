//! Comparison of bytes with a pattern, word by word.

use std::time::Duration;

use gdr_cuda::{Stream, pattern_word};

use super::registration::GpuRange;
use super::report::{Difference, Outcome};
use crate::error::Result;

/// Bytes copied out of GPU memory at a time.
pub(crate) const CHUNK: usize = 1 << 20;

/// An incremental comparison. Bytes are added in order, in whole words.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// The seed of the expected pattern.
    expected: u32,
    /// The seed of the pattern that the memory held before.
    before: Option<u32>,
    index: u64,
    still: u64,
    mismatches: u64,
    first: Option<(u64, u32, u32)>,
}

impl Comparison {
    pub(crate) fn new(expected: u32, before: Option<u32>) -> Self {
        Self {
            expected,
            before,
            index: 0,
            still: 0,
            mismatches: 0,
            first: None,
        }
    }

    /// Compares the next bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for word in bytes.as_chunks::<4>().0 {
            let (index, found) = (self.index, u32::from_le_bytes(*word));
            self.index += 1;
            let expected = pattern_word(self.expected, index);
            if found == expected {
                continue;
            }
            self.mismatches += 1;
            self.first.get_or_insert((index, expected, found));
            if self.before.is_some_and(|b| pattern_word(b, index) == found) {
                self.still += 1;
            }
        }
    }

    /// Returns the result.
    pub(crate) fn outcome(self) -> Outcome {
        match self.first {
            None => Outcome::Equal,
            Some((first, expected, found)) => Outcome::Differs(Difference {
                words: self.index,
                mismatches: self.mismatches,
                still_before: self.still,
                first_offset: 4 * first,
                expected,
                found,
            }),
        }
    }
}

/// Compares whole words of GPU memory with the pattern of `seed` by a kernel. `before` is the seed of the pattern that
/// the memory held before.
pub(crate) fn by_kernel(
    stream: &Stream,
    range: GpuRange<'_>,
    seed: u32,
    before: Option<u32>,
    limit: Duration,
) -> Result<Outcome> {
    let words = range.len / 4;
    let look = |seed| stream.verify_pattern(range.buffer, range.offset, words, seed, limit);
    let found = look(seed)?;
    if found.mismatches == 0 {
        return Ok(Outcome::Equal);
    }
    let still_before = match before {
        Some(before) => words.saturating_sub(look(before)?.mismatches),
        None => 0,
    };
    Ok(Outcome::Differs(Difference {
        words,
        mismatches: found.mismatches,
        still_before,
        first_offset: found.first.saturating_mul(4),
        expected: found.expected,
        found: found.found,
    }))
}

/// Fills `bytes` with the pattern of `seed`, from word `index` on.
pub(crate) fn fill(bytes: &mut [u8], seed: u32, index: u64) {
    for (i, word) in (index..).zip(bytes.as_chunks_mut::<4>().0) {
        *word = pattern_word(seed, i).to_le_bytes();
    }
}

/// Returns the offsets and lengths of the pieces of `size` bytes.
pub(crate) fn pieces(size: u64, piece: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..size.div_ceil(piece)).map(move |i| (i * piece, piece.min(size - i * piece)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(bytes: &[u8], expected: u32, before: u32) -> Outcome {
        let mut comparison = Comparison::new(expected, Some(before));
        for part in bytes.chunks(12) {
            comparison.add(part);
        }
        comparison.outcome()
    }

    #[test]
    fn what_was_sent_is_distinguished_from_what_was_there_before() {
        let mut bytes = [0; 64];
        fill(&mut bytes, 7, 0);
        assert_eq!(compare(&bytes, 7, 8), Outcome::Equal);
        let mut nothing = [0; 64];
        fill(&mut nothing, 8, 0);
        let Outcome::Differs(difference) = compare(&nothing, 7, 8) else {
            panic!("they are equal");
        };
        assert_eq!((difference.mismatches, difference.still_before), (16, 16));

        fill(&mut bytes[20..24], 8, 5);
        bytes[40] ^= 1;
        let Outcome::Differs(difference) = compare(&bytes, 7, 8) else {
            panic!("they are equal");
        };
        assert_eq!(difference.first_offset, 20);
        assert_eq!(difference.expected, pattern_word(7, 5));
        assert_eq!(difference.found, pattern_word(8, 5));
        assert_eq!((difference.mismatches, difference.still_before), (2, 1));
    }

    #[test]
    fn pieces_cover_everything_once() {
        let all: Vec<_> = pieces(10, 4).collect();
        assert_eq!(all, [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(pieces(4, 4).count(), 1);
    }
}
