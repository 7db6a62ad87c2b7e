//! Round-trip time estimation.

use std::time::Duration;

use crate::timer::{Time, nanoseconds};

/// The shortest retransmission timeout: longer than a busy peer usually takes to be scheduled. A spurious timeout costs
/// one packet.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(2);

/// A jitter too large for short link queues, but typical of hosts, whose threads may wait milliseconds for a CPU or
/// timer.
const HOST_JITTER: Duration = Duration::from_micros(500);

/// How long a minimum counts, at least; routes may become longer.
const MINIMUM_AGE: Duration = Duration::from_secs(5);

/// The round-trip time of a connection, as in RFC 6298.
///
/// All times are in nanoseconds: this arithmetic is in the latency path of short messages, and [`Duration`]'s takes
/// several times as many instructions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<u64>,
    variation: u64,
    latest: u64,
    /// The measurement before `latest`.
    previous: u64,
    /// Mean difference between consecutive measurements, from those that decreased: a filling queue only causes
    /// increases.
    jitter: u64,
    /// The minimum over the connection's lifetime.
    shortest: Option<u64>,
    /// The minimum since `minimum_since`, and of the period before it.
    minimum: Option<u64>,
    earlier_minimum: Option<u64>,
    minimum_since: Time,
}

/// Returns the moving average with weight `2^-shift` for `new`.
const fn mean(old: u64, new: u64, shift: u32) -> u64 {
    old - (old >> shift) + (new >> shift)
}

/// Returns the shorter of the known value, if any, and a new one.
fn shorter(known: Option<u64>, new: u64) -> Option<u64> {
    Some(known.map_or(new, |known| known.min(new)))
}

impl RoundTrip {
    /// Adds the measurement of a packet sent only once and acknowledged at `now`.
    pub(super) fn sample(&mut self, now: Time, measured: Duration) {
        let measured = nanoseconds(measured);
        self.previous = std::mem::replace(&mut self.latest, measured);
        // Round trips decrease as often as they increase, hence the factor two.
        let difference = self.previous.saturating_sub(measured).saturating_mul(2);
        self.jitter = mean(self.jitter, difference, 3);
        self.shortest = shorter(self.shortest, measured);
        match self.smoothed {
            None => {
                self.smoothed = Some(measured);
                // RFC 6298, 2.2: there is no second measurement yet.
                self.variation = measured / 2;
            }
            Some(smoothed) => {
                // Before the mean is updated: the variation is relative to the old one (RFC 6298, 2.3).
                self.variation = mean(self.variation, smoothed.abs_diff(measured), 2);
                self.smoothed = Some(mean(smoothed, measured, 3));
            }
        }
        // Two periods, so that there always is a minimum: the old one counts until the new one has covered as much
        // time.
        if now.saturating_since(self.minimum_since) >= MINIMUM_AGE {
            self.earlier_minimum = self.minimum.take();
            self.minimum_since = now;
        }
        self.minimum = shorter(self.minimum, measured);
    }

    /// Uses the time since the latest transmission of a retransmitted packet, unless a round trip was measured; returns
    /// whether it did. The answer may be to an earlier transmission, so it never counts as a minimum.
    pub(super) fn guess(&mut self, time: Duration) -> bool {
        // A guess never replaces a measurement (Karn's algorithm, RFC 6298, 3).
        let unknown = self.smoothed.is_none();
        if unknown {
            let time = nanoseconds(time);
            self.smoothed = Some(time);
            self.variation = time / 2;
        }
        unknown
    }

    /// Returns the latest measurement.
    pub(super) const fn latest(&self) -> Duration {
        Duration::from_nanos(self.latest)
    }

    /// Returns the smoothed round-trip time; `None` until there is a measurement.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(Duration::from_nanos)
    }

    /// Returns the recent minimum: the round trip of a packet that waited in no queue.
    pub(super) fn minimum(&self) -> Option<Duration> {
        let both = [self.minimum, self.earlier_minimum];
        both.into_iter().flatten().min().map(Duration::from_nanos)
    }

    /// Returns how long the latest packet was queued.
    pub(super) fn queueing(&self) -> Duration {
        let minimum = self.minimum().unwrap_or_default();
        Duration::from_nanos(self.latest).saturating_sub(minimum)
    }

    /// Returns how long both of the two latest packets were queued, at least. A host without a CPU delays one of them;
    /// a full queue delays both.
    pub(super) fn standing_queueing(&self) -> Duration {
        let minimum = self.minimum().unwrap_or_default();
        Duration::from_nanos(self.latest.min(self.previous)).saturating_sub(minimum)
    }

    /// Returns the mean deviation of the round-trip time.
    pub(super) const fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation)
    }

    /// Returns the jitter, if it is a large part of the round trip: then hosts rather than queues cause most of it.
    pub(super) fn jitter(&self) -> Option<Duration> {
        let much = nanoseconds(HOST_JITTER).max(self.smoothed? / 4);
        (self.jitter >= much).then_some(Duration::from_nanos(self.jitter))
    }

    /// Returns the minimum over the connection's lifetime. Unlike [`Self::minimum`] it does not rise while the
    /// connection's own packets keep a queue filled.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.shortest.map(Duration::from_nanos)
    }

    /// Returns whether packets are hardly queued at all.
    pub(super) fn has_empty_queues(&self) -> bool {
        // A guess may be below every measurement, so the difference could be negative.
        let shortest = self.shortest.unwrap_or_default();
        self.smoothed
            .is_some_and(|smoothed| smoothed - shortest.min(smoothed) <= shortest / 4)
    }

    /// Returns how long to wait for an acknowledgement; `None` until there is a measurement.
    pub(super) fn timeout(&self) -> Option<Duration> {
        // RFC 6298, 2.3. The minimum in 2.4, one second, would exceed the timeouts that verbs programs set.
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
        // RFC 6298, 2.2: the variation starts at half of the first measurement.
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
