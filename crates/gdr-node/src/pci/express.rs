//! The PCI Express capability.

use std::fmt;

use super::capability::CapabilityId;
use super::config::ConfigSpace;
use super::link::Link;
use crate::source::Datum;

/// The device/port type of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortType {
    /// An endpoint.
    Endpoint,
    /// An endpoint that may use I/O space, like many GPUs.
    LegacyEndpoint,
    /// A port of the root complex.
    RootPort,
    /// A switch's upstream port, which leads to the root.
    SwitchUpstream,
    /// A switch's downstream port, which leads away from the root.
    SwitchDownstream,
    /// A bridge from PCI Express to PCI.
    ToPciBridge,
    /// A bridge from PCI to PCI Express.
    FromPciBridge,
    /// An endpoint integrated into the root complex, without a link.
    IntegratedEndpoint,
    /// A root complex event collector.
    EventCollector,
    /// A type that the specification does not assign.
    Other(u8),
}

impl PortType {
    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Endpoint,
            1 => Self::LegacyEndpoint,
            4 => Self::RootPort,
            5 => Self::SwitchUpstream,
            6 => Self::SwitchDownstream,
            7 => Self::ToPciBridge,
            8 => Self::FromPciBridge,
            9 => Self::IntegratedEndpoint,
            10 => Self::EventCollector,
            other => Self::Other(other),
        }
    }

    /// Returns whether its link leads away from the root. These ports apply ACS to peer traffic.
    pub fn is_downstream(self) -> bool {
        matches!(self, Self::RootPort | Self::SwitchDownstream)
    }

    fn has_link(self) -> bool {
        !matches!(self, Self::IntegratedEndpoint | Self::EventCollector)
    }
}

impl fmt::Display for PortType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Endpoint => "endpoint",
            Self::LegacyEndpoint => "legacy endpoint",
            Self::RootPort => "root port",
            Self::SwitchUpstream => "switch upstream port",
            Self::SwitchDownstream => "switch downstream port",
            Self::ToPciBridge => "PCIe to PCI bridge",
            Self::FromPciBridge => "PCI to PCIe bridge",
            Self::IntegratedEndpoint => "root complex integrated endpoint",
            Self::EventCollector => "root complex event collector",
            Self::Other(code) => return write!(f, "function of type {code}"),
        };
        f.write_str(name)
    }
}

/// Active state power management: the enabled power states of an idle link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aspm {
    /// L0s.
    pub l0s: bool,
    /// L1.
    pub l1: bool,
}

/// The PCI Express capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Express {
    /// The device/port type.
    pub port: PortType,
    /// Whether a slot is behind the port.
    pub slot: bool,
    /// The number on the slot, if there is one.
    pub slot_number: Option<u16>,
    /// The maximum payload size that it supports, in bytes.
    pub payload_capable: u16,
    /// The configured maximum payload size (MPS), in bytes.
    pub payload: u16,
    /// The configured maximum read request size (MRRS), in bytes.
    pub read_request: u16,
    /// Whether it may set relaxed ordering.
    pub relaxed_ordering: bool,
    /// Whether it uses 8-bit tags.
    pub extended_tags: bool,
    /// Whether it may set no-snoop.
    pub no_snoop: bool,
    /// Whether it can complete requests with 10-bit tags.
    pub ten_bit_tags_completer: bool,
    /// Whether it can send requests with 10-bit tags.
    pub ten_bit_tags_requester: bool,
    /// Whether it sends requests with 10-bit tags.
    pub ten_bit_tags: bool,
    /// The highest speed and width of its link; `None` without a link.
    pub link_capable: Option<Link>,
    /// Its current link; `None` without one or while it is down.
    pub link: Option<Link>,
    /// The enabled power states of its link.
    pub aspm: Aspm,
}

