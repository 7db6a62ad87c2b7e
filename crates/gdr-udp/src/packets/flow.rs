//! Flow rules: which frames a raw packet queue pair receives.

use std::ops::BitAnd;

use super::frame::{Headers, Network, Protocol};

/// A value that is compared only in the bits of a mask. The default matches anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked<T> {
    /// The expected value.
    pub value: T,
    /// The bits to compare.
    pub mask: T,
}

impl<T: Copy + Eq + BitAnd<Output = T>> Masked<T> {
    fn matches(self, found: T) -> bool {
        found & self.mask == self.value & self.mask
    }
}

/// The bits of an Ethernet address; the first octet is in bits 40 to 47.
pub(super) const ADDRESS: u64 = 0xffff_ffff_ffff;

/// Fields of an Ethernet header, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct EthernetMatch {
    /// The first octet is in bits 40 to 47.
    pub destination: Masked<u64>,
    pub source: Masked<u64>,
    /// The EtherType after any VLAN tags.
    pub ether_type: Masked<u16>,
    /// The outer VLAN tag. An untagged frame matches only a mask of 0.
    pub vlan_tag: Masked<u16>,
}

/// Fields of an IPv4 header, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Ipv4Match {
    pub source: Masked<u32>,
    pub destination: Masked<u32>,
    pub protocol: Masked<u8>,
    pub type_of_service: Masked<u8>,
    pub time_to_live: Masked<u8>,
}

/// Fields of an IPv6 header, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Ipv6Match {
    pub source: Masked<u128>,
    pub destination: Masked<u128>,
    pub flow_label: Masked<u32>,
    /// The protocol after any extension headers.
    pub next_header: Masked<u8>,
    pub traffic_class: Masked<u8>,
    pub hop_limit: Masked<u8>,
}

/// Ports of TCP or UDP, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct PortMatch {
    pub destination: Masked<u16>,
    pub source: Masked<u16>,
}

/// One condition of a flow, like `struct ibv_flow_spec`. A frame without the header does not match; a fragment never
/// matches a condition on ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum FlowSpec {
    Ethernet(EthernetMatch),
    Ipv4(Ipv4Match),
    Ipv6(Ipv6Match),
    Tcp(PortMatch),
    Udp(PortMatch),
}

impl FlowSpec {
    fn matches(&self, headers: &Headers) -> bool {
        match (self, headers.network) {
            (Self::Ethernet(it), _) => {
                let tag_matches = match headers.vlan_tag {
                    Some(tag) => it.vlan_tag.matches(tag),
                    None => it.vlan_tag.mask == 0,
                };
                it.destination.matches(headers.destination)
                    && it.source.matches(headers.source)
                    && it.ether_type.matches(headers.ether_type)
                    && tag_matches
            }
            (Self::Ipv4(it), Some(Network::V4(ip))) => {
                it.source.matches(ip.source.to_bits())
                    && it.destination.matches(ip.destination.to_bits())
                    && it.protocol.matches(ip.protocol)
                    && it.type_of_service.matches(ip.type_of_service)
                    && it.time_to_live.matches(ip.time_to_live)
            }
            (Self::Ipv6(it), Some(Network::V6(ip))) => {
                it.source.matches(ip.source.to_bits())
                    && it.destination.matches(ip.destination.to_bits())
                    && it.flow_label.matches(ip.flow_label)
                    && it.next_header.matches(ip.next_header)
                    && it.traffic_class.matches(ip.traffic_class)
                    && it.hop_limit.matches(ip.hop_limit)
            }
            (Self::Ipv4(_) | Self::Ipv6(_), _) => false,
            (Self::Tcp(it), _) => it.matches(headers, Protocol::Tcp),
            (Self::Udp(it), _) => it.matches(headers, Protocol::Udp),
        }
    }
}

impl PortMatch {
    fn matches(&self, headers: &Headers, protocol: Protocol) -> bool {
        headers.transport.is_some_and(|it| {
            it.protocol == protocol
                && self.destination.matches(it.destination)
                && self.source.matches(it.source)
        })
    }
}

/// The kind of a flow, like `enum ibv_flow_attr_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowKind {
    /// Frames that match every condition.
    Normal,
    /// Frames that match no normal flow and, if multicast, no [`FlowKind::MulticastDefault`]. Makes the interface
    /// promiscuous.
    AllDefault,
    /// Multicast frames that match no normal flow.
    MulticastDefault,
    /// A copy of every received frame. Makes the interface promiscuous.
    Sniffer,
}

/// A flow, like `struct ibv_flow_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// The kind of flow.
    pub kind: FlowKind,
    /// Lower is more urgent: of the normal flows that match a frame, those with the lowest number receive it.
    pub priority: u16,
    /// The conditions, for a normal flow.
    pub specs: Vec<FlowSpec>,
}

impl FlowRule {
    /// Returns whether every condition matches.
    pub(super) fn matches(&self, headers: &Headers) -> bool {
        self.specs.iter().all(|spec| spec.matches(headers))
    }

