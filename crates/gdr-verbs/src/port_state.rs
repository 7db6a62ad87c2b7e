//! The state of a port as programs see it: by libibverbs, in sysfs and by netlink.

use gdr_nic::LinkCondition;
use gdr_verbs_sys::ibv_port_state;

/// `IB_PORT_PHYS_STATE_POLLING`, `_DISABLED` and `_LINK_UP`.
const POLLING: u8 = 2;
const DISABLED: u8 = 3;
const LINK_UP: u8 = 5;

/// A state, and a physical state of the specification's PortInfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortState {
    pub(crate) state: ibv_port_state,
    pub(crate) physical: u8,
}

impl From<LinkCondition> for PortState {
    fn from(condition: LinkCondition) -> Self {
        let (state, physical) = match condition {
            LinkCondition::Active => (ibv_port_state::IBV_PORT_ACTIVE, LINK_UP),
            LinkCondition::NoCarrier => (ibv_port_state::IBV_PORT_DOWN, POLLING),
            _ => (ibv_port_state::IBV_PORT_DOWN, DISABLED),
        };
        Self { state, physical }
    }
}

impl PortState {
    /// The state as the kernel writes it in sysfs.
    pub(crate) fn text(self) -> &'static str {
        match self.state {
            ibv_port_state::IBV_PORT_ACTIVE => "4: ACTIVE",
            _ => "1: DOWN",
        }
    }

    /// The physical state as the kernel writes it in sysfs.
    pub(crate) const fn physical_text(self) -> &'static str {
        match self.physical {
            LINK_UP => "5: LinkUp",
            POLLING => "2: Polling",
            _ => "3: Disabled",
        }
    }
}
