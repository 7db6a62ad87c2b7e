//! The private data header of programs that connect by IP address, and the service IDs of their ports.

use std::net::IpAddr;

/// A service ID, which identifies what a REQ or SIDR_REQ asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The prefix of IP port service IDs (annex A11.3).
    const IP: u64 = 0x0100_0000;

    /// Returns the service ID of a port in an rdma_cm port space, e.g. 0x0106 for RDMA_PS_TCP.
    pub const fn of_port(space: u16, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// Returns the port.
    pub const fn port(self) -> u16 {
        self.0 as u16
    }

    /// Returns whether this is an IP port, so that a request's private data starts with [`IpAddresses`].
    pub const fn is_ip_port(self) -> bool {
        self.0 >> 24 == Self::IP >> 24
    }
}

/// The address header at the start of the private data (annex A11.4). Both addresses are of the same family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpAddresses {
    /// The sender's port.
    pub source_port: u16,
    /// The sender's address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
}

impl IpAddresses {
    /// Length on the wire in bytes.
    pub const LEN: usize = 36;

    /// Parses the header from untrusted private data. Returns `None` if it is of another version or too short.
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = private_data.first_chunk()?;
        let address = |at: usize| {
            let octets: &[u8; 16] = bytes[at..].first_chunk()?;
            match bytes[1] >> 4 {
                // IPv4 addresses occupy the last 4 of 16 bytes.
                4 => octets.last_chunk::<4>().map(|v4| IpAddr::from(*v4)),
                6 => Some(IpAddr::from(*octets)),
                _ => None,
            }
        };
        if bytes[0] != 0 {
            return None;
        }
        Some(Self {
            source_port: u16::from_be_bytes([bytes[2], bytes[3]]),
            source: address(4)?,
            destination: address(20)?,
        })
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[1] = if self.source.is_ipv4() {
            4 << 4
        } else {
            6 << 4
        };
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(v4) => bytes[at + 12..at + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => bytes[at..at + 16].copy_from_slice(&v6.octets()),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_header_has_the_bytes_of_the_annex() {
        let header = IpAddresses {
            source_port: 0x1234,
            source: IpAddr::from([10, 0, 0, 1]),
            destination: IpAddr::from([10, 0, 0, 2]),
        };
        let mut expected = [0; IpAddresses::LEN];
        expected[..4].copy_from_slice(&[0, 0x40, 0x12, 0x34]);
        expected[16..20].copy_from_slice(&[10, 0, 0, 1]);
        expected[32..].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(header.emit(), expected);
    }

    #[test]
    fn ports_have_the_identifiers_of_their_space() {
        assert_eq!(ServiceId::of_port(0x0106, 7174), ServiceId(0x0106_1c06));
        assert!(ServiceId::of_port(0x0111, 1).is_ip_port());
        assert!(!ServiceId(0x1000_0000_0106_1c06).is_ip_port());
        assert_eq!(ServiceId(0x0106_1c06).port(), 7174);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_header_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(header) = IpAddresses::parse(&bytes) {
                prop_assert_eq!(IpAddresses::parse(&header.emit()), Some(header));
            }
        }

        #[test]
        fn addresses_of_both_families_come_back(
            v6: bool, source: [u8; 16], destination: [u8; 16], source_port: u16,
        ) {
            let address = |octets: [u8; 16]| match v6 {
                true => IpAddr::from(octets),
                false => IpAddr::from(*octets.first_chunk::<4>().unwrap()),
            };
            let (source, destination) = (address(source), address(destination));
            let header = IpAddresses { source_port, source, destination };
            prop_assert_eq!(IpAddresses::parse(&header.emit()), Some(header));
        }
    }
}
