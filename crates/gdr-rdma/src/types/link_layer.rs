//! The link layer of a port.

use std::fmt;

use gdr_verbs_sys::{IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND};

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// An unknown value; 0 is "unspecified".
    Other(u8),
}

impl LinkLayer {
    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            IBV_LINK_LAYER_INFINIBAND => Self::InfiniBand,
            IBV_LINK_LAYER_ETHERNET => Self::Ethernet,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.pad("InfiniBand"),
            Self::Ethernet => f.pad("Ethernet"),
            Self::Other(number) => f.pad(&format!("link layer {number}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_layers_have_the_names_of_sysfs_and_unknown_ones_their_number() {
        let name = |number| LinkLayer::from_number(number).to_string();
        assert_eq!([name(1), name(2)], ["InfiniBand", "Ethernet"]);
        assert_eq!(name(9), "link layer 9");
    }
}
