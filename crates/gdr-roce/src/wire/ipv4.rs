//! A whole IPv4 packet, as a raw socket hands it over: with it the ICRC can be judged to all of
//! its 32 bits, which takes the identification field.

use std::net::Ipv4Addr;

use super::icrc::{Ip, PROTOCOL_UDP, Path, UDP_LEN, V4_LEN};

/// Why bytes are no UDP datagram that a RoCE sender makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ipv4Error {
    /// Fewer bytes than the headers of IPv4 and UDP.
    #[error("IPv4 packet: {0} bytes are fewer than its headers; drop it")]
    Truncated(usize),
    /// Another version of IP, or options, which the ICRC's pseudo header has no place for.
    #[error("IPv4 packet: its first byte is {0:#04x}, not 0x45 (IPv4 without options); drop it")]
    Version(u8),
    /// Not UDP.
    #[error("IPv4 packet: its protocol is {0}, not UDP; drop it")]
    Protocol(u8),
    /// A piece of a packet, or the reserved bit is set.
    #[error("IPv4 packet: its flags and fragment offset are {0:#06x}, it is not whole; drop it")]
    Fragment(u16),
    /// The lengths that IPv4 and UDP tell are not those of the bytes.
    #[error("IPv4 packet: IP tells {ip} bytes and UDP {udp}, but there are {len}; drop it")]
    Length {
        /// Bytes that there are.
        len: usize,
        /// Bytes with the IP header, as it tells.
        ip: u16,
        /// Bytes with the UDP header, as that tells.
        udp: u16,
    },
}

/// A datagram with what its IP and UDP headers say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Datagram<'a> {
    /// The fields that the ICRC covers.
    pub path: Path,
    /// Where it came from.
    pub src: Ipv4Addr,
    /// Where it went.
    pub dst: Ipv4Addr,
    /// UDP's own checksum; 0 says that the sender set none.
    pub checksum: u16,
    /// What follows the UDP header: BTH to ICRC.
    pub payload: &'a [u8],
}

impl<'a> Ipv4Datagram<'a> {
    /// Bytes of the two headers.
    pub const HEADERS: usize = V4_LEN + UDP_LEN;

    /// Reads a whole packet. Safe on untrusted bytes. Neither IPv4's checksum nor UDP's is
    /// checked.
    ///
    /// # Errors
    ///
    /// Any [`Ipv4Error`]; such bytes are to be dropped.
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
            src,
            dst,
            checksum: field(udp, 6),
            payload,
        })
    }
}

/// IPv4's DF.
const DONT_FRAGMENT: u16 = 0x4000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::icrc;
    use super::*;

    /// The congestion notification of a ConnectX-4 Lx in scapy's test/contrib/roce.uts, whole but
    /// for its type of service, time to live and header checksum.
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
    fn a_network_cards_own_packet_is_intact() {
        let packet = network_cards_packet();
        let read = Ipv4Datagram::new(&packet).unwrap();
        assert_eq!(read.path.dst_port, crate::wire::UDP_PORT);
        assert_eq!((read.checksum, read.payload.len()), (0, 32));
        assert!(is_intact(&packet));
    }

    #[test]
    fn any_flipped_bit_is_found_but_for_those_that_may_change_on_the_way() {
        let packet = network_cards_packet();
        // Type of service, time to live, IPv4's checksum, UDP's, BTH's congestion bits.
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
        fn any_bytes_are_a_datagram_or_an_error(
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
                // What is read is all that the ICRC covers.
                let mut sealed = packet.clone();
                icrc::seal(&read.path, &mut sealed[Ipv4Datagram::HEADERS..]);
                prop_assert_eq!(is_intact(&sealed), read.payload.len() >= icrc::LEN);
            }
        }
    }
}
