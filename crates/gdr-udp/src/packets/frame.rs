//! Ethernet frames: parsing headers, and computing the checksums of IPv4, TCP and UDP.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Minimum header lengths in bytes.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const UDP: usize = 8;

/// EtherTypes (IANA).
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const TYPE_VLAN: u16 = 0x8100;
const TYPE_SERVICE_VLAN: u16 = 0x88a8;
/// The maximum numbers of VLAN tags and IPv6 extension headers that the parser skips.
const MOST_TAGS: usize = 2;
const MOST_EXTENSIONS: usize = 8;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    const fn of(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// Returns the minimum header length, and the offset of the checksum in the header.
    const fn header(self) -> (usize, usize) {
        match self {
            Self::Tcp => (TCP, 16),
            Self::Udp => (UDP, 6),
        }
    }
}

/// An IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ipv4 {
    pub(super) source: Ipv4Addr,
    pub(super) destination: Ipv4Addr,
    pub(super) protocol: u8,
    pub(super) type_of_service: u8,
    pub(super) time_to_live: u8,
    header_len: usize,
}

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ipv6 {
    pub(super) source: Ipv6Addr,
    pub(super) destination: Ipv6Addr,
    pub(super) flow_label: u32,
    /// The protocol after any extension headers.
    pub(super) next_header: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    V4(Ipv4),
    V6(Ipv6),
}

/// A TCP or UDP header with its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transport {
    pub(super) protocol: Protocol,
    pub(super) source: u16,
    pub(super) destination: u16,
    /// Offset in the frame.
    at: usize,
    /// Length of header and payload in bytes.
    len: usize,
}

/// The headers of a frame. A malformed header counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The first octet is in bits 40 to 47.
    pub(super) destination: u64,
    pub(super) source: u64,
    /// The EtherType after any VLAN tags.
    pub(super) ether_type: u16,
    /// The outer VLAN tag.
    pub(super) vlan_tag: Option<u16>,
    pub(super) network: Option<Network>,
    /// `None` for a fragment.
    pub(super) transport: Option<Transport>,
    /// Offset of the network header in the frame.
    network_at: usize,
}

fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// Reads the Ethernet address at an offset.
fn address(bytes: &[u8], at: usize) -> Option<u64> {
    let [a, b, c, d, e, f] = array(bytes, at)?;
    Some(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
}

impl Headers {
    /// Parses the headers of an untrusted frame. Returns `None` if it is shorter than an Ethernet header.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let mut ether_type = half(frame, 12)?;
        let (mut vlan_tag, mut at) = (None, ETHERNET);
        for _ in 0..MOST_TAGS {
            if !matches!(ether_type, TYPE_VLAN | TYPE_SERVICE_VLAN) {
                break;
            }
            let (Some(tag), Some(behind)) = (half(frame, at), half(frame, at + 2)) else {
                break;
            };
            vlan_tag = vlan_tag.or(Some(tag));
            (ether_type, at) = (behind, at + 4);
        }
        let packet = frame.get(at..).unwrap_or_default();
        let (network, transport) = match ether_type {
            TYPE_IPV4 => parse_ipv4(packet).unzip(),
            TYPE_IPV6 => parse_ipv6(packet).unzip(),
            _ => (None, None),
        };
        let transport = transport.flatten().map(|it| Transport {
            at: it.at + at,
            ..it
        });
        Some(Self {
            destination: address(frame, 0)?,
            source: address(frame, 6)?,
            ether_type,
            vlan_tag,
            network,
            transport,
            network_at: at,
        })
    }

    /// Returns whether the destination address is multicast.
    pub(super) const fn is_multicast(&self) -> bool {
        self.destination >> 40 & 1 == 1
    }

    /// Returns whether `frame`, whose headers these are, is IPv4, and both its IPv4 checksum and its TCP or UDP
    /// checksum are present and correct.
    pub fn checksums_are_right(&self, frame: &[u8]) -> bool {
        let Some(Network::V4(ip)) = self.network else {
            return false;
        };
        let Some(header) = frame.get(self.network_at..self.network_at + ip.header_len) else {
            return false;
        };
        let Some(segment) = self.segment(frame) else {
            return false;
        };
        // A UDP checksum of 0 means that the sender computed none.
        let has_checksum = self.checksum_at().and_then(|at| half(frame, at)) != Some(0);
        folded(sum(header)) == u16::MAX
            && has_checksum
            && folded(self.pseudo_sum() + sum(segment)) == u16::MAX
    }

    /// Writes the checksums of IPv4, TCP and UDP into `frame`, whose headers these are, for the headers that it has.
    pub fn fill_checksums(&self, frame: &mut [u8]) {
        if let Some(Network::V4(ip)) = self.network {
            put(frame, self.network_at + 10, 0);
            let header = frame.get(self.network_at..self.network_at + ip.header_len);
            let checksum = !folded(sum(header.unwrap_or_default()));
            put(frame, self.network_at + 10, checksum);
        }
        let Some(at) = self.checksum_at() else {
            return;
        };
        put(frame, at, 0);
        let segment = self.segment(frame).unwrap_or_default();
        let checksum = !folded(self.pseudo_sum() + sum(segment));
        put(frame, at, never_zero(checksum));
    }

    /// Returns the TCP or UDP header with its payload.
    fn segment<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let transport = self.transport?;
        frame.get(transport.at..transport.at + transport.len)
    }

    /// Returns the offset of the TCP or UDP checksum in the frame.
    fn checksum_at(&self) -> Option<usize> {
        let transport = self.transport?;
        let (_, offset) = transport.protocol.header();
        Some(transport.at + offset)
    }

    /// Returns the sum of the pseudo header covered by the TCP or UDP checksum (RFC 9293 3.1, RFC 8200 8.1).
    fn pseudo_sum(&self) -> u64 {
        let Some(transport) = self.transport else {
            return 0;
        };
        let addresses = match self.network {
            Some(Network::V4(ip)) => sum(&ip.source.octets()) + sum(&ip.destination.octets()),
            Some(Network::V6(ip)) => sum(&ip.source.octets()) + sum(&ip.destination.octets()),
            None => 0,
        };
        addresses + transport.len as u64 + u64::from(transport.protocol.number())
    }
}

