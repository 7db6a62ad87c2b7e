//! The part of a node's PCI tree that leads to GPUs, NICs and NVSwitches.

use std::collections::BTreeMap;

use gdr_pci::Bdf;

use crate::devices::Device;
use crate::inventory::Inventory;
use crate::pci::{NumaNode, RootBus};

/// The part of a node's PCI tree that leads to GPUs and RDMA NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// NUMA nodes; host bridges without a node come last.
    pub nodes: Vec<NumaGroup>,
}

/// The host bridges of a NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaGroup {
    /// The node; `None` if firmware did not assign one.
    pub node: Option<NumaNode>,
    /// Its host bridges, by number.
    pub roots: Vec<RootGroup>,
}

/// Everything below a host bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootGroup {
    /// Its root bus.
    pub root: RootBus,
    /// The devices and bridges on it.
    pub branches: Vec<Branch>,
}

/// A bridge with its children, or a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Branch {
    /// A bridge.
    Bridge {
        /// Its address.
        bdf: Bdf,
        /// What is below it.
        below: Vec<Branch>,
    },
    /// A GPU or a NIC.
    Device(Device),
}

impl Layout {
    /// Returns the layout of a node; `None` if its tree is unknown.
    pub fn new(inventory: &Inventory) -> Option<Self> {
        let tree = inventory.tree.as_ref().ok()?;
        // The children, by function and root, that are devices or have devices below them.
        let mut below: BTreeMap<Key, Vec<Bdf>> = BTreeMap::new();
        let mut roots: BTreeMap<RootBus, Vec<Bdf>> = BTreeMap::new();
        let devices: BTreeMap<Bdf, Device> = (inventory.devices().into_iter())
            .map(|device| (device.bdf, device))
            .collect();
        for &bdf in devices.keys() {
            let Some((root, chain)) = tree.chain(bdf) else {
                continue;
            };
            roots.entry(root).or_default().push(bdf);
            let mut child = bdf;
            for &bridge in chain.iter().rev() {
                let children = below.entry(Key::Bridge(bridge)).or_default();
                if !children.contains(&child) {
                    children.push(child);
                }
                child = bridge;
            }
            let children = below.entry(Key::Root(root)).or_default();
            if !children.contains(&child) {
                children.push(child);
            }
        }
        let mut nodes: BTreeMap<(bool, Option<NumaNode>), Vec<RootGroup>> = BTreeMap::new();
        for (root, inside) in roots {
            let node = inside
                .iter()
                .find_map(|bdf| tree.get(*bdf)?.numa.as_ref().ok().copied())
                .or_else(|| inventory.numa.only_node());
            let group = RootGroup {
                root,
                branches: branches(Key::Root(root), &below, &devices),
            };
            nodes.entry((node.is_none(), node)).or_default().push(group);
        }
        Some(Self {
            nodes: nodes
                .into_iter()
                .map(|((_, node), roots)| NumaGroup { node, roots })
                .collect(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Root(RootBus),
    Bridge(Bdf),
}

fn branches(
    of: Key,
    below: &BTreeMap<Key, Vec<Bdf>>,
    devices: &BTreeMap<Bdf, Device>,
) -> Vec<Branch> {
    let mut children = below.get(&of).cloned().unwrap_or_default();
    children.sort();
    let mut found = Vec::new();
    for bdf in children {
        if let Some(device) = devices.get(&bdf) {
            found.push(Branch::Device(device.clone()));
        }
        // A device with others below it is both, like a DPU that contains a bridge.
        let inside = branches(Key::Bridge(bdf), below, devices);
        if !inside.is_empty() {
            found.push(Branch::Bridge { bdf, below: inside });
        }
    }
    found
}

impl Branch {
    /// Returns the devices in it.
    pub fn devices(&self) -> Vec<&Device> {
        match self {
            Self::Device(device) => vec![device],
            Self::Bridge { below, .. } => below.iter().flat_map(Self::devices).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    #[test]
    fn the_layout_has_every_device_once_below_its_switch() {
        let node = example::node();
        let layout = Layout::new(&Inventory::read(&node)).unwrap();
        assert_eq!(layout.nodes.len(), 2);
        assert_eq!(layout.nodes[0].roots.len(), 3);
        let names: Vec<String> = layout.nodes[0].roots[1]
            .branches
            .iter()
            .flat_map(Branch::devices)
            .map(|device| device.name.clone())
            .collect();
        assert_eq!(names, ["GPU0", "mlx5_1", "GPU1", "mlx5_2"]);
        let all: usize = (layout.nodes.iter())
            .flat_map(|node| &node.roots)
            .flat_map(|root| &root.branches)
            .map(|branch| branch.devices().len())
            .sum();
        assert_eq!(all, 18);
    }
}
