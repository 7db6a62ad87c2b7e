//! Estimates of the round-trip time.

use std::time::Duration;

use crate::timer::{Time, nanoseconds};

/// The shortest retransmission timeout: longer than a busy peer usually takes to be scheduled. A
/// timeout that was not needed costs one packet.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(2);

/// A jitter that short queues of links cannot cause, but hosts can, whose threads wait milliseconds for a
/// CPU or a timer.
const HOST_JITTER: Duration = Duration::from_micros(500);

/// For how long the shortest round trip counts, at least; a route may become longer.
const MINIMUM_AGE: Duration = Duration::from_secs(5);

/// The round-trip time of a connection, as in RFC 6298.
///
/// All times are in nanoseconds: a short message waits for this arithmetic, and [`Duration`]'s takes
/// several times as many instructions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<u64>,
    variation: u64,
    latest: u64,
    /// The one measured before it.
    previous: u64,
    /// The mean difference of one and the next, from those that became shorter: a queue that fills makes
    /// them only longer.
    jitter: u64,
    /// The shortest one of the connection.
    shortest: Option<u64>,
    /// The shortest one since `minimum_since`, and the shortest of the period before.
    minimum: Option<u64>,
    earlier_minimum: Option<u64>,
    minimum_since: Time,
}

/// The mean with one part in `2^shift` replaced by `new`.
const fn mean(old: u64, new: u64, shift: u32) -> u64 {
    old - (old >> shift) + (new >> shift)
}

/// The shorter one of what is known and a new one.
fn shorter(known: Option<u64>, new: u64) -> Option<u64> {
    Some(known.map_or(new, |known| known.min(new)))
}

impl RoundTrip {
    /// Takes the measured time from a packet that was sent once to its acknowledgement at `now`.
    pub(super) fn sample(&mut self, now: Time, measured: Duration) {
        let measured = nanoseconds(measured);
        self.previous = std::mem::replace(&mut self.latest, measured);
        // A round trip becomes as often longer as shorter.
        let difference = self.previous.saturating_sub(measured).saturating_mul(2);
        self.jitter = mean(self.jitter, difference, 3);
        self.shortest = shorter(self.shortest, measured);
        match self.smoothed {
            None => {
                self.smoothed = Some(measured);
                // RFC 6298, 2.2: there is no second measurement to differ from.
                self.variation = measured / 2;
            }
            Some(smoothed) => {
                // Before the mean changes: the variation is the distance from the old one
                // (RFC 6298, 2.3).
                self.variation = mean(self.variation, smoothed.abs_diff(measured), 2);
                self.smoothed = Some(mean(smoothed, measured, 3));
            }
        }
        // Two periods, so that there is always a minimum: the old one counts until the new one is
        // as old.
        if now.saturating_since(self.minimum_since) >= MINIMUM_AGE {
            self.earlier_minimum = self.minimum.take();
            self.minimum_since = now;
        }
        self.minimum = shorter(self.minimum, measured);
    }

    /// Takes the time from the latest transmission of a packet that was sent more than once, if none was
    /// measured; returns whether it did. The answer may be to an earlier transmission, so it does not count
    /// as a minimum.
    pub(super) fn guess(&mut self, time: Duration) -> bool {
        // The guess never replaces a measurement (Karn's algorithm, RFC 6298, 3).
        let unknown = self.smoothed.is_none();
        if unknown {
            let time = nanoseconds(time);
            self.smoothed = Some(time);
            self.variation = time / 2;
        }
        unknown
    }

    /// The one that was measured last.
    pub(super) const fn latest(&self) -> Duration {
        Duration::from_nanos(self.latest)
    }

    /// The smoothed round-trip time, once one was measured.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(Duration::from_nanos)
    }

    /// The shortest recent round trip, as a packet takes it that waited in no queue.
    pub(super) fn minimum(&self) -> Option<Duration> {
        let both = [self.minimum, self.earlier_minimum];
        both.into_iter().flatten().min().map(Duration::from_nanos)
    }

    /// How long the latest packet waited in queues.
    pub(super) fn queueing(&self) -> Duration {
        let minimum = self.minimum().unwrap_or_default();
        Duration::from_nanos(self.latest).saturating_sub(minimum)
    }

    /// How long each of the two latest packets waited in queues. A host that had no CPU for a while delays
    /// one of them, and a full queue both.
    pub(super) fn standing_queueing(&self) -> Duration {
        let minimum = self.minimum().unwrap_or_default();
        Duration::from_nanos(self.latest.min(self.previous)).saturating_sub(minimum)
    }

    /// The mean deviation of the round-trip time.
    pub(super) const fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation)
    }

    /// By how much a round trip differs from the next one, if that is much of its length: hosts, and not
    /// queues, cause most of it.
    pub(super) fn jitter(&self) -> Option<Duration> {
        let much = nanoseconds(HOST_JITTER).max(self.smoothed? / 4);
        (self.jitter >= much).then_some(Duration::from_nanos(self.jitter))
    }

    /// The shortest round trip of the connection. Unlike [`Self::minimum`], it does not rise if the
    /// connection's own packets fill a queue for long.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.shortest.map(Duration::from_nanos)
    }

    /// Returns whether packets hardly wait in queues.
    pub(super) fn has_empty_queues(&self) -> bool {
        // A guess may be shorter than every round trip that was measured, so the difference may be
        // below 0.
        let shortest = self.shortest.unwrap_or_default();
        self.smoothed
            .is_some_and(|smoothed| smoothed - shortest.min(smoothed) <= shortest / 4)
    }

    /// How long to wait for an acknowledgement, once a round trip was measured.
    pub(super) fn timeout(&self) -> Option<Duration> {
        // RFC 6298, 2.3. The least of 2.4, one second, would exceed the timeouts that verbs
        // programs set.
        let margin = self.variation.saturating_mul(4);
        let margin = margin.max(nanoseconds(SHORTEST_TIMEOUT));
        Some(Duration::from_nanos(self.smoothed?.saturating_add(margin)))
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
    fn round_trips_that_vary_are_jitter_and_ones_that_rise_are_not() {
        let mut varying = RoundTrip::default();
        (0..100).for_each(|n| varying.sample(Time::EPOCH, millis(2 + n % 2 * 4)));
        let jitter = varying.jitter().unwrap_or_default();
        assert!((millis(3)..millis(5)).contains(&jitter), "{jitter:?}");
        let mut filling = RoundTrip::default();
        (0..100).for_each(|n| filling.sample(Time::EPOCH, millis(2 + n)));
        assert_eq!(filling.jitter(), None);
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
