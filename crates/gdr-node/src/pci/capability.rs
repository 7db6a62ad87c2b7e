//! Capability lists in config space, with the offset of each capability.
//!
//! Layouts follow PCI Express Base Specification 6.0, 7.5.3 and 7.6. The pointers come from the device or a capture, so
//! a list is followed only to offsets where a capability can be, and only once to each.

use std::fmt;

/// Size of the header in bytes; standard capabilities follow.
pub(super) const HEADER: usize = 0x40;
/// Size of conventional PCI config space in bytes; extended capabilities follow.
const CONVENTIONAL: usize = 0x100;
/// The most capabilities that fit between the header and the end of conventional space.
const MOST_STANDARD: usize = 48;
/// The most capabilities that fit between 0x100 and 0x1000, at the minimum size of 4 bytes.
const MOST_EXTENDED: usize = 960;

/// An offset into config space in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(pub u16);

impl Offset {
    /// Returns the offset `bytes` further on. Registers beyond the end of config space count as missing.
    #[must_use]
    pub fn plus(self, bytes: u16) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

/// The ID of a standard capability.
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

/// The ID of an extended capability.
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

/// An entry of a capability list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability<Id> {
    /// Its ID.
    pub id: Id,
    /// Its version; 0 for standard capabilities, which have none.
    pub version: u8,
    /// Its offset.
    pub at: Offset,
}

/// How a capability list ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListEnd {
    /// The last capability has no successor.
    Complete,
    /// The list continues at an offset that was not read.
    Unread(Offset),
    /// The list points back to an offset already visited.
    Loop(Offset),
    /// The list points to an offset where no capability can be, or that reads as all ones.
    Invalid(Offset),
}

/// A capability list as far as it can be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityList<Id> {
    /// The capabilities in the order of the list.
    pub entries: Vec<Capability<Id>>,
    /// How the list ends.
    pub end: ListEnd,
}

impl<Id: PartialEq> CapabilityList<Id> {
    const fn ending(end: ListEnd) -> Self {
        Self {
            entries: Vec::new(),
            end,
        }
    }

    /// Returns the offset of the first capability with this ID.
    pub fn find(&self, id: Id) -> Option<Offset> {
        self.entries
            .iter()
            .find(|entry| entry.id == id)
            .map(|entry| entry.at)
    }

    fn has_passed(&self, at: Offset) -> bool {
        self.entries.iter().any(|entry| entry.at == at)
    }
}

/// Follows the standard list. `bytes` must hold at least the header.
pub(super) fn standard(bytes: &[u8]) -> CapabilityList<CapabilityId> {
    let mut list = CapabilityList::ending(ListEnd::Complete);
    // Bit 4 of the status register is set if there is a list. A function that no longer responds reads as all ones, and
    // has no list either.
    if bytes[0x06] & 0x10 == 0 || word(bytes, 0) == Some(u32::MAX) {
        return list;
    }
    let is_cardbus = bytes[0x0e] & 0x7f == 2;
    let mut next = bytes[if is_cardbus { 0x14 } else { 0x34 }] & 0xfc;
    while next != 0 {
        let at = Offset(next.into());
        list.end = match half(bytes, at.0) {
            _ if usize::from(next) < HEADER => ListEnd::Invalid(at),
            _ if list.has_passed(at) || list.entries.len() == MOST_STANDARD => ListEnd::Loop(at),
            None => ListEnd::Unread(at),
            Some(header) if header & 0xff == 0xff => ListEnd::Invalid(at),
            Some(header) => {
                list.entries.push(Capability {
                    id: CapabilityId(header as u8),
                    version: 0,
                    at,
                });
                next = (header >> 8) as u8 & 0xfc;
                continue;
            }
        };
        return list;
    }
    list
}

/// Follows the extended list, which only PCI Express functions have.
pub(super) fn extended(
    bytes: &[u8],
    standard: &CapabilityList<CapabilityId>,
) -> CapabilityList<ExtendedId> {
    let mut list = CapabilityList::ending(ListEnd::Complete);
    match (standard.find(CapabilityId::PCI_EXPRESS), standard.end) {
        (Some(_), _) => {}
        (None, ListEnd::Unread(at)) => return CapabilityList::ending(ListEnd::Unread(at)),
        (None, _) => return list,
    }
    let mut next = CONVENTIONAL as u16;
    if bytes.len() <= CONVENTIONAL {
        list.end = ListEnd::Unread(Offset(next));
        return list;
    }
    while next != 0 {
        let at = Offset(next);
        list.end = match word(bytes, at.0) {
            _ if usize::from(next) < CONVENTIONAL => ListEnd::Invalid(at),
            _ if list.has_passed(at) || list.entries.len() == MOST_EXTENDED => ListEnd::Loop(at),
            None => ListEnd::Unread(at),
            // A function without extended capabilities has zeros here.
            Some(0) => ListEnd::Complete,
            Some(u32::MAX) => ListEnd::Invalid(at),
            Some(header) => {
                list.entries.push(Capability {
                    id: ExtendedId(header as u16),
                    version: (header >> 16) as u8 & 0xf,
                    at,
                });
                next = (header >> 20) as u16 & 0xffc;
                continue;
            }
        };
        return list;
    }
    list
}

