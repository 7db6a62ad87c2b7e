//! The base transport header, present in every packet.

use crate::ids::{PartitionKey, Qpn};
use crate::psn::Psn;

/// Base transport header, 12 bytes.
///
/// ```text
/// opcode 8 | SE 1 MigReq 1 pad 2 TVer 4 | PKey 16
/// FECN 1 BECN 1 reserved 6 | DestQP 24
/// AckReq 1 filled 1 reserved 6 | PSN 24
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// The type of the packet; see [`Opcode`](super::Opcode).
    pub opcode: u8,
    /// Solicited event (SE): the completion at the receiver may wake a waiting thread.
    pub solicited: bool,
    /// MigReq, the path migration state; set when migration is not in use.
    pub migrated: bool,
    /// Number of padding bytes after the payload, 0 to 3.
    pub pad: u8,
    /// The transport version, always 0.
    pub version: u8,
    /// The partition key.
    pub partition: PartitionKey,
    /// FECN: this packet experienced congestion.
    pub fecn: bool,
    /// BECN: packets in the opposite direction experienced congestion.
    pub becn: bool,
    /// The destination queue pair.
    pub dest_qpn: Qpn,
    /// AckReq: the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// A reserved bit, which other implementations clear and ignore. Its meaning depends on the packet:
    ///
    /// - Middle or last packet of a WRITE: [`Reth::LEN`](super::Reth::LEN) filler bytes take the place of the first
    ///   packet's RETH. All packets then have the same length, as the kernel requires of a segmented send.
    /// - Acknowledgement, including an atomic's: the sender accepts filled packets, promptly acknowledges messages that
    ///   do not request it, and keeps as many atomic results as two queue pairs of this crate may have outstanding.
    /// - Atomic: the requester may have that many outstanding.
    pub filled: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 12;

    /// Parses the header; reserved bits are ignored.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            opcode: bytes[0],
            solicited: bytes[1] & 0x80 != 0,
            migrated: bytes[1] & 0x40 != 0,
            pad: (bytes[1] >> 4) & 3,
            version: bytes[1] & 0xf,
            partition: PartitionKey(u16::from_be_bytes([bytes[2], bytes[3]])),
            fecn: bytes[4] & 0x80 != 0,
            becn: bytes[4] & 0x40 != 0,
            dest_qpn: Qpn::new(u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]])),
            ack_request: bytes[8] & 0x80 != 0,
            filled: bytes[8] & 0x40 != 0,
            psn: Psn::new(u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]])),
        }
    }

    /// Writes the header, with reserved bits clear.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let partition = self.partition.0.to_be_bytes();
        let qpn = self.dest_qpn.get().to_be_bytes();
        let psn = self.psn.get().to_be_bytes();
        *out = [
            self.opcode,
            (self.solicited as u8) << 7
                | (self.migrated as u8) << 6
                | (self.pad & 3) << 4
                | (self.version & 0xf),
            partition[0],
            partition[1],
            (self.fecn as u8) << 7 | (self.becn as u8) << 6,
            qpn[1],
            qpn[2],
            qpn[3],
            (self.ack_request as u8) << 7 | (self.filled as u8) << 6,
            psn[1],
            psn[2],
            psn[3],
        ];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_field_has_its_bits() {
        let bth = Bth {
            opcode: 0x0a,
            solicited: true,
            migrated: true,
            pad: 2,
            version: 0,
            partition: PartitionKey::DEFAULT,
            fecn: false,
            becn: true,
            dest_qpn: Qpn::new(0x12_3456),
            ack_request: true,
            filled: true,
            psn: Psn::new(0xab_cdef),
        };
        let mut bytes = [0; Bth::LEN];
        bth.emit(&mut bytes);
        assert_eq!(
            bytes,
            [
                0x0a, 0xe0, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0xc0, 0xab, 0xcd, 0xef
            ]
        );
        assert_eq!(Bth::parse(&bytes), bth);
    }

    proptest! {
        #[test]
        fn a_parsed_header_emits_the_same_bytes(mut bytes: [u8; Bth::LEN]) {
            let bth = Bth::parse(&bytes);
            let mut again = [0; Bth::LEN];
            bth.emit(&mut again);
            bytes[4] &= 0xc0;
            bytes[8] &= 0xc0;
            prop_assert_eq!(again, bytes);
        }
    }
}
