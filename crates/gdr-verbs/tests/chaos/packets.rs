//! The packets of a pcap file.

use std::fs;
use std::path::Path;

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    In,
}

/// A packet over IPv4.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) way: Way,
    pub(crate) opcode: u8,
    pub(crate) psn: u32,
}

/// The opcode of a reliable connection's FETCH & ADD (IBTA vol. 1, 9.2.1).
pub(crate) const FETCH_ADD: u8 = 0x14;

/// Parses the packets of a file: pcap, Linux cooked, IPv4, UDP, BTH.
pub(crate) fn of_file(path: &Path) -> Vec<Captured> {
    let bytes = fs::read(path).unwrap();
    let (header, mut rest) = bytes.split_at(24);
    assert_eq!(header[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
    assert_eq!(header[20..], 113_u32.to_ne_bytes());
    let mut packets = Vec::new();
    while let Some((header, behind)) = rest.split_at_checked(16) {
        let len = u32::from_ne_bytes(*header[8..].first_chunk().unwrap());
        let (packet, behind) = behind.split_at(len as usize);
        let (cooked, ip) = packet.split_at(16);
        assert_eq!((cooked[14], cooked[15], ip[0], ip[9]), (8, 0, 0x45, 17));
        let bth = &ip[28..];
        packets.push(Captured {
            way: if cooked[1] == 4 { Way::Out } else { Way::In },
            opcode: bth[0],
            psn: u32::from_be_bytes(*bth[8..].first_chunk().unwrap()) & 0xff_ffff,
        });
        rest = behind;
    }
    packets
}
