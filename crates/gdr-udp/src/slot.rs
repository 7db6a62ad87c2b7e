//! The places of devices in a port group.

use gdr_roce::Qpn;

/// How many devices can share a port.
pub(crate) const SLOTS: usize = 64;
/// The place of the socket for management datagrams, after the slots' sockets.
pub(crate) const MANAGEMENT: usize = SLOTS;
/// How many sockets a group has.
pub(crate) const SOCKETS: usize = SLOTS + 1;
/// How many bits of a queue pair number are below the slot.
pub(crate) const SLOT_SHIFT: u32 = 18;
/// The bits of a queue pair number.
pub(crate) const QPN_MASK: u32 = 0x00ff_ffff;
const _: () = assert!(SLOTS << SLOT_SHIFT == QPN_MASK as usize + 1);

/// A place in a port group, and a range of queue pair numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u8);

impl Slot {
    /// The place of the word of a packet whose lower 24 bits are the destination's queue pair number:
    /// the second word of the BTH.
    pub const OFFSET: u32 = 4;

    /// Every slot, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SLOTS as u8).map(Self)
    }

    /// The slot of a number.
    pub fn of(qpn: Qpn) -> Self {
        Self((qpn.get() >> SLOT_SHIFT) as u8)
    }

    /// Its place among them.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// A number of this slot with the lower bits of `number`.
    pub fn qpn(self, number: u32) -> Qpn {
        Qpn::new(u32::from(self.0) << SLOT_SHIFT | number & ((1 << SLOT_SHIFT) - 1))
    }

    /// The bits of [`Slot::qpn`] that are the same for all numbers of a slot: which, and their values.
    pub fn mask_and_value(self) -> (u32, u32) {
        let value = self.qpn(0).get();
        (QPN_MASK & !((1 << SLOT_SHIFT) - 1), value)
    }
}