fn half(bytes: &[u8], at: u16) -> Option<u16> {
    let at = usize::from(at);
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: u16) -> Option<u32> {
    let at = usize::from(at);
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::{ConfigSpace, Unread};
    use crate::source::Absence;

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
        assert_eq!(config.capabilities().end, ListEnd::Unread(Offset(0x60)));
        assert_eq!(config.find(CapabilityId::PCI_EXPRESS), Err(Absence::Denied));
        assert_eq!(config.acs(), Err(Absence::Denied));
        assert_eq!(config.express(), Err(Absence::Denied));
    }

    #[test]
    fn a_header_without_a_list_has_no_capabilities() {
        let config = space(64, |bytes| bytes[0x06] = 0);
        assert_eq!(config.express(), Err(Absence::Missing));
        assert_eq!(config.ats(), Err(Absence::Missing));
    }

    #[test]
    fn a_conventional_function_has_no_extended_capabilities() {
        let config = space(256, |bytes| bytes[0x60] = 0x01);
        assert_eq!(config.acs(), Err(Absence::Missing));
        let config = space(256, |bytes| bytes[0x60] = 0x10);
        assert_eq!(config.acs(), Err(Absence::Denied));
    }

    #[test]
    fn a_standard_list_that_loops_ends() {
        let config = space(256, |bytes| {
            bytes[0x60..0x62].copy_from_slice(&[0x05, 0x60])
        });
        let list = config.capabilities();
        assert_eq!(list.end, ListEnd::Loop(Offset(0x60)));
        assert_eq!(list.entries.len(), 1);
        assert_eq!(config.express(), Err(Absence::Missing));
    }

    #[test]
    fn a_list_into_the_header_or_into_ones_is_invalid() {
        let into_header = space(256, |bytes| {
            bytes[0x60..0x62].copy_from_slice(&[0x05, 0x20])
        });
        assert_eq!(
            into_header.capabilities().end,
            ListEnd::Invalid(Offset(0x20))
        );
        let ones = space(256, |bytes| bytes[0x60] = 0xff);
        assert_eq!(ones.capabilities().end, ListEnd::Invalid(Offset(0x60)));
    }

    #[test]
    fn an_extended_list_is_followed_and_its_faults_are_named() {
        let put = |bytes: &mut [u8], at: usize, header: u32| {
            bytes[at..at + 4].copy_from_slice(&header.to_le_bytes());
        };
        let whole = space(4096, |bytes| {
            put(bytes, 0x100, 0x1481_0001);
            put(bytes, 0x148, 0x0001_000d);
        });
        let list = whole.extended_capabilities();
        assert_eq!(list.end, ListEnd::Complete);
        assert_eq!(list.find(ExtendedId::ACS), Some(Offset(0x148)));
        assert_eq!(whole.ats(), Err(Absence::Missing));

        let loops = space(4096, |bytes| {
            put(bytes, 0x100, 0x1481_0001);
            put(bytes, 0x148, 0x1001_000d);
        });
        assert_eq!(
            loops.extended_capabilities().end,
            ListEnd::Loop(Offset(0x100))
        );
        let back = space(4096, |bytes| put(bytes, 0x100, 0x0041_0001));
        assert_eq!(
            back.extended_capabilities().end,
            ListEnd::Invalid(Offset(0x04))
        );
        let none = space(4096, |_| {});
        assert_eq!(none.extended_capabilities().end, ListEnd::Complete);
        let cut = space(0x140, |bytes| put(bytes, 0x100, 0x1481_0001));
        assert_eq!(
            cut.extended_capabilities().end,
            ListEnd::Unread(Offset(0x148))
        );
        assert_eq!(cut.acs(), Err(Absence::Denied));
    }

    #[test]
    fn a_function_off_the_bus_has_no_capabilities() {
        let config = ConfigSpace::new(vec![0xff; 4096], Unread::NotCollected).unwrap();
        assert!(config.is_gone());
        assert_eq!(config.express(), Err(Absence::Missing));
    }
}
