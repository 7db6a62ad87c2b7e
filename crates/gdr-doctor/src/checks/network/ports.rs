//! The ports of RDMA devices.

use gdr_node::{Absence, Bdf, Datum, DatumExt, Netdev, RdmaDevice, RdmaGid, RdmaPort};

use crate::checks::pcie::devices::gigabits;
use crate::context::Context;
use crate::finding::Subject;
use crate::runner::{Known, Unjudged};

/// A port and its device.
#[derive(Clone, Debug)]
pub(crate) struct Port<'a> {
    /// The device's name.
    pub(crate) device: &'a str,
    pub(crate) rdma: &'a RdmaDevice,
    pub(crate) port: &'a RdmaPort,
    /// Its directory in sysfs.
    pub(crate) path: String,
}

impl<'a> Port<'a> {
    pub(crate) fn subject(&self) -> Subject {
        Subject::Port {
            nic: self.device.to_owned(),
            port: self.port.number,
        }
    }

    /// Returns whether its link is Ethernet, so that its protocol is RoCE or iWARP.
    pub(crate) fn is_ethernet(&self) -> bool {
        (self.port.link_layer.as_ref().ok()).is_some_and(|it| it == "Ethernet")
    }

    /// Returns whether its link is InfiniBand.
    pub(crate) fn is_infiniband(&self) -> bool {
        (self.port.link_layer.as_ref().ok()).is_some_and(|it| it == "InfiniBand")
    }

    pub(crate) fn is_active(&self) -> bool {
        self.port.is_active()
    }

    /// Returns whether the physical link works.
    pub(crate) fn is_linked(&self) -> bool {
        (self.port.physical_state.as_ref().ok()).is_some_and(|state| state == "LinkUp")
    }

    /// Returns whether its NIC is the nearest of a GPU, or no GPU is known.
    pub(crate) fn serves_a_gpu(&self, context: &Context<'_>) -> bool {
        let pairs = context.nearest_pairs();
        pairs.is_empty() || pairs.iter().any(|pair| pair.nic.name == self.device)
    }

    /// Returns the bond of its interface. The bond then has the addresses.
    pub(crate) fn bond(&self, context: &Context<'_>) -> Option<String> {
        let netdev = self.netdev(context)?;
        let path = format!("/sys/class/net/{}/master", netdev.name);
        context.source.link_name(&path).ok()
    }

    /// Returns its rate in Gb/s.
    pub(crate) fn rate(&self) -> Option<u32> {
        gigabits(self.port.rate.as_ref().ok()?)
    }

    /// Returns the board ID of the device, or its model.
    pub(crate) fn board(&self, context: &Context<'_>) -> Option<String> {
        let model = |_| context.text(&format!("/sys/class/infiniband/{}/hca_type", self.device));
        let board = self.rdma.board.clone().or_else(model);
        board.ok()
    }

    /// Returns the interface of the port; unknown if it is not found.
    pub(crate) fn interface<'b>(&self, context: &Context<'b>) -> Result<&'b Netdev, Unjudged> {
        let missing = || (context.inventory.netdevs.by_ref()).and(Err(Absence::Missing));
        (self.netdev(context).map_or_else(missing, Ok)).known("its interface")
    }

    /// Returns its GIDs, without the empty entries of the table.
    pub(crate) fn gids(&self, context: &Context<'_>) -> Datum<Vec<RdmaGid>> {
        RdmaGid::read_all(context.source, self.device, self.port.number)
    }

    /// Returns the interface of the port: the one with the same port of the same function, else the one of its GIDs.
    pub(crate) fn netdev<'b>(&self, context: &Context<'b>) -> Option<&'b Netdev> {
        let all = context.inventory.netdevs.as_ref().ok()?;
        let same = self.rdma.netdevs(all);
        let own = same
            .iter()
            .find(|netdev| {
                let number = self.port.number;
                same.len() == 1 || netdev.port.as_ref().ok().is_some_and(|it| it + 1 == number)
            })
            .copied();
        own.or_else(|| {
            let gids = self.gids(context).ok()?;
            let name = gids.into_iter().find_map(|gid| gid.netdev)?;
            all.iter().find(|netdev| netdev.name == name)
        })
    }
}

/// The ports that a check examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of them.
    Every,
    /// Those that are active or whose state is not known.
    NotDown,
    /// Those that are active.
    Active,
    /// Active Ethernet ports.
    ActiveEthernet,
    /// Active InfiniBand ports.
    ActiveInfiniband,
    /// InfiniBand ports with a link.
    LinkedInfiniband,
}

