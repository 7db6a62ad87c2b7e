//! The chains of capabilities, followed only as far as they make sense.

use super::config::{ConfigSpace, Offset};
use crate::source::Datum;

/// Capabilities that fit between the header and the end of conventional space.
const MOST_STANDARD: usize = 48;
/// Capabilities that fit between 0x100 and 0x1000, 4 bytes each at the very least.
const MOST_EXTENDED: usize = 960;

/// The number of a standard capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapabilityId(pub u8);

impl CapabilityId {
    /// Power Management.
    pub const POWER_MANAGEMENT: Self = Self(0x01);
    /// MSI.
    pub const MSI: Self = Self(0x05);
    /// PCI Express.
    pub const PCI_EXPRESS: Self = Self(0x10);
    /// MSI-X.
    pub const MSI_X: Self = Self(0x11);
}

/// The number of an extended capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtendedId(pub u16);

impl ExtendedId {
    /// Advanced Error Reporting.
    pub const AER: Self = Self(0x0001);
    /// Access Control Services.
    pub const ACS: Self = Self(0x000d);
    /// Address Translation Services.
    pub const ATS: Self = Self(0x000f);
    /// Single Root I/O Virtualization.
    pub const SRIOV: Self = Self(0x0010);
    /// Resizable BAR.
    pub const RESIZABLE_BAR: Self = Self(0x0015);
}

/// One capability of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<Id> {
    /// Which capability.
    pub id: Id,
    /// Its version; standard capabilities have none here.
    pub version: u8,
    /// Where it begins.
    pub at: Offset,
}

/// How a chain of capabilities ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainEnd {
    /// With its last capability, as it should.
    Whole,
    /// It goes on at a place that could not be read.
    Unread(Offset),
    /// It comes back to a place that it has been at.
    Loops(Offset),
    /// It leads to a place where no capability can be, or to one that reads as all ones.
    Strays(Offset),
}

/// A chain of capabilities, as far as it could be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain<Id> {
    /// The capabilities, in the order of the chain.
    pub links: Vec<Link<Id>>,
    /// How it ended.
    pub end: ChainEnd,
}

impl<Id: PartialEq> Chain<Id> {
    /// Where the first capability of this kind begins.
    pub fn find(&self, id: &Id) -> Option<Offset> {
        self.links
            .iter()
            .find(|link| link.id == *id)
            .map(|link| link.at)
    }

    fn has_been_at(&self, at: Offset) -> bool {
        self.links.iter().any(|link| link.at == at)
    }
}

/// Follows the standard chain.
pub(crate) fn standard(config: &ConfigSpace) -> Chain<CapabilityId> {
    let mut chain = Chain {
        links: Vec::new(),
        end: ChainEnd::Whole,
    };
    let status = config.half(Offset(0x06)).into_present().unwrap_or(0);
    // Bit 4 of the status says that there is a chain.
    if status & 0x10 == 0 || config.is_gone() {
        return chain;
    }
    let pointer = if config.header_type() == 2 {
        0x14
    } else {
        0x34
    };
    let mut next = config.byte(Offset(pointer)).into_present().unwrap_or(0) & 0xfc;
    while next != 0 {
        let at = Offset(next.into());
        chain.end = match config.half(at) {
            _ if next < 0x40 => ChainEnd::Strays(at),
            _ if chain.has_been_at(at) || chain.links.len() == MOST_STANDARD => ChainEnd::Loops(at),
            Datum::Present(header) if header & 0xff == 0xff => ChainEnd::Strays(at),
            Datum::Present(header) => {
                chain.links.push(Link {
                    id: CapabilityId(header as u8),
                    version: 0,
                    at,
                });
                next = (header >> 8) as u8 & 0xfc;
                continue;
            }
            _ => ChainEnd::Unread(at),
        };
        return chain;
    }
    chain
}

