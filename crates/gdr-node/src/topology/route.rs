//! The path that traffic between two devices takes.

use std::fmt;

use gdr_pci::Bdf;

use crate::pci::{Bandwidth, Function, Link, NumaNode, RootBus, Tree};

/// A point on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A device, or a port of a switch or of the root complex.
    Function(Bdf),
    /// A host bridge.
    Root(RootBus),
    /// A NUMA node, if the path crosses the interconnect between nodes.
    Node(NumaNode),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(bdf) => bdf.fmt(f),
            Self::Root(root) => root.fmt(f),
            Self::Node(node) => write!(f, "NUMA node {node}"),
        }
    }
}

/// One step of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The point.
    pub place: Place,
    /// The current link of that function, if known. An idle GPU lowers its speed.
    pub link: Option<Link>,
    /// The highest speed and width of that link at this end, if known.
    pub capable: Option<Link>,
}

impl Step {
    pub(crate) fn at(tree: &Tree, bdf: Bdf) -> Self {
        let function = tree.get(bdf);
        let link = |pick: fn(&Function) -> Option<&Link>| function.and_then(pick).copied();
        Self {
            place: Place::Function(bdf),
            link: link(|function| function.link.as_ref().ok()),
            capable: link(|function| function.link_capable.as_ref().ok()),
        }
    }

    pub(crate) fn through(place: Place) -> Self {
        Self {
            place,
            link: None,
            capable: None,
        }
    }
}

/// Returns the lowest bandwidth among the links of these steps, and its point.
pub(crate) fn narrowest(
    steps: &[Step],
    link: impl Fn(&Step) -> Option<Link>,
) -> Option<(Bandwidth, Place)> {
    steps
        .iter()
        .filter_map(|step| Some((link(step)?.bandwidth(), step.place)))
        .min_by_key(|(bandwidth, _)| *bandwidth)
}
