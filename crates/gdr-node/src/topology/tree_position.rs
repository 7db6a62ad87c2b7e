//! The position of a device in the tree, computed once for all its pairs.

use gdr_pci::Bdf;

use super::class::{NcclClass, SmiClass};
use super::ucx::UcxClass;
use crate::numa::NumaLayout;
use crate::pci::{NumaNode, RootBus, Tree};
use crate::source::Datum;

/// The most bridges between two devices of class PIX: the two ports of a switch. NVIDIA does not publish the rule; this
/// one matches every machine whose tree and matrix are known.
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
    /// That node, or the machine's only one.
    pub(super) node: Option<NumaNode>,
    /// The NUMA node that NCCL assigns: that of the last function on the path up.
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
    /// On a bus whose bridge the capture lacks.
    Bus,
    Root,
    Node(NumaNode),
    System,
    /// The capture lacks the bridges that determine it.
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

    /// Returns the number of common bridges, from the root down.
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
            // A bridge's depth is its index in the chains below it.
            if below.chain.get(above.chain.len()) == Some(&above.bdf) {
                return Meeting::Above(above.bdf);
            }
        }
        match self.common(other).checked_sub(1) {
            Some(last) => Meeting::Bridge(self.chain[last]),
            None if !self.is_severed => Meeting::Root,
            // A link has one device below it, so functions on one bus belong to one device. Within a switch's internal
            // bus, the path is known only below each port.
            None if self.chain.is_empty() && other.chain.is_empty() => Meeting::Bus,
            None => Meeting::Unknown,
        }
    }

    /// Returns the number of bridges between two devices, excluding common ones.
    pub(super) fn bridges(&self, other: &Self) -> usize {
        self.chain.len() + other.chain.len() - 2 * self.common(other)
    }

    /// Returns a pair's classes in the terms of nvidia-smi (without NVLinks) and UCX; `None` if the capture does not
    /// determine them.
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
            // UCX compares the node numbers, so two devices without one count as being on the same node.
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

    /// Returns NCCL's class without NVLinks, as the graph of these two devices alone gives it: one node for a switch's
    /// two ports, none for root ports and host bridges. `None` if the capture lacks the path or one device is above the
    /// other, which only the whole graph can decide.
    pub(super) fn nccl(&self, other: &Self) -> Option<NcclClass> {
        let on_one_bus = (self.bdf.domain, self.bdf.bus) == (other.bdf.domain, other.bdf.bus);
        match self.meets(other) {
            Meeting::Same => return Some(NcclClass::Loc),
            Meeting::Above(_) | Meeting::Unknown => return None,
            // NCCL treats the ports of a card as one, and also the virtual functions on a bus.
            _ if on_one_bus && !self.is_gpu && !other.is_gpu => return Some(NcclClass::Loc),
            Meeting::Bus => return Some(NcclClass::Pix),
            _ => {}
        }
        // The switches on each side, up to the lowest common one.
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

    /// Returns the switches that NCCL passes on the way up. It ascends two directories at a time
    /// (ncclTopoGetXmlFromSys), so it counts a switch's two ports as one, and skips root ports.
    fn switches(&self) -> impl Iterator<Item = Bdf> {
        self.chain.iter().rev().skip(1).step_by(2).copied()
    }
}
