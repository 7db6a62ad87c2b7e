//! The answer for one pair of devices.

use std::collections::BTreeMap;
use std::fmt;

use gdr_cuda::Bdf;

use super::class::{NcclClass, SmiClass};
use super::nccl::NcclGraph;
use super::route::{Place, Step, narrowest};
use super::ucx::UcxDistance;
use crate::numa::NumaLayout;
use crate::pci::{Bandwidth, NumaNode, Parent, RootBus, Tree, VendorId};
use crate::source::Datum;

/// The most bridges between two devices that nvidia-smi still calls one: the two ports of one
/// switch. NVIDIA does not publish the rule; this one agrees with every machine on which both the
/// tree and the matrix are known.
const BRIDGES_OF_ONE_SWITCH: usize = 2;

/// A PCI tree and what else decides about distances.
#[derive(Clone, Debug)]
pub struct Topology<'a> {
    tree: &'a Tree,
    numa: &'a NumaLayout,
    nvlinks: BTreeMap<(Bdf, Bdf), u8>,
}

/// The tree has no such function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no PCI function {0} in this node: it may be hidden from a container; list what there is")]
pub struct UnknownFunction(pub Bdf);

/// The lowest thing that two devices have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ancestor {
    /// They are one.
    Same(Bdf),
    /// A bridge.
    Bridge(Bdf),
    /// A host bridge.
    Root(RootBus),
    /// A NUMA node.
    Node(NumaNode),
    /// Nothing less than the whole node.
    System,
}

impl fmt::Display for Ancestor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(bdf) => write!(f, "{bdf} itself"),
            Self::Bridge(bdf) => write!(f, "bridge {bdf}"),
            Self::Root(root) => write!(f, "host bridge {root}"),
            Self::Node(node) => write!(f, "NUMA node {node}"),
            Self::System => f.write_str("the interconnect between NUMA nodes"),
        }
    }
}

/// What a reader should know beside the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Note {
    /// Firmware did not say on which NUMA node a device is. On a node with one, drivers from about
    /// 575 print NODE for it; those up to about 530 print SYS.
    NoProximity(Bdf),
    /// It is not known on which NUMA node a device is, so that NODE may be printed for SYS.
    ProximityUnknown(Bdf),
    /// The two NUMA nodes are parts of one socket (NPS2, NPS4, sub-NUMA clusters): nearer than SYS
    /// sounds.
    OneSocket,
    /// The host bridges are quadrants of one AMD socket, between which peer traffic is not
    /// dramatically slower: measure.
    AmdQuadrants,
    /// NCCL takes the two for ports of one card, because they are on one bus
    /// (`NCCL_IB_MERGE_VFS=0` keeps different devices apart).
    OneCardToNccl,
    /// Both hang right on a root bus, as in a virtual machine that hides the real tree.
    FlatBus,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProximity(bdf) => write!(
                f,
                "firmware does not say on which NUMA node {bdf} is; older drivers print SYS for NODE"
            ),
            Self::ProximityUnknown(bdf) => {
                write!(
                    f,
                    "on which NUMA node {bdf} is was not collected; SYS may be NODE"
                )
            }
            Self::OneSocket => f.write_str("both NUMA nodes are in one socket"),
            Self::AmdQuadrants => {
                f.write_str("the host bridges may be quadrants of one AMD socket; measure")
            }
            Self::OneCardToNccl => f.write_str("NCCL takes the two for ports of one card"),
            Self::FlatBus => {
                f.write_str("no bridge is shown above either; the real tree is hidden")
            }
        }
    }
}

/// How far apart two devices are, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// In the words of `nvidia-smi topo -m`.
    pub smi: SmiClass,
    /// In the words of `nvidia-smi topo -mp`, which leaves NVLink out.
    pub smi_pci: SmiClass,
    /// In the words of NCCL, before it looks for relays.
    pub nccl: NcclClass,
    /// In the words of UCX.
    pub ucx: UcxDistance,
    /// The lowest thing that they have in common.
    pub ancestor: Ancestor,
    /// The places on the way over PCI, both devices among them. The common bridge is one of them.
    pub steps: Vec<Step>,
    /// The ports on the way at which ACS decides, in the order of the way: bridges below the
    /// common ancestor.
    pub ports: Vec<Bdf>,
    /// The least that the links on the way can carry, and where; links that are not known do not
    /// count.
    pub capable: Option<(Bandwidth, Place)>,
    /// The least that they carry now.
    pub current: Option<(Bandwidth, Place)>,
    /// One sentence.
    pub why: String,
    /// What else to know.
    pub notes: Vec<Note>,
}

