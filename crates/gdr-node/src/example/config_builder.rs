//! Config space of the example's functions.

use crate::pci::{
    AcsBits, CapabilityId, ConfigSpace, ExtendedId, Link, LinkSpeed, LinkWidth, Unread,
};

/// The capabilities' offsets in a fictional function.
const POWER: usize = 0x40;
const EXPRESS: usize = 0x60;
const FIRST_EXTENDED: usize = 0x100;

/// A fictional function's device/port type, as encoded in its PCI Express capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Endpoint = 0,
    Root = 4,
    SwitchUp = 5,
    SwitchDown = 6,
}

impl Port {
    fn is_bridge(self) -> bool {
        self != Self::Endpoint
    }

    fn has_acs(self) -> bool {
        matches!(self, Self::Root | Self::SwitchDown)
    }
}

/// The IDs of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    pub(super) vendor: u16,
    pub(super) device: u16,
    /// Class, subclass and programming interface, as in `0x030200`.
    pub(super) class: u32,
    pub(super) subsystem: (u16, u16),
}

/// The 4096 bytes of config space of a fictional function, which tests change register by register.
///
/// Each method sets the registers that a real function would, so that the parsers of [`crate::pci`] read the values
/// back. A method has no effect if the function lacks the capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigBuilder {
    bytes: Vec<u8>,
    /// The offset of the last extended capability, and of the next free byte.
    last: usize,
    free: usize,
}

impl ConfigBuilder {
    pub(super) fn new(ids: Ids, port: Port) -> Self {
        let mut space = Self {
            bytes: vec![0; 4096],
            last: 0,
            free: FIRST_EXTENDED,
        };
        space.put_half(0x00, ids.vendor);
        space.put_half(0x02, ids.device);
        // Enables memory, bus mastering, parity and SERR; declares a capability list.
        space.put_half(0x04, 0x0146);
        space.put_half(0x06, 0x0010);
        space.put_word(0x08, ids.class << 8 | 0xa1);
        space.bytes[0x0e] = u8::from(port.is_bridge());
        if !port.is_bridge() {
            space.put_half(0x2c, ids.subsystem.0);
            space.put_half(0x2e, ids.subsystem.1);
        }
        space.bytes[0x34] = POWER as u8;
        space.put_half(POWER, u16::from(CapabilityId::POWER_MANAGEMENT.0));
        space.bytes[POWER + 1] = EXPRESS as u8;
        space.bytes[EXPRESS] = CapabilityId::PCI_EXPRESS.0;
        let slot = if port.has_acs() { 0x100 } else { 0 };
        space.put_half(EXPRESS + 0x02, 2 | (port as u16) << 4 | slot);
        // Payloads up to 512 bytes, 8-bit tags; 10-bit tags both ways.
        space.put_word(EXPRESS + 0x04, 0x8000 | 1 << 5 | 2);
        space.put_word(EXPRESS + 0x24, 3 << 16);
        space.put_half(EXPRESS + 0x28, 1 << 12);
        // 8-bit tags and no-snoop on.
        space.put_half(EXPRESS + 0x08, 1 << 8 | 1 << 11);
        space.relaxed_ordering(true).payload(256).read_request(512);
        space.extended(ExtendedId::AER, 2, 0x48);
        if port.has_acs() {
            let at = space.extended(ExtendedId::ACS, 1, 8);
            // All services except egress control.
            space.put_half(at + 4, 0x005f);
        }
        space
    }

