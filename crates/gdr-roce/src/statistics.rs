//! Counters of a connection.

use std::ops::{Add, AddAssign};

/// Counters of a connection since its queue pair was last in RESET.
///
/// Adding several connections' counters gives their total; [`saturating_since`](Self::saturating_since) gives the
/// increase between two readings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// Retransmissions of unacknowledged packets, after a timeout or a NAK.
    pub retransmissions: u64,
    /// Expirations of the retransmission timer: requests or their responses are lost or late.
    pub timeouts: u64,
    /// Sequence error NAKs received: the peer missed a packet.
    pub sequence_naks_received: u64,
    /// Sequence error NAKs sent: this side missed a packet.
    pub sequence_naks_sent: u64,
    /// RNR NAKs received: the peer had no receive posted.
    pub rnr_naks_received: u64,
}

impl Statistics {
    /// Returns the increase since `earlier`, a previous reading. A counter that is now lower, because of RESET, gives
    /// 0.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Self {
        Self {
            retransmissions: self.retransmissions.saturating_sub(earlier.retransmissions),
            timeouts: self.timeouts.saturating_sub(earlier.timeouts),
            sequence_naks_received: self
                .sequence_naks_received
                .saturating_sub(earlier.sequence_naks_received),
            sequence_naks_sent: self
                .sequence_naks_sent
                .saturating_sub(earlier.sequence_naks_sent),
            rnr_naks_received: self
                .rnr_naks_received
                .saturating_sub(earlier.rnr_naks_received),
        }
    }
}

impl Add for Statistics {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            retransmissions: self.retransmissions + other.retransmissions,
            timeouts: self.timeouts + other.timeouts,
            sequence_naks_received: self.sequence_naks_received + other.sequence_naks_received,
            sequence_naks_sent: self.sequence_naks_sent + other.sequence_naks_sent,
            rnr_naks_received: self.rnr_naks_received + other.rnr_naks_received,
        }
    }
}

impl AddAssign for Statistics {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// The peer's WRITEs and READs that a connection has executed since its queue pair was last in RESET.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub struct Served {
    /// Completely placed WRITEs.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// READs whose last response was sent.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_increase_added_to_a_reading_gives_the_next_reading() {
        let earlier = Statistics {
            retransmissions: 1,
            timeouts: 2,
            sequence_naks_received: 3,
            sequence_naks_sent: 4,
            rnr_naks_received: 5,
        };
        let mut later = earlier;
        later += earlier;
        later.timeouts += 7;
        assert_eq!(earlier + later.saturating_since(earlier), later);
        assert_eq!(earlier.saturating_since(later), Statistics::default());
    }
}
