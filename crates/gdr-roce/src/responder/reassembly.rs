//! Reassembly: buffered packets that arrived ahead of the expected one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::packet_budget::PacketBudget;
use crate::timer::Time;

/// How long packets are buffered while the expected one does not arrive. A live peer repeats that packet more often: at
/// least every [`MAX_BACKOFF`](crate::RetryLimit::MAX_BACKOFF), or after a shorter acknowledgement timeout.
const KEPT_FOR: Duration = Duration::from_secs(2);

/// Packets ahead of the expected PSN.
#[derive(Debug)]
pub(super) struct Reassembly {
    /// Packets by number, counted from the start of the connection.
    packets: BTreeMap<u64, Box<[u8]>>,
    /// The number of the expected packet.
    expected: u64,
    /// Every packet before this number is buffered, or was reported as missing.
    reported: u64,
    /// The distance from the expected packet at which packets are dropped.
    most: u32,
    budget: PacketBudget,
    /// The amount charged to the budget for the packets.
    held: usize,
    /// When all of them are dropped, unless the expected packet arrives.
    until: Option<Time>,
}

impl Reassembly {
    /// Buffers packets less than `most` ahead, within the budget.
    pub(super) fn new(most: u32, budget: PacketBudget) -> Self {
        Self {
            packets: BTreeMap::new(),
            expected: 0,
            reported: 0,
            most,
            budget,
            held: 0,
            until: None,
        }
    }

    /// Buffers the packet `ahead` of the expected one. It is dropped if it is already buffered, too far ahead, or over
    /// budget.
    pub(super) fn keep(&mut self, now: Time, ahead: u32, datagram: &[u8]) {
        // Unlike PSNs, 64-bit numbers do not wrap, so the map sorts them correctly.
        let number = self.expected + u64::from(ahead);
        // A peer that respects its window does not send that far ahead.
        if ahead >= self.most || self.packets.contains_key(&number) {
            return;
        }
        let Some(size) = self.budget.take(datagram.len(), self.held) else {
            return;
        };
        self.held += size;
        self.packets.insert(number, datagram.into());
        // Set by the first packet. If later ones extended it, a peer that never closes the gap would hold the memory
        // forever.
        self.until.get_or_insert(now + KEPT_FOR);
    }

    /// Returns how many packets are missing before the first buffered one.
    pub(super) fn first_gap(&self) -> u32 {
        let first = self.packets.first_key_value();
        first.map_or(0, |(first, _)| (first - self.expected) as u32)
    }

    /// Takes the next missing packet to report, as a distance from the expected one: every packet in front of a
    /// buffered one, once, and the expected packet in any case.
    pub(super) fn next_unreported(&mut self) -> Option<u32> {
        let last = self.packets.last_key_value();
        let end = last.map_or(self.expected + 1, |(last, _)| *last);
        while self.reported < end {
            let number = self.reported;
            self.reported += 1;
            if !self.packets.contains_key(&number) {
                return Some((number - self.expected) as u32);
            }
        }
        None
    }

    /// Records that the first `packets` packets from the expected one on were reported.
    pub(super) fn report(&mut self, packets: u32) {
        self.reported = self.reported.max(self.expected + u64::from(packets));
    }

    /// Advances with the expected PSN, by `packets`.
    pub(super) fn advance(&mut self, now: Time, packets: u32) {
        self.expected += u64::from(packets);
        self.reported = self.reported.max(self.expected);
        while let Some(passed) = self.packets.first_entry()
            && *passed.key() < self.expected
        {
            let datagram = passed.remove();
            self.let_go(&datagram);
        }
        // The expected packet arrived, so the peer is still retransmitting: the others may wait another period.
        self.until = (!self.packets.is_empty()).then(|| now + KEPT_FOR);
    }

    /// Takes the expected packet, if it is buffered.
    pub(super) fn take_expected(&mut self) -> Option<Box<[u8]>> {
        let datagram = self.packets.remove(&self.expected)?;
        self.let_go(&datagram);
        Some(datagram)
    }

    /// Returns when [`Reassembly::handle_deadline`] must be called.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.until
    }

    /// Drops all packets if the expected one did not arrive in time.
    pub(super) fn handle_deadline(&mut self, now: Time) {
        if self.until.is_some_and(|until| until <= now) {
            self.clear();
        }
    }

    /// Drops all packets. They count as missing again, and will be reported.
    pub(super) fn clear(&mut self) {
        self.packets.clear();
        self.reported = self.expected;
        self.until = None;
        self.budget.drop_kept(std::mem::take(&mut self.held));
    }

    fn let_go(&mut self, datagram: &[u8]) {
        let size = PacketBudget::size(datagram.len());
        self.held -= size;
        self.budget.give_back(size);
    }
}

impl Drop for Reassembly {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::EPOCH;

    fn kept(most: u32) -> Reassembly {
        Reassembly::new(most, PacketBudget::default())
    }

    /// Buffers the packet `ahead`, and returns the missing packets that it reports.
    fn keep(kept: &mut Reassembly, ahead: u32, datagram: &[u8]) -> Vec<u32> {
        kept.keep(NOW, ahead, datagram);
        std::iter::from_fn(|| kept.next_unreported()).collect()
    }

    #[test]
    fn each_missing_packet_is_reported_once_and_kept_ones_come_in_order() {
        let mut kept = kept(8);
        assert_eq!(keep(&mut kept, 2, b"c"), [0, 1]);
        assert_eq!(keep(&mut kept, 4, b"e"), [3]);
        assert_eq!(keep(&mut kept, 4, b"x"), []);
        assert_eq!(kept.first_gap(), 2);
        assert_eq!(keep(&mut kept, 3, b"d"), []);
        assert_eq!(keep(&mut kept, 8, b"i"), []);
        assert_eq!(kept.take_expected(), None);
        kept.advance(NOW, 2);
        for bytes in [b"c", b"d", b"e"] {
            assert_eq!(kept.take_expected().as_deref(), Some(&bytes[..]));
            kept.advance(NOW, 1);
        }
        assert_eq!(kept.take_expected(), None);
        assert_eq!(keep(&mut kept, 1, b"g"), [0]);
    }

    #[test]
    fn a_packet_that_is_taken_or_passed_over_gives_its_bytes_back() {
        let budget = PacketBudget::new(1 << 20);
        let mut kept = Reassembly::new(8, budget.clone());
        kept.keep(NOW, 1, &[0; 1000]);
        kept.keep(NOW, 5, &[0; 1000]);
        assert_eq!(budget.left(), (1 << 20) - 2 * 1064);
        // A READ uses several numbers.
        kept.advance(NOW, 3);
        assert_eq!(budget.left(), (1 << 20) - 1064);
        kept.advance(NOW, 2);
        assert!(kept.take_expected().is_some());
        assert_eq!(budget.left(), 1 << 20);
        kept.keep(NOW, 1, &[0; 1000]);
        drop(kept);
        assert_eq!(budget.left(), 1 << 20);
    }
}
