//! The state of a device's interface.

use std::io;
use std::net::{IpAddr, UdpSocket};

use gdr_roce::Mtu;

use super::route_message::Interface;
use crate::address::{SoftAddress, path_mtu};

/// Whether an interface can carry packets, derived like the port state of Linux's rxe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkCondition {
    /// The interface is up and has a carrier, or is a loopback interface.
    Active,
    /// The interface is up but has no carrier.
    NoCarrier,
    /// The interface is down, or does not exist any more.
    Disabled,
}

/// The state of a device's interface and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkState {
    /// The interface index; 0 if the interface does not exist any more.
    pub interface: u32,
    /// Whether the interface can carry packets.
    pub condition: LinkCondition,
    /// The largest path MTU that the interface carries without fragmentation; `None` if even the smallest does not fit.
    /// Keeps its last value if the interface is removed.
    pub path_mtu: Option<Mtu>,
    /// Whether this host still has the address.
    pub has_address: bool,
}

/// The flags that an interface has when it can carry packets.
pub(super) const ACTIVE: u32 = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;

impl LinkState {
    /// Returns the state to assume if the kernel does not report it: the interface is up.
    pub(super) const fn assumed(device: &SoftAddress) -> Self {
        Self {
            interface: 0,
            condition: LinkCondition::Active,
            path_mtu: device.path_mtu,
            has_address: true,
        }
    }

    /// Updates the state from the kernel's description of the interface; `None` means that it does not exist any more.
    pub(super) fn with_interface(self, interface: Option<Interface>, address: IpAddr) -> Self {
        let Some(interface) = interface else {
            return Self {
                interface: 0,
                condition: LinkCondition::Disabled,
                ..self
            };
        };
        let has = |flag: libc::c_int| interface.flags & flag.cast_unsigned() != 0;
        let is_active = interface.flags & ACTIVE == ACTIVE;
        Self {
            interface: interface.index,
            condition: match (is_active, has(libc::IFF_UP)) {
                _ if has(libc::IFF_LOOPBACK) => LinkCondition::Active,
                (true, _) => LinkCondition::Active,
                (false, true) => LinkCondition::NoCarrier,
                (false, false) => LinkCondition::Disabled,
            },
            path_mtu: match interface.mtu {
                Some(mtu) => path_mtu(mtu, address),
                None => self.path_mtu,
            },
            ..self
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.condition == LinkCondition::Active
    }
}

/// Returns whether a socket can be bound to the address on this host.
pub(super) fn is_own(address: IpAddr) -> bool {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        // Other errors, such as a lack of descriptors, do not depend on the address.
        Err(error) => error.kind() != io::ErrorKind::AddrNotAvailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn the_condition_is_that_of_the_flags_and_a_loopback_interface_is_active() {
        let before = LinkState {
            interface: 9,
            condition: LinkCondition::Active,
            path_mtu: Some(Mtu::B512),
            has_address: false,
        };
        let with = |flags, mtu| {
            let interface = Interface {
                index: 2,
                flags,
                mtu,
            };
            before.with_interface(Some(interface), ADDRESS)
        };
        let up = libc::IFF_UP as u32;
        for (flags, condition) in [
            (ACTIVE, LinkCondition::Active),
            (up, LinkCondition::NoCarrier),
            (libc::IFF_LOWER_UP as u32, LinkCondition::Disabled),
            (0, LinkCondition::Disabled),
            (libc::IFF_LOOPBACK as u32, LinkCondition::Active),
        ] {
            let expected = LinkState {
                interface: 2,
                condition,
                path_mtu: Some(Mtu::B1024),
                has_address: false,
            };
            assert_eq!(with(flags, Some(1500)), expected);
        }
        assert_eq!(with(up, Some(100)).path_mtu, None);
        assert_eq!(with(up, None).path_mtu, Some(Mtu::B512));
        let gone = before.with_interface(None, ADDRESS);
        assert_eq!(
            (gone.interface, gone.condition, gone.path_mtu),
            (0, LinkCondition::Disabled, Some(Mtu::B512))
        );
    }

    #[test]
    fn only_an_address_of_this_host_is_its_own() {
        assert!(is_own("127.0.0.9".parse().unwrap()));
        // An address reserved for documentation (RFC 5737).
        assert!(!is_own("192.0.2.1".parse().unwrap()));
    }
}