/// Follows the extended chain of a PCI Express function.
pub(crate) fn extended(config: &ConfigSpace) -> Chain<ExtendedId> {
    let mut chain = Chain {
        links: Vec::new(),
        end: ChainEnd::Whole,
    };
    let mut next: u16 = 0x100;
    if config.ends_before_extended() {
        chain.end = ChainEnd::Unread(Offset(next));
        return chain;
    }
    while next != 0 {
        let at = Offset(next);
        chain.end = match config.word(at) {
            _ if next < 0x100 => ChainEnd::Strays(at),
            _ if chain.has_been_at(at) || chain.links.len() == MOST_EXTENDED => ChainEnd::Loops(at),
            // A function without extended capabilities has zeros here.
            Datum::Present(0) => ChainEnd::Whole,
            Datum::Present(u32::MAX) => ChainEnd::Strays(at),
            Datum::Present(header) => {
                chain.links.push(Link {
                    id: ExtendedId(header as u16),
                    version: (header >> 16) as u8 & 0xf,
                    at,
                });
                next = (header >> 20) as u16 & 0xffc;
                continue;
            }
            Datum::Missing => ChainEnd::Strays(at),
            _ => ChainEnd::Unread(at),
        };
        return chain;
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::Unread;

    fn space(len: usize, edit: impl FnOnce(&mut [u8])) -> ConfigSpace {
        let mut bytes = vec![0; len];
        bytes[0..4].copy_from_slice(&[0xb3, 0x15, 0x21, 0x10]);
        bytes[0x06] = 0x10;
        bytes[0x34] = 0x60;
        if len > 0x100 {
            bytes[0x60] = 0x10;
        }
        edit(&mut bytes);
        ConfigSpace::new(bytes, Unread::Denied).unwrap()
    }

    #[test]
    fn the_header_alone_leaves_every_capability_unknown() {
        let config = space(64, |_| {});
        assert_eq!(config.capabilities().end, ChainEnd::Unread(Offset(0x60)));
        assert_eq!(config.find(CapabilityId::PCI_EXPRESS), Datum::Denied);
        assert_eq!(config.acs(), Datum::Denied);
        assert_eq!(config.express(), Datum::Denied);
    }

    #[test]
    fn a_header_that_says_there_is_no_chain_is_believed() {
        let config = space(64, |bytes| bytes[0x06] = 0);
        assert_eq!(config.express(), Datum::Missing);
        assert_eq!(config.ats(), Datum::Missing);
    }

    #[test]
    fn a_conventional_function_has_no_extended_capabilities() {
        let config = space(256, |bytes| bytes[0x60] = 0x01);
        assert_eq!(config.acs(), Datum::Missing);
        let config = space(256, |bytes| bytes[0x60] = 0x10);
        assert_eq!(config.acs(), Datum::Denied);
    }

    #[test]
    fn a_standard_chain_that_loops_is_left() {
        let config = space(256, |bytes| {
            bytes[0x60..0x62].copy_from_slice(&[0x05, 0x60])
        });
        let chain = config.capabilities();
        assert_eq!(chain.end, ChainEnd::Loops(Offset(0x60)));
        assert_eq!(chain.links.len(), 1);
        assert_eq!(config.express(), Datum::Missing);
    }

    #[test]
    fn a_chain_into_the_header_or_into_ones_strays() {
        let into_header = space(256, |bytes| {
            bytes[0x60..0x62].copy_from_slice(&[0x05, 0x20])
        });
        assert_eq!(
            into_header.capabilities().end,
            ChainEnd::Strays(Offset(0x20))
        );
        let ones = space(256, |bytes| bytes[0x60] = 0xff);
        assert_eq!(ones.capabilities().end, ChainEnd::Strays(Offset(0x60)));
    }

    #[test]
    fn an_extended_chain_is_followed_and_its_faults_are_named() {
        let put = |bytes: &mut [u8], at: usize, header: u32| {
            bytes[at..at + 4].copy_from_slice(&header.to_le_bytes());
        };
        let whole = space(4096, |bytes| {
            put(bytes, 0x100, 0x1481_0001);
            put(bytes, 0x148, 0x0001_000d);
        });
        let chain = whole.extended_capabilities();
        assert_eq!(chain.end, ChainEnd::Whole);
        assert_eq!(chain.find(&ExtendedId::ACS), Some(Offset(0x148)));
        assert_eq!(whole.ats(), Datum::Missing);

        let loops = space(4096, |bytes| {
            put(bytes, 0x100, 0x1481_0001);
            put(bytes, 0x148, 0x1001_000d);
        });
        assert_eq!(
            loops.extended_capabilities().end,
            ChainEnd::Loops(Offset(0x100))
        );
        let back = space(4096, |bytes| put(bytes, 0x100, 0x0041_0001));
        assert_eq!(
            back.extended_capabilities().end,
            ChainEnd::Strays(Offset(0x04))
        );
        let none = space(4096, |_| {});
        assert_eq!(none.extended_capabilities().end, ChainEnd::Whole);
        let cut = space(0x140, |bytes| put(bytes, 0x100, 0x1481_0001));
        assert_eq!(
            cut.extended_capabilities().end,
            ChainEnd::Unread(Offset(0x148))
        );
        assert_eq!(cut.acs(), Datum::Denied);
    }

    #[test]
    fn a_function_off_the_bus_has_no_capabilities() {
        let config = ConfigSpace::new(vec![0xff; 4096], Unread::NotCollected).unwrap();
        assert!(config.is_gone());
        assert_eq!(config.express(), Datum::Missing);
    }
}
