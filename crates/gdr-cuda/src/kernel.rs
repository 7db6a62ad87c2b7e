//! The kernels of this workspace, and what each one reads and writes.
//!
//! On hardware they are PTX text, which the driver compiles at the first use; the simulation runs the
//! same contracts on a thread.

use crate::pointer::DevicePtr;

/// The kernels as PTX, with the NUL that the driver expects at the end.
pub(crate) const PTX: &str = concat!(include_str!("kernels.ptx"), "\0");

/// One kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launch {
    /// Writes [`pattern_word`]`(seed, i)` to the `i`-th 32-bit word of `dst..dst + 4 * words`.
    Fill {
        /// 4-byte aligned.
        dst: DevicePtr,
        /// 32-bit words to write.
        words: u64,
        /// Which pattern.
        seed: u32,
    },
    /// Compares `words` 32-bit words at `src` with the pattern of `seed` and writes a
    /// [`VerifyReport`] (4 64-bit words) to `report`.
    Verify {
        /// 4-byte aligned.
        src: DevicePtr,
        /// 32-bit words to compare.
        words: u64,
        /// Which pattern.
        seed: u32,
        /// 8-byte aligned, 32 bytes; written whole.
        report: DevicePtr,
    },
    /// Writes twice the value of each of the `words` 32-bit words at `src`, modulo 2^32, to `dst`.
    Double {
        /// 4-byte aligned.
        src: DevicePtr,
        /// 4-byte aligned; `src` itself, or a range that does not overlap it.
        dst: DevicePtr,
        /// 32-bit words to read and to write.
        words: u64,
    },
    /// Writes the [`Sum64`](crate::Sum64) of the `len` bytes at `src` to `sum`.
    Sum64 {
        /// 8-byte aligned.
        src: DevicePtr,
        /// Bytes to read.
        len: u64,
        /// 8-byte aligned, 8 bytes; written whole.
        sum: DevicePtr,
    },
    /// The GPU's half of a round trip, `iterations` times: spin until the 32-bit word at `ping` is
    /// the round's number (1, 2, ...); then read all payload words, or write the round's number to
    /// them, by `direction`; then store the round's number at `pong`. The kernel ends without storing
    /// `pong` when the 32-bit word at `stop` becomes non-zero.
    PingPong {
        /// The flag that the CPU writes and the GPU polls.
        ping: DevicePtr,
        /// The flag that the GPU writes and the CPU polls.
        pong: DevicePtr,
        /// The flag that the CPU writes to end the kernel; page-locked host memory.
        stop: DevicePtr,
        /// Rounds.
        iterations: u32,
        /// 4-byte aligned payload of `data_words` words; ignored when that is 0.
        data: DevicePtr,
        /// 32-bit words of payload in each round.
        data_words: u64,
        /// The direction of the payload.
        direction: Direction,
        /// Blocks of the launch; all must be resident at once.
        blocks: u32,
        /// Threads of each block, 1 to 1024.
        threads: u32,
        /// 8 bytes of zeroed device memory: the blocks' barrier.
        barrier: DevicePtr,
        /// 8 bytes of zeroed device memory: counts payload words that did not hold the round's
        /// number ([`Direction::CpuToGpu`]).
        mismatches: DevicePtr,
    },
}

/// The direction of the payload of a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The CPU writes the round's number to every payload word before `ping`; the GPU checks.
    CpuToGpu,
    /// The GPU writes the round's number to every payload word before `pong`.
    GpuToCpu,
}

/// The result of [`Launch::Verify`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Words that differ.
    pub mismatches: u64,
    /// Index of the first differing word; `u64::MAX` when none differs.
    pub first: u64,
    /// The expected value of that word.
    pub expected: u32,
    /// Its value.
    pub found: u32,
}

impl VerifyReport {
    /// Bytes in memory: mismatches, first, expected, found, 64 bits each, little-endian.
    pub const LEN: usize = 32;

    /// Reads the four words a kernel wrote.
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

/// The `index`-th word of the pattern of `seed`: a 32-bit mix, so a shifted, repeated or stale block
/// does not match.
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
