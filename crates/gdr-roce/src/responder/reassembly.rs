//! Packets that arrived before the expected one.

use std::collections::VecDeque;
use std::ops::Range;

/// Packets ahead of the expected PSN, by their distance from it.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// The first entry is that of the expected packet.
    packets: VecDeque<Option<Box<[u8]>>>,
    /// How many entries there are at most.
    most: usize,
}

impl Reassembly {
    /// Keeps packets less than `most` ahead.
    pub(super) fn new(most: u32) -> Self {
        Self {
            packets: VecDeque::new(),
            most: most as usize,
        }
    }

    /// Keeps the packet `ahead` of the expected one. Returns which packets are missing by the first
    /// packet behind them. A packet that is kept already, or too far ahead, is dropped.
    pub(super) fn keep(&mut self, ahead: u32, datagram: &[u8]) -> Range<u32> {
        let at = ahead as usize;
        let known = self.packets.len();
        if at >= self.most {
            return 0..0;
        }
        if at >= known {
            self.packets.resize(at + 1, None);
        }
        if let Some(place @ None) = self.packets.get_mut(at) {
            *place = Some(datagram.into());
        }
        (known as u32).min(ahead)..ahead
    }

    /// How many packets are missing from the expected one up to the first that is kept.
    pub(super) fn first_gap(&self) -> u32 {
        let gap = self.packets.iter().take_while(|packet| packet.is_none());
        gap.count() as u32
    }

    /// Follows the expected PSN, which has advanced by `packets`.
    pub(super) fn advance(&mut self, packets: u32) {
        let passed = (packets as usize).min(self.packets.len());
        self.packets.drain(..passed);
    }

    /// Takes the expected packet, if it is here.
    pub(super) fn take_expected(&mut self) -> Option<Box<[u8]>> {
        self.packets.front_mut()?.take()
    }

    /// Drops all packets.
    pub(super) fn clear(&mut self) {
        self.packets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_packet_is_reported_once_and_kept_ones_come_in_order() {
        let mut kept = Reassembly::new(8);
        assert_eq!(kept.keep(2, b"c"), 0..2);
        assert_eq!(kept.keep(4, b"e"), 3..4);
        assert_eq!(kept.keep(4, b"x"), 4..4);
        assert_eq!(kept.first_gap(), 2);
        assert_eq!(kept.keep(3, b"d"), 3..3);
        assert_eq!(kept.keep(8, b"i"), 0..0);
        assert_eq!(kept.take_expected(), None);
        kept.advance(2);
        for bytes in [b"c", b"d", b"e"] {
            assert_eq!(kept.take_expected().as_deref(), Some(&bytes[..]));
            kept.advance(1);
        }
        assert_eq!(kept.take_expected(), None);
        assert_eq!(kept.keep(1, b"g"), 0..1);
    }
}
