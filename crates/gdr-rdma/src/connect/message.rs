//! The format of messages. Every parser takes untrusted bytes and cannot panic.
//!
//! All numbers are little-endian.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gdr_roce::{LossRecovery, Mtu, Psn, Qpn, Rkey};

use super::service::Service;
use crate::error::HandshakeError;
use crate::memory_region::RemoteMemory;
use crate::types::{Endpoint, Lid, SourcePort};

/// The version of everything after the first 10 bytes, which never change.
pub(super) const VERSION: u16 = 3;
/// Identifies the protocol.
const MAGIC: [u8; 8] = *b"gdr-rdma";
/// The length of a challenge in bytes.
pub(super) const NONCE: usize = 32;
/// Maximum number of regions in an introduction.
pub(super) const MOST_REGIONS: usize = 1024;
/// The length of a region in bytes.
const REGION: usize = 20;
/// The length of an introduction without regions in bytes.
const FIXED: usize = 32;
/// Bits of a byte that follows the regions if it is not 0: all packets of the sender come from the port of its address,
/// otherwise from any; the sender can retransmit selectively.
const OF_ADDRESS: u8 = 1;
const SELECTIVE: u8 = 2;
/// The longest payload of a frame in bytes.
pub(super) const MOST_PAYLOAD: usize = 64 << 10;

/// The greeting of either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Whether it requires a shared key.
    pub(super) keyed: bool,
    /// The service that it speaks on top of the set-up.
    pub(super) service: Service,
    /// The challenge for the other side's proof.
    pub(super) nonce: [u8; NONCE],
}

impl Hello {
    /// The length in bytes: magic, version, flags, service, nonce.
    pub(super) const LEN: usize = Self::PREFIX + 2 + Service::LEN + NONCE;
    /// The length of what never changes: magic and version.
    pub(super) const PREFIX: usize = 8 + 2;

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&u16::from(self.keyed).to_le_bytes());
        bytes[12..28].copy_from_slice(&self.service.to_bytes());
        bytes[28..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Fails unless what follows these first bytes is a greeting of this version.
    pub(super) fn check_prefix(bytes: &[u8; Self::PREFIX]) -> Result<(), HandshakeError> {
        let mut reader = Reader(bytes);
        if reader.array()? != MAGIC {
            return Err(HandshakeError::Protocol);
        }
        let theirs = u16::from_le_bytes(reader.array()?);
        if theirs != VERSION {
            let ours = VERSION;
            return Err(HandshakeError::Version { ours, theirs });
        }
        Ok(())
    }

    /// Parses what follows the first bytes.
    pub(super) fn parse(bytes: &[u8; Self::LEN - Self::PREFIX]) -> Result<Self, HandshakeError> {
        let mut reader = Reader(bytes);
        let keyed = match u16::from_le_bytes(reader.array()?) {
            0 => false,
            1 => true,
            _ => return Err(HandshakeError::Malformed("unknown flags in its greeting")),
        };
        let service = Service::from_bytes(reader.array()?);
        let nonce = reader.array()?;
        Ok(Self {
            keyed,
            service,
            nonce,
        })
    }

    /// Fails if the sides of these greetings can have no session.
    pub(super) fn check_peer(&self, theirs: &Self) -> Result<(), HandshakeError> {
        if !self.service.meets(theirs.service) {
            let (ours, theirs) = (self.service, theirs.service);
            return Err(HandshakeError::Service { ours, theirs });
        }
        if self.keyed != theirs.keyed {
            let theirs = theirs.keyed;
            return Err(HandshakeError::KeyMissing { theirs });
        }
        Ok(())
    }
}

/// What a side must announce before the other can connect to its queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The queue pair.
    pub endpoint: Endpoint,
    /// The path MTU it will use; both sides must use the same.
    pub path_mtu: Mtu,
    /// Regions that the other side may use, in an order that both know; at most 1024.
    pub regions: Vec<RemoteMemory>,
}

