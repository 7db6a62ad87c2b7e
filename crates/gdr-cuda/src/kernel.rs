//! The workspace's kernels, and the memory that each one reads and writes.
//!
//! On hardware they are PTX text, which the driver compiles at the first use; the simulation runs kernels with the same
//! contracts on a thread.

use std::num::NonZeroU16;
use std::ops::Range;

use crate::pointer::DevicePtr;

/// The kernels as PTX, terminated by the NUL that the driver expects.
pub(crate) const PTX: &str = concat!(include_str!("kernels.ptx"), "\0");
/// The PTX of [`Launch::Push`] alone, which older GPUs cannot run.
pub(crate) const PUSH_PTX: &str = concat!(include_str!("push.ptx"), "\0");

/// One kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launch {
    /// Writes [`pattern_word`]`(seed, i)` to the `i`-th 32-bit word of `dst..dst + 4 * words`.
    Fill {
        /// 4-byte aligned.
        dst: DevicePtr,
        /// The number of 32-bit words to write.
        words: u64,
        /// The seed of the pattern.
        seed: u32,
    },
    /// Compares `words` 32-bit words at `src` with the pattern of `seed` and writes a [`VerifyReport`] (4 64-bit words)
    /// to `report`.
    Verify {
        /// 4-byte aligned.
        src: DevicePtr,
        /// The number of 32-bit words to compare.
        words: u64,
        /// The seed of the pattern.
        seed: u32,
        /// 32 bytes, 8-byte aligned; all of them are written.
        report: DevicePtr,
    },
    /// Writes twice the value of each of the `words` 32-bit words at `src`, modulo 2^32, to `dst`.
    Double {
        /// 4-byte aligned.
        src: DevicePtr,
        /// 4-byte aligned; `src` itself, or a range that does not overlap it.
        dst: DevicePtr,
        /// The number of 32-bit words to read and to write.
        words: u64,
    },
    /// Writes the [`Sum64`](crate::Sum64) of the `len` bytes at `src` to `sum`.
    Sum64 {
        /// 8-byte aligned.
        src: DevicePtr,
        /// The number of bytes to read.
        len: u64,
        /// 8 bytes, 8-byte aligned; all of them are written.
        sum: DevicePtr,
    },
    /// Copies `len` bytes at `src` to `dst` with `blocks` blocks, unless it is cancelled. Each block writes `number +
    /// 1` to its word, then reads the first word of `guard`. If that word is `number`, the block only writes `number +
    /// 3`; otherwise it copies its part, then writes `number + 2`.
    GuardedCopy {
        /// Copies are fastest if `src` and `dst` are multiples of 16.
        src: DevicePtr,
        /// Memory that does not overlap the source.
        dst: DevicePtr,
        /// The length in bytes.
        len: u64,
        /// 4-byte aligned page-locked memory of [`GuardedCopy::LEN`](crate::GuardedCopy::LEN) bytes: a word that the
        /// CPU writes, and from byte 64 on one word for each block.
        guard: DevicePtr,
        /// A multiple of 4.
        number: u32,
        /// 1 to 32.
        blocks: u32,
    },
    /// Copies the pieces in a table, one piece per block. An entry consists of a piece's address, its offset from
    /// `dst`, and its length, 64 bits each.
    Gather {
        /// 8-byte aligned, 24 bytes for each block. The table must be filled when the kernel is launched.
        table: DevicePtr,
        /// The number of entries, at least 1.
        blocks: u32,
        /// Copies are fastest if this, the pieces' addresses and their offsets are multiples of 16.
        dst: DevicePtr,
        /// The number of bytes at `dst` that contain all pieces.
        len: u64,
    },
    /// The GPU's half of a round trip, `iterations` times. Polls until the 32-bit word at `ping` is the round's number
    /// (1, 2, ...); then reads all payload words, or writes the round's number to them, depending on `direction`; then
    /// stores the round's number at `pong`. The kernel ends without storing `pong` when the 32-bit word at `stop`
    /// becomes non-zero.
    PingPong {
        /// The flag that the CPU writes and the GPU polls.
        ping: DevicePtr,
        /// The flag that the GPU writes and the CPU polls.
        pong: DevicePtr,
        /// The flag that the CPU writes to end the kernel; page-locked host memory.
        stop: DevicePtr,
        /// The number of rounds.
        iterations: u32,
        /// 4-byte aligned payload of `data_words` words; ignored if that number is 0.
        data: DevicePtr,
        /// The number of 32-bit payload words in each round.
        data_words: u64,
        /// The direction of the payload.
        direction: Direction,
        /// The number of blocks; all must be resident at once.
        blocks: u32,
        /// The number of threads of each block, 1 to 1024.
        threads: u32,
        /// 8 bytes of zeroed device memory for the blocks' barrier.
        barrier: DevicePtr,
        /// 8 bytes of zeroed device memory that count the payload words that did not contain the round's number
        /// ([`Direction::CpuToGpu`]).
        mismatches: DevicePtr,
    },
    /// Serves the requests that the CPU writes to `request`, one after another. Each request pushes some device memory
    /// to `lines`. For every 8 bytes the kernel writes a line of four 32-bit words: the first 4 bytes, the request's
    /// number, the other 4 bytes, the number again. Each half of a line arrives whole, so the CPU finds the number next
    /// to bytes that belong to it.
    ///
    /// The kernel ends when no request has arrived for `idle_ns`, when `life_ns` have passed since its start, or after
    /// the word 0. It then writes `launch` to `left`, after all lines. It needs a Volta or later GPU.
    Push {
        /// The 8-byte aligned base of the requests' offsets.
        base: DevicePtr,
        /// The number of bytes from there on that requests may address. A line may extend up to 7 bytes past them.
        len: u64,
        /// 8-byte aligned device memory: a [`PushRequest`], or 0 before the first.
        request: DevicePtr,
        /// 16-byte aligned page-locked memory.
        lines: DevicePtr,
        /// The number of lines there, which is the maximum number in a request.
        capacity: u64,
        /// 4-byte aligned page-locked memory.
        left: DevicePtr,
        /// The number of the last request that an earlier kernel served, which this kernel does not serve again; 0 if
        /// none was served before.
        last: u32,
        /// The value that `left` gets when the kernel ends.
        launch: u32,
        /// The time without a request, in nanoseconds.
        idle_ns: u64,
        /// The time since the start, in nanoseconds.
        life_ns: u64,
    },
}