/// Parses an IPv4 packet. Offsets are relative to its start.
fn parse_ipv4(packet: &[u8]) -> Option<(Network, Option<Transport>)> {
    let header: [u8; IPV4] = array(packet, 0)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(half(&header, 2)?);
    if header[0] >> 4 != 4 || header_len < IPV4 || total < header_len || total > packet.len() {
        return None;
    }
    let ip = Ipv4 {
        source: Ipv4Addr::from(array::<4>(&header, 12)?),
        destination: Ipv4Addr::from(array::<4>(&header, 16)?),
        protocol: header[9],
        type_of_service: header[1],
        time_to_live: header[8],
        header_len,
    };
    // "More fragments" and the fragment offset.
    let is_fragment = half(&header, 6)? & 0x3fff != 0;
    let transport = match is_fragment {
        true => None,
        false => parse_transport(packet, ip.protocol, header_len, total - header_len),
    };
    Some((Network::V4(ip), transport))
}

/// Parses an IPv6 packet. Offsets are relative to its start.
fn parse_ipv6(packet: &[u8]) -> Option<(Network, Option<Transport>)> {
    /// Extension headers to skip: hop-by-hop, routing, destination options; and the fragment header.
    const SKIPPED: [u8; 3] = [0, 43, 60];
    const FRAGMENT: u8 = 44;
    let header: [u8; IPV6] = array(packet, 0)?;
    // Matches headers whatever the payload length says, as network cards do.
    let end = (IPV6 + usize::from(half(&header, 4)?)).min(packet.len());
    if header[0] >> 4 != 6 {
        return None;
    }
    let (mut next_header, mut at) = (header[6], IPV6);
    for _ in 0..MOST_EXTENSIONS {
        if !SKIPPED.contains(&next_header) {
            break;
        }
        let (Some(next), Some(len)) = (byte(packet, at), byte(packet, at + 1)) else {
            break;
        };
        (next_header, at) = (next, at + 8 * (usize::from(len) + 1));
    }
    let words = u32::from_be_bytes(array(&header, 0)?);
    let ip = Ipv6 {
        source: Ipv6Addr::from(array::<16>(&header, 8)?),
        destination: Ipv6Addr::from(array::<16>(&header, 24)?),
        flow_label: words & 0xf_ffff,
        next_header,
        traffic_class: (words >> 20) as u8,
        hop_limit: header[7],
    };
    let transport = match end.checked_sub(at) {
        Some(len) if next_header != FRAGMENT => parse_transport(packet, next_header, at, len),
        _ => None,
    };
    Some((Network::V6(ip), transport))
}

