//! Which GID of a port to use, by rule.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// How packets of a GID travel (`enum ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: Ethernet frames that no router passes.
    RoceV1,
    /// RoCE v2: UDP, which routers pass.
    RoceV2,
    /// A type that is not known here.
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
    /// Where in the table.
    pub index: u32,
    /// The GID itself.
    pub gid: Ipv6Addr,
    /// How its packets travel.
    pub kind: GidType,
}

impl GidEntry {
    /// The IP address that it stands for: an IPv4 one where it is mapped into IPv6.
    pub fn address(&self) -> IpAddr {
        self.gid
            .to_ipv4_mapped()
            .map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }

    /// Whether it means something on its own link only.
    pub fn is_link_local(&self) -> bool {
        self.gid.is_unicast_link_local()
    }
}

/// A GID that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenGid {
    /// The entry.
    pub entry: GidEntry,
    /// One sentence.
    pub why: String,
}

/// Chooses among the entries of a RoCE port: RoCE v2 before v1, of these an IPv4 address before a
/// global IPv6 one, the lower index first. Link-local ones lead nowhere but to the next switch and
/// are never chosen; who wants one names its index.
pub fn choose(entries: &[GidEntry]) -> Option<ChosenGid> {
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

    /// The table of a ConnectX-6 with one IPv4 and one global IPv6 address.
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
    fn the_routable_gid_of_ipv4_comes_first() {
        let chosen = choose(&table()).unwrap();
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
    fn without_ipv4_the_global_one_of_ipv6_is_taken() {
        let table: Vec<_> = table()
            .into_iter()
            .filter(|entry| entry.address().is_ipv6())
            .collect();
        assert_eq!(choose(&table).unwrap().entry.index, 5);
    }

    #[test]
    fn without_version_2_version_1_is_taken_and_said_to_be() {
        let table: Vec<_> = table()
            .into_iter()
            .filter(|entry| entry.kind == GidType::RoceV1)
            .collect();
        let chosen = choose(&table).unwrap();
        assert_eq!(chosen.entry.index, 2);
        assert!(chosen.why.contains("no router passes it"));
    }

    #[test]
    fn link_local_empty_and_unknown_ones_are_never_taken() {
        let table = [
            entry(0, "fe80::1", GidType::RoceV2),
            entry(1, "::", GidType::RoceV2),
            entry(2, "2001:db8::1", GidType::Other(9)),
            entry(3, "fe80::2", GidType::InfiniBand),
        ];
        assert_eq!(choose(&table), None);
        assert_eq!(choose(&[]), None);
    }
}
