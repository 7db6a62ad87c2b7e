//! Responses that arrived out of order.

use std::collections::VecDeque;

use crate::psn::Psn;

/// Which READ and atomic responses have been placed while an earlier answer is missing.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// The PSN of the first entry.
    first: Psn,
    placed: VecDeque<bool>,
}

impl Arrivals {
    /// Advances to `una` and discards what is before it. Entries never extend past the packets that were sent, so the
    /// window bounds their number.
    pub(super) fn advance(&mut self, una: Psn) {
        // `una` only moves forward while anything is placed.
        let passed = una.distance_from(self.first) as usize;
        self.placed.drain(..passed.min(self.placed.len()));
        self.first = una;
    }

    /// Records that `packets` responses from `psn` on have been placed. `psn` must not be before `una`.
    pub(super) fn insert(&mut self, psn: Psn, packets: u32) {
        let begin = psn.distance_from(self.first) as usize;
        let end = begin + packets as usize;
        if end > self.placed.len() {
            // The gap in front stays open, and will be requested again.
            self.placed.resize(end, false);
        }
        self.placed.range_mut(begin..end).for_each(|at| *at = true);
    }

    /// Returns the number of consecutive placed responses from `una` on.
    pub(super) fn placed(&self) -> u32 {
        self.placed.iter().take_while(|placed| **placed).count() as u32
    }

    /// Returns whether the response at `psn` is placed.
    pub(super) fn contains(&self, psn: Psn) -> bool {
        let at = psn.distance_from(self.first) as usize;
        self.placed.get(at).copied().unwrap_or_default()
    }

    /// Discards all entries.
    pub(super) fn clear(&mut self) {
        self.placed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_known_until_una_has_passed_them() {
        let una = Psn::new(0xff_fffe);
        let mut arrivals = Arrivals::default();
        arrivals.advance(una);
        arrivals.insert(una.wrapping_add(1), 1);
        arrivals.insert(una.wrapping_add(3), 1);
        let known =
            |arrivals: &Arrivals| [0, 1, 2, 3, 4].map(|n| arrivals.contains(una.wrapping_add(n)));
        assert_eq!(known(&arrivals), [false, true, false, true, false]);
        assert_eq!(arrivals.placed(), 0);
        arrivals.insert(una, 2);
        assert_eq!(arrivals.placed(), 2);
        arrivals.advance(una.wrapping_add(2));
        assert_eq!(known(&arrivals), [false, false, false, true, false]);
        arrivals.advance(una.wrapping_add(9));
        assert_eq!(known(&arrivals), [false; 5]);
    }
}