/// Parses the TCP or UDP header at offset `at` of a packet that has `len` bytes from there on.
fn parse_transport(packet: &[u8], protocol: u8, at: usize, len: usize) -> Option<Transport> {
    let protocol = Protocol::of(protocol)?;
    let (shortest, _) = protocol.header();
    let len = match protocol {
        Protocol::Tcp => len,
        // The packet may be padded, so UDP's own length counts.
        Protocol::Udp => usize::from(half(packet, at + 4)?).min(len),
    };
    if len < shortest || at + len > packet.len() {
        return None;
    }
    Some(Transport {
        protocol,
        source: half(packet, at)?,
        destination: half(packet, at + 2)?,
        at,
        len,
    })
}

/// Completes a checksum that the kernel left to the network card (checksum offload): the field at `start + offset`
/// holds the sum of the pseudo header, and the checksum covers everything from `start` on.
pub(super) fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) {
    let covered = frame.get(start..).unwrap_or_default();
    let checksum = !folded(sum(covered));
    put(frame, start + offset, never_zero(checksum));
}

/// Replaces 0 by its other ones' complement representation, as UDP requires. For TCP the two are equivalent.
const fn never_zero(checksum: u16) -> u16 {
    if checksum == 0 { u16::MAX } else { checksum }
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// Returns the sum of the big-endian 16-bit words, with an odd last byte padded by a zero.
fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let whole: u64 = pairs
        .iter()
        .map(|pair| u64::from(u16::from_be_bytes(*pair)))
        .sum();
    whole + rest.first().map_or(0, |last| u64::from(*last) << 8)
}