impl<'a> Topology<'a> {
    /// A topology without NVLink.
    pub fn new(tree: &'a Tree, numa: &'a NumaLayout) -> Self {
        Self {
            tree,
            numa,
            nvlinks: BTreeMap::new(),
        }
    }

    /// Adds NVLinks between two GPUs, counted from either side.
    #[must_use]
    pub fn with_nvlinks(mut self, a: Bdf, b: Bdf, links: u8) -> Self {
        self.nvlinks.insert((a.min(b), a.max(b)), links);
        self
    }

    /// How far apart two functions are.
    ///
    /// # Errors
    ///
    /// [`UnknownFunction`] for an address that is not in the tree.
    pub fn relation(&self, a: Bdf, b: Bdf) -> Result<Relation, UnknownFunction> {
        let (root_a, chain_a) = self.tree.chain(a).ok_or(UnknownFunction(a))?;
        let (root_b, chain_b) = self.tree.chain(b).ok_or(UnknownFunction(b))?;
        let common = if root_a == root_b {
            chain_a
                .iter()
                .zip(&chain_b)
                .take_while(|(a, b)| a == b)
                .count()
        } else {
            0
        };
        let (below_a, below_b) = (&chain_a[common..], &chain_b[common..]);
        let mut notes = Vec::new();
        let ancestor = if a == b {
            Ancestor::Same(a)
        } else if chain_b.contains(&a) {
            Ancestor::Bridge(a)
        } else if chain_a.contains(&b) {
            Ancestor::Bridge(b)
        } else if root_a != root_b {
            self.ancestor_across(a, b, (root_a, root_b), &mut notes)
        } else if common > 0 {
            Ancestor::Bridge(chain_a[common - 1])
        } else {
            Ancestor::Root(root_a)
        };
        if a != b && chain_a.is_empty() && chain_b.is_empty() && self.is_device(a, b) {
            notes.push(Note::FlatBus);
        }

        let bridges = below_a.len() + below_b.len();
        let smi_pci = match ancestor {
            Ancestor::Same(_) => SmiClass::Same,
            Ancestor::Bridge(_) if bridges <= BRIDGES_OF_ONE_SWITCH => SmiClass::Pix,
            Ancestor::Bridge(_) => SmiClass::Pxb,
            Ancestor::Root(_) => SmiClass::Phb,
            Ancestor::Node(_) => SmiClass::Node,
            Ancestor::System => SmiClass::Sys,
        };
        let nvlinks = self.nvlinks.get(&(a.min(b), a.max(b))).filter(|_| a != b);
        let smi = nvlinks.map_or(smi_pci, |links| SmiClass::Nv(*links));
        let nccl = self.nccl_class(a, b);
        if nccl == NcclClass::Loc && a != b {
            notes.push(Note::OneCardToNccl);
        }
        let steps = self.steps((a, below_a, root_a), (b, below_b, root_b), ancestor);
        let on_links: Vec<Step> = steps
            .iter()
            .filter(|step| !matches!((step.place, ancestor), (Place::Function(at), Ancestor::Bridge(bridge)) if at == bridge))
            .copied()
            .collect();
        let ports = below_a.iter().rev().chain(below_b).copied().collect();
        Ok(Relation {
            smi,
            smi_pci,
            nccl,
            ucx: self.ucx(a, b, ancestor, bridges),
            ancestor,
            capable: narrowest(&on_links, |step| step.capable),
            current: narrowest(&on_links, |step| step.link),
            steps,
            ports,
            why: self.why(smi, ancestor, bridges, (root_a, root_b), (a, b)),
            notes,
        })
    }

    fn ancestor_across(
        &self,
        a: Bdf,
        b: Bdf,
        (root_a, root_b): (RootBus, RootBus),
        notes: &mut Vec<Note>,
    ) -> Ancestor {
        let node_a = self.node_of(a, notes);
        let node_b = self.node_of(b, notes);
        let (Some(node_a), Some(node_b)) = (node_a, node_b) else {
            return Ancestor::System;
        };
        if node_a != node_b {
            if self.numa.same_socket(node_a, node_b) == Some(true) {
                notes.push(Note::OneSocket);
            }
            return Ancestor::System;
        }
        if self.is_amd(root_a) && self.is_amd(root_b) {
            notes.push(Note::AmdQuadrants);
        }
        Ancestor::Node(node_a)
    }

    /// The NUMA node of a function: the one that firmware named, or the only one there is.
    fn node_of(&self, bdf: Bdf, notes: &mut Vec<Note>) -> Option<NumaNode> {
        let numa = self
            .tree
            .get(bdf)
            .map_or(Datum::NotCollected, |f| f.numa.clone());
        match (&numa, self.numa.only_node()) {
            (Datum::Present(node), _) => return Some(*node),
            (Datum::Missing, _) => notes.push(Note::NoProximity(bdf)),
            (_, None) => notes.push(Note::ProximityUnknown(bdf)),
            (_, Some(_)) => {}
        }
        self.numa.only_node()
    }

