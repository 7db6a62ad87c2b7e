//! What is said, as bytes. Every parser here takes untrusted bytes and cannot panic.
//!
//! All numbers are little-endian.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gdr_roce::{Mtu, Psn, Qpn, Rkey};

use crate::error::HandshakeError;
use crate::lid::Lid;
use crate::queue_pair::Endpoint;
use crate::region::RemoteMemory;

/// The version of everything after the first 10 bytes, which stay as they are for ever.
pub(super) const VERSION: u16 = 2;
/// How a side says that it speaks this at all.
const MAGIC: [u8; 8] = *b"gdr-rdma";
/// Bytes of a challenge.
pub(super) const NONCE: usize = 32;
/// Regions in one introduction.
pub(super) const MOST_REGIONS: usize = 1024;
/// Bytes of one region.
const REGION: usize = 20;
/// Bytes of an introduction without regions.
const FIXED: usize = 32;
/// The longest payload of a frame, bytes.
pub(super) const MOST_PAYLOAD: usize = 64 << 10;

/// The first thing either side says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Whether it goes on only with a shared key.
    pub(super) keyed: bool,
    /// What the other side has to prove its knowledge of the key with.
    pub(super) nonce: [u8; NONCE],
}

impl Hello {
    /// Bytes on the wire: magic, version, flags, nonce.
    pub(super) const LEN: usize = 8 + 2 + 2 + NONCE;

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&u16::from(self.keyed).to_le_bytes());
        bytes[12..].copy_from_slice(&self.nonce);
        bytes
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, HandshakeError> {
        let mut reader = Reader(bytes);
        if reader.array()? != MAGIC {
            return Err(HandshakeError::Protocol);
        }
        let theirs = u16::from_le_bytes(reader.array()?);
        if theirs != VERSION {
            let ours = VERSION;
            return Err(HandshakeError::Version { ours, theirs });
        }
        let keyed = match u16::from_le_bytes(reader.array()?) {
            0 => false,
            1 => true,
            _ => return Err(HandshakeError::Malformed("unknown flags in its greeting")),
        };
        let nonce = reader.array()?;
        Ok(Self { keyed, nonce })
    }
}

/// What a side must tell before the other can connect a queue pair to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The queue pair.
    pub endpoint: Endpoint,
    /// The path MTU it will use; both sides must use the same.
    pub path_mtu: Mtu,
    /// Regions that the other side may use, in an order that both know; 1024 at most.
    pub regions: Vec<RemoteMemory>,
}

impl Introduction {
    pub(super) fn emit(&self) -> Result<Vec<u8>, HandshakeError> {
        let count = self.regions.len();
        if count > MOST_REGIONS {
            let (len, most) = (FIXED + count * REGION, FIXED + MOST_REGIONS * REGION);
            return Err(HandshakeError::TooLong { len, most });
        }
        let mut bytes = Vec::with_capacity(FIXED + count * REGION);
        let (family, address) = match self.endpoint.address.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped()),
            IpAddr::V6(ip) => (6, ip),
        };
        bytes.push(family);
        bytes.extend(address.octets());
        bytes.extend(self.endpoint.address.port().to_le_bytes());
        bytes.extend(self.endpoint.qpn.get().to_le_bytes());
        bytes.extend(self.endpoint.psn.get().to_le_bytes());
        bytes.extend(self.endpoint.lid.map_or(0, Lid::get).to_le_bytes());
        bytes.push(self.path_mtu.code());
        bytes.extend((count as u16).to_le_bytes());
        for region in &self.regions {
            bytes.extend(region.rkey.0.to_le_bytes());
            bytes.extend(region.addr.to_le_bytes());
            bytes.extend(region.len.to_le_bytes());
        }
        Ok(bytes)
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let malformed = HandshakeError::Malformed;
        let mut reader = Reader(bytes);
        let [family] = reader.array()?;
        let address = Ipv6Addr::from(reader.array::<16>()?);
        let ip = match family {
            4 => IpAddr::V4(
                address
                    .to_ipv4_mapped()
                    .ok_or(malformed("an IPv4 address that is none"))?,
            ),
            6 => IpAddr::V6(address),
            _ => return Err(malformed("an address of an unknown family")),
        };
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(malformed("an address that names no single interface"));
        }
        let port = u16::from_le_bytes(reader.array()?);
        if port == 0 {
            return Err(malformed("UDP port 0"));
        }
        let qpn = number24(reader.array()?).ok_or(malformed("a QPN above 24 bits"))?;
        let psn = number24(reader.array()?).ok_or(malformed("a PSN above 24 bits"))?;
        let lid = match u16::from_le_bytes(reader.array()?) {
            0 => None,
            number => Some(Lid::new(number).ok_or(malformed("a LID of many ports"))?),
        };
        let [mtu] = reader.array()?;
        let path_mtu = Mtu::from_code(mtu).ok_or(malformed("an unknown path MTU"))?;
        let count = usize::from(u16::from_le_bytes(reader.array()?));
        if count > MOST_REGIONS || reader.0.len() != count * REGION {
            return Err(malformed("another number of regions than it announces"));
        }
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            let rkey = Rkey(u32::from_le_bytes(reader.array()?));
            let addr = u64::from_le_bytes(reader.array()?);
            let len = u64::from_le_bytes(reader.array()?);
            if addr.checked_add(len).is_none() {
                return Err(malformed("a region beyond the end of all addresses"));
            }
            regions.push(RemoteMemory { rkey, addr, len });
        }
        Ok(Self {
            endpoint: Endpoint {
                address: SocketAddr::new(ip, port),
                qpn: Qpn::new(qpn),
                psn: Psn::new(psn),
                lid,
            },
            path_mtu,
            regions,
        })
    }
}

