//! The lines that the resident kernel pushes into page-locked memory.
//!
//! A line is 16 bytes: 4 bytes of GPU memory, the request's number, 4 more bytes, the number again.
//! Each half arrives whole, so the bytes next to a number belong to that request.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};

use gdr_cuda::PushRequest;

/// The number of lines that are loaded at once: two cache lines.
pub(super) const GROUP: usize = 8;

const LINE: usize = PushRequest::LINE_IN_HOST as usize;

/// Lines in memory that a kernel writes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct PushedLines(*const u8);

impl PushedLines {
    /// Returns the lines starting at `first`.
    ///
    /// # Safety
    /// `first` is 16-byte aligned. Lines passed to the methods are readable, and are accessed only by the GPU and by
    /// atomic or volatile accesses.
    pub(super) const unsafe fn new(first: *const u8) -> Self {
        Self(first)
    }

    /// Returns the 8 bytes of a line if it carries this number, otherwise `None`.
    ///
    /// # Safety
    /// The line is one of these lines.
    #[inline]
    pub(super) unsafe fn line(self, at: u64, number: NonZeroU16) -> Option<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.words::<1>(at, number) }.map(|[word]| word)
    }

    /// Like [`PushedLines::line`], for several lines: all or none.
    ///
    /// # Safety
    /// Same as [`PushedLines::line`], for each line.
    #[inline]
    pub(super) unsafe fn group(self, at: u64, number: NonZeroU16) -> Option<[u64; GROUP]> {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        return unsafe { self.vectors(at, number) };
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        return unsafe { self.words(at, number) };
    }

    /// Makes the CPU fetch a group, so that a later load does not wait.
    #[inline]
    pub(super) fn prefetch(self, at: u64) {
        #[cfg(target_arch = "x86_64")]
        // Four lines fill a cache line, so a group fills two.
        for line in [at, at + GROUP as u64 / 2] {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

            let address = self.0.wrapping_add(line as usize * LINE);
            // SAFETY: a prefetch is a hint without effect on memory, for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// # Safety
    /// Same as [`PushedLines::line`], of `N` lines.
    #[inline]
    unsafe fn words<const N: usize>(self, at: u64, number: NonZeroU16) -> Option<[u64; N]> {
        let number = u64::from(number.get());
        let mut words = [0; N];
        let mut others = 0;
        for (nth, word) in words.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let [first, second] = unsafe {
                let line = self.0.add((at as usize + nth) * LINE).cast_mut();
                let line = line.cast::<u64>();
                [line, line.add(1)].map(|half| AtomicU64::from_ptr(half).load(Ordering::Relaxed))
            };
            // Compared after all loads: a test after each load would keep the next load from being in flight.
            others |= (first >> 32 ^ number) | (second >> 32 ^ number);
            *word = first & 0xffff_ffff | second << 32;
        }
        (others == 0).then_some(words)
    }

    /// Like [`PushedLines::words`], but with a third of the instructions, so that the loads of more lines are in flight
    /// at once: the CPU waits for the first load of each cache line that a device wrote.
    ///
    /// # Safety
    /// Same as [`PushedLines::words`].
    #[cfg(target_arch = "x86_64")]
    #[inline]
    unsafe fn vectors(self, at: u64, number: NonZeroU16) -> Option<[u64; GROUP]> {
        use std::arch::x86_64::{
            __m128i, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_epi8,
            _mm_or_si128, _mm_set1_epi64x, _mm_setzero_si128, _mm_shuffle_ps, _mm_srli_epi64,
            _mm_xor_si128,
        };
        const EVEN: i32 = 0b10_00_10_00;

        // SAFETY: every x86-64 CPU has SSE2. The memory is the caller's promise; a line is aligned, so that one load
        // reads it, whole on every CPU with AVX (Intel SDM volume 3, "Guaranteed Atomic Operations"), and in aligned
        // halves on others.
        unsafe {
            let expected = _mm_set1_epi64x(i64::from(number.get()) << 32);
            let first = self.0.add(at as usize * LINE).cast::<__m128i>();
            let mut lines = [_mm_setzero_si128(); GROUP];
            let mut others = _mm_setzero_si128();
            for (nth, line) in lines.iter_mut().enumerate() {
                *line = first.add(nth).read_volatile();
                others = _mm_or_si128(others, _mm_xor_si128(*line, expected));
            }
            // Keeps only the lines' numbers.
            let others = _mm_srli_epi64::<32>(others);
            let same = _mm_cmpeq_epi32(others, _mm_setzero_si128());
            if _mm_movemask_epi8(same) != 0xffff {
                return None;
            }
            let mut words = [0; GROUP];
            for (pair, words) in lines.chunks_exact(2).zip(words.chunks_exact_mut(2)) {
                let [one, other] = [pair[0], pair[1]].map(|line| _mm_castsi128_ps(line));
                let both = _mm_castps_si128(_mm_shuffle_ps::<EVEN>(one, other));
                words.as_mut_ptr().cast::<__m128i>().write_unaligned(both);
            }
            Some(words)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    const NUMBER: NonZeroU16 = NonZeroU16::new(0xABCD).unwrap();
    const WORDS: [u64; GROUP] = [
        0x0123_4567_89AB_CDEF,
        1,
        1 << 63,
        3,
        u64::MAX,
        5,
        6,
        1 << 32,
    ];

    #[repr(C, align(16))]
    struct Memory(UnsafeCell<[u64; 2 * GROUP]>);

    impl Memory {
        fn new(halves: [u64; 2 * GROUP]) -> Self {
            Self(UnsafeCell::new(halves))
        }

        /// Returns the lines; only this thread uses the memory.
        fn lines(&self) -> PushedLines {
            // SAFETY: the memory has a group of lines, and is aligned.
            unsafe { PushedLines::new(self.0.get().cast()) }
        }
    }

    fn halves() -> [u64; 2 * GROUP] {
        let number = u64::from(NUMBER.get()) << 32;
        std::array::from_fn(|at| number | WORDS[at / 2] >> (32 * (at % 2)) & 0xffff_ffff)
    }

    #[test]
    fn lines_with_the_number_hold_the_bytes_beside_it() {
        let memory = Memory::new(halves());
        // SAFETY: the memory has these lines.
        unsafe {
            assert_eq!(memory.lines().group(0, NUMBER), Some(WORDS));
            for (at, word) in (0..).zip(WORDS) {
                assert_eq!(memory.lines().line(at, NUMBER), Some(word));
            }
        }
    }

    #[test]
    fn a_half_with_another_number_is_not_there_yet_and_neither_is_its_group() {
        for half in 0..2 * GROUP {
            for bit in 32..48 {
                let mut halves = halves();
                halves[half] ^= 1 << bit;
                let memory = Memory::new(halves);
                // SAFETY: the memory has these lines.
                unsafe {
                    assert_eq!(memory.lines().group(0, NUMBER), None, "{half} {bit}");
                    for at in 0..GROUP {
                        let line = memory.lines().line(at as u64, NUMBER);
                        assert_eq!(line.is_some(), at != half / 2, "{half} {bit}");
                    }
                }
            }
        }
    }
}
