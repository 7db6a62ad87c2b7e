//! RoCE v2 packets built byte by byte, with a bitwise ICRC (IBTA A17.3.3).
#![allow(dead_code)] // Each test binary uses a part of this module.

use std::net::{IpAddr, SocketAddr};

/// Opcodes of the reliable connection service.
pub(crate) mod opcode {
    pub(crate) const SEND_ONLY: u8 = 0x04;
    pub(crate) const WRITE_FIRST: u8 = 0x06;
    pub(crate) const WRITE_MIDDLE: u8 = 0x07;
    pub(crate) const WRITE_LAST: u8 = 0x08;
    pub(crate) const WRITE_ONLY: u8 = 0x0a;
    pub(crate) const WRITE_ONLY_IMM: u8 = 0x0b;
    pub(crate) const READ_REQUEST: u8 = 0x0c;
    pub(crate) const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub(crate) const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub(crate) const READ_RESPONSE_LAST: u8 = 0x0f;
    pub(crate) const READ_RESPONSE_ONLY: u8 = 0x10;
    pub(crate) const ACKNOWLEDGE: u8 = 0x11;
    pub(crate) const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    pub(crate) const COMPARE_SWAP: u8 = 0x13;
    pub(crate) const FETCH_ADD: u8 = 0x14;
    pub(crate) const SEND_ONLY_INVALIDATE: u8 = 0x17;
    pub(crate) const FLUSH: u8 = 0x1c;
    pub(crate) const ATOMIC_WRITE: u8 = 0x1d;
}

/// AETH syndromes.
pub(crate) const ACK: u8 = 0x1f;
pub(crate) const NAK_SEQUENCE: u8 = 0x60;
pub(crate) const NAK_INVALID: u8 = 0x61;
pub(crate) const NAK_ACCESS: u8 = 0x62;
pub(crate) const NAK_OPERATION: u8 = 0x63;
pub(crate) const RNR_NAK: u8 = 0x20;

/// A packet without its ICRC.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    /// Returns a packet of one base transport header: default partition, version 0, migrated.
    pub(crate) fn new(opcode: u8, qpn: u32, psn: u32) -> Self {
        let mut bytes = vec![opcode, 0x40, 0xff, 0xff];
        bytes.extend((qpn & 0xff_ffff).to_be_bytes());
        bytes.extend((psn & 0xff_ffff).to_be_bytes());
        Self(bytes)
    }

    pub(crate) fn asking_for_ack(mut self) -> Self {
        self.0[8] |= 0x80;
        self
    }

    /// Appends an RDMA extended transport header.
    pub(crate) fn reth(mut self, addr: u64, rkey: u32, len: u32) -> Self {
        self.0.extend(addr.to_be_bytes());
        self.0.extend(rkey.to_be_bytes());
        self.0.extend(len.to_be_bytes());
        self
    }

    /// Appends an atomic extended transport header.
    pub(crate) fn atomic(mut self, addr: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Self {
        self.0.extend(addr.to_be_bytes());
        self.0.extend(rkey.to_be_bytes());
        self.0.extend(swap_or_add.to_be_bytes());
        self.0.extend(compare.to_be_bytes());
        self
    }

    /// Appends an acknowledge extended transport header.
    pub(crate) fn aeth(mut self, syndrome: u8, msn: u32) -> Self {
        self.0
            .extend((u32::from(syndrome) << 24 | msn & 0xff_ffff).to_be_bytes());
        self
    }

    /// Appends a payload and its padding, and sets the header's pad count.
    pub(crate) fn payload(mut self, bytes: &[u8]) -> Self {
        let pad = bytes.len().wrapping_neg() % 4;
        self.0[1] |= (pad as u8) << 4;
        self.0.extend(bytes);
        self.0.extend(&[0; 3][..pad]);
        self
    }

    /// Appends bytes without changing any header.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Returns the packet with its ICRC for a path between two addresses.
    pub(crate) fn sealed(&self, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.extend(icrc(from, to, 0, &self.0).to_le_bytes());
        bytes
    }
}

/// Computes the CRC-32 of Ethernet, bit by bit.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// Computes the invariant CRC: eight bytes of ones in place of the local route header, then the packet with ones in all
/// fields that routers change. IPv4 headers have no options and the "don't fragment" flag. Linux writes identification
/// 0, and counts up from there when it segments one send into several packets.
fn icrc(from: SocketAddr, to: SocketAddr, identification: u16, packet: &[u8]) -> u32 {
    let udp_len = (8 + packet.len() + 4) as u16;
    let mut masked = vec![0xff; 8];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            masked.extend([0x45, 0xff]);
            masked.extend((20 + udp_len).to_be_bytes());
            masked.extend(identification.to_be_bytes());
            masked.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
            masked.extend(src.octets());
            masked.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            masked.extend([0x6f, 0xff, 0xff, 0xff]);
            masked.extend(udp_len.to_be_bytes());
            masked.extend([17, 0xff]);
            masked.extend(src.octets());
            masked.extend(dst.octets());
        }
        mixed => panic!("{mixed:?}"),
    }
    masked.extend(from.port().to_be_bytes());
    masked.extend(to.port().to_be_bytes());
    masked.extend(udp_len.to_be_bytes());
    masked.extend([0xff, 0xff]);
    let resv8a = masked.len() + 4;
    masked.extend(packet);
    if let Some(byte) = masked.get_mut(resv8a) {
        *byte = 0xff;
    }
    crc32(masked.into_iter())
}

/// The fields of a received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) opcode: u8,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    /// The AETH syndrome of acknowledgements and of all READ responses except the middle ones.
    pub(crate) syndrome: Option<u8>,
}

impl Received {
    /// Parses a datagram and fails unless its ICRC is valid.
    pub(crate) fn parse(datagram: &[u8], from: SocketAddr, to: SocketAddr) -> Self {
        let (packet, crc) = datagram.split_at(datagram.len() - 4);
        let intact = (0..64).any(|id| icrc(from, to, id, packet).to_le_bytes() == *crc);
        assert!(intact, "the ICRC of a reply: {datagram:x?}");
        let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
        let has_aeth = matches!(packet[0], 0x0d | 0x0f..=0x12);
        Self {
            opcode: packet[0],
            qpn: word(4) & 0xff_ffff,
            psn: word(8) & 0xff_ffff,
            syndrome: has_aeth.then(|| packet[12]),
        }
    }
}

#[test]
fn the_checksum_is_that_of_ethernet() {
    assert_eq!(crc32(b"123456789".iter().copied()), 0xcbf4_3926);
}