/// A request to [`Launch::Push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushRequest {
    number: NonZeroU16,
    /// The offset in lines.
    offset: u64,
    lines: u64,
}

impl PushRequest {
    /// The number of bytes of device memory in a line.
    pub const LINE: u64 = 8;
    /// The number of bytes of a line in host memory.
    pub const LINE_IN_HOST: u64 = 16;
    /// The maximum number of lines in a request.
    pub const MOST_LINES: u64 = 1 << Self::COUNT_BITS;
    const COUNT_BITS: u32 = 13;
    const OFFSET_BITS: u32 = 35;

    /// Returns a request for `lines` lines, starting at `offset` bytes. `number` must differ from the previous
    /// request's. `None` if the offset is not a multiple of 8, or if a value is out of range: an offset of 256 GiB or
    /// more, or not 1 to 8192 lines.
    pub fn new(number: NonZeroU16, offset: u64, lines: u64) -> Option<Self> {
        let request = Self {
            number,
            offset: offset / Self::LINE,
            lines,
        };
        let is_valid = offset.is_multiple_of(Self::LINE)
            && request.offset < 1 << Self::OFFSET_BITS
            && (1..=Self::MOST_LINES).contains(&lines);
        is_valid.then_some(request)
    }

    /// Returns the request in a word that the kernel reads, or `None` for the word that ends the kernel.
    pub(crate) fn of_word(word: u64) -> Option<Self> {
        let number = NonZeroU16::new((word >> (Self::COUNT_BITS + Self::OFFSET_BITS)) as u16)?;
        Some(Self {
            number,
            offset: word & ((1 << Self::OFFSET_BITS) - 1),
            lines: (word >> Self::OFFSET_BITS & (Self::MOST_LINES - 1)) + 1,
        })
    }

    /// Returns the number.
    pub(crate) fn number(self) -> u32 {
        self.number.get().into()
    }

    /// Returns the lines, counted from the base.
    pub(crate) fn lines(self) -> Range<u64> {
        self.offset..self.offset + self.lines
    }

    /// Returns the word that the kernel reads.
    pub fn word(self) -> u64 {
        let number = u64::from(self.number.get()) << (Self::COUNT_BITS + Self::OFFSET_BITS);
        number | (self.lines - 1) << Self::OFFSET_BITS | self.offset
    }
}

/// The direction of the payload of a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The CPU writes the round's number to every payload word before `ping`; the GPU compares the words.
    CpuToGpu,
    /// The GPU writes the round's number to every payload word before `pong`.
    GpuToCpu,
}

/// The result of [`Launch::Verify`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// The number of words that differ.
    pub mismatches: u64,
    /// The index of the first word that differs; `u64::MAX` if none differs.
    pub first: u64,
    /// The expected value of that word.
    pub expected: u32,
    /// The actual value of that word.
    pub found: u32,
}

impl VerifyReport {
    /// The length in memory: mismatches, first, expected, found, 64 bits each, little-endian.
    pub const LEN: usize = 32;

    /// Reads the four words that a kernel wrote.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = |i: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[8 * i..8 * i + 8]);
            u64::from_le_bytes(raw)
        };
        Self {
            mismatches: word(0),
            first: word(1),
            expected: word(2) as u32,
            found: word(3) as u32,
        }
    }
}

/// Returns the `index`-th word of the pattern of `seed`: a 32-bit mix, so that a shifted, repeated or stale block does
/// not match.
pub const fn pattern_word(seed: u32, index: u64) -> u32 {
    // The finalizer of MurmurHash3 over the index, keyed by the seed.
    let mut h = (index as u32) ^ ((index >> 32) as u32).wrapping_mul(0x9e37_79b9) ^ seed;
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^= h >> 16;
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_request_has_its_parts_where_the_kernel_reads_them() {
        let number = NonZeroU16::new(0xABCD).unwrap();
        let most = (1 << 38) - 8;
        let request = PushRequest::new(number, most, 8192).unwrap();
        let word = request.word();
        assert_eq!(PushRequest::of_word(word), Some(request));
        assert_eq!(PushRequest::of_word(word & !(0xffff << 48)), None);
        assert_eq!(word >> 48, 0xABCD);
        assert_eq!((word >> 35) & 0x1fff, 8191);
        assert_eq!((word & 0x7_ffff_ffff) << 3, most);
        for text in [
            "shr.u64 \t%t, %word, 48;",
            "shr.u64 \t%t, %word, 35;",
            "0x7ffffffff",
        ] {
            assert!(PUSH_PTX.contains(text), "{text}");
        }
        for (offset, lines) in [(4, 1), (1 << 38, 1), (0, 0), (0, 8193)] {
            assert_eq!(PushRequest::new(number, offset, lines), None);
        }
    }
}
