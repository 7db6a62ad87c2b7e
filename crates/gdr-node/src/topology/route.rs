//! The places that traffic between two devices passes.

use std::fmt;

use gdr_cuda::Bdf;

use crate::pci::{Bandwidth, Function, Link, NumaNode, RootBus, Tree};

/// A place on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A device, or a port of a switch or of the root complex.
    Function(Bdf),
    /// A host bridge.
    Root(RootBus),
    /// A NUMA node, where the way goes through the interconnect between them.
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

/// One step of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where.
    pub place: Place,
    /// The link of that function as it is now, where it is known. An idle GPU lowers its speed.
    pub link: Option<Link>,
    /// The best that link can do at this end, where it is known.
    pub capable: Option<Link>,
}

impl Step {
    pub(crate) fn at(tree: &Tree, bdf: Bdf) -> Self {
        let function = tree.get(bdf);
        let link = |pick: fn(&Function) -> Option<&Link>| function.and_then(pick).copied();
        Self {
            place: Place::Function(bdf),
            link: link(|function| function.link.present()),
            capable: link(|function| function.link_capable.present()),
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

/// The least bandwidth of the links of these steps, and where.
pub(crate) fn narrowest(
    steps: &[Step],
    link: impl Fn(&Step) -> Option<Link>,
) -> Option<(Bandwidth, Place)> {
    steps
        .iter()
        .filter_map(|step| Some((link(step)?.bandwidth(), step.place)))
        .min_by_key(|(bandwidth, _)| *bandwidth)
}
