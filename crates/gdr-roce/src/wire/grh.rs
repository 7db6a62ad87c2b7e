//! The network header that precedes a received datagram, in place of a global route header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::icrc::{Ip, PROTOCOL_UDP, UDP_LEN, V4_LEN, V6_LEN};

/// The 40 bytes in front of the payload in a datagram's receive buffer: the IPv6 header, or 20 zeros and the IPv4
/// header (annex A17.4.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grh([u8; Self::LEN]);

impl Grh {
    /// Length in bytes.
    pub const LEN: usize = V6_LEN;
    /// The hop limit in headers built by [`of_fields`](Self::of_fields), where the actual one is unknown.
    pub const HOP_LIMIT: u8 = 64;

    /// Takes the first 40 bytes of a receive buffer.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Wraps a received IPv4 header.
    pub fn of_ipv4(header: &[u8; V4_LEN]) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[Self::LEN - V4_LEN..].copy_from_slice(header);
        Self(bytes)
    }

    /// Builds the header of a UDP packet with `payload` bytes from the fields that a UDP socket reports. The type of
    /// service (IPv6: traffic class and flow label) is 0, and the hop limit is [`HOP_LIMIT`](Self::HOP_LIMIT). The IPv4
    /// checksum is correct.
    ///
    /// A length above 65507 does not fit the length fields and is truncated; no such packet exists.
    pub fn of_fields(ip: &Ip, payload: usize) -> Self {
        let udp_len = payload + UDP_LEN;
        match *ip {
            Ip::V4 {
                src,
                dst,
                identification,
                dont_fragment,
            } => {
                let mut header = [0; V4_LEN];
                header[0] = 0x45;
                header[2..4].copy_from_slice(&((udp_len + V4_LEN) as u16).to_be_bytes());
                header[4..6].copy_from_slice(&identification.to_be_bytes());
                header[6] = u8::from(dont_fragment) << 6;
                header[8] = Self::HOP_LIMIT;
                header[9] = PROTOCOL_UDP;
                header[12..16].copy_from_slice(&src.octets());
                header[16..20].copy_from_slice(&dst.octets());
                let checksum = ipv4_checksum(&header);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                Self::of_ipv4(&header)
            }
            Ip::V6 { src, dst } => {
                let mut header = [0; V6_LEN];
                header[0] = 0x60;
                header[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
                header[6] = PROTOCOL_UDP;
                header[7] = Self::HOP_LIMIT;
                header[8..24].copy_from_slice(&src.octets());
                header[24..40].copy_from_slice(&dst.octets());
                Self(header)
            }
        }
    }

    /// Returns the bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns source and destination address, or `None` if the bytes are neither an IPv4 nor an IPv6 header.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        if self.0[0] >> 4 == 6 {
            let address = |at: usize| {
                let octets = self.0[at..].first_chunk::<16>()?;
                Some(IpAddr::from(Ipv6Addr::from(*octets)))
            };
            return Some((address(8)?, address(24)?));
        }
        let header = self.0.last_chunk::<V4_LEN>()?;
        let address = |at: usize| {
            let octets = header[at..].first_chunk::<4>()?;
            Some(IpAddr::from(Ipv4Addr::from(*octets)))
        };
        (header[0] == 0x45).then_some((address(12)?, address(16)?))
    }
}

/// Computes the checksum of an IPv4 header whose checksum field is 0.
fn ipv4_checksum(header: &[u8; V4_LEN]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    // After the first fold of twenty bytes, at most one more carry remains.
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The header of the worked example in the article on the IPv4 checksum: 115 bytes from 192.168.0.1 to
    /// 192.168.0.199, checksum 0xb861.
    #[test]
    fn the_checksum_is_that_of_a_known_header() {
        let mut header = [0; V4_LEN];
        header[..12].copy_from_slice(&[0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0]);
        header[12..].copy_from_slice(&[192, 168, 0, 1, 192, 168, 0, 199]);
        assert_eq!(ipv4_checksum(&header), 0xb861);
        let ip = Ip::V4 {
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
            identification: 0,
            dont_fragment: true,
        };
        header[10..12].copy_from_slice(&[0xb8, 0x61]);
        assert_eq!(Grh::of_fields(&ip, 0x73 - 28), Grh::of_ipv4(&header));
    }

    #[test]
    fn an_ipv4_header_is_behind_twenty_zeros() {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let ip = Ip::V4 {
            src,
            dst,
            identification: 7,
            dont_fragment: true,
        };
        let grh = Grh::of_fields(&ip, 100);
        assert_eq!(grh.as_bytes()[..20], [0; 20]);
        assert_eq!(
            grh.as_bytes()[20..30],
            [0x45, 0, 0, 128, 0, 7, 0x40, 0, 64, 17]
        );
        assert_eq!(grh.addresses(), Some((src.into(), dst.into())));
    }

    #[test]
    fn an_ipv6_header_takes_all_bytes() {
        let (src, dst) = (
            Ipv6Addr::LOCALHOST,
            Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2),
        );
        let grh = Grh::of_fields(&Ip::V6 { src, dst }, 100);
        assert_eq!(grh.as_bytes()[..8], [0x60, 0, 0, 0, 0, 108, 17, 64]);
        assert_eq!(grh.addresses(), Some((src.into(), dst.into())));
    }

    #[test]
    fn bytes_that_are_no_header_have_no_addresses() {
        assert_eq!(Grh::from_bytes([0; Grh::LEN]).addresses(), None);
    }

    proptest! {
        #[test]
        fn the_checksum_of_a_header_with_its_checksum_is_zero(mut header: [u8; V4_LEN]) {
            header[10..12].fill(0);
            let checksum = ipv4_checksum(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            prop_assert_eq!(ipv4_checksum(&header), 0);
        }
    }
}
