//! Queue pair number ranges: the destinations whose packets the kernel delivers to a socket.

use gdr_roce::Qpn;

use crate::slot::{QPN_MASK, SLOT_SHIFT, Slot};

/// The maximum number of shards of a device.
pub const MOST_SHARDS: usize = 8;
/// The number of low bits of a queue pair number, below the shard's bits, which in turn end below the slot's. Numbers
/// that a socket allocates in order therefore share all higher bits.
pub(crate) const SHARD_SHIFT: u32 = 15;
const SHARD_MASK: u32 = MOST_SHARDS as u32 - 1;
const _: () = assert!(MOST_SHARDS << SHARD_SHIFT == 1 << SLOT_SHIFT);

/// The range of queue pair numbers that a socket owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpnRange {
    /// All numbers: the socket has the port to itself.
    All,
    /// The numbers of one shard of a device that has the port to itself.
    Shard(u8),
    /// The numbers of one slot of a shared port.
    Slot(Slot),
}

impl QpnRange {
    /// Returns a queue pair number of this range. Consecutive arguments give distinct numbers.
    pub fn qpn(self, number: u32) -> Qpn {
        match self {
            Self::All => Qpn::new(number),
            Self::Shard(shard) => {
                let below = number & ((1 << SHARD_SHIFT) - 1);
                let above = number >> SHARD_SHIFT << SLOT_SHIFT & QPN_MASK;
                Qpn::new(above | u32::from(shard) << SHARD_SHIFT | below)
            }
            Self::Slot(slot) => slot.qpn(number),
        }
    }

    /// Returns whether other devices own the rest of the port's numbers.
    pub fn is_slot(self) -> bool {
        matches!(self, Self::Slot(_))
    }

    /// Returns the mask and the value of the bits that all numbers of the range share; `None` if there are none.
    pub fn mask_and_value(self) -> Option<(u32, u32)> {
        match self {
            Self::All => None,
            Self::Shard(shard) => {
                Some((SHARD_MASK << SHARD_SHIFT, u32::from(shard) << SHARD_SHIFT))
            }
            Self::Slot(slot) => Some(slot.mask_and_value()),
        }
    }
}

/// Returns the bits of a packet's destination by which the receiving kernel may select a socket: slot and shard, or all
/// of them for the management queue pair, which has its own socket.
pub(crate) fn steering_bits(packet: &[u8]) -> Option<u32> {
    let word = packet.get(Slot::OFFSET as usize..)?.first_chunk()?;
    let number = u32::from_be_bytes(*word) & QPN_MASK;
    if number == Qpn::MANAGEMENT.get() {
        return Some(QPN_MASK);
    }
    Some(number >> SHARD_SHIFT)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_number_belongs_to_one_shard_and_keeps_its_bits() {
        let mut all = HashSet::new();
        for shard in 0..MOST_SHARDS as u8 {
            let range = QpnRange::Shard(shard);
            let (mask, value) = range.mask_and_value().unwrap();
            // Crosses the end of the bits below the shard, and of the whole range.
            for number in (0..0x8010).chain(0x1f_fff0..0x20_0000) {
                let qpn = range.qpn(number).get();
                assert_eq!(qpn & mask, value, "{number:#x}");
                assert!(all.insert(qpn), "{number:#x} of {shard}");
            }
        }
    }

    #[test]
    fn management_packets_are_steered_apart_from_all_others() {
        let packet = |qpn: u32| [[0xff; 4], qpn.to_be_bytes()].concat();
        assert_eq!(steering_bits(&packet(0xff00_0001)), Some(QPN_MASK));
        for qpn in [0, 2, 0x7fff] {
            assert_eq!(steering_bits(&packet(0xff00_0000 | qpn)), Some(0));
        }
        assert_eq!(steering_bits(&packet(0x8000)), Some(1));
        assert_eq!(steering_bits(&packet(0xff_ffff)), Some(0x1ff));
        assert_eq!(steering_bits(&[0; 7]), None);
    }
}
