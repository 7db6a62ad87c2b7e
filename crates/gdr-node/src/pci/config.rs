//! The bytes of a function's config space and the capability lists in them.

use std::fmt;
use std::sync::Arc;

use super::capability::{self, CapabilityId, CapabilityList, ExtendedId, HEADER, ListEnd, Offset};
use super::identity::{Class, DeviceId, Identity, VendorId};
use crate::source::{Absence, Datum};

/// Size of the config space of PCI Express in bytes.
const WHOLE: usize = 0x1000;

/// Why the bytes after those that were read are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Linux gave the header only: the rest needs `CAP_SYS_ADMIN`.
    Denied,
    /// The capture ends there.
    NotCollected,
}

impl Unread {
    const fn absence(self) -> Absence {
        match self {
            Self::Denied => Absence::Denied,
            Self::NotCollected => Absence::NotCollected,
        }
    }
}

/// The bytes are not a config space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// They are fewer than the header has.
    #[error("config space ends after {0} bytes, but its header alone has 64; capture it again")]
    TooShort(usize),
}

/// The bytes of a function's config space, as far as they could be read, and the capabilities in
/// them.
///
/// Linux gives 64 bytes to a process without `CAP_SYS_ADMIN`. Registers after those are then
/// [`Absence::Denied`], not zero. Each capability has its accessor beside its type:
/// [`ConfigSpace::acs`], [`ConfigSpace::express`] and so on. A clone shares the bytes.
///
/// Offsets and layouts follow PCI Express Base Specification 6.0, chapter 7.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigSpace {
    bytes: Arc<[u8]>,
    unread: Unread,
    capabilities: CapabilityList<CapabilityId>,
    extended: CapabilityList<ExtendedId>,
}

impl ConfigSpace {
    /// Takes the bytes and finds the capabilities; more than 4096 bytes are cut.
    ///
    /// # Errors
    ///
    /// [`ConfigError::TooShort`] if there are fewer than 64.
    pub fn new(mut bytes: Vec<u8>, unread: Unread) -> Result<Self, ConfigError> {
        if bytes.len() < HEADER {
            return Err(ConfigError::TooShort(bytes.len()));
        }
        bytes.truncate(WHOLE);
        let capabilities = capability::standard(&bytes);
        Ok(Self {
            extended: capability::extended(&bytes, &capabilities),
            capabilities,
            bytes: bytes.into(),
            unread,
        })
    }

    /// The number of bytes that were read.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the function no longer answers: its vendor and device IDs read as ones.
    pub fn is_gone(&self) -> bool {
        self.header_u32(0) == u32::MAX
    }

    /// The IDs of the function.
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

    /// Returns whether the device has functions besides function 0.
    pub fn is_multi_function(&self) -> bool {
        self.bytes[0x0e] & 0x80 != 0
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

    /// The standard capabilities in the order of their list.
    pub fn capabilities(&self) -> &CapabilityList<CapabilityId> {
        &self.capabilities
    }

    /// The extended capabilities in the order of their list, which is empty for conventional PCI.
    pub fn extended_capabilities(&self) -> &CapabilityList<ExtendedId> {
        &self.extended
    }

    /// Where a standard capability begins.
    ///
    /// A capability after the fault of a broken list is [`Absence::Missing`], because Linux does
    /// not find it either; [`CapabilityList::end`] has the fault.
    pub fn find(&self, id: CapabilityId) -> Datum<Offset> {
        self.found(&self.capabilities, id)
    }

    /// Where an extended capability begins. See [`ConfigSpace::find`].
    pub fn find_extended(&self, id: ExtendedId) -> Datum<Offset> {
        self.found(&self.extended, id)
    }

    fn found<Id: PartialEq>(&self, list: &CapabilityList<Id>, id: Id) -> Datum<Offset> {
        list.find(id).ok_or(match list.end {
            ListEnd::Unread(_) => self.unread.absence(),
            _ => Absence::Missing,
        })
    }

    fn take<const N: usize>(&self, at: Offset) -> Datum<[u8; N]> {
        let at = usize::from(at.0);
        let bytes = self.bytes.get(at..at + N);
        match bytes.and_then(|bytes| bytes.try_into().ok()) {
            Some(bytes) => Ok(bytes),
            None if at + N > WHOLE => Err(Absence::Missing),
            None => Err(self.unread.absence()),
        }
    }

    /// A byte of the header, which is always there.
    pub(super) fn header_byte(&self, at: usize) -> u8 {
        debug_assert!(at < HEADER);
        self.bytes[at]
    }

    /// A register of the header, which is always there.
    fn header_u32(&self, at: usize) -> u32 {
        debug_assert!(at + 4 <= HEADER);
        let byte = |n: usize| u32::from(self.bytes[at + n]) << (8 * n);
        byte(0) | byte(1) | byte(2) | byte(3)
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