    /// Wraps bytes read from sysfs: 64 for a user, 4096 for root.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            last: 0,
            free: 0,
        }
    }

    /// Adds an extended capability of `len` bytes, and returns its offset.
    pub(super) fn extended(&mut self, id: ExtendedId, version: u32, len: usize) -> usize {
        let at = self.free;
        self.put_word(at, u32::from(id.0) | version << 16);
        if self.last != 0 {
            let header = self.word(self.last) & 0x000f_ffff;
            self.put_word(self.last, header | (at as u32) << 20);
        }
        self.last = at;
        self.free = at + len.next_multiple_of(16);
        at
    }

    pub(super) fn buses(&mut self, primary: u8, secondary: u8, subordinate: u8) -> &mut Self {
        self.bytes[0x18..0x1b].copy_from_slice(&[primary, secondary, subordinate]);
        self
    }

    pub(super) fn slot_number(&mut self, number: u32) -> &mut Self {
        self.put_word(EXPRESS + 0x14, number << 19);
        self
    }

    pub(super) fn link_capable(&mut self, speed: LinkSpeed, width: LinkWidth) -> &mut Self {
        self.put_word(EXPRESS + 0x0c, u32::from(link_register(speed, width)));
        self
    }

    /// Sets the current link, and with [`super::edit`] also sysfs's `current_link_speed` and `current_link_width`.
    pub fn link(&mut self, speed: LinkSpeed, width: LinkWidth) -> &mut Self {
        self.set_express_half(0x12, link_register(speed, width), 0x03ff)
    }

    /// Sets the ACS control register.
    pub fn acs_control(&mut self, control: AcsBits) -> &mut Self {
        self.set_extended_half(ExtendedId::ACS, 6, control.bits(), 0xffff)
    }

    /// Sets whether ATS is enabled.
    pub fn ats(&mut self, enabled: bool) -> &mut Self {
        self.set_extended_half(ExtendedId::ATS, 6, u16::from(enabled) << 15, 0x8000)
    }

    /// Sets the errors recorded by AER, uncorrectable and correctable.
    pub fn aer(&mut self, uncorrectable: u32, correctable: u32) -> &mut Self {
        if let Some(at) = self.find(ExtendedId::AER) {
            self.put_word(at + 0x04, uncorrectable);
            self.put_word(at + 0x10, correctable);
        }
        self
    }

    /// Sets the maximum payload size (MPS) in bytes: a power of two from 128.
    pub fn payload(&mut self, bytes: u16) -> &mut Self {
        self.set_express_half(0x08, size_code(bytes) << 5, 7 << 5)
    }

    /// Sets the supported maximum payload size in bytes: a power of two from 128.
    pub fn payload_capable(&mut self, bytes: u16) -> &mut Self {
        self.set_express_half(0x04, size_code(bytes), 7)
    }

    /// Sets the maximum read request size (MRRS) in bytes: a power of two from 128.
    pub fn read_request(&mut self, bytes: u16) -> &mut Self {
        self.set_express_half(0x08, size_code(bytes) << 12, 7 << 12)
    }

    /// Sets whether it may set relaxed ordering.
    pub fn relaxed_ordering(&mut self, on: bool) -> &mut Self {
        self.set_express_half(0x08, u16::from(on) << 4, 1 << 4)
    }

    /// Sets whether it uses 8-bit tags.
    pub fn extended_tags(&mut self, on: bool) -> &mut Self {
        self.set_express_half(0x08, u16::from(on) << 8, 1 << 8)
    }

    /// Sets whether it sends requests with 10-bit tags.
    pub fn ten_bit_tags(&mut self, on: bool) -> &mut Self {
        self.set_express_half(0x28, u16::from(on) << 12, 1 << 12)
    }

    /// Sets the enabled power states of its link: L0s in bit 0, L1 in bit 1.
    pub fn aspm(&mut self, states: u16) -> &mut Self {
        self.set_express_half(0x10, states, 3)
    }

    /// Truncates to the header, which is all that Linux shows a process without `CAP_SYS_ADMIN`.
    pub fn header_only(&mut self) -> &mut Self {
        self.bytes.truncate(64);
        self
    }

    /// Sets every bit: the function has fallen off the bus.
    pub fn gone(&mut self) -> &mut Self {
        self.bytes.fill(0xff);
        self
    }

    /// Returns the current link in its registers.
    pub(super) fn link_now(&self) -> Option<Link> {
        self.config()?.express().ok()?.link
    }

    /// Returns the best link in its registers.
    pub(super) fn link_best(&self) -> Option<Link> {
        self.config()?.express().ok()?.link_capable
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn put_half(&mut self, at: usize, value: u16) {
        if let Some(place) = self.bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    pub(super) fn put_word(&mut self, at: usize, value: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn half(&self, at: usize) -> u16 {
        let bytes = self.bytes.get(at..at + 2).unwrap_or(&[0; 2]);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    fn word(&self, at: usize) -> u32 {
        u32::from(self.half(at)) | u32::from(self.half(at + 2)) << 16
    }

    fn config(&self) -> Option<ConfigSpace> {
        ConfigSpace::new(self.bytes.clone(), Unread::NotCollected).ok()
    }

    fn find(&self, id: ExtendedId) -> Option<usize> {
        let at = self.config()?.extended_capabilities().find(id)?;
        Some(usize::from(at.0))
    }

    fn set_express_half(&mut self, offset: usize, value: u16, mask: u16) -> &mut Self {
        let express = self
            .config()
            .and_then(|config| config.capabilities().find(CapabilityId::PCI_EXPRESS));
        if let Some(at) = express {
            self.set_half(usize::from(at.0) + offset, value, mask);
        }
        self
    }

    fn set_extended_half(
        &mut self,
        id: ExtendedId,
        offset: usize,
        value: u16,
        mask: u16,
    ) -> &mut Self {
        if let Some(at) = self.find(id) {
            self.set_half(at + offset, value, mask);
        }
        self
    }

    fn set_half(&mut self, at: usize, value: u16, mask: u16) {
        let kept = self.half(at) & !mask;
        self.put_half(at, kept | value & mask);
    }
}

fn link_register(speed: LinkSpeed, width: LinkWidth) -> u16 {
    u16::from(speed.generation()) | u16::from(width.0) << 4
}

fn size_code(bytes: u16) -> u16 {
    bytes.checked_ilog2().unwrap_or(7).saturating_sub(7) as u16
}
