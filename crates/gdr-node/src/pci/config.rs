//! The bytes of a function's config space.

use std::fmt;

use super::acs::Acs;
use super::aer::Aer;
use super::ats::Ats;
use super::capability::{self, CapabilityId, Chain, ChainEnd, ExtendedId};
use super::express::Express;
use super::function::BusRange;
use super::identity::{Class, DeviceId, Identity, VendorId};
use super::rebar::ResizableBar;
use super::sriov::Sriov;
use crate::source::Datum;

/// Bytes of the header, which everybody may read.
const HEADER: usize = 0x40;
/// Bytes of the space of conventional PCI.
const CONVENTIONAL: usize = 0x100;
/// Bytes of the space of PCI Express.
const WHOLE: usize = 0x1000;

/// A place in config space, in bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(pub u16);

impl Offset {
    /// The place `bytes` further on. Past the end of the space reads as nothing.
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

/// Why the bytes after the last one are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Linux gave only the header: reading on needs `CAP_SYS_ADMIN`.
    Denied,
    /// The capture ends there.
    NotCollected,
}

impl Unread {
    pub(crate) fn datum<T>(self) -> Datum<T> {
        match self {
            Self::Denied => Datum::Denied,
            Self::NotCollected => Datum::NotCollected,
        }
    }
}

/// The bytes are no config space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not even a header.
    #[error("config space ends after {0} bytes: its header alone is 64; capture it again")]
    TooShort(usize),
}

/// The bytes of a function's config space, as far as they could be read.
///
/// 64 bytes, which is what Linux gives to all but root, is a config space like any other: what
/// lies beyond is then [`Datum::Denied`], never "off".
///
/// Offsets and layouts are those of PCI Express Base Specification 6.0, chapter 7.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    unread: Unread,
}

impl ConfigSpace {
    /// Takes the bytes; more than 4096 are cut.
    ///
    /// # Errors
    ///
    /// [`ConfigError::TooShort`] where there are fewer than 64.
    pub fn new(mut bytes: Vec<u8>, unread: Unread) -> Result<Self, ConfigError> {
        if bytes.len() < HEADER {
            return Err(ConfigError::TooShort(bytes.len()));
        }
        bytes.truncate(WHOLE);
        Ok(Self { bytes, unread })
    }

    /// How many bytes are known.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the function no longer answers: every byte of its identity reads as ones.
    pub fn is_gone(&self) -> bool {
        self.header_u32(0) == u32::MAX
    }

    /// Who made the function and what it is.
    pub fn identity(&self) -> Identity {
        let class = self.header_u32(0x08) >> 8;
        let subsystem = (self.header_type() == 0).then(|| self.header_u32(0x2c));
        Identity {
            vendor: Some(VendorId(self.header_u32(0) as u16)),
            device: Some(DeviceId((self.header_u32(0) >> 16) as u16)),
            class: Some(Class(class)),
            subsystem_vendor: subsystem.map(|id| VendorId(id as u16)),
            subsystem_device: subsystem.map(|id| DeviceId((id >> 16) as u16)),
            name: None,
        }
    }

    /// The layout of the header: 0 for a device, 1 for a bridge, 2 for CardBus.
    pub fn header_type(&self) -> u8 {
        self.bytes[0x0e] & 0x7f
    }

    /// Whether the device has functions besides function 0.
    pub fn is_multi_function(&self) -> bool {
        self.bytes[0x0e] & 0x80 != 0
    }

    /// The buses behind the function, if it is a bridge.
    pub fn bridge(&self) -> Option<BusRange> {
        (self.header_type() == 1).then(|| BusRange {
            secondary: self.bytes[0x19],
            subordinate: self.bytes[0x1a],
        })
    }

    /// The byte at `at`.
    pub fn byte(&self, at: Offset) -> Datum<u8> {
        self.take::<1>(at).map(|[byte]| byte)
    }

    /// The little-endian 16-bit register at `at`.
    pub fn half(&self, at: Offset) -> Datum<u16> {
        self.take(at).map(u16::from_le_bytes)
    }

