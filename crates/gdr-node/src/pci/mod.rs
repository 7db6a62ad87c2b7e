//! PCI functions, their config space, and the tree that they form.

mod acs;
mod aer;
mod ats;
mod bar;
mod capability;
mod config;
mod express;
mod function;
mod identity;
mod link;
pub(crate) mod naming;
mod rebar;
mod sriov;
mod sysfs;
mod tree;

pub use acs::{Acs, AcsBits};
pub use aer::{Aer, CorrectableErrors, UncorrectableErrors};
pub use ats::Ats;
pub use bar::{Bar, BarKind};
pub use capability::{Capability, CapabilityId, CapabilityList, ExtendedId, ListEnd, Offset};
pub use config::{ConfigError, ConfigSpace, Unread};
pub use express::{Aspm, Express, PortType};
pub use function::{BusRange, Function, NumaNode};
pub use identity::{Class, DeviceId, Identity, VendorId};
pub use link::{Bandwidth, Link, LinkSpeed, LinkWidth};
pub use rebar::ResizableBar;
pub use sriov::Sriov;
pub use sysfs::read_functions;
pub(crate) use sysfs::{SWITCH_MARK, has_switch_mark};
pub use tree::{Parent, RootBus, Tree};

/// lspci's names of register bits.
pub(crate) mod names {
    pub(crate) use super::acs::LSPCI_NAMES as ACS;
    pub(crate) use super::aer::{
        CORRECTABLE_NAMES as CORRECTABLE, UNCORRECTABLE_NAMES as UNCORRECTABLE,
    };
}
