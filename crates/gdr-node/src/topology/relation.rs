//! The distance between two devices, and why.

use std::collections::BTreeMap;
use std::fmt;

use gdr_pci::Bdf;

use super::class::{NcclClass, SmiClass};
use super::nccl::NcclGraph;
use super::route::{Place, Step, narrowest};
use super::tree_position::{Meeting, TreePosition};
use super::ucx::{UcxClass, UcxDistance};
use crate::numa::NumaLayout;
use crate::pci::{Bandwidth, NumaNode, Parent, RootBus, Tree, VendorId};
use crate::source::Absence;

/// A PCI tree with its NUMA layout and NVLinks.
#[derive(Clone, Debug)]
pub struct Topology<'a> {
    tree: &'a Tree,
    numa: &'a NumaLayout,
    nvlinks: BTreeMap<(Bdf, Bdf), u8>,
}

/// The function is not in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this node has no PCI function {0}; it may be hidden from this container: list the functions"
)]
pub struct UnknownFunction(pub Bdf);

/// Why a pair has no relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelationError {
    /// One of the two is not in the tree.
    #[error(transparent)]
    UnknownFunction(#[from] UnknownFunction),
    /// The capture lacks the bridges above the devices.
    #[error(
        "the path between {0} and {1} is unknown, because the capture lacks the bridges above them; \
         pass the output of `lspci -D -nn -vvv` for the whole machine"
    )]
    Severed(Bdf, Bdf),
}

/// The lowest common ancestor of two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ancestor {
    /// The device itself.
    Same(Bdf),
    /// A bridge.
    Bridge(Bdf),
    /// A bus whose bridge is not in the capture.
    Bus(RootBus),
    /// A host bridge.
    Root(RootBus),
    /// A NUMA node.
    Node(NumaNode),
    /// The interconnect between NUMA nodes.
    System,
}

impl fmt::Display for Ancestor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(bdf) => write!(f, "{bdf} itself"),
            Self::Bridge(bdf) => write!(f, "bridge {bdf}"),
            Self::Bus(bus) => write!(f, "bus {:04x}:{:02x}", bus.domain, bus.bus),
            Self::Root(root) => write!(f, "host bridge {root}"),
            Self::Node(node) => write!(f, "NUMA node {node}"),
            Self::System => f.write_str("the interconnect between NUMA nodes"),
        }
    }
}

/// A remark about a pair's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Note {
    /// Firmware assigned no NUMA node to a device. On a machine with one NUMA node, drivers from about 575 on print
    /// NODE for it; those up to about 530 print SYS.
    NoProximity(Bdf),
    /// A device's NUMA node is unknown, so nvidia-smi may print NODE instead of SYS.
    ProximityUnknown(Bdf),
    /// The two NUMA nodes are parts of one socket (NPS2, NPS4, sub-NUMA clusters): nearer than SYS
    /// suggests.
    OneSocket,
    /// The host bridges are quadrants of one AMD socket, between which peer traffic is not dramatically slower; measure
    /// it.
    AmdQuadrants,
    /// NCCL treats the two as ports of one card, because they are on the same bus (`NCCL_IB_MERGE_VFS=0` separates
    /// different devices).
    OneCardToNccl,
    /// Both are directly on a root bus, as in a virtual machine that hides the real tree.
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

/// The distance between two devices, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The class that `nvidia-smi topo -m` prints.
    pub smi: SmiClass,
    /// The class that `nvidia-smi topo -mp` prints, which ignores NVLink.
    pub smi_pci: SmiClass,
    /// NCCL's class, before it searches for relays.
    pub nccl: NcclClass,
    /// UCX's class.
    pub ucx: UcxDistance,
    /// The lowest common ancestor.
    pub ancestor: Ancestor,
    /// The points on the PCI path, including both devices and the common bridge.
    pub steps: Vec<Step>,
    /// The ports on the path that apply ACS, in path order: the bridges below the common ancestor.
    pub ports: Vec<Bdf>,
    /// The lowest bandwidth that links on the path support, and its location. Unknown links are ignored.
    pub capable: Option<(Bandwidth, Place)>,
    /// The lowest current bandwidth, and its location.
    pub current: Option<(Bandwidth, Place)>,
    /// The reason for the class in one sentence.
    pub why: String,
    /// Remarks.
    pub notes: Vec<Note>,
}

impl<'a> Topology<'a> {
    /// Returns a topology without NVLink.
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

    /// Returns the number of NVLinks between two GPUs, if any.
    pub(super) fn nvlinks_between(&self, a: Bdf, b: Bdf) -> Option<u8> {
        let links = self.nvlinks.get(&(a.min(b), a.max(b)));
        links.copied().filter(|_| a != b)
    }

    pub(super) fn position(&self, bdf: Bdf) -> Option<TreePosition> {
        TreePosition::of(self.tree, self.numa, bdf)
    }

