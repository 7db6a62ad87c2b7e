//! The FLUSH extended transport header: which bytes a FLUSH makes visible, and to whom.

/// FLUSH extended transport header (FETH), 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Feth {
    /// Makes the bytes visible to every thread and device (`IBV_FLUSH_GLOBAL`).
    pub global: bool,
    /// Makes the bytes survive a power failure (`IBV_FLUSH_PERSISTENT`).
    pub persistent: bool,
    /// The range code: [`RANGE`](Self::RANGE), [`REGION`](Self::REGION), or a reserved value.
    pub selectivity: u8,
}

/// The placement type bits, and the position of the selectivity level.
const GLOBAL: u32 = 1;
const PERSISTENT: u32 = 1 << 1;
const SELECTIVITY: u32 = 4;

impl Feth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 4;
    /// The range given by the RETH.
    pub const RANGE: u8 = 0;
    /// The whole region.
    pub const REGION: u8 = 1;

    /// Parses the header.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = u32::from_be_bytes(*bytes);
        Self {
            global: word & GLOBAL != 0,
            persistent: word & PERSISTENT != 0,
            selectivity: ((word >> SELECTIVITY) & 3) as u8,
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let mut word = u32::from(self.selectivity) << SELECTIVITY;
        if self.global {
            word |= GLOBAL;
        }
        if self.persistent {
            word |= PERSISTENT;
        }
        *out = word.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_in_the_last_four_bits_and_selectivity_in_the_two_before() {
        let feth = Feth {
            global: true,
            persistent: false,
            selectivity: Feth::REGION,
        };
        let mut bytes = [0; Feth::LEN];
        feth.emit(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0x11]);
        assert_eq!(Feth::parse(&bytes), feth);
    }
}