    fn is_amd(&self, root: RootBus) -> bool {
        let amd = |vendor| vendor == Some(VendorId::AMD);
        self.tree
            .children(Parent::Root(root))
            .any(|function| amd(function.identity.vendor))
    }

    fn is_device(&self, a: Bdf, b: Bdf) -> bool {
        [a, b].iter().all(|bdf| {
            self.tree
                .get(*bdf)
                .is_some_and(|function| !function.is_bridge())
        })
    }

    fn nccl_class(&self, a: Bdf, b: Bdf) -> NcclClass {
        let mut graph = NcclGraph::from_tree(self.tree, &[a, b]);
        for (&(from, to), links) in &self.nvlinks {
            graph.add_nvlinks(from, to, (*links).into());
        }
        graph.class(a, b).unwrap_or(NcclClass::Dis)
    }

    fn ucx(&self, a: Bdf, b: Bdf, ancestor: Ancestor, bridges: usize) -> UcxDistance {
        match ancestor {
            Ancestor::Same(_) | Ancestor::Bridge(_) => UcxDistance::near(),
            // The devices differ too.
            Ancestor::Root(_) => UcxDistance::below_one_host_bridge(bridges + 2),
            Ancestor::Node(_) | Ancestor::System => {
                // UCX compares the numbers, and two devices without one are on the same node.
                let node = |bdf| self.tree.get(bdf).and_then(|f| f.numa.present().copied());
                UcxDistance::across(node(a) == node(b))
            }
        }
    }

    fn steps(
        &self,
        (a, below_a, root_a): (Bdf, &[Bdf], RootBus),
        (b, below_b, root_b): (Bdf, &[Bdf], RootBus),
        ancestor: Ancestor,
    ) -> Vec<Step> {
        let step = |bdf: &Bdf| Step::at(self.tree, *bdf);
        let top = match ancestor {
            Ancestor::Same(_) => return vec![step(&a)],
            Ancestor::Bridge(bridge) => vec![step(&bridge)],
            Ancestor::Root(root) => vec![Step::through(Place::Root(root))],
            Ancestor::Node(_) => {
                vec![
                    Step::through(Place::Root(root_a)),
                    Step::through(Place::Root(root_b)),
                ]
            }
            Ancestor::System => {
                let mut top = vec![Step::through(Place::Root(root_a))];
                let mut ignored = Vec::new();
                for bdf in [a, b] {
                    let node = self.node_of(bdf, &mut ignored);
                    top.extend(node.map(|node| Step::through(Place::Node(node))));
                }
                top.push(Step::through(Place::Root(root_b)));
                top
            }
        };
        let mut steps = vec![step(&a)];
        steps.extend(below_a.iter().rev().map(step));
        steps.extend(top);
        steps.extend(below_b.iter().map(step));
        steps.push(step(&b));
        // Where one is above the other, it is both an end and the common bridge.
        steps.dedup_by_key(|step| step.place);
        steps
    }

    fn why(
        &self,
        smi: SmiClass,
        ancestor: Ancestor,
        bridges: usize,
        (root_a, root_b): (RootBus, RootBus),
        (a, b): (Bdf, Bdf),
    ) -> String {
        if let SmiClass::Nv(links) = smi {
            return format!("{links} NVLinks join the two; over PCI they meet at {ancestor}");
        }
        match ancestor {
            Ancestor::Same(_) => "they are one function".to_owned(),
            Ancestor::Bridge(bridge) if bridge == a || bridge == b => {
                format!("{bridge} is a bridge above the other")
            }
            Ancestor::Bridge(bridge) => {
                let between = match bridges {
                    0 => "no bridge".to_owned(),
                    1 => "1 bridge".to_owned(),
                    n => format!("{n} bridges"),
                };
                format!("both are below bridge {bridge}, with {between} between it and them")
            }
            Ancestor::Root(root) => {
                format!("both are below {root} and share no bridge, so the host bridge is crossed")
            }
            Ancestor::Node(node) => {
                format!("{root_a} and {root_b} are different host bridges of NUMA node {node}")
            }
            Ancestor::System => {
                let mut ignored = Vec::new();
                match (self.node_of(a, &mut ignored), self.node_of(b, &mut ignored)) {
                    (Some(a), Some(b)) => format!(
                        "{root_a} is on NUMA node {a} and {root_b} on NUMA node {b}, so their \
                         interconnect is crossed"
                    ),
                    _ => format!(
                        "{root_a} and {root_b} are different host bridges and it is not known that \
                         they share a NUMA node"
                    ),
                }
            }
        }
    }
}
