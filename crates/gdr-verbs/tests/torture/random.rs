//! Pseudo-random numbers from a seed.

/// Marsaglia's xorshift.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(7919) ^ 0x1234_5678_9abc_def1 | 1);
        for _ in 0..20 {
            random.next();
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns `true` once in `of` times.
    pub(crate) fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// Returns a number at the edge of a range.
    pub(crate) fn edge(&mut self) -> u32 {
        const EDGES: [u32; 16] = [
            0,
            1,
            2,
            31,
            32,
            33,
            255,
            1024,
            1025,
            1 << 15,
            (1 << 15) + 1,
            1 << 16,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_fffe,
            0xffff_ffff,
        ];
        EDGES[self.below(EDGES.len() as u64) as usize]
    }

    /// Returns `usual` in most calls.
    pub(crate) fn mostly(&mut self, usual: u32) -> u32 {
        match self.once_in(8) {
            true => self.edge(),
            false => usual,
        }
    }
}
