//! The invariant CRC, which covers the fields of a packet that must not change in transit.
//!
//! The ICRC is Ethernet's CRC-32 over eight bytes of ones, the IP and UDP headers, the BTH, and the rest of the
//! datagram. Fields that routers may change count as all ones: type of service, time to live and checksum of IPv4
//! (traffic class, flow label and hop limit of IPv6), the UDP checksum, and FECN, BECN and the reserved bits of the
//! BTH. IPv4's identification and fragment fields are covered, so a sender must know which values its socket writes
//! there. IPv6 has no such fields.

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

use super::Bth;

/// Length on the wire in bytes.
pub const LEN: usize = 4;

/// The invariant fields of an IP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ip {
    /// An IPv4 header without options.
    V4 {
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
        /// The identification field. For an unconnected UDP socket that forbids fragmentation, Linux writes 0, or the
        /// index of the segment in a send with `UDP_SEGMENT`.
        identification: u16,
        /// The DF flag: the packet must not be fragmented.
        dont_fragment: bool,
    },
    /// An IPv6 header without extension headers.
    V6 {
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
    },
}

/// The invariant fields of the headers in front of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// The fields of the IP header.
    pub ip: Ip,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port: [`UDP_PORT`](super::UDP_PORT).
    pub dst_port: u16,
}

/// Length of an IPv4 header without options.
pub(super) const V4_LEN: usize = 20;
/// Length of an IPv6 header.
pub(super) const V6_LEN: usize = 40;
/// Length of a UDP header.
pub(super) const UDP_LEN: usize = 8;
/// Length of InfiniBand's local route header; RoCE substitutes ones for it.
const LRH_LEN: usize = 8;
/// Protocol number of UDP.
pub(super) const PROTOCOL_UDP: u8 = 17;

impl Path {
    /// Returns the CRC state after the headers in front of `udp_len` bytes of UDP payload.
    ///
    /// A length above 65507 does not fit the length fields and is truncated; such a datagram cannot be sent.
    fn headers(&self, udp_len: usize) -> Hasher {
        // Starts from all ones, which masks every field that is not written below.
        let mut bytes = [0xff; LRH_LEN + V6_LEN + UDP_LEN];
        let udp_total = (udp_len + UDP_LEN) as u16;
        let end = match self.ip {
            Ip::V4 {
                src,
                dst,
                identification,
                dont_fragment,
            } => {
                let ip = &mut bytes[LRH_LEN..LRH_LEN + V4_LEN];
                // Version 4, header of five words. IP options would lengthen the header that the ICRC covers.
                ip[0] = 0x45;
                ip[2..4].copy_from_slice(&udp_total.wrapping_add(V4_LEN as u16).to_be_bytes());
                ip[4..6].copy_from_slice(&identification.to_be_bytes());
                ip[6..8].copy_from_slice(&[u8::from(dont_fragment) << 6, 0]);
                ip[9] = PROTOCOL_UDP;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                LRH_LEN + V4_LEN
            }
            Ip::V6 { src, dst } => {
                // Version 6 in the upper half; traffic class and flow label stay masked.
                let ip = &mut bytes[LRH_LEN..LRH_LEN + V6_LEN];
                ip[0] = 0x6f;
                ip[4..6].copy_from_slice(&udp_total.to_be_bytes());
                ip[6] = PROTOCOL_UDP;
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                LRH_LEN + V6_LEN
            }
        };
        let udp = &mut bytes[end..end + UDP_LEN];
        udp[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_total.to_be_bytes());
        let mut hasher = Hasher::new();
        hasher.update(&bytes[..end + UDP_LEN]);
        hasher
    }

    /// Returns the ICRC of `body`, a datagram without its ICRC, in wire order.
    pub fn icrc(&self, body: &[u8]) -> [u8; LEN] {
        behind(self.headers(body.len() + LEN), body)
    }
}

/// Returns the ICRC of `body` after the headers already in `hasher`.
fn behind(mut hasher: Hasher, body: &[u8]) -> [u8; LEN] {
    /// The number of bytes copied, to mask a field in place; a short packet is hashed in one piece.
    const COPIED: usize = 64;
    let (start, rest) = body.split_at(body.len().min(COPIED));
    let mut copy = [0; COPIED];
    let copy = &mut copy[..start.len()];
    copy.copy_from_slice(start);
    if let Some(header) = copy.first_chunk_mut::<{ Bth::LEN }>() {
        // FECN, BECN and the reserved bits: a router may set FECN.
        header[4] = 0xff;
    }
    hasher.update(copy);
    if !rest.is_empty() {
        hasher.update(rest);
    }
    // Least significant byte first, as in Ethernet's CRC.
    hasher.finalize().to_le_bytes()
}

/// Computes the same ICRCs as [`seal`] and [`matches()`], and caches the CRC of the last headers. In a latency-bound
/// connection, consecutive packets mostly differ only after the headers.
#[derive(Debug, Default)]
pub struct IcrcCache {
    /// The last path and UDP payload length, with the CRC state after their headers.
    headers: RefCell<Option<(Path, usize, Hasher)>>,
}

impl IcrcCache {
    /// Returns an empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Like [`Path::icrc`].
    pub fn icrc(&self, path: &Path, body: &[u8]) -> [u8; LEN] {
        let len = body.len() + LEN;
        let mut last = self.headers.borrow_mut();
        let hasher = match &*last {
            Some((of, with, hasher)) if *with == len && of == path => hasher.clone(),
            _ => {
                let hasher = path.headers(len);
                *last = Some((*path, len, hasher.clone()));
                hasher
            }
        };
        behind(hasher, body)
    }

