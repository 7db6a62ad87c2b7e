//! Estimates of the round-trip time.

use std::time::Duration;

use crate::timer::Time;

/// The shortest retransmission timeout: longer than a busy peer usually takes to be scheduled. A
/// timeout that was not needed costs one packet.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(2);

/// For how long the shortest round trip counts, at least; a route may become longer.
const MINIMUM_AGE: Duration = Duration::from_secs(5);

/// The round-trip time of a connection, as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
    latest: Duration,
    /// The one measured before it.
    previous: Duration,
    /// The shortest one of the connection.
    shortest: Option<Duration>,
    /// The shortest one since `minimum_since`, and that of the period before.
    minimum: Option<Duration>,
    earlier_minimum: Option<Duration>,
    minimum_since: Time,
}

impl RoundTrip {
    /// Takes the measured time from a packet that was sent once to its acknowledgement at `now`.
    pub(super) fn sample(&mut self, now: Time, measured: Duration) {
        self.previous = std::mem::replace(&mut self.latest, measured);
        self.shortest = Some(
            self.shortest
                .map_or(measured, |shortest| shortest.min(measured)),
        );
        match self.smoothed {
            None => {
                self.smoothed = Some(measured);
                self.variation = measured / 2;
            }
            Some(smoothed) => {
                let deviation = smoothed.abs_diff(measured);
                self.variation = (self.variation * 3 + deviation) / 4;
                self.smoothed = Some((smoothed * 7 + measured) / 8);
            }
        }
        if now.saturating_since(self.minimum_since) >= MINIMUM_AGE {
            self.earlier_minimum = self.minimum.take();
            self.minimum_since = now;
        }
        self.minimum = Some(
            self.minimum
                .map_or(measured, |minimum| minimum.min(measured)),
        );
    }

    /// Takes the time from the latest transmission of a packet that was sent more than once, if none was
    /// measured; returns whether it did. The answer may be to an earlier transmission, so it is no minimum.
    pub(super) fn guess(&mut self, time: Duration) -> bool {
        let unknown = self.smoothed.is_none();
        if unknown {
            self.smoothed = Some(time);
            self.variation = time / 2;
        }
        unknown
    }

    /// The smoothed round-trip time, once one was measured.
    pub(super) const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The shortest recent round trip: that of a packet that waited in no queue.
    pub(super) fn minimum(&self) -> Option<Duration> {
        let both = [self.minimum, self.earlier_minimum];
        both.into_iter().flatten().min()
    }

    /// How long the latest packet waited in queues.
    pub(super) fn queueing(&self) -> Duration {
        let minimum = self.minimum().unwrap_or_default();
        self.latest.saturating_sub(minimum)
    }

    /// How long each of the two latest packets waited in queues. A host that had no CPU for a while delays
    /// one of them, and a full queue both.
    pub(super) fn standing_queueing(&self) -> Duration {
        let minimum = self.minimum().unwrap_or_default();
        self.latest.min(self.previous).saturating_sub(minimum)
    }

    /// The mean deviation of the round-trip time.
    pub(super) const fn variation(&self) -> Duration {
        self.variation
    }

    /// The shortest round trip of the connection. Unlike [`Self::minimum`], it does not rise if the
    /// connection's own packets fill a queue for long.
    pub(super) const fn shortest(&self) -> Option<Duration> {
        self.shortest
    }

    /// Whether packets hardly wait in queues.
    pub(super) fn has_empty_queues(&self) -> bool {
        let shortest = self.shortest.unwrap_or_default();
        self.smoothed
            .is_some_and(|smoothed| smoothed <= shortest + shortest / 4)
    }

    /// How long to wait for an acknowledgement, once a round trip was measured.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let smoothed = self.smoothed?;
        Some(smoothed + (self.variation * 4).max(SHORTEST_TIMEOUT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_timeout_follows_the_round_trip_time_and_its_variation() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.timeout(), None);
        round_trip.sample(Time::EPOCH, millis(100));
        // RFC 6298, 2.2: the variation begins with half of the first measurement.
        assert_eq!(round_trip.timeout(), Some(millis(300)));
        for _ in 0..100 {
            round_trip.sample(Time::EPOCH, millis(10));
        }
        let settled = round_trip.timeout().unwrap_or_default();
        assert!((millis(12)..millis(13)).contains(&settled), "{settled:?}");
    }

    #[test]
    fn a_path_that_became_longer_has_a_longer_minimum_after_two_periods() {
        let mut round_trip = RoundTrip::default();
        round_trip.sample(Time::EPOCH, millis(1));
        for second in 1..=20 {
            let now = Time::since_epoch(Duration::from_secs(second));
            round_trip.sample(now, millis(7));
        }
        assert_eq!(round_trip.minimum(), Some(millis(7)));
        assert_eq!(round_trip.queueing(), Duration::ZERO);
    }

    #[test]
    fn a_single_late_packet_is_no_standing_queue() {
        let mut round_trip = RoundTrip::default();
        round_trip.sample(Time::EPOCH, millis(1));
        round_trip.sample(Time::EPOCH, millis(4));
        assert_eq!(round_trip.queueing(), millis(3));
        assert_eq!(round_trip.standing_queueing(), Duration::ZERO);
        round_trip.sample(Time::EPOCH, millis(3));
        assert_eq!(round_trip.standing_queueing(), millis(2));
    }

    #[test]
    fn a_queue_that_stays_full_is_no_empty_one() {
        let mut round_trip = RoundTrip::default();
        assert!(!round_trip.has_empty_queues(), "nothing was measured");
        round_trip.sample(Time::EPOCH, millis(1));
        assert!(round_trip.has_empty_queues());
        for second in 1..=60 {
            let now = Time::since_epoch(Duration::from_secs(second));
            round_trip.sample(now, millis(2));
        }
        assert!(!round_trip.has_empty_queues());
        assert_eq!(round_trip.shortest(), Some(millis(1)));
    }

    #[test]
    fn a_guess_counts_only_until_a_round_trip_is_measured() {
        let mut round_trip = RoundTrip::default();
        assert!(round_trip.guess(millis(4)));
        assert_eq!(round_trip.timeout(), Some(millis(12)));
        assert_eq!(round_trip.minimum(), None);
        assert!(!round_trip.guess(millis(1)));
        assert_eq!(round_trip.smoothed(), Some(millis(4)));
    }
}