    /// Returns the distance between two functions.
    ///
    /// # Errors
    ///
    /// [`RelationError::UnknownFunction`] for an address that is not in the tree,
    /// [`RelationError::Severed`] if the tree lacks the bridges that decide.
    pub fn relation(&self, a: Bdf, b: Bdf) -> Result<Relation, RelationError> {
        let at_a = self.position(a).ok_or(UnknownFunction(a))?;
        let at_b = self.position(b).ok_or(UnknownFunction(b))?;
        let (root_a, root_b) = (at_a.root, at_b.root);
        let (Some(classes), Some(nccl)) = (at_a.classes(&at_b), self.nccl_class(&at_a, &at_b))
        else {
            return Err(RelationError::Severed(a, b));
        };
        let mut notes = Vec::new();
        let ancestor = match at_a.meets(&at_b) {
            Meeting::Same => Ancestor::Same(a),
            Meeting::Above(bridge) | Meeting::Bridge(bridge) => Ancestor::Bridge(bridge),
            Meeting::Bus => Ancestor::Bus(root_a),
            Meeting::Root => Ancestor::Root(root_a),
            Meeting::Unknown => return Err(RelationError::Severed(a, b)),
            Meeting::Node(node) => {
                self.note_proximity([&at_a, &at_b], &mut notes);
                if self.is_amd(root_a) && self.is_amd(root_b) {
                    notes.push(Note::AmdQuadrants);
                }
                Ancestor::Node(node)
            }
            Meeting::System => {
                self.note_proximity([&at_a, &at_b], &mut notes);
                if let (Some(a), Some(b)) = (at_a.node, at_b.node)
                    && self.numa.same_socket(a, b) == Some(true)
                {
                    notes.push(Note::OneSocket);
                }
                Ancestor::System
            }
        };
        let on_root = ancestor == Ancestor::Root(root_a) || root_a != root_b;
        let (flat_a, flat_b) = (at_a.chain.is_empty(), at_b.chain.is_empty());
        if on_root && flat_a && flat_b && self.is_device(a, b) {
            notes.push(Note::FlatBus);
        }

        let common = at_a.common(&at_b);
        let (below_a, below_b) = (&at_a.chain[common..], &at_b.chain[common..]);
        let bridges = at_a.bridges(&at_b);
        let smi_pci = classes.smi;
        let smi = (self.nvlinks_between(a, b)).map_or(smi_pci, SmiClass::Nv);
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
            ucx: match classes.ucx {
                UcxClass::Default => UcxDistance::near(),
                // The devices differ too.
                UcxClass::Phb => UcxDistance::below_one_host_bridge(bridges + 2),
                class => UcxDistance::across(class == UcxClass::Node),
            },
            ancestor,
            capable: narrowest(&on_links, |step| step.capable),
            current: narrowest(&on_links, |step| step.link),
            steps,
            ports,
            why: Self::why(smi, ancestor, bridges, (&at_a, &at_b)),
            notes,
        })
    }

    /// Adds a note for each device without an assigned NUMA node, or with an unknown one unless the machine has only
    /// one.
    fn note_proximity(&self, positions: [&TreePosition; 2], notes: &mut Vec<Note>) {
        for position in positions {
            match (&position.numa, self.numa.only_node()) {
                (Err(Absence::Missing), _) => notes.push(Note::NoProximity(position.bdf)),
                (Ok(_), _) | (_, Some(_)) => {}
                (_, None) => notes.push(Note::ProximityUnknown(position.bdf)),
            }
        }
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

    /// Returns NCCL's class of a pair; `None` if the capture does not determine it.
    pub(super) fn nccl_class(&self, a: &TreePosition, b: &TreePosition) -> Option<NcclClass> {
        if self.nvlinks_between(a.bdf, b.bdf).is_some() {
            return Some(NcclClass::Nvl);
        }
        match a.meets(b) {
            Meeting::Unknown => None,
            // One is a switch of the other's graph.
            Meeting::Above(_) => {
                let graph = NcclGraph::from_tree(self.tree, &[a.bdf, b.bdf]);
                Some(graph.class(a.bdf, b.bdf).unwrap_or(NcclClass::Dis))
            }
            _ => a.nccl(b),
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
            Ancestor::Bus(_) => Vec::new(),
            Ancestor::Root(root) => vec![Step::through(Place::Root(root))],
            Ancestor::Node(_) => {
                vec![
                    Step::through(Place::Root(root_a)),
                    Step::through(Place::Root(root_b)),
                ]
            }
            Ancestor::System => {
                let mut top = vec![Step::through(Place::Root(root_a))];
                for bdf in [a, b] {
                    let node = self.position(bdf).and_then(|position| position.node);
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
        // If one device is above the other, it is both an end and the common bridge.
        steps.dedup_by_key(|step| step.place);
        steps
    }

    fn why(
        smi: SmiClass,
        ancestor: Ancestor,
        bridges: usize,
        (a, b): (&TreePosition, &TreePosition),
    ) -> String {
        if let SmiClass::Nv(links) = smi {
            return format!("{links} NVLinks join the two; over PCI they meet at {ancestor}");
        }
        let (root_a, root_b) = (a.root, b.root);
        match ancestor {
            Ancestor::Same(_) => "they are one function".to_owned(),
            Ancestor::Bridge(bridge) if bridge == a.bdf || bridge == b.bdf => {
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
            Ancestor::Bus(_) => {
                format!("both are on {ancestor}; the bridge above it is not in the capture")
            }
            Ancestor::Root(root) => {
                format!("both are below {root} and share no bridge, so the host bridge is crossed")
            }
            Ancestor::Node(node) => {
                format!("{root_a} and {root_b} are different host bridges of NUMA node {node}")
            }
            Ancestor::System => match (a.node, b.node) {
                (Some(a), Some(b)) => format!(
                    "{root_a} is on NUMA node {a} and {root_b} on NUMA node {b}, so their \
                     interconnect is crossed"
                ),
                _ => format!(
                    "{root_a} and {root_b} are different host bridges and it is not known that \
                     they share a NUMA node"
                ),
            },
        }
    }
}