    /// Returns the exact destination address that the rule asks for, if any.
    pub(super) fn destination(&self) -> Option<u64> {
        self.specs.iter().find_map(|spec| match spec {
            FlowSpec::Ethernet(it) if it.destination.mask & ADDRESS == ADDRESS => {
                Some(it.destination.value & ADDRESS)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::{tagged, tcp_v6, udp_v4};
    use super::*;

    fn exactly<T>(value: T, mask: T) -> Masked<T> {
        Masked { value, mask }
    }

    fn matches(frame: &[u8], specs: &[FlowSpec]) -> bool {
        let rule = FlowRule {
            kind: FlowKind::Normal,
            priority: 0,
            specs: specs.to_vec(),
        };
        rule.matches(&Headers::parse(frame).unwrap())
    }

    #[test]
    fn every_field_of_a_condition_is_compared() {
        let (v4, v6) = (udp_v4(b"payload"), tcp_v6(b"payload"));
        let ethernet = EthernetMatch::default();
        let (ip4, ip6, ports) = (
            Ipv4Match::default(),
            Ipv6Match::default(),
            PortMatch::default(),
        );
        // Each condition matches its frame, and fails once the lowest bit of its value is flipped.
        macro_rules! fields {
            ($($frame:ident $kind:ident $base:ident.$field:ident: $value:expr, $mask:expr;)*) => {$({
                for (wrong, expected) in [(0, true), (1, false)] {
                    let mut it = $base;
                    it.$field = exactly($value ^ wrong, $mask);
                    let name = stringify!($frame.$kind.$field);
                    assert_eq!(matches(&$frame, &[FlowSpec::$kind(it)]), expected, "{name}");
                }
            })*};
        }
        let v6_address = |last: u128| 0xfd00_u128 << 112 | last;
        fields! {
            v4 Ethernet ethernet.destination: 0x0200_0000_0001, ADDRESS;
            v4 Ethernet ethernet.source: 0x0200_0000_0002, ADDRESS;
            v4 Ethernet ethernet.ether_type: 0x0800, 0xffff;
            v4 Ipv4 ip4.source: 0x0a01_6402, u32::MAX;
            v4 Ipv4 ip4.destination: 0x0a01_6401, u32::MAX;
            v4 Ipv4 ip4.protocol: 17, 0xff;
            v4 Ipv4 ip4.type_of_service: 4, 0xff;
            v4 Ipv4 ip4.time_to_live: 64, 0xff;
            v4 Udp ports.destination: 12345, 0xffff;
            v4 Udp ports.source: 54321, 0xffff;
            v6 Ipv6 ip6.source: v6_address(2), u128::MAX;
            v6 Ipv6 ip6.destination: v6_address(1), u128::MAX;
            v6 Ipv6 ip6.flow_label: 0x12345, 0xfffff;
            v6 Ipv6 ip6.next_header: 6, 0xff;
            v6 Ipv6 ip6.traffic_class: 8, 0xff;
            v6 Ipv6 ip6.hop_limit: 64, 0xff;
            v6 Tcp ports.destination: 12345, 0xffff;
            v6 Tcp ports.source: 54321, 0xffff;
        }
    }

    #[test]
    fn bits_outside_a_mask_are_not_compared() {
        let frame = udp_v4(b"payload");
        let network = Ipv4Match {
            destination: exactly(0x0a01_64ff, 0xffff_ff00),
            ..Ipv4Match::default()
        };
        assert!(matches(&frame, &[FlowSpec::Ipv4(network)]));
        assert!(matches(&frame, &[]), "no condition");
    }

    #[test]
    fn a_frame_without_the_header_of_a_condition_does_not_match() {
        let (v4, v6) = (udp_v4(b"payload"), tcp_v6(b"payload"));
        assert!(!matches(&v4, &[FlowSpec::Ipv6(Ipv6Match::default())]));
        assert!(!matches(&v6, &[FlowSpec::Ipv4(Ipv4Match::default())]));
        assert!(!matches(&v4, &[FlowSpec::Tcp(PortMatch::default())]));
        assert!(!matches(&v6, &[FlowSpec::Udp(PortMatch::default())]));
        let right = FlowSpec::Ipv4(Ipv4Match::default());
        let both = [right, FlowSpec::Tcp(PortMatch::default())];
        assert!(!matches(&v4, &both), "one of two conditions");
    }

    #[test]
    fn a_fragment_has_no_ports() {
        let mut fragment = udp_v4(b"payload");
        let udp = FlowSpec::Udp(PortMatch::default());
        assert!(matches(&fragment, &[udp]));
        fragment[20] = 0x20;
        assert!(!matches(&fragment, &[udp]), "more fragments follow");
        fragment[20..22].copy_from_slice(&[0, 1]);
        assert!(!matches(&fragment, &[udp]), "not the first one");
    }

    #[test]
    fn a_vlan_tag_is_compared_and_skipped() {
        let (plain, tagged) = (udp_v4(b"payload"), tagged(&udp_v4(b"payload"), 0x2005));
        let ethernet = EthernetMatch::default();
        let in_vlan = |id| {
            FlowSpec::Ethernet(EthernetMatch {
                vlan_tag: exactly(id, 0xfff),
                ..ethernet
            })
        };
        assert!(matches(&tagged, &[in_vlan(5)]));
        assert!(!matches(&tagged, &[in_vlan(4)]));
        assert!(!matches(&plain, &[in_vlan(0)]));
        let port = PortMatch {
            destination: exactly(12345, 0xffff),
            ..PortMatch::default()
        };
        let ip = EthernetMatch {
            ether_type: exactly(0x0800, 0xffff),
            ..ethernet
        };
        let all = [FlowSpec::Ethernet(ip), FlowSpec::Udp(port)];
        assert!(matches(&tagged, &all));
    }
}
