//! The position of a device in the tree, computed once for all its pairs.

use gdr_pci::Bdf;

use super::class::{NcclClass, SmiClass};
use super::ucx::UcxClass;
use crate::numa::NumaLayout;
use crate::pci::{NumaNode, RootBus, Tree};
use crate::source::Datum;

/// The most bridges between two devices of class PIX: the two ports of one switch. NVIDIA does not
/// publish the rule; this one agrees with every machine whose tree and matrix are known.
const BRIDGES_OF_ONE_SWITCH: usize = 2;

/// The position of a device in the tree.
#[derive(Clone, Debug)]
pub(super) struct TreePosition {
    pub(super) bdf: Bdf,
    pub(super) root: RootBus,
    /// The bridges above it, from the root down.
    pub(super) chain: Vec<Bdf>,
    /// Whether the capture lacks the bridges above its root bus.
    pub(super) is_severed: bool,
    /// Its NUMA node by firmware.
    pub(super) numa: Datum<NumaNode>,
    /// That node, or the only one of the machine.
    pub(super) node: Option<NumaNode>,
    /// The NUMA node on which NCCL puts it: the last function's on its path up.
    nccl_cpu: Option<NumaNode>,
    is_gpu: bool,
}

/// The relative position of two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    Same,
    /// One is above the other.
    Above(Bdf),
    /// Below a common bridge.
    Bridge(Bdf),
    /// On one bus whose bridge the capture does not have.
    Bus,
    Root,
    Node(NumaNode),
    System,
    /// The capture lacks the bridges that decide.
    Unknown,
}

/// The classes of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classes {
    pub(super) smi: SmiClass,
    pub(super) ucx: UcxClass,
}

impl TreePosition {
    pub(super) fn of(tree: &Tree, layout: &NumaLayout, bdf: Bdf) -> Option<Self> {
        let (root, chain) = tree.chain(bdf)?;
        let function = tree.get(bdf)?;
        let mut position = Self {
            bdf,
            root,
            is_severed: tree.is_severed(root),
            node: function.numa.as_ref().ok().copied().or(layout.only_node()),
            numa: function.numa,
            nccl_cpu: None,
            is_gpu: function.identity.class.is_some_and(|class| class.is_gpu()),
            chain,
        };
        let switches = position.switches().map_while(|switch| tree.get(switch));
        let top = switches.last().unwrap_or(function);
        position.nccl_cpu = top.numa.as_ref().ok().copied();
        Some(position)
    }

    /// The number of common bridges, from the root down.
    pub(super) fn common(&self, other: &Self) -> usize {
        if self.root != other.root {
            return 0;
        }
        let pairs = self.chain.iter().zip(&other.chain);
        pairs.take_while(|(a, b)| a == b).count()
    }

    pub(super) fn meets(&self, other: &Self) -> Meeting {
        if self.bdf == other.bdf {
            return Meeting::Same;
        }
        if self.root != other.root {
            return match (self.node, other.node) {
                (Some(a), Some(b)) if a != b => Meeting::System,
                _ if self.is_severed || other.is_severed => Meeting::Unknown,
                (Some(a), Some(_)) => Meeting::Node(a),
                _ => Meeting::System,
            };
        }
        for (above, below) in [(self, other), (other, self)] {
            // The depth of a bridge is its index in the chains below it.
            if below.chain.get(above.chain.len()) == Some(&above.bdf) {
                return Meeting::Above(above.bdf);
            }
        }
        match self.common(other).checked_sub(1) {
            Some(last) => Meeting::Bridge(self.chain[last]),
            None if !self.is_severed => Meeting::Root,
            // A link has one device below it, so that functions on one bus are on one device. On a
            // switch's internal bus the path is known only from each port down.
            None if self.chain.is_empty() && other.chain.is_empty() => Meeting::Bus,
            None => Meeting::Unknown,
        }
    }

    /// The bridges between two devices, those in common left out.
    pub(super) fn bridges(&self, other: &Self) -> usize {
        self.chain.len() + other.chain.len() - 2 * self.common(other)
    }

    /// The classes of a pair in the terms of nvidia-smi (without NVLinks) and UCX; `None` if
    /// the capture does not decide.
    pub(super) fn classes(&self, other: &Self) -> Option<Classes> {
        let meeting = self.meets(other);
        let smi = match meeting {
            Meeting::Same => SmiClass::Same,
            Meeting::Bus => SmiClass::Pix,
            Meeting::Above(_) | Meeting::Bridge(_)
                if self.bridges(other) <= BRIDGES_OF_ONE_SWITCH =>
            {
                SmiClass::Pix
            }
            Meeting::Above(_) | Meeting::Bridge(_) => SmiClass::Pxb,
            Meeting::Root => SmiClass::Phb,
            Meeting::Node(_) => SmiClass::Node,
            Meeting::System => SmiClass::Sys,
            Meeting::Unknown => return None,
        };
        let ucx = match meeting {
            Meeting::Root => UcxClass::Phb,
            // UCX compares the numbers, and two devices without one are on the same node.
            Meeting::Node(_) | Meeting::System => {
                if self.numa.as_ref().ok() == other.numa.as_ref().ok() {
                    UcxClass::Node
                } else {
                    UcxClass::Sys
                }
            }
            _ => UcxClass::Default,
        };
        Some(Classes { smi, ucx })
    }

    /// NCCL's class without NVLinks, by the graph of these two devices alone: one node for the two
    /// ports of a switch, none for a root port and a host bridge. `None` if the capture does not
    /// have the path or one device is above the other; the whole graph decides then.
    pub(super) fn nccl(&self, other: &Self) -> Option<NcclClass> {
        let on_one_bus = (self.bdf.domain, self.bdf.bus) == (other.bdf.domain, other.bdf.bus);
        match self.meets(other) {
            Meeting::Same => return Some(NcclClass::Loc),
            Meeting::Above(_) | Meeting::Unknown => return None,
            // The ports of one card are one to NCCL, and so are the virtual functions on one bus.
            _ if on_one_bus && !self.is_gpu && !other.is_gpu => return Some(NcclClass::Loc),
            Meeting::Bus => return Some(NcclClass::Pix),
            _ => {}
        }
        // The switches of each up to the lowest that both pass.
        let own = |of: &Self, not: &Self| {
            let switches = of.switches();
            switches
                .take_while(|at| not.switches().all(|it| it != *at))
                .count()
        };
        let (up, down) = (own(self, other), own(other, self));
        Some(match up + down {
            // They meet at no switch.
            _ if up == self.switches().count() => {
                if self.nccl_cpu == other.nccl_cpu {
                    NcclClass::Phb
                } else {
                    NcclClass::Sys
                }
            }
            0 => NcclClass::Pix,
            _ => NcclClass::Pxb,
        })
    }

    /// The switches that NCCL passes on its path up: it goes up two directories at a time
    /// (ncclTopoGetXmlFromSys), so that it counts the two ports of a switch as one and does not
    /// count root ports.
    fn switches(&self) -> impl Iterator<Item = Bdf> {
        self.chain.iter().rev().skip(1).step_by(2).copied()
    }
}
