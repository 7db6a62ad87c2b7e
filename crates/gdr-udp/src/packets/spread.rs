//! Receive-side scaling: spreading frames over queue pairs by a hash.

use gdr_roce::Qpn;
use smallvec::SmallVec;

use super::frame::{Headers, Network, Protocol};

bitflags::bitflags! {
    /// The header fields that a hash covers, like `enum ibv_rx_hash_fields`. Fields of protocols that a frame does not
    /// use are left out.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct HashFields: u64 {
        /// The source address of IPv4.
        const SOURCE_IPV4 = 1;
        /// The destination address of IPv4.
        const DESTINATION_IPV4 = 1 << 1;
        /// The source address of IPv6.
        const SOURCE_IPV6 = 1 << 2;
        /// The destination address of IPv6.
        const DESTINATION_IPV6 = 1 << 3;
        /// The source port of TCP.
        const SOURCE_PORT_TCP = 1 << 4;
        /// The destination port of TCP.
        const DESTINATION_PORT_TCP = 1 << 5;
        /// The source port of UDP.
        const SOURCE_PORT_UDP = 1 << 6;
        /// The destination port of UDP.
        const DESTINATION_PORT_UDP = 1 << 7;
    }
}

/// A receive-side scaling rule: a Toeplitz hash that indexes a table of queue pairs.
#[derive(Clone, Debug)]
pub struct Spread {
    key: [u8; Self::KEY],
    fields: HashFields,
    table: Box<[Qpn]>,
}

impl Spread {
    /// The key length in bytes: the longest input (IPv6 addresses and ports) plus the 32 bits of the hash.
    pub const KEY: usize = 40;

    /// Spreads over these queue pairs, which may repeat. Returns `None` unless their number is a power of two.
    pub fn new(key: [u8; Self::KEY], fields: HashFields, table: Box<[Qpn]>) -> Option<Self> {
        let is_valid = table.len().is_power_of_two();
        is_valid.then_some(Self { key, fields, table })
    }

    /// Returns the queue pair for a frame.
    pub fn select(&self, headers: &Headers) -> Qpn {
        let hash = toeplitz(&self.key, &self.input(headers)) as usize;
        self.table[hash & (self.table.len() - 1)]
    }

    /// Returns the bytes to hash: addresses, then ports.
    fn input(&self, headers: &Headers) -> SmallVec<[u8; 36]> {
        let mut input = SmallVec::new();
        let mut add = |field: HashFields, bytes: &[u8]| {
            if self.fields.contains(field) {
                input.extend_from_slice(bytes);
            }
        };
        match &headers.network {
            Some(Network::V4(v4)) => {
                add(HashFields::SOURCE_IPV4, &v4.source.octets());
                add(HashFields::DESTINATION_IPV4, &v4.destination.octets());
            }
            Some(Network::V6(v6)) => {
                add(HashFields::SOURCE_IPV6, &v6.source.octets());
                add(HashFields::DESTINATION_IPV6, &v6.destination.octets());
            }
            None => {}
        }
        if let Some(transport) = &headers.transport {
            let (source, destination) = match transport.protocol {
                Protocol::Tcp => (
                    HashFields::SOURCE_PORT_TCP,
                    HashFields::DESTINATION_PORT_TCP,
                ),
                Protocol::Udp => (
                    HashFields::SOURCE_PORT_UDP,
                    HashFields::DESTINATION_PORT_UDP,
                ),
            };
            add(source, &transport.source.to_be_bytes());
            add(destination, &transport.destination.to_be_bytes());
        }
        input
    }
}

/// Returns the Toeplitz hash: the XOR, over all bits set in the input, of the 32 key bits that start at the bit's
/// index.
fn toeplitz(key: &[u8; Spread::KEY], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (at, byte) in input.iter().enumerate() {
        let window = key[at..at + 5].iter();
        // In bounds: the key is four bytes longer than the longest input.
        let window = window.fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        for bit in 0..8 {
            if byte & 0x80 >> bit != 0 {
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of Microsoft's verification suite for receive-side scaling.
    const KEY: [u8; Spread::KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Returns the TCP frame from 66.9.149.187:2794 to 161.142.100.80:1766 of that suite.
    fn frame() -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 20];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&40_u16.to_be_bytes());
        frame[23] = 6;
        frame[26..30].copy_from_slice(&[66, 9, 149, 187]);
        frame[30..34].copy_from_slice(&[161, 142, 100, 80]);
        frame[34..36].copy_from_slice(&2794_u16.to_be_bytes());
        frame[36..38].copy_from_slice(&1766_u16.to_be_bytes());
        frame[46] = 0x50;
        frame
    }

    fn hash(fields: HashFields) -> u32 {
        let spread = Spread::new(KEY, fields, [Qpn::new(1)].into()).unwrap();
        let headers = Headers::parse(&frame()).unwrap();
        toeplitz(&KEY, &spread.input(&headers))
    }

    #[test]
    fn hashes_are_those_of_the_verification_suite() {
        let addresses = HashFields::SOURCE_IPV4 | HashFields::DESTINATION_IPV4;
        let ports = HashFields::SOURCE_PORT_TCP | HashFields::DESTINATION_PORT_TCP;
        assert_eq!(hash(addresses), 0x323e_8fc2);
        assert_eq!(hash(addresses | ports), 0x51cc_c178);
        let of_others = HashFields::SOURCE_IPV6 | HashFields::SOURCE_PORT_UDP;
        assert_eq!(hash(addresses | of_others), 0x323e_8fc2);
        assert_eq!(hash(of_others), 0);
        let longest = toeplitz(&KEY, &[0xff; 36]);
        assert_ne!(longest, 0, "it stays in the key");
    }

    #[test]
    fn the_lowest_bits_of_the_hash_select_from_a_table_of_a_power_of_two() {
        let addresses = HashFields::SOURCE_IPV4 | HashFields::DESTINATION_IPV4;
        let table = |len: u32| (0..len).map(|at| Qpn::new(100 + at)).collect();
        let headers = Headers::parse(&frame()).unwrap();
        for (len, selected) in [(1, 100), (2, 100), (8, 102), (128, 100 + 0x42)] {
            let spread = Spread::new(KEY, addresses, table(len)).unwrap();
            assert_eq!(spread.select(&headers).get(), selected);
        }
        for len in [0, 3, 12] {
            assert!(Spread::new(KEY, addresses, table(len)).is_none());
        }
    }
}
