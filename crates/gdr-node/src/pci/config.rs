//! The bytes of a function's config space and the capability lists in them.

use std::fmt;
use std::sync::Arc;

use super::capability::{self, CapabilityId, CapabilityList, ExtendedId, HEADER, ListEnd, Offset};
use super::identity::{Class, DeviceId, Identity, VendorId};
use crate::source::{Absence, Datum};

/// Size of PCI Express config space in bytes.
const WHOLE: usize = 0x1000;

/// Why the bytes beyond those read are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Linux returned only the header; the rest requires `CAP_SYS_ADMIN`.
    Denied,
    /// The capture is truncated there.
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
    /// There are fewer bytes than in the header.
    #[error("config space ends after {0} bytes, but its header alone has 64; capture it again")]
    TooShort(usize),
}

/// The bytes of a function's config space, as far as they could be read, and the capabilities in
/// them.
///
/// A process without `CAP_SYS_ADMIN` gets 64 bytes from Linux. Registers beyond those are then [`Absence::Denied`], not
/// zero. The accessor of each capability is defined beside its type: [`ConfigSpace::acs`], [`ConfigSpace::express`] and
/// so on. Clones share the bytes.
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
    /// Parses the capability lists in config space; bytes beyond 4096 are dropped.
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

    /// Returns the number of bytes that were read.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the function no longer responds: its vendor and device IDs read as all ones.
    pub fn is_gone(&self) -> bool {
        self.header_u32(0) == u32::MAX
    }

    /// Returns the IDs of the function.
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

    /// Returns the layout of the header: 0 for a device, 1 for a bridge, 2 for CardBus.
    pub fn header_type(&self) -> u8 {
        self.bytes[0x0e] & 0x7f
    }

    /// Returns whether the device has functions besides function 0.
    pub fn is_multi_function(&self) -> bool {
        self.bytes[0x0e] & 0x80 != 0
    }

    /// Returns the byte at `at`.
    pub fn byte(&self, at: Offset) -> Datum<u8> {
        self.take::<1>(at).map(|[byte]| byte)
    }

    /// Returns the little-endian 16-bit register at `at`.
    pub fn half(&self, at: Offset) -> Datum<u16> {
        self.take(at).map(u16::from_le_bytes)
    }

    /// Returns the little-endian 32-bit register at `at`.
    pub fn word(&self, at: Offset) -> Datum<u32> {
        self.take(at).map(u32::from_le_bytes)
    }

    /// Returns the standard capabilities in the order of their list.
    pub fn capabilities(&self) -> &CapabilityList<CapabilityId> {
        &self.capabilities
    }

    /// Returns the extended capabilities in the order of their list, which is empty for conventional PCI.
    pub fn extended_capabilities(&self) -> &CapabilityList<ExtendedId> {
        &self.extended
    }

    /// Returns the offset of a standard capability.
    ///
    /// A capability after the fault in a broken list is [`Absence::Missing`], because Linux does not find it either;
    /// [`CapabilityList::end`] describes the fault.
    pub fn find(&self, id: CapabilityId) -> Datum<Offset> {
        self.found(&self.capabilities, id)
    }

    /// Returns the offset of an extended capability. See [`ConfigSpace::find`].
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

    /// Returns a byte of the header, which is always present.
    pub(super) fn header_byte(&self, at: usize) -> u8 {
        debug_assert!(at < HEADER);
        self.bytes[at]
    }

    /// Returns a register of the header, which is always present.
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
