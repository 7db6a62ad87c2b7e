//! The GID tables of RDMA ports.

use std::net::Ipv6Addr;

use crate::source::{Absence, Datum, DatumExt, Source};

/// A populated entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaGid {
    /// Its index in the table.
    pub index: u32,
    /// The GID itself.
    pub address: Ipv6Addr,
    /// Its type in the kernel's words: `RoCE v2`, or `IB/RoCE v1`.
    pub version: Option<String>,
    /// The network interface of its address.
    pub netdev: Option<String>,
}

impl RdmaGid {
    /// Reads the populated entries of a port, by index. Absent if an entry or its type is unreadable, since that entry
    /// may be the one that matters.
    pub fn read_all(source: &dyn Source, device: &str, port: u32) -> Datum<Vec<Self>> {
        let path = format!("/sys/class/infiniband/{device}/ports/{port}");
        let indices = source.list(&format!("{path}/gids"))?;
        // Each entry has a file in every directory. If an index is in one directory only, the capture lacks the other
        // file.
        let types = source.list(&format!("{path}/gid_attrs/types"));
        let types = types.ok().unwrap_or_default();
        if types.iter().any(|index| !indices.contains(index)) {
            return Err(Absence::NotCollected);
        }
        let mut gids = Vec::new();
        for index in indices {
            let text = |file: &str| source.text(&format!("{path}/{file}/{index}"));
            let known = |text: Datum<String>| text.ok().filter(|text| !text.is_empty());
            let entry = text("gids");
            if entry.is_unknown() {
                return entry.map(|_| Vec::new());
            }
            let entry = known(entry).and_then(|entry| entry.parse::<Ipv6Addr>().ok());
            let (Some(address), Ok(number)) = (entry, index.parse()) else {
                continue;
            };
            // An InfiniBand port's table may contain a prefix without a GUID.
            if address.is_unspecified() || address.segments()[4..] == [0; 4] {
                continue;
            }
            let version = text("gid_attrs/types");
            if version.is_unknown() {
                return version.map(|_| Vec::new());
            }
            gids.push(Self {
                index: number,
                address,
                version: known(version),
                netdev: known(text("gid_attrs/ndevs")),
            });
        }
        gids.sort_by_key(|gid| gid.index);
        Ok(gids)
    }

    /// Returns whether packets to it can be routed: an IPv4 address, or an IPv6 address that is not link-local.
    pub fn is_routable(&self) -> bool {
        self.is_ipv4() || !self.address.is_unicast_link_local()
    }

    /// Returns whether it represents an IPv4 address: `::ffff:10.0.0.1`.
    pub fn is_ipv4(&self) -> bool {
        self.address.to_ipv4_mapped().is_some()
    }

    /// Returns whether it is for RoCE v2.
    pub fn is_v2(&self) -> bool {
        self.version.as_deref() == Some("RoCE v2")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    const PORT: &str = "/sys/class/infiniband/mlx5_0/ports/1";

    #[test]
    fn a_table_is_read_without_empty_entries() {
        let gids = RdmaGid::read_all(&example::healthy(), "mlx5_0", 1).unwrap();
        assert_eq!(gids.len(), 4);
        assert!(!gids[1].is_routable() && gids[1].is_v2());
        assert!(gids[3].is_routable() && gids[3].is_ipv4() && gids[3].is_v2());
        assert_eq!(gids[3].netdev.as_deref(), Some("enp6s0np0"));
    }

    #[test]
    fn a_table_with_an_unknown_entry_is_unknown() {
        let read = |node: &crate::MemorySource| RdmaGid::read_all(node, "mlx5_0", 1);
        let node = example::healthy().denied(&format!("{PORT}/gid_attrs/types/3"));
        assert_eq!(read(&node), Err(Absence::Denied));
        let node = example::healthy().without(&format!("{PORT}/gids/3"));
        assert_eq!(read(&node), Err(Absence::NotCollected));
        let node = example::healthy().without(PORT);
        assert_eq!(read(&node), Err(Absence::Missing));
    }

    #[test]
    fn a_file_whose_name_is_not_an_index_is_ignored() {
        let node = example::healthy().file(&format!("{PORT}/gids/x"), "fe80::1\n");
        assert_eq!(RdmaGid::read_all(&node, "mlx5_0", 1).unwrap().len(), 4);
    }
}