    /// The little-endian 32-bit register at `at`.
    pub fn word(&self, at: Offset) -> Datum<u32> {
        self.take(at).map(u32::from_le_bytes)
    }

    /// The standard capabilities, in the order of their chain.
    pub fn capabilities(&self) -> Chain<CapabilityId> {
        capability::standard(self)
    }

    /// The extended capabilities, in the order of their chain. Conventional PCI has none.
    pub fn extended_capabilities(&self) -> Chain<ExtendedId> {
        let express = self.find(CapabilityId::PCI_EXPRESS);
        match express {
            Datum::Present(_) => capability::extended(self),
            Datum::Missing => Chain {
                links: Vec::new(),
                end: ChainEnd::Whole,
            },
            _ => Chain {
                links: Vec::new(),
                end: ChainEnd::Unread(Offset(HEADER as u16)),
            },
        }
    }

    /// Where a standard capability lies.
    ///
    /// A chain that is broken before the capability is [`Datum::Missing`], as it is for Linux;
    /// [`Chain::end`] tells.
    pub fn find(&self, id: CapabilityId) -> Datum<Offset> {
        self.found(&self.capabilities(), id)
    }

    /// Where an extended capability lies. See [`ConfigSpace::find`].
    pub fn find_extended(&self, id: ExtendedId) -> Datum<Offset> {
        self.found(&self.extended_capabilities(), id)
    }

    /// The PCI Express capability.
    pub fn express(&self) -> Datum<Express> {
        self.find(CapabilityId::PCI_EXPRESS)
            .and_then(|at| Express::parse(self, at))
    }

    /// Access Control Services.
    pub fn acs(&self) -> Datum<Acs> {
        self.find_extended(ExtendedId::ACS)
            .and_then(|at| Acs::parse(self, at))
    }

    /// Address Translation Services.
    pub fn ats(&self) -> Datum<Ats> {
        self.find_extended(ExtendedId::ATS)
            .and_then(|at| Ats::parse(self, at))
    }

    /// Advanced Error Reporting.
    pub fn aer(&self) -> Datum<Aer> {
        self.find_extended(ExtendedId::AER)
            .and_then(|at| Aer::parse(self, at))
    }

    /// Single Root I/O Virtualization.
    pub fn sriov(&self) -> Datum<Sriov> {
        self.find_extended(ExtendedId::SRIOV)
            .and_then(|at| Sriov::parse(self, at))
    }

    /// The BARs whose size can be changed.
    pub fn resizable_bars(&self) -> Datum<Vec<ResizableBar>> {
        self.find_extended(ExtendedId::RESIZABLE_BAR)
            .and_then(|at| ResizableBar::parse(self, at))
    }

    fn found<Id: PartialEq>(&self, chain: &Chain<Id>, id: Id) -> Datum<Offset> {
        match (chain.find(&id), chain.end) {
            (Some(at), _) => Datum::Present(at),
            (None, ChainEnd::Unread(_)) => self.unread.datum(),
            (None, _) => Datum::Missing,
        }
    }

    fn take<const N: usize>(&self, at: Offset) -> Datum<[u8; N]> {
        let at = usize::from(at.0);
        match self
            .bytes
            .get(at..at + N)
            .and_then(|bytes| bytes.try_into().ok())
        {
            Some(bytes) => Datum::Present(bytes),
            None if at + N > WHOLE => Datum::Missing,
            None => self.unread.datum(),
        }
    }

    /// A register of the header, which is always there.
    fn header_u32(&self, at: usize) -> u32 {
        debug_assert!(at + 4 <= HEADER);
        let byte = |n: usize| u32::from(self.bytes[at + n]) << (8 * n);
        byte(0) | byte(1) | byte(2) | byte(3)
    }

    /// Whether nothing beyond the space of conventional PCI is known.
    pub(crate) fn ends_before_extended(&self) -> bool {
        self.bytes.len() <= CONVENTIONAL
    }
}

impl fmt::Debug for ConfigSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ConfigSpace({} bytes, {:08x})",
            self.bytes.len(),
            self.header_u32(0)
        )
    }
}
