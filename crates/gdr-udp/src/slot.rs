//! Slots: the places of devices in a port group.

use gdr_roce::Qpn;

/// The number of devices that can share a port.
pub(crate) const SLOTS: usize = 64;
/// The index of the socket for management datagrams, after the slots' sockets.
pub(crate) const MANAGEMENT: usize = SLOTS;
/// The number of sockets in a group.
pub(crate) const SOCKETS: usize = SLOTS + 1;
/// The number of low bits of a queue pair number, below the slot.
pub(crate) const SLOT_SHIFT: u32 = 18;
/// The 24 bits of a queue pair number.
pub(crate) const QPN_MASK: u32 = 0x00ff_ffff;
const _: () = assert!(SLOTS << SLOT_SHIFT == QPN_MASK as usize + 1);

/// A place in a port group, which owns a range of queue pair numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u8);

impl Slot {
    /// The offset in a packet of the 32-bit word whose lower 24 bits are the destination queue pair: the BTH's second
    /// word.
    pub const OFFSET: u32 = 4;

    /// Returns every slot, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SLOTS as u8).map(Self)
    }

    /// Returns the slot that owns a queue pair number.
    pub fn of(qpn: Qpn) -> Self {
        Self((qpn.get() >> SLOT_SHIFT) as u8)
    }

    /// Returns the slot's index, from 0.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Returns the queue pair number in this slot that has the low bits of `number`.
    pub fn qpn(self, number: u32) -> Qpn {
        Qpn::new(u32::from(self.0) << SLOT_SHIFT | number & ((1 << SLOT_SHIFT) - 1))
    }

    /// Returns the mask and the value of the bits that all queue pair numbers of this slot share.
    pub fn mask_and_value(self) -> (u32, u32) {
        let value = self.qpn(0).get();
        (QPN_MASK & !((1 << SLOT_SHIFT) - 1), value)
    }
}
