//! A whole IPv4 packet, as received from a raw socket. It includes the identification field, which the ICRC covers and
//! a UDP socket does not report.

use std::net::Ipv4Addr;

use super::icrc::{Ip, PROTOCOL_UDP, Path, UDP_LEN, V4_LEN};

/// Why an IPv4 packet is not a RoCE sender's UDP datagram. Such a packet must be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ipv4Error {
    /// Shorter than the IPv4 and UDP headers.
    #[error("IPv4 packet: {0} bytes are fewer than its headers")]
    Truncated(usize),
    /// Not IPv4, or with IP options, which the ICRC does not cover.
    #[error("IPv4 packet: its first byte is {0:#04x}, not 0x45 (IPv4 without options)")]
    Version(u8),
    /// The protocol is not UDP.
    #[error("IPv4 packet: its protocol is {0}, not UDP")]
    Protocol(u8),
    /// The packet is a fragment, or has the reserved flag set.
    #[error("IPv4 packet: its flags and fragment offset are {0:#06x}, so it is a fragment")]
    Fragment(u16),
    /// An IPv4 or UDP length field contradicts the packet length.
    #[error("IPv4 packet: {len} bytes, but its IP length is {ip} and its UDP length is {udp}")]
    #[allow(missing_docs, reason = "the names say it")]
    Length { len: usize, ip: u16, udp: u16 },
}

/// A UDP datagram with its IP and UDP header fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Datagram<'a> {
    /// The fields that the ICRC covers.
    pub path: Path,
    /// The IPv4 header.
    pub header: &'a [u8; V4_LEN],
    /// The source address.
    pub src: Ipv4Addr,
    /// The destination address.
    pub dst: Ipv4Addr,
    /// The UDP checksum; 0 if the sender did not compute one.
    pub checksum: u16,
    /// The UDP payload, from the BTH to the ICRC.
    pub payload: &'a [u8],
}

impl<'a> Ipv4Datagram<'a> {
    /// Length of both headers in bytes.
    pub const HEADERS: usize = V4_LEN + UDP_LEN;

    /// Parses a whole, untrusted packet. The IPv4 and UDP checksums are not verified.
    ///
    /// # Errors
    ///
    /// Any [`Ipv4Error`]; the packet must be dropped.
    pub fn new(packet: &'a [u8]) -> Result<Self, Ipv4Error> {
        let truncated = Ipv4Error::Truncated(packet.len());
        let (ip, rest) = packet.split_first_chunk::<V4_LEN>().ok_or(truncated)?;
        let (udp, payload) = rest.split_first_chunk::<UDP_LEN>().ok_or(truncated)?;
        let field = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if ip[0] != 0x45 {
            return Err(Ipv4Error::Version(ip[0]));
        }
        if ip[9] != PROTOCOL_UDP {
            return Err(Ipv4Error::Protocol(ip[9]));
        }
        let fragment = field(ip, 6);
        // The reserved flag, "more fragments", or an offset: the datagram is incomplete.
        if fragment & !DONT_FRAGMENT != 0 {
            return Err(Ipv4Error::Fragment(fragment));
        }
        let (ip_len, udp_len) = (field(ip, 2), field(udp, 4));
        if usize::from(ip_len) != packet.len() || usize::from(udp_len) + V4_LEN != packet.len() {
            return Err(Ipv4Error::Length {
                len: packet.len(),
                ip: ip_len,
                udp: udp_len,
            });
        }
        let src = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
        let dst = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
        Ok(Self {
            path: Path {
                ip: Ip::V4 {
                    src,
                    dst,
                    identification: field(ip, 4),
                    dont_fragment: fragment != 0,
                },
                src_port: field(udp, 0),
                dst_port: field(udp, 2),
            },
            header: ip,
            src,
            dst,
            checksum: field(udp, 6),
            payload,
        })
    }
}