impl PeerInfo {
    pub(super) fn emit(&self) -> Result<Vec<u8>, HandshakeError> {
        let count = self.regions.len();
        if count > MOST_REGIONS {
            let (len, most) = (FIXED + count * REGION, FIXED + MOST_REGIONS * REGION);
            return Err(HandshakeError::TooLong { len, most });
        }
        let mut bytes = Vec::with_capacity(FIXED + count * REGION + 1);
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
        let port = match self.endpoint.source_port {
            SourcePort::OfAddress => OF_ADDRESS,
            SourcePort::Any => 0,
        };
        let recovery = match self.endpoint.loss_recovery {
            LossRecovery::Selective => SELECTIVE,
            LossRecovery::GoBackN => 0,
        };
        if port | recovery != 0 {
            bytes.push(port | recovery);
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
                    .ok_or(malformed("an IPv4 address that is not mapped into IPv6"))?,
            ),
            6 => IpAddr::V6(address),
            _ => return Err(malformed("an address of an unknown family")),
        };
        let port = u16::from_le_bytes(reader.array()?);
        if let Some(what) = not_an_interface(ip) {
            let named = SocketAddr::new(ip, port);
            return Err(HandshakeError::NotAnAddress { named, what });
        }
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
        let flags = match reader.0.get(count * REGION..) {
            Some([]) => Some(0),
            Some([flags @ 1..=3]) => Some(*flags),
            _ => None,
        };
        let Some(flags) = flags.filter(|_| count <= MOST_REGIONS) else {
            return Err(malformed("another number of regions than it announces"));
        };
        let source_port = match flags & OF_ADDRESS {
            0 => SourcePort::Any,
            _ => SourcePort::OfAddress,
        };
        let loss_recovery = match flags & SELECTIVE {
            0 => LossRecovery::GoBackN,
            _ => LossRecovery::Selective,
        };
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
                source_port,
                loss_recovery,
            },
            path_mtu,
            regions,
        })
    }
}

/// Returns the kind of an address that no single interface can have.
fn not_an_interface(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(ip) if ip.octets()[0] == 0 => Some("an unspecified address"),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some("a broadcast address"),
        IpAddr::V4(ip) if ip.is_multicast() => Some("a multicast address"),
        IpAddr::V4(ip) if ip.octets()[0] >= 240 => Some("a reserved address"),
        IpAddr::V6(ip) if ip.is_unspecified() => Some("an unspecified address"),
        IpAddr::V6(ip) if ip.is_multicast() => Some("a multicast address"),
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => Some("an IPv4 address as an IPv6 one"),
        _ => None,
    }
}

fn number24(bytes: [u8; 4]) -> Option<u32> {
    let number = u32::from_le_bytes(bytes);
    (number < 1 << 24).then_some(number)
}

/// What a frame contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A [`PeerInfo`].
    PeerInfo = 1,
    /// Nothing: the sender has reached a barrier.
    Barrier = 2,
    /// A message of the program.
    Program = 3,
    /// Text: why the sender does not continue. This is the last message.
    Refusal = 4,
}

/// The header of a frame: kind and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) len: usize,
}

impl FrameHeader {
    /// The length in bytes.
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
            [1, 0, 0, 0] => FrameKind::PeerInfo,
            [2, 0, 0, 0] => FrameKind::Barrier,
            [3, 0, 0, 0] => FrameKind::Program,
            [4, 0, 0, 0] => FrameKind::Refusal,
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

/// The bytes not read yet.
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

    fn introductions() -> impl Strategy<Value = PeerInfo> {
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
        let source = prop_oneof![Just(SourcePort::Any), Just(SourcePort::OfAddress)];
        let recovery = prop_oneof![Just(LossRecovery::GoBackN), Just(LossRecovery::Selective)];
        let ports = (1u16.., source, recovery);
        (ip, ports, numbers, regions).prop_map(|(ip, ports, (qpn, psn, lid, mtu), regions)| {
            let (port, source_port, loss_recovery) = ports;
            PeerInfo {
                endpoint: Endpoint {
                    address: SocketAddr::new(ip, port),
                    qpn: Qpn::new(qpn),
                    psn: Psn::new(psn),
                    lid: Lid::new(lid),
                    source_port,
                    loss_recovery,
                },
                path_mtu: Mtu::from_code(mtu).unwrap(),
                regions,
            }
        })
    }

