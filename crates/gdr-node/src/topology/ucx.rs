//! The distance classes of UCX.

use std::fmt;

use crate::pci::Bandwidth;

/// A megabyte in UCX, which is 2^20 bytes.
const MB: u64 = 1 << 20;

/// UCX's distance between two devices (UCX `src/ucs/sys/topo/base/topo.c`, sysfs provider).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum UcxClass {
    /// Below a common bridge, or one device: no limit.
    Default,
    /// Below one host bridge.
    Phb,
    /// On one NUMA node.
    Node,
    /// Anywhere else.
    Sys,
}

impl fmt::Display for UcxClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::Phb => "phb",
            Self::Node => "node",
            Self::Sys => "sys",
        })
    }
}

/// The distance that UCX assumes, unless `UCX_DISTANCE_BW` or similar overrides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UcxDistance {
    /// The class.
    pub class: UcxClass,
    /// The assumed bandwidth; `None` for no limit.
    pub bandwidth: Option<Bandwidth>,
}

impl UcxDistance {
    /// Returns the distance below a common bridge.
    pub(crate) fn near() -> Self {
        Self {
            class: UcxClass::Default,
            bandwidth: None,
        }
    }

    /// Returns the distance below one host bridge; `names` is how many path components differ between the two sysfs
    /// paths.
    pub(crate) fn below_one_host_bridge(names: usize) -> Self {
        let names = u64::try_from(names).unwrap_or(u64::MAX).max(1);
        let bandwidth = (3500 * MB).min(19_200 * MB / names);
        Self {
            class: UcxClass::Phb,
            bandwidth: Some(Bandwidth(bandwidth)),
        }
    }

    /// Returns the distance below different host bridges.
    pub(crate) fn across(same_node: bool) -> Self {
        let (class, bandwidth) = if same_node {
            (UcxClass::Node, 17_000 * MB)
        } else {
            (UcxClass::Sys, 220 * MB)
        };
        Self {
            class,
            bandwidth: Some(Bandwidth(bandwidth)),
        }
    }
}
