//! The atomic extended transport header: target address and operands.

use crate::ids::Rkey;

/// Atomic extended transport header (AtomicETH), 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Address of the 8-byte target.
    pub addr: u64,
    /// The region's remote key.
    pub rkey: Rkey,
    /// The addend, or the replacement value of a compare-and-swap.
    pub swap_or_add: u64,
    /// The value to compare with. Fetch-and-add ignores it.
    pub compare: u64,
}

impl AtomicEth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 28;

    /// Parses the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self {
            addr: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: Rkey(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            swap_or_add: u64::from_be_bytes([
                b[12], b[13], b[14], b[15], b[16], b[17], b[18], b[19],
            ]),
            compare: u64::from_be_bytes([b[20], b[21], b[22], b[23], b[24], b[25], b[26], b[27]]),
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        out[20..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_swap_or_add_operand_comes_before_the_compare_operand() {
        let atomic = AtomicEth {
            addr: 1,
            rkey: Rkey(2),
            swap_or_add: 3,
            compare: 4,
        };
        let mut bytes = [0; AtomicEth::LEN];
        atomic.emit(&mut bytes);
        assert_eq!((bytes[7], bytes[11], bytes[19], bytes[27]), (1, 2, 3, 4));
    }

    proptest! {
        #[test]
        fn a_parsed_header_emits_the_same_bytes(bytes: [u8; AtomicEth::LEN]) {
            let mut again = [0; AtomicEth::LEN];
            AtomicEth::parse(&bytes).emit(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