/// Folds a sum into 16 bits of ones' complement.
const fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a UDP datagram from 10.1.100.2:54321 to 10.1.100.1:12345 with its checksums unset.
    pub(in super::super) fn udp_v4(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let len = (IPV4 + UDP + payload.len()) as u16;
        frame.extend([0x45, 4]);
        frame.extend(len.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 100, 2, 10, 1, 100, 1]);
        frame.extend(54321_u16.to_be_bytes());
        frame.extend(12345_u16.to_be_bytes());
        frame.extend((len - IPV4 as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        frame
    }

    /// Returns a TCP segment from [fd00::2]:54321 to [fd00::1]:12345 with its checksum unset.
    pub(in super::super) fn tcp_v6(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        frame.extend([0x60, 0x81, 0x23, 0x45]);
        frame.extend(((TCP + payload.len()) as u16).to_be_bytes());
        frame.extend([6, 64]);
        for last in [2, 1] {
            frame.extend((0xfd00_u128 << 112 | last).to_be_bytes());
        }
        frame.extend(54321_u16.to_be_bytes());
        frame.extend(12345_u16.to_be_bytes());
        frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }

    pub(in super::super) fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
        let mut tagged = frame[..12].to_vec();
        tagged.extend([0x81, 0]);
        tagged.extend(tag.to_be_bytes());
        tagged.extend(&frame[12..]);
        tagged
    }

    fn with_checksums(mut frame: Vec<u8>) -> Vec<u8> {
        Headers::parse(&frame).unwrap().fill_checksums(&mut frame);
        frame
    }

    fn are_right(frame: &[u8]) -> bool {
        Headers::parse(frame).unwrap().checksums_are_right(frame)
    }

    #[test]
    fn checksums_are_those_of_a_known_packet() {
        let frame = with_checksums(udp_v4(b"payload"));
        assert_eq!(half(&frame, 24), Some(0x9ec1));
        // The words of the pseudo header, the UDP header and the payload.
        let by_hand = 0x0a01 + 0x6402 + 0x0a01 + 0x6401 + 17 + 15 + 0xd431 + 0x3039 + 15;
        let by_hand: u64 = by_hand + 0x7061 + 0x796c + 0x6f61 + 0x6400;
        assert_eq!(half(&frame, 40), Some(!folded(by_hand)));
        assert!(are_right(&frame));
    }

    #[test]
    fn a_wrong_byte_anywhere_in_the_packet_is_detected() {
        let frame = with_checksums(tagged(&udp_v4(b"odd"), 7));
        assert!(are_right(&frame));
        for at in 18..frame.len() {
            let mut wrong = frame.clone();
            wrong[at] ^= 0x10;
            assert!(!are_right(&wrong), "byte {at}");
        }
    }

    #[test]
    fn padding_behind_the_packet_is_not_covered() {
        let mut frame = with_checksums(udp_v4(b"odd"));
        frame.extend([0xff; 20]);
        assert!(are_right(&frame));
        assert_eq!(with_checksums(frame.clone()), frame);
    }

    #[test]
    fn only_what_was_verified_counts_as_right() {
        let frame = with_checksums(udp_v4(b"payload"));
        let mut unchecked = frame.clone();
        unchecked[40..42].fill(0);
        assert!(!are_right(&unchecked), "no UDP checksum");
        let mut fragment = udp_v4(b"payload");
        fragment[20] = 0x20;
        assert!(!are_right(&with_checksums(fragment)), "a fragment");
        assert!(!are_right(&with_checksums(tcp_v6(b"payload"))), "no IPv4");
        let mut other = udp_v4(b"payload");
        other[12..14].copy_from_slice(&[0x88, 0xb5]);
        assert!(!are_right(&with_checksums(other.clone())));
        assert_eq!(with_checksums(other.clone()), other, "left as it is");
    }

    #[test]
    fn a_segment_over_ipv6_gets_the_checksum_of_its_pseudo_header() {
        let frame = with_checksums(tcp_v6(b"payload"));
        let headers = Headers::parse(&frame).unwrap();
        let segment = headers.segment(&frame).unwrap();
        assert_eq!(segment.len(), TCP + 7);
        assert_eq!(folded(headers.pseudo_sum() + sum(segment)), u16::MAX);
        assert_ne!(half(&frame, 14 + IPV6 + 16), Some(0));
    }

    #[test]
    fn a_payload_length_beyond_the_frame_hides_no_header() {
        let mut frame = tcp_v6(b"payload");
        frame[18..20].copy_from_slice(&1000_u16.to_be_bytes());
        let headers = Headers::parse(&frame).unwrap();
        assert!(headers.transport.is_some(), "{headers:?}");
        assert!(!headers.checksums_are_right(&frame));
    }

    #[test]
    fn a_checksum_that_the_kernel_left_open_is_completed() {
        let right = with_checksums(udp_v4(b"payload"));
        let mut open = right.clone();
        let headers = Headers::parse(&open).unwrap();
        put(&mut open, 40, folded(headers.pseudo_sum()));
        assert!(!are_right(&open));
        complete_checksum(&mut open, 34, 6);
        assert_eq!(open, right);
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_ones() {
        // Picks the two payload bytes that make the sum 0xffff.
        let probe = with_checksums(udp_v4(&[0, 0]));
        let rest = half(&probe, 40).unwrap();
        let frame = with_checksums(udp_v4(&rest.to_be_bytes()));
        assert_eq!(half(&frame, 40), Some(u16::MAX));
        assert!(are_right(&frame));
    }

    #[test]
    fn no_length_of_any_frame_makes_the_parser_fail() {
        let tagged_twice = tagged(&tagged(&udp_v4(b"payload"), 1), 2);
        // The frame lengths from which the transport header is found.
        for (whole, least) in [
            (udp_v4(b"payload"), ETHERNET + IPV4 + UDP + 7),
            (tcp_v6(b"payload"), ETHERNET + IPV6 + TCP),
            (tagged_twice, 2 * 4 + ETHERNET + IPV4 + UDP + 7),
        ] {
            for len in 0..=whole.len() {
                let mut frame = whole[..len].to_vec();
                assert_eq!(Headers::parse(&frame).is_some(), len >= ETHERNET, "{len}");
                let Some(headers) = Headers::parse(&frame) else {
                    continue;
                };
                headers.fill_checksums(&mut frame);
                assert_eq!(frame.len(), len);
                assert_eq!(headers.transport.is_some(), len >= least, "{len}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(
            mut frame in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..120),
            kind in 0..3_usize,
        ) {
            let ether_type: [u8; 2] = [[8, 0], [0x86, 0xdd], [0x81, 0]][kind];
            if let Some(place) = frame.get_mut(12..14) {
                place.copy_from_slice(&ether_type);
            }
            if let Some(headers) = Headers::parse(&frame) {
                headers.checksums_are_right(&frame);
                headers.fill_checksums(&mut frame);
            }
        }
    }
}
