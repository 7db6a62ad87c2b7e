//! The datagram extended transport header: queue key and source queue pair of a datagram.

use crate::ids::{Qkey, Qpn};

/// Datagram extended transport header (DETH), 8 bytes.
///
/// ```text
/// QKey 32 | reserved 8 | SrcQP 24
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// The queue key, which must match the receiver's.
    pub qkey: Qkey,
    /// The source queue pair.
    pub source_qpn: Qpn,
}

impl Deth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 8;

    /// Parses the header; reserved bits are ignored.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            qkey: Qkey(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            source_qpn: Qpn::new(u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]])),
        }
    }

    /// Writes the header, with reserved bits clear.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let qkey = self.qkey.0.to_be_bytes();
        let qpn = self.source_qpn.get().to_be_bytes();
        *out = [
            qkey[0], qkey[1], qkey[2], qkey[3], 0, qpn[1], qpn[2], qpn[3],
        ];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_bytes() {
        let deth = Deth {
            qkey: Qkey(0x1122_3344),
            source_qpn: Qpn::new(0xab_cdef),
        };
        let mut bytes = [0xff; Deth::LEN];
        deth.emit(&mut bytes);
        assert_eq!(bytes, [0x11, 0x22, 0x33, 0x44, 0, 0xab, 0xcd, 0xef]);
        bytes[4] = 0x5a;
        assert_eq!(Deth::parse(&bytes), deth, "the reserved byte is ignored");
    }
}