impl Which {
    /// Returns whether a port is one of them.
    pub(crate) fn has(self, port: &Port<'_>) -> bool {
        match self {
            Self::Every => true,
            Self::NotDown => port.is_active() || port.port.state.is_unknown(),
            Self::Active => port.is_active(),
            Self::ActiveEthernet => port.is_active() && port.is_ethernet(),
            Self::ActiveInfiniband => port.is_active() && port.is_infiniband(),
            Self::LinkedInfiniband => {
                port.is_infiniband() && (port.is_linked() || port.is_active())
            }
        }
    }

    /// Returns the reason of the skip if there is no such port.
    pub(crate) const fn none(self) -> &'static str {
        match self {
            Self::Every => "no RDMA device has a port",
            Self::NotDown => "no port is active",
            Self::Active => "no port of an RDMA device is active",
            Self::ActiveEthernet => "no Ethernet port of an RDMA device is active",
            Self::ActiveInfiniband => "no InfiniBand port is active",
            Self::LinkedInfiniband => "no InfiniBand port has a link",
        }
    }
}

/// Returns every port of the report. Software devices count only if there are no others.
pub(crate) fn ports<'a>(context: &Context<'a>) -> Result<Vec<Port<'a>>, Unjudged> {
    let all = context.inventory.rdma.by_ref().known_or_skip(
        "the list of RDMA devices",
        "there is no RDMA device: the kernel's RDMA stack is not loaded",
    )?;
    let known: Vec<Bdf> = context.nics().iter().map(|nic| nic.bdf).collect();
    let hardware = context.inventory.rdma_functions().next().is_some();
    let matters = |device: &&RdmaDevice| match device.function.as_ref().ok() {
        Some(bdf) => known.contains(bdf),
        None => !hardware,
    };
    let ports: Vec<Port<'a>> = (all.iter().filter(matters))
        .flat_map(|rdma| {
            rdma.ports.iter().map(|port| Port {
                device: &rdma.name,
                rdma,
                port,
                path: format!("/sys/class/infiniband/{}/ports/{}", rdma.name, port.number),
            })
        })
        .collect();
    if ports.is_empty() {
        return Err(Unjudged::skip(Which::Every.none()));
    }
    Ok(ports)
}

/// What shows that an active port is not for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherKind {
    /// It has at most half of the best rate.
    Slower,
    /// It is Ethernet where most ports are InfiniBand.
    Ethernet,
}

/// Returns the active ports that are not for data, as far as their kind shows.
pub(crate) fn of_another_kind<'b, 'a>(active: &[&'b Port<'a>]) -> Vec<(&'b Port<'a>, OtherKind)> {
    let best = active.iter().filter_map(|port| port.rate()).max();
    let infiniband = active.iter().filter(|port| port.is_infiniband()).count();
    let mostly_infiniband = infiniband * 2 > active.len();
    let kind = |port: &Port<'_>| {
        if mostly_infiniband && port.is_ethernet() {
            return Some(OtherKind::Ethernet);
        }
        let slow = port
            .rate()
            .is_some_and(|rate| best.is_some_and(|best| rate.saturating_mul(2) <= best));
        slow.then_some(OtherKind::Slower)
    };
    let odd = active.iter().map(|port| Some((*port, kind(port)?)));
    odd.flatten().collect()
}

/// Returns a counter of a port.
pub(super) fn counter(context: &Context<'_>, port: &Port<'_>, name: &str) -> Datum<u64> {
    context
        .text(&format!("{}/{name}", port.path))
        .and_then(|text| text.parse().ok().ok_or(Absence::Missing))
}

/// Skips a port without any of some counters; unknown if one of them is not readable.
pub(super) fn require<L>(
    counts: &[(L, Datum<u64>)],
    what: &str,
    none: &str,
) -> Result<(), Unjudged> {
    let mut values = counts.iter().map(|(_, count)| *count);
    if values.clone().all(|count| count == Err(Absence::Missing)) {
        return Err(Unjudged::skip(none));
    }
    let unknown = values.find(DatumExt::is_unknown);
    unknown.map_or(Ok(()), |count| count.known(what).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, example};

    use super::*;

    #[test]
    fn ports_are_read_with_gids_and_interfaces() {
        let node = example::healthy();
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory);
        let ports = ports(&context).unwrap();
        assert_eq!(ports.len(), 10);
        assert_eq!(ports[0].gids(&context).unwrap().len(), 4);
        assert_eq!(ports[0].netdev(&context).unwrap().name, "enp6s0np0");
        assert!(ports[0].is_ethernet() && ports[1].is_infiniband());
        assert_eq!(ports[1].rate(), Some(400));
    }
}