    /// Returns a peer without regions.
    fn peer_at(ip: IpAddr) -> PeerInfo {
        PeerInfo {
            endpoint: Endpoint {
                address: SocketAddr::new(ip, 4791),
                qpn: Qpn::new(2),
                psn: Psn::new(0),
                lid: None,
                source_port: SourcePort::OfAddress,
                loss_recovery: LossRecovery::Selective,
            },
            path_mtu: Mtu::B1024,
            regions: Vec::new(),
        }
    }

    proptest! {
        #[test]
        fn an_introduction_is_parsed_as_it_was_sent(introduction in introductions()) {
            let bytes = introduction.emit().unwrap();
            prop_assert_eq!(PeerInfo::parse(&bytes).unwrap(), introduction);
        }

        #[test]
        fn a_shortened_introduction_is_refused(
            introduction in introductions(), cut in 1usize..32,
        ) {
            let bytes = introduction.emit().unwrap();
            // Without just the last byte it is valid: peers that do not use this crate may leave that byte out.
            let whole = FIXED + introduction.regions.len() * REGION;
            let cut = whole.saturating_sub(cut);
            prop_assert!(PeerInfo::parse(&bytes[..cut]).is_err());
        }

        #[test]
        fn an_introduction_without_flags_is_of_a_peer_like_any(
            mut introduction in introductions(),
        ) {
            introduction.endpoint.source_port = SourcePort::OfAddress;
            let mut bytes = introduction.emit().unwrap();
            bytes.pop();
            introduction.endpoint.source_port = SourcePort::Any;
            introduction.endpoint.loss_recovery = LossRecovery::GoBackN;
            prop_assert_eq!(PeerInfo::parse(&bytes).unwrap(), introduction);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic_and_every_valid_form_is_unique(bytes: Vec<u8>) {
            if let Ok(introduction) = PeerInfo::parse(&bytes) {
                prop_assert_eq!(introduction.emit().unwrap(), bytes);
            }
        }

        #[test]
        fn arbitrary_greetings_and_headers_do_not_panic(
            mut hello: [u8; Hello::LEN], header: [u8; FrameHeader::LEN], version: u16,
        ) {
            let (prefix, rest) = hello.split_first_chunk_mut().unwrap();
            let rest: &[u8; Hello::LEN - Hello::PREFIX] = (&*rest).try_into().unwrap();
            prop_assert!(Hello::check_prefix(prefix).is_err());
            prefix[..8].copy_from_slice(&MAGIC);
            prefix[8..].copy_from_slice(&version.to_le_bytes());
            match Hello::check_prefix(prefix) {
                Err(HandshakeError::Version { theirs, .. }) => prop_assert_eq!(theirs, version),
                outcome => prop_assert_eq!(outcome.is_ok(), version == VERSION),
            }
            match Hello::parse(rest) {
                Ok(parsed) => prop_assert_eq!(&parsed.emit()[Hello::PREFIX..], rest),
                Err(error) => prop_assert!(matches!(error, HandshakeError::Malformed(_))),
            }
            if let Ok(parsed) = FrameHeader::parse(&header) {
                prop_assert_eq!(parsed.emit(), header);
                prop_assert!(parsed.len <= MOST_PAYLOAD);
            }
        }
    }

    #[test]
    fn addresses_of_no_single_interface_are_refused() {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "ff02::1",
            "::ffff:224.0.0.1",
            "::ffff:10.0.0.1",
        ] {
            let ip: IpAddr = ip.parse().unwrap();
            let introduction = peer_at(ip);
            let parsed = PeerInfo::parse(&introduction.emit().unwrap());
            assert!(
                matches!(parsed, Err(HandshakeError::NotAnAddress { .. })),
                "{ip}: {parsed:?}"
            );
        }
    }

    #[test]
    fn more_regions_than_possible_are_refused_by_the_sender() {
        let region = RemoteMemory {
            rkey: Rkey(1),
            addr: 2,
            len: 3,
        };
        let mut introduction = peer_at(IpAddr::from([127, 0, 0, 1]));
        introduction.regions = vec![region; MOST_REGIONS];
        let bytes = introduction.emit().unwrap();
        assert!(bytes.len() <= MOST_PAYLOAD);
        assert_eq!(PeerInfo::parse(&bytes).unwrap(), introduction);
        introduction.regions.push(region);
        assert!(matches!(
            introduction.emit(),
            Err(HandshakeError::TooLong { .. })
        ));
    }
}