/// The DF flag.
const DONT_FRAGMENT: u16 = 0x4000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::icrc;
    use super::*;

    /// Returns the congestion notification sent by a ConnectX-4 Lx in scapy's test/contrib/roce.uts, with invented type
    /// of service, time to live and header checksum.
    fn network_cards_packet() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 60, 0x71, 0x8c, 0x40, 0, 64, 17, 0, 0];
        packet.extend([10, 0, 17, 1, 10, 0, 18, 1]);
        packet.extend([0, 0, 0x12, 0xb7, 0, 40, 0, 0]);
        packet.extend([0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
        packet.extend([0; 16]);
        packet.extend([0x82, 0xfd, 0x00, 0x2a]);
        packet
    }

    fn is_intact(packet: &[u8]) -> bool {
        Ipv4Datagram::new(packet).is_ok_and(|read| icrc::matches(&read.path, read.payload))
    }

    #[test]
    fn a_packet_of_a_network_card_is_intact() {
        let packet = network_cards_packet();
        let read = Ipv4Datagram::new(&packet).unwrap();
        assert_eq!(read.path.dst_port, crate::wire::UDP_PORT);
        assert_eq!((read.checksum, read.payload.len()), (0, 32));
        assert!(is_intact(&packet));
    }

    #[test]
    fn any_flipped_bit_is_detected_except_in_mutable_fields() {
        let packet = network_cards_packet();
        // Type of service, time to live, IPv4 checksum, UDP checksum, and the congestion bits of the BTH.
        let may_change = [1, 8, 10, 11, 26, 27, 32];
        for bit in 0..8 * packet.len() {
            let mut flipped = packet.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let expected = may_change.contains(&(bit / 8));
            assert_eq!(is_intact(&flipped), expected, "bit {bit}");
        }
    }

    #[test]
    fn options_fragments_and_wrong_lengths_are_refused() {
        let change = |at: usize, to: u8| {
            let mut packet = network_cards_packet();
            packet[at] = to;
            Ipv4Datagram::new(&packet).unwrap_err()
        };
        assert_eq!(change(0, 0x46), Ipv4Error::Version(0x46));
        assert_eq!(change(9, 6), Ipv4Error::Protocol(6));
        assert_eq!(change(6, 0x20), Ipv4Error::Fragment(0x2000), "more to come");
        assert_eq!(change(7, 1), Ipv4Error::Fragment(0x4001), "not the first");
        let (len, ip, udp) = (60, 60, 40);
        assert_eq!(change(3, 61), Ipv4Error::Length { len, ip: 61, udp });
        assert_eq!(change(25, 39), Ipv4Error::Length { len, ip, udp: 39 });
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_datagram_or_an_error(
            mut packet in proptest::collection::vec(any::<u8>(), 0..200), whole: bool,
        ) {
            if whole && packet.len() >= Ipv4Datagram::HEADERS {
                let len = packet.len() as u16;
                packet[0] = 0x45;
                packet[2..4].copy_from_slice(&len.to_be_bytes());
                packet[6] &= 0x40;
                packet[7] = 0;
                packet[9] = 17;
                packet[24..26].copy_from_slice(&(len - 20).to_be_bytes());
            }
            let read = Ipv4Datagram::new(&packet);
            if whole && packet.len() >= Ipv4Datagram::HEADERS {
                let read = read?;
                prop_assert_eq!(read.payload, &packet[Ipv4Datagram::HEADERS..]);
                prop_assert_eq!(&read.src.octets(), &packet[12..16]);
                prop_assert_eq!(&read.dst.octets(), &packet[16..20]);
                prop_assert_eq!(&read.checksum.to_be_bytes(), &packet[26..28]);
                // The ICRC covers nothing beyond the parsed fields.
                let mut sealed = packet.clone();
                icrc::seal(&read.path, &mut sealed[Ipv4Datagram::HEADERS..]);
                prop_assert_eq!(is_intact(&sealed), read.payload.len() >= icrc::LEN);
            }
        }
    }
}