fn number24(bytes: [u8; 4]) -> Option<u32> {
    let number = u32::from_le_bytes(bytes);
    (number < 1 << 24).then_some(number)
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// An [`Introduction`].
    Introduction = 1,
    /// Nothing: both sides have come this far.
    Barrier = 2,
    /// Bytes of the program's own.
    Program = 3,
}

/// What stands before a frame's payload: kind, and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) len: usize,
}

impl FrameHeader {
    /// Bytes on the wire.
    pub(super) const LEN: usize = 8;

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.kind as u8;
        bytes[4..].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, HandshakeError> {
        let mut reader = Reader(bytes);
        let kind = match reader.array::<4>()? {
            [1, 0, 0, 0] => FrameKind::Introduction,
            [2, 0, 0, 0] => FrameKind::Barrier,
            [3, 0, 0, 0] => FrameKind::Program,
            _ => return Err(HandshakeError::Malformed("a message of unknown kind")),
        };
        let len = u32::from_le_bytes(reader.array()?) as usize;
        if len > MOST_PAYLOAD {
            let most = MOST_PAYLOAD;
            return Err(HandshakeError::TooLong { len, most });
        }
        Ok(Self { kind, len })
    }
}

/// Bytes not yet read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let (head, rest) = self
            .0
            .split_first_chunk()
            .ok_or(HandshakeError::Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*head)
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        reason = "a fixture that fails is a test that fails"
    )]

    use proptest::prelude::*;

    use super::*;

    fn introductions() -> impl Strategy<Value = Introduction> {
        let ip = prop_oneof![
            (1u8..224, any::<[u8; 3]>())
                .prop_map(|(a, [b, c, d])| IpAddr::from(Ipv4Addr::new(a, b, c, d))),
            any::<[u8; 15]>().prop_map(|rest| {
                let mut octets = [0x20; 16];
                octets[1..].copy_from_slice(&rest);
                IpAddr::from(octets)
            }),
        ];
        let region =
            (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(key, addr, len)| RemoteMemory {
                rkey: Rkey(key),
                addr: addr.into(),
                len: len.into(),
            });
        let numbers = (0u32..1 << 24, 0u32..1 << 24, 0u16..0xc000, 1u8..6);
        let regions = prop::collection::vec(region, 0..20);
        (ip, 1u16.., numbers, regions).prop_map(|(ip, port, (qpn, psn, lid, mtu), regions)| {
            Introduction {
                endpoint: Endpoint {
                    address: SocketAddr::new(ip, port),
                    qpn: Qpn::new(qpn),
                    psn: Psn::new(psn),
                    lid: Lid::new(lid),
                },
                path_mtu: Mtu::from_code(mtu).unwrap(),
                regions,
            }
        })
    }

    proptest! {
        #[test]
        fn an_introduction_comes_back_as_it_went(introduction in introductions()) {
            let bytes = introduction.emit().unwrap();
            prop_assert_eq!(Introduction::parse(&bytes).unwrap(), introduction);
        }

        #[test]
        fn a_shortened_introduction_is_refused(
            introduction in introductions(), cut in 1usize..32,
        ) {
            let bytes = introduction.emit().unwrap();
            let cut = bytes.len().saturating_sub(cut);
            prop_assert!(Introduction::parse(&bytes[..cut]).is_err());
        }

        #[test]
        fn arbitrary_bytes_are_judged_and_what_passes_is_the_only_form(bytes: Vec<u8>) {
            if let Ok(introduction) = Introduction::parse(&bytes) {
                prop_assert_eq!(introduction.emit().unwrap(), bytes);
            }
        }

        #[test]
        fn arbitrary_greetings_and_headers_are_judged(
            mut hello: [u8; Hello::LEN], header: [u8; FrameHeader::LEN], version: u16,
        ) {
            prop_assert!(Hello::parse(&hello).is_err());
            hello[..8].copy_from_slice(&MAGIC);
            hello[8..10].copy_from_slice(&version.to_le_bytes());
            match Hello::parse(&hello) {
                Ok(parsed) => prop_assert_eq!(parsed.emit(), hello),
                Err(HandshakeError::Version { theirs, .. }) => prop_assert_eq!(theirs, version),
                Err(error) => prop_assert!(matches!(error, HandshakeError::Malformed(_))),
            }
            if let Ok(parsed) = FrameHeader::parse(&header) {
                prop_assert_eq!(parsed.emit(), header);
                prop_assert!(parsed.len <= MOST_PAYLOAD);
            }
        }
    }

    #[test]
    fn more_regions_than_possible_are_refused_by_the_sender() {
        let region = RemoteMemory {
            rkey: Rkey(1),
            addr: 2,
            len: 3,
        };
        let mut introduction = Introduction {
            endpoint: Endpoint {
                address: SocketAddr::from(([127, 0, 0, 1], 4791)),
                qpn: Qpn::new(2),
                psn: Psn::new(0),
                lid: None,
            },
            path_mtu: Mtu::B1024,
            regions: vec![region; MOST_REGIONS],
        };
        let bytes = introduction.emit().unwrap();
        assert!(bytes.len() <= MOST_PAYLOAD);
        assert_eq!(Introduction::parse(&bytes).unwrap(), introduction);
        introduction.regions.push(region);
        assert!(matches!(
            introduction.emit(),
            Err(HandshakeError::TooLong { .. })
        ));
    }
}
