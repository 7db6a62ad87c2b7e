//! The RDMA extended transport header: a range of the responder's memory.

use crate::ids::Rkey;

/// RDMA extended transport header (RETH), 16 bytes: on the first packet of a WRITE, and on a READ request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Address of the first byte.
    pub addr: u64,
    /// The region's remote key.
    pub rkey: Rkey,
    /// Length of the whole message in bytes.
    pub dma_len: u32,
}

impl Reth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 16;

    /// Parses the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self {
            addr: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: Rkey(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            dma_len: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..].copy_from_slice(&self.dma_len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_field_is_big_endian() {
        let reth = Reth {
            addr: 0x0102_0304_0506_0708,
            rkey: Rkey(0x090a_0b0c),
            dma_len: 0x0d0e_0f10,
        };
        let mut bytes = [0; Reth::LEN];
        reth.emit(&mut bytes);
        assert_eq!(
            bytes,
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
        );
    }

    proptest! {
        #[test]
        fn a_parsed_header_emits_the_same_bytes(bytes: [u8; Reth::LEN]) {
            let mut again = [0; Reth::LEN];
            Reth::parse(&bytes).emit(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
