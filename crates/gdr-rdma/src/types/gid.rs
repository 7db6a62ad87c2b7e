//! GIDs, and the rule by which one is chosen.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::link_layer::LinkLayer;

/// The type of a GID (`enum ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: Ethernet frames, which cannot be routed.
    RoceV1,
    /// RoCE v2: UDP packets, which can be routed.
    RoceV2,
    /// An unknown type.
    Other(u32),
}

impl GidType {
    pub(crate) const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::InfiniBand,
            1 => Self::RoceV1,
            2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.pad("IB"),
            Self::RoceV1 => f.pad("RoCE v1"),
            Self::RoceV2 => f.pad("RoCE v2"),
            Self::Other(number) => f.pad(&format!("type {number}")),
        }
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GidEntry {
    /// The index in the table.
    pub index: u32,
    /// The GID itself.
    pub gid: Ipv6Addr,
    /// The type, which determines the format of its packets.
    pub kind: GidType,
}

impl GidEntry {
    /// Returns the IP address of the GID: an IPv4 address if that is mapped into IPv6.
    pub fn address(&self) -> IpAddr {
        self.gid
            .to_ipv4_mapped()
            .map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }

    /// Returns whether it is valid only on its own link.
    pub fn is_link_local(&self) -> bool {
        self.gid.is_unicast_link_local()
    }
}

/// A GID that was chosen, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenGid {
    /// The entry.
    pub entry: GidEntry,
    /// The reason, as one sentence.
    pub why: String,
}

/// The port has no GID that is chosen by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no routable GID: its interface has neither an IPv4 nor a global IPv6 address; add one (`ip addr \
     add`)"
)]
#[non_exhaustive]
pub struct NoGid;

/// Chooses the GID that a port uses by default, among its entries in the order of their indices.
///
/// On Ethernet: RoCE v2 before v1, then IPv4 addresses before global IPv6 addresses, then the lower
/// index. Link-local GIDs cannot be routed and are never chosen; they can be selected by index. On
/// InfiniBand: the first, which is the port's own.
///
/// # Errors
/// [`NoGid`] if no entry is suitable.
pub fn choose(link_layer: LinkLayer, entries: &[GidEntry]) -> Result<ChosenGid, NoGid> {
    let chosen = match link_layer {
        LinkLayer::Ethernet => choose_on_ethernet(entries),
        LinkLayer::InfiniBand | LinkLayer::Other(_) => entries.first().map(|entry| ChosenGid {
            entry: *entry,
            why: format!("GID {} of an InfiniBand port", entry.index),
        }),
    };
    chosen.ok_or(NoGid)
}

fn choose_on_ethernet(entries: &[GidEntry]) -> Option<ChosenGid> {
    let usable = |entry: &&GidEntry| !entry.gid.is_unspecified() && !entry.is_link_local();
    let best = entries
        .iter()
        .filter(usable)
        .filter(|entry| matches!(entry.kind, GidType::RoceV2 | GidType::RoceV1))
        .min_by_key(|entry| {
            (
                entry.kind != GidType::RoceV2,
                entry.address().is_ipv6(),
                entry.index,
            )
        })?;
    let what = match (best.kind, best.address()) {
        (GidType::RoceV2, IpAddr::V4(_)) => "the first routable RoCE v2 GID of an IPv4 address",
        (GidType::RoceV2, IpAddr::V6(_)) => {
            "the first routable RoCE v2 GID, as no IPv4 address has one"
        }
        _ => "a RoCE v1 GID, as there is no routable one of RoCE v2; no router passes it",
    };
    Some(ChosenGid {
        entry: *best,
        why: format!("GID {} ({}): {what}", best.index, best.address()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, gid: &str, kind: GidType) -> GidEntry {
        GidEntry {
            index,
            gid: gid.parse().unwrap(),
            kind,
        }
    }

    /// Returns the table of a ConnectX-6 with one IPv4 and one global IPv6 address.
    fn table() -> Vec<GidEntry> {
        let gids = [
            "fe80::a288:c2ff:fe11:2233",
            "::ffff:10.0.0.5",
            "2001:db8::5",
        ];
        (0..)
            .zip(gids)
            .flat_map(|(n, gid)| {
                [
                    entry(2 * n, gid, GidType::RoceV1),
                    entry(2 * n + 1, gid, GidType::RoceV2),
                ]
            })
            .collect()
    }

    #[test]
    fn a_routable_gid_of_ipv4_comes_first() {
        let chosen = choose(LinkLayer::Ethernet, &table()).unwrap();
        assert_eq!(chosen.entry.index, 3);
        assert_eq!(
            chosen.entry.address(),
            "10.0.0.5".parse::<IpAddr>().unwrap()
        );
        assert!(
            chosen.why.contains("RoCE v2 GID of an IPv4"),
            "{}",
            chosen.why
        );
    }

    #[test]
    fn without_ipv4_a_global_ipv6_gid_is_chosen() {
        let table: Vec<_> = table()
            .into_iter()
            .filter(|entry| entry.address().is_ipv6())
            .collect();
        assert_eq!(choose(LinkLayer::Ethernet, &table).unwrap().entry.index, 5);
    }

    #[test]
    fn without_roce_v2_a_roce_v1_gid_is_chosen_and_the_reason_says_so() {
        let table: Vec<_> = table()
            .into_iter()
            .filter(|entry| entry.kind == GidType::RoceV1)
            .collect();
        let chosen = choose(LinkLayer::Ethernet, &table).unwrap();
        assert_eq!(chosen.entry.index, 2);
        assert!(chosen.why.contains("no router passes it"));
    }

    #[test]
    fn link_local_empty_and_unknown_gids_are_never_chosen() {
        let table = [
            entry(0, "fe80::1", GidType::RoceV2),
            entry(1, "::", GidType::RoceV2),
            entry(2, "2001:db8::1", GidType::Other(9)),
            entry(3, "fe80::2", GidType::InfiniBand),
        ];
        assert_eq!(choose(LinkLayer::Ethernet, &table), Err(NoGid));
        assert_eq!(choose(LinkLayer::Ethernet, &[]), Err(NoGid));
    }

    #[test]
    fn an_infiniband_port_uses_its_own_gid_which_is_link_local() {
        let table = [
            entry(0, "fe80::2", GidType::InfiniBand),
            entry(1, "2001:db8::1", GidType::InfiniBand),
        ];
        let chosen = choose(LinkLayer::InfiniBand, &table).unwrap();
        assert_eq!(chosen.entry.index, 0);
        assert_eq!(choose(LinkLayer::InfiniBand, &[]), Err(NoGid));
    }
}
