//! The division of a read into pieces for the copy engine.

use std::ops::Range;

/// The length of a ring in bytes.
pub(super) const RING: usize = 4 << 20;
/// The maximum number of a read's pieces that are queued but not yet copied.
pub(super) const AHEAD: usize = 8;
/// The length of the shortest and the longest piece; each piece costs some microseconds.
const SHORTEST: u64 = 64 << 10;
const LONGEST: u64 = (RING / AHEAD) as u64;
/// Pieces begin at GPU addresses that are multiples of this.
const ALIGNMENT: u64 = 4 << 10;

/// The pieces of a read, numbered in order, and their positions in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    /// The number of bytes of the first piece that precede the read.
    skip: u64,
    len: u64,
    /// A power of two.
    chunk: u64,
}

impl Pieces {
    /// Divides a read of `len` bytes at a GPU address.
    pub(super) fn of(address: u64, len: u64) -> Self {
        // As many pieces as can be queued, so that a short read has several in flight.
        let chunk = len / AHEAD as u64;
        Self {
            skip: address % ALIGNMENT,
            len,
            // A power of two divides the ring, so no piece crosses its end.
            chunk: chunk.clamp(SHORTEST, LONGEST).next_power_of_two(),
        }
    }

    /// Returns the number of pieces.
    pub(super) fn count(&self) -> usize {
        (self.skip + self.len).div_ceil(self.chunk) as usize
    }

    /// Returns the number of the piece that contains the byte at `at`.
    pub(super) fn with(&self, at: u64) -> usize {
        ((self.skip + at) / self.chunk) as usize
    }

    /// Returns the bytes of piece `number`, counted from the start of the read.
    pub(super) fn range(&self, number: usize) -> Range<u64> {
        let start = number as u64 * self.chunk;
        let end = start + self.chunk - self.skip;
        start.saturating_sub(self.skip)..end.min(self.len)
    }

    /// Returns the position of the byte at `at` in the ring.
    pub(super) fn place(&self, at: u64) -> usize {
        (self.skip + at) as usize % RING
    }

    /// Returns how many leading bytes the reader must have before piece `number` may overwrite its position in the
    /// ring.
    pub(super) fn free_after(&self, number: usize) -> u64 {
        let end = (number as u64 + 1) * self.chunk;
        end.saturating_sub(RING as u64 + self.skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_read_without_a_gap_and_none_leaves_its_place_in_the_ring() {
        for address in [0, 1, 4095, 4096, 70_001] {
            for len in [1, 5000, 65_536, 65_537, 700_003, 4 << 20, (33 << 20) + 5] {
                let pieces = Pieces::of(address, len);
                let mut next = 0;
                for number in 0..pieces.count() {
                    let piece = pieces.range(number);
                    assert_eq!(piece.start, next);
                    assert!(piece.end > piece.start && piece.end - piece.start <= LONGEST);
                    assert_eq!(pieces.with(piece.start), number);
                    assert_eq!(pieces.with(piece.end - 1), number);
                    assert!(number == 0 || (address + piece.start).is_multiple_of(ALIGNMENT));
                    let last = pieces.place(piece.end - 1);
                    let bytes = (piece.end - 1 - piece.start) as usize;
                    assert_eq!(last, pieces.place(piece.start) + bytes, "it does not wrap");
                    next = piece.end;
                }
                assert_eq!(next, len);
            }
        }
    }

    #[test]
    fn a_place_of_the_ring_is_free_when_the_reader_has_what_was_there() {
        let pieces = Pieces::of(100, 64 << 20);
        assert_eq!(pieces.free_after(0), 0);
        assert_eq!(pieces.free_after(AHEAD - 1), 0);
        for number in AHEAD..pieces.count() {
            assert_eq!(pieces.free_after(number), pieces.range(number - AHEAD).end);
        }
    }
}