    /// Like [`seal`].
    pub fn seal(&self, path: &Path, datagram: &mut [u8]) {
        if let Some((body, icrc)) = datagram.split_last_chunk_mut::<LEN>() {
            *icrc = self.icrc(path, body);
        }
    }
}

/// Writes the ICRC into the last four bytes of a datagram, which [`poll_transmit`](crate::QueuePair::poll_transmit)
/// leaves for it. A shorter datagram is left unchanged.
pub fn seal(path: &Path, datagram: &mut [u8]) {
    if let Some((body, icrc)) = datagram.split_last_chunk_mut::<LEN>() {
        *icrc = path.icrc(body);
    }
}

/// Returns whether the last four bytes of a datagram are its ICRC. The datagram is untrusted and may have any length.
pub fn matches(path: &Path, datagram: &[u8]) -> bool {
    datagram
        .split_last_chunk::<LEN>()
        .is_some_and(|(body, icrc)| path.icrc(body) == *icrc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A congestion notification packet of a ConnectX-4 Lx (scapy's test/contrib/roce.uts).
    #[test]
    fn a_packet_of_a_network_card_matches() {
        let path = Path {
            ip: Ip::V4 {
                src: Ipv4Addr::new(10, 0, 17, 1),
                dst: Ipv4Addr::new(10, 0, 18, 1),
                identification: 0x718c,
                dont_fragment: true,
            },
            src_port: 0,
            dst_port: 4791,
        };
        let mut datagram = [0; 32];
        datagram[..12].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
        datagram[28..].copy_from_slice(&[0x82, 0xfd, 0x00, 0x2a]);
        assert!(matches(&path, &datagram));
        datagram[4] = 0x80;
        assert!(matches(&path, &datagram), "congestion bits may change");
        datagram[5] = 1;
        assert!(!matches(&path, &datagram));
    }

    /// A UC SEND of 18 bytes (from the same file).
    #[test]
    fn a_packet_with_payload_and_padding_matches() {
        let host = Ipv4Addr::new(192, 168, 0, 7);
        let ip = Ip::V4 {
            src: host,
            dst: host,
            identification: 1144,
            dont_fragment: true,
        };
        let path = Path {
            ip,
            src_port: 49152,
            dst_port: 4791,
        };
        let mut datagram = vec![0x24, 0x60, 0xff, 0xff, 0, 0, 0, 211];
        datagram.extend(13_571_856u32.to_be_bytes());
        datagram.extend(b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00");
        datagram.extend([0x78, 0xf3, 0x53, 0xf3]);
        assert!(matches(&path, &datagram));
    }

    #[test]
    fn an_ipv6_path_depends_on_its_addresses_and_ports_only() {
        let ip = Ip::V6 {
            src: Ipv6Addr::LOCALHOST,
            dst: Ipv6Addr::LOCALHOST,
        };
        let path = Path {
            ip,
            src_port: 0xc000,
            dst_port: 4791,
        };
        let mut datagram = [7; 64];
        seal(&path, &mut datagram);
        assert!(matches(&path, &datagram));
        // The reference, with the pseudo headers spelled out.
        let mut bytes = vec![0xff; 8];
        bytes.extend([0x6f, 0xff, 0xff, 0xff, 0, 72, 17, 0xff]);
        bytes.extend(Ipv6Addr::LOCALHOST.octets());
        bytes.extend(Ipv6Addr::LOCALHOST.octets());
        bytes.extend([0xc0, 0x00, 0x12, 0xb7, 0, 72, 0xff, 0xff]);
        bytes.extend([7, 7, 7, 7, 0xff]);
        bytes.extend([7; 55]);
        assert_eq!(crc32fast::hash(&bytes).to_le_bytes(), datagram[60..]);
        assert!(!matches(
            &Path {
                src_port: 0xc001,
                ..path
            },
            &datagram
        ));
    }

    proptest! {
        #[test]
        fn a_cache_changes_no_icrc(
            packets in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..200), 0_u16..2, 0_u16..2, any::<bool>()),
                1..20,
            ),
        ) {
            let cache = IcrcCache::new();
            for (body, src_port, identification, v6) in packets {
                let ip = match v6 {
                    true => Ip::V6 { src: Ipv6Addr::LOCALHOST, dst: Ipv6Addr::LOCALHOST },
                    false => Ip::V4 {
                        src: Ipv4Addr::LOCALHOST,
                        dst: Ipv4Addr::LOCALHOST,
                        identification,
                        dont_fragment: true,
                    },
                };
                let path = Path { ip, src_port, dst_port: 4791 };
                prop_assert_eq!(cache.icrc(&path, &body), path.icrc(&body));
                // The same headers, followed by a different body.
                let other: Vec<_> = body.iter().map(|byte| !byte).collect();
                prop_assert_eq!(cache.icrc(&path, &other), path.icrc(&other));
            }
        }

        #[test]
        fn any_flipped_bit_is_detected_except_congestion_bits(
            mut bytes in proptest::collection::vec(any::<u8>(), 16..300), bit in 0usize..2400,
        ) {
            let ip = Ip::V6 { src: Ipv6Addr::LOCALHOST, dst: Ipv6Addr::UNSPECIFIED };
            let path = Path { ip, src_port: 1, dst_port: 4791 };
            seal(&path, &mut bytes);
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(matches(&path, &bytes), bit / 8 == 4);
        }

        #[test]
        fn datagrams_of_any_length_are_accepted(mut bytes: Vec<u8>) {
            let ip = Ip::V6 { src: Ipv6Addr::LOCALHOST, dst: Ipv6Addr::UNSPECIFIED };
            let path = Path { ip, src_port: 1, dst_port: 4791 };
            seal(&path, &mut bytes);
            prop_assert_eq!(matches(&path, &bytes), bytes.len() >= LEN);
        }
    }
}
