//! Packet and message sequence numbers: 24 bits, wrapping.

use std::cmp::Ordering;
use std::fmt;

const MASK: u32 = 0x00ff_ffff;

/// Half of the PSN space. A packet at most this far behind the expected PSN is a duplicate; any other is ahead of it.
pub const PSN_WINDOW: u32 = 1 << 23;

/// A packet sequence number.
///
/// PSNs wrap and have no total order, so `Psn` is not `Ord`. [`compare`](Self::compare) orders two PSNs that are less
/// than [`PSN_WINDOW`] apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Returns the low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// Returns the number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN `packets` after this one.
    #[must_use]
    pub const fn wrapping_add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// Returns the PSN `packets` before this one.
    #[must_use]
    pub const fn wrapping_sub(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// Returns how far this PSN is ahead of `start`, in packets below 2^24.
    pub const fn distance_from(self, start: Self) -> u32 {
        self.0.wrapping_sub(start.0) & MASK
    }

    /// Returns whether this PSN is before (`Less`), equal to or after `other`, in the shorter direction.
    pub const fn compare(self, other: Self) -> Ordering {
        match self.distance_from(other) {
            0 => Ordering::Equal,
            1..PSN_WINDOW => Ordering::Greater,
            _ => Ordering::Less,
        }
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({})", self.0)
    }
}

/// A message sequence number: the count of messages completed by a responder, modulo 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Msn(u32);

impl Msn {
    /// Returns the low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// Returns the number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the number of the next message.
    #[must_use]
    pub const fn wrapping_next(self) -> Self {
        Self::new(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_wrap_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.wrapping_add(1), Psn::new(0));
        assert_eq!(Psn::new(0).wrapping_sub(1), last);
        assert_eq!(Psn::new(1).distance_from(last), 2);
        assert_eq!(Psn::new(0).compare(last), Ordering::Greater);
        assert_eq!(last.compare(Psn::new(0)), Ordering::Less);
        assert_eq!(Msn::new(0xff_ffff).wrapping_next(), Msn::new(0));
    }

    proptest! {
        #[test]
        fn a_number_within_the_window_is_ahead_and_its_origin_behind(
            start in 0u32..1 << 24, packets in 1..PSN_WINDOW,
        ) {
            let (start, end) = (Psn::new(start), Psn::new(start).wrapping_add(packets));
            prop_assert_eq!(end.compare(start), Ordering::Greater);
            prop_assert_eq!(start.compare(end), Ordering::Less);
            prop_assert_eq!(end.distance_from(start), packets);
            prop_assert_eq!(end.wrapping_sub(packets), start);
        }
    }
}
