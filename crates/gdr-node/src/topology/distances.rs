//! Distances between many devices, without an explanation for each pair.

use std::fmt;

use serde::{Serialize, Serializer};

use super::class::{NcclClass, SmiClass};
use super::relation::Topology;
use super::tree_position::TreePosition;
use super::ucx::UcxClass;
use gdr_pci::Bdf;

/// A pair's class in the terms of one tool. Within a tool, nearer classes compare less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DistanceClass {
    /// In nvidia-smi's terms.
    Smi(SmiClass),
    /// In NCCL's terms.
    Nccl(NcclClass),
    /// In UCX's terms.
    Ucx(UcxClass),
    /// The same device: `X` in every tool's matrix.
    Same,
    /// The capture does not determine it.
    Unknown,
}

impl fmt::Display for DistanceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Smi(class) => class.fmt(f),
            Self::Nccl(class) => class.fmt(f),
            Self::Ucx(class) => class.fmt(f),
            Self::Same => f.pad("X"),
            Self::Unknown => f.pad("?"),
        }
    }
}

impl Serialize for DistanceClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The positions of many devices in the tree, from which the class of any pair follows in a few steps.
/// [`Topology::relation`] is slower, but explains the class.
#[derive(Clone, Debug)]
pub struct Distances<'a> {
    topology: &'a Topology<'a>,
    positions: Vec<Option<TreePosition>>,
}

impl<'a> Topology<'a> {
    /// Returns the positions of these devices. A device outside the tree has no class.
    pub fn distances(&'a self, devices: impl IntoIterator<Item = Bdf>) -> Distances<'a> {
        let devices = devices.into_iter();
        Distances {
            positions: devices.map(|bdf| self.position(bdf)).collect(),
            topology: self,
        }
    }
}

impl Distances<'_> {
    /// Returns the class of two devices, given their indexes in the list, as `nvidia-smi topo -m` prints it; `None` if
    /// the capture does not determine it.
    pub fn smi(&self, a: usize, b: usize) -> Option<SmiClass> {
        let (a, b) = self.pair(a, b)?;
        let by_pci = a.classes(b).map(|classes| classes.smi);
        match self.topology.nvlinks_between(a.bdf, b.bdf) {
            Some(links) => Some(SmiClass::Nv(links)),
            None => by_pci,
        }
    }

    /// Returns the same in the terms of NCCL.
    pub fn nccl(&self, a: usize, b: usize) -> Option<NcclClass> {
        let (a, b) = self.pair(a, b)?;
        self.topology.nccl_class(a, b)
    }

    /// Returns the same in the terms of UCX.
    pub fn ucx(&self, a: usize, b: usize) -> Option<UcxClass> {
        let (a, b) = self.pair(a, b)?;
        a.classes(b).map(|classes| classes.ucx)
    }

    fn pair(&self, a: usize, b: usize) -> Option<(&TreePosition, &TreePosition)> {
        Some((
            self.positions.get(a)?.as_ref()?,
            self.positions.get(b)?.as_ref()?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::NcclGraph;
    use crate::{Inventory, example};

    #[test]
    fn the_class_of_a_pair_is_that_of_its_relation_and_of_nccls_graph() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let tree = inventory.tree.as_ref().unwrap();
        let topology = inventory.topology().unwrap();
        let all: Vec<Bdf> = tree.functions().map(|function| function.bdf).collect();
        let distances = topology.distances(all.iter().copied());
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                let relation = topology.relation(*a, *b).unwrap();
                assert_eq!(distances.smi(i, j), Some(relation.smi), "{a} {b}");
                assert_eq!(distances.nccl(i, j), Some(relation.nccl), "{a} {b}");
                assert_eq!(distances.ucx(i, j), Some(relation.ucx.class), "{a} {b}");
                let mut graph = NcclGraph::from_tree(tree, &[*a, *b]);
                for links in &inventory.nvlinks {
                    graph.add_nvlinks(links.a, links.b, links.count.into());
                }
                assert_eq!(distances.nccl(i, j), graph.class(*a, *b), "{a} {b}");
            }
        }
    }
}
