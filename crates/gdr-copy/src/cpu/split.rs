//! The division of a byte range into 64-byte lines. Pure arithmetic, without memory accesses.

/// The length of a line in bytes: a CPU keeps a line in one write-combining or fill buffer and transfers it in one PCIe
/// transaction.
pub(crate) const LINE: usize = 64;

/// The parts of a range in the window for a store: a part of a line, whole lines, and a part of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreSplit {
    /// The bytes before the first line boundary, less than [`LINE`].
    pub(crate) head: usize,
    /// The number of whole lines after them.
    pub(crate) lines: usize,
    /// The bytes in the last, partly covered line, less than [`LINE`].
    pub(crate) tail: usize,
}

impl StoreSplit {
    /// Splits `len` bytes at address `addr`. A range within one line that does not reach its end is all head; a range
    /// that starts on a boundary has no head.
    #[inline(always)]
    pub(crate) const fn of(addr: usize, len: usize) -> Self {
        let to_boundary = addr.wrapping_neg() % LINE;
        let head = if to_boundary < len { to_boundary } else { len };
        let rest = len - head;
        Self {
            head,
            lines: rest / LINE,
            tail: rest % LINE,
        }
    }
}

/// The lines of a range in the window for a load: every line is read once and whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadSpan {
    /// The bytes in the first line before the range.
    pub(crate) skip: usize,
    /// The number of lines.
    pub(crate) lines: usize,
    /// The bytes wanted from the first line if it is not wanted whole, otherwise 0.
    pub(crate) head: usize,
    /// The bytes wanted from the last line if it is not wanted whole, otherwise 0.
    pub(crate) tail: usize,
}

impl LoadSpan {
    /// Returns the span of `len` bytes at `addr`, which must touch at least two lines.
    #[inline(always)]
    pub(crate) const fn of(addr: usize, len: usize) -> Self {
        let skip = addr % LINE;
        Self {
            skip,
            lines: (skip + len).div_ceil(LINE),
            head: (LINE - skip) % LINE,
            tail: (skip + len) % LINE,
        }
    }
}

/// Returns the smallest naturally aligned block of 16, 32 or 64 bytes that contains `len` bytes at `addr` (`len` is at
/// least 1), or `None` if they lie in more than one line.
#[inline(always)]
pub(crate) const fn enclosing_block(addr: usize, len: usize) -> Option<usize> {
    // The highest bit in which the addresses of the first and the last byte differ shows which aligned powers of two
    // separate them.
    let differing = addr ^ (addr + (len - 1));
    match differing {
        0..16 => Some(16),
        16..32 => Some(32),
        32..64 => Some(64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_split_covers_the_range_and_reaches_a_boundary_after_its_head() {
        for addr in 0..LINE {
            for len in 0..=300 {
                let split = StoreSplit::of(addr, len);
                assert_eq!(split.head + split.lines * LINE + split.tail, len);
                assert!(split.head < LINE && split.tail < LINE);
                let after_head = addr + split.head;
                assert!(after_head.is_multiple_of(LINE) || split.lines + split.tail == 0);
            }
        }
    }

    #[test]
    fn a_load_span_touches_exactly_the_lines_of_the_range() {
        for addr in 0..LINE {
            for len in LINE - addr + 1..=300 {
                let span = LoadSpan::of(addr, len);
                assert_eq!(span.lines, (addr + len - 1) / LINE + 1);
                assert!(span.lines >= 2);
                let whole = span.lines - usize::from(span.head > 0) - usize::from(span.tail > 0);
                assert_eq!(span.head + whole * LINE + span.tail, len);
            }
        }
    }

    #[test]
    fn the_enclosing_block_is_the_smallest_aligned_one() {
        for addr in 0..2 * LINE {
            for len in 1..=LINE + 1 {
                let smallest = [16, 32, 64]
                    .into_iter()
                    .find(|block| addr / block == (addr + len - 1) / block);
                assert_eq!(
                    enclosing_block(addr, len),
                    smallest,
                    "{len} bytes at {addr}"
                );
            }
        }
    }
}