impl ConfigSpace {
    /// Returns the PCI Express capability.
    pub fn express(&self) -> Datum<Express> {
        let at = self.find(CapabilityId::PCI_EXPRESS)?;
        let (half, word) = (|n| self.half(at.plus(n)), |n| self.word(at.plus(n)));
        let (flags, capable, control) = (half(0x02)?, word(0x04)?, half(0x08)?);
        let port = PortType::from_code((flags >> 4 & 0xf) as u8);
        let slot = flags & 0x100 != 0;
        let linked = |datum: Datum<u16>| datum.ok().filter(|_| port.has_link());
        // The second device registers exist from version 2 on.
        let second = |datum: Datum<u32>| datum.ok().filter(|_| flags & 0xf >= 2).unwrap_or(0);
        let (capable2, control2) = (second(word(0x24)), second(word(0x28)));
        let link_control = linked(half(0x10)).unwrap_or(0);
        Ok(Express {
            port,
            slot,
            slot_number: word(0x14)
                .ok()
                .filter(|_| slot && port.is_downstream())
                .map(|register| (register >> 19) as u16),
            payload_capable: 128 << (capable & 0x7),
            payload: 128 << (control >> 5 & 0x7),
            read_request: 128 << (control >> 12 & 0x7),
            relaxed_ordering: control & 1 << 4 != 0,
            extended_tags: control & 1 << 8 != 0,
            no_snoop: control & 1 << 11 != 0,
            ten_bit_tags_completer: capable2 & 1 << 16 != 0,
            ten_bit_tags_requester: capable2 & 1 << 17 != 0,
            ten_bit_tags: control2 & 1 << 12 != 0,
            link_capable: linked(half(0x0c)).and_then(Link::from_register),
            link: linked(half(0x12)).and_then(Link::from_register),
            aspm: Aspm {
                l0s: link_control & 1 != 0,
                l1: link_control & 2 != 0,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::Unread;

    fn function(flags: u16) -> ConfigSpace {
        let mut bytes = vec![0; 256];
        bytes[0x06] = 0x10;
        bytes[0x34] = 0x60;
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0x60, &[0x10, 0]);
        put(0x62, &flags.to_le_bytes());
        put(0x64, &0x0000_0002_u32.to_le_bytes());
        put(0x68, &0x5930_u16.to_le_bytes());
        put(0x6c, &0x0000_0105_u32.to_le_bytes());
        put(0x70, &0x0002_u16.to_le_bytes());
        put(0x72, &0x1084_u16.to_le_bytes());
        put(0x74, &(7_u32 << 19).to_le_bytes());
        put(0x84, &(3_u32 << 16).to_le_bytes());
        put(0x88, &(1_u32 << 12).to_le_bytes());
        ConfigSpace::new(bytes, Unread::NotCollected).unwrap()
    }

    #[test]
    fn settings_of_an_endpoint_are_read() {
        let express = function(0x0002).express().unwrap();
        assert_eq!(express.port, PortType::Endpoint);
        assert_eq!(express.payload_capable, 512);
        assert_eq!((express.payload, express.read_request), (256, 4096));
        assert!(express.relaxed_ordering && express.extended_tags && express.no_snoop);
        assert!(express.ten_bit_tags && express.ten_bit_tags_completer);
        assert_eq!(express.link_capable.unwrap().to_string(), "32 GT/s x16");
        assert_eq!(express.link.unwrap().to_string(), "16 GT/s x8");
        assert_eq!(
            express.aspm,
            Aspm {
                l0s: false,
                l1: true
            }
        );
        assert_eq!(express.slot_number, None);
    }

    #[test]
    fn a_port_with_a_slot_has_its_number() {
        let express = function(0x0162).express().unwrap();
        assert_eq!(express.port, PortType::SwitchDownstream);
        assert!(express.slot && express.port.is_downstream());
        assert_eq!(express.slot_number, Some(7));
    }

    #[test]
    fn an_integrated_endpoint_has_no_link_and_version_1_no_second_registers() {
        let express = function(0x0091).express().unwrap();
        assert_eq!(express.port, PortType::IntegratedEndpoint);
        assert_eq!((express.link, express.link_capable), (None, None));
        assert!(!express.ten_bit_tags);
    }
}
