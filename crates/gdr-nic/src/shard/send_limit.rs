//! The device-wide rate limit for outbound packets.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gdr_roce::Time;

use super::clock::nanoseconds;

/// The burst after a pause, in nanoseconds at the limit: a thread that wakes up late may send what it missed.
const BURST: u64 = 10_000_000;
/// The minimum burst in bytes, at any rate.
const LEAST_BURST: u64 = 64 << 10;
/// How many nanoseconds at the limit accumulate before a thread wakes up for them.
const STEP: u64 = 1_000_000;

/// The rate limit for all packets of a device, across shards: the generic cell rate algorithm (ITU-T I.371).
///
/// A packet may leave if the packets before it are at most one burst ahead of the rate. So in any time `t` at most
/// `rate * t + burst` bytes leave, plus one packet per shard. A packet with a payload reference counts with its
/// payload.
#[derive(Debug, Default)]
pub(crate) struct SendLimit {
    /// Bytes per second; 0 is unlimited.
    rate: AtomicU64,
    /// When the packets so far would have left at the limit, by the device's clock.
    paid: AtomicU64,
}

impl SendLimit {
    pub(crate) fn set(&self, bytes_per_second: Option<NonZeroU64>) {
        let rate = bytes_per_second.map_or(0, NonZeroU64::get);
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// Returns the current limit, to be read once for several packets.
    pub(crate) fn rate(&self) -> Option<SendRate> {
        NonZeroU64::new(self.rate.load(Ordering::Relaxed)).map(SendRate)
    }

    /// Returns until when packets must wait; `None` if the next one may leave at `now`.
    pub(crate) fn wait(&self, rate: SendRate, now: Time) -> Option<Time> {
        let paid = self.paid.load(Ordering::Relaxed);
        let ahead = paid.saturating_sub(rate.burst());
        (ahead > nanoseconds(now.saturating_since(Time::EPOCH)))
            .then(|| Time::since_epoch(Duration::from_nanos(ahead.saturating_add(STEP))))
    }

    /// Counts a packet of `len` bytes that leaves at `now`, if there is a limit.
    pub(crate) fn count(&self, rate: Option<SendRate>, now: Time, len: u64) {
        let Some(rate) = rate else {
            return;
        };
        let now = nanoseconds(now.saturating_since(Time::EPOCH));
        let add = |paid: u64| Some(paid.max(now).saturating_add(rate.time_of(len)));
        // Relaxed, as no other data depends on the value; the closure never refuses.
        let _ = self
            .paid
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// A rate in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendRate(NonZeroU64);

impl SendRate {
    /// Returns the nanoseconds that `bytes` take, rounded up so that the rate is never exceeded.
    fn time_of(self, bytes: u64) -> u64 {
        let nanoseconds = u128::from(bytes) * 1_000_000_000;
        u64::try_from(nanoseconds.div_ceil(self.0.get().into())).unwrap_or(u64::MAX)
    }

    /// Returns the burst in nanoseconds.
    fn burst(self) -> u64 {
        BURST.max(self.time_of(LEAST_BURST))
    }

    /// Returns the most payload bytes of a packet with a reference, so that every queue pair gets its turn.
    pub(crate) fn longest_reference(self) -> u32 {
        let step = u128::from(self.0.get()) * u128::from(STEP) / 1_000_000_000;
        let most = u32::try_from(step).unwrap_or(u32::MAX);
        // A multiple of 4096, which is whole packets at any path MTU.
        most.max(LEAST_BURST as u32) / 4096 * 4096
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanoseconds: u64) -> Time {
        Time::since_epoch(Duration::from_nanos(nanoseconds))
    }

    fn limit(bytes_per_second: u64) -> (SendLimit, SendRate) {
        let limit = SendLimit::default();
        limit.set(NonZeroU64::new(bytes_per_second));
        let rate = limit.rate().unwrap();
        (limit, rate)
    }

    proptest! {
        /// Checks the bound between every two packets.
        #[test]
        fn no_time_has_more_than_the_rate_and_a_burst(
            bytes_per_second in 1_000_u64..20_000_000_000,
            steps in prop::collection::vec((0_u64..3_000_000, 1_u64..4 << 20), 1..120),
        ) {
            let (limit, rate) = limit(bytes_per_second);
            let mut now = 0;
            let mut sent: Vec<(u64, u64)> = Vec::new();
            for (pause, len) in steps {
                now += pause;
                // Sends as often as allowed, at most a few times.
                for _ in 0..4 {
                    if limit.wait(rate, at(now)).is_none() {
                        limit.count(Some(rate), at(now), len);
                        sent.push((now, len));
                    }
                }
            }
            let longest = sent.iter().map(|(_, len)| *len).max().unwrap_or(0);
            for (first, (from, _)) in sent.iter().enumerate() {
                let mut bytes = 0;
                for (to, len) in &sent[first..] {
                    bytes += u128::from(*len);
                    let time = u128::from(to - from + rate.burst());
                    let most = u128::from(bytes_per_second) * time / 1_000_000_000;
                    prop_assert!(bytes <= most + u128::from(longest) + 1, "{bytes} > {most}");
                }
            }
        }

        /// A sender that wakes up at the given time, or a few milliseconds later, sends at the rate.
        #[test]
        fn a_sender_that_waits_loses_nothing(
            bytes_per_second in 1_000_000_u64..20_000_000_000,
            late in 0_u64..8_000_000,
            len in 64_u64..64 << 10,
        ) {
            let (limit, rate) = limit(bytes_per_second);
            let (mut now, mut sent) = (0, 0_u128);
            while now < 200_000_000 {
                match limit.wait(rate, at(now)) {
                    Some(until) => {
                        let until = nanoseconds(until.saturating_since(Time::EPOCH));
                        prop_assert!(until > now);
                        now = until + late;
                    }
                    None => {
                        limit.count(Some(rate), at(now), len);
                        sent += u128::from(len);
                    }
                }
            }
            let due = u128::from(bytes_per_second) * u128::from(now) / 1_000_000_000;
            // Times are rounded up to nanoseconds.
            let rounding = sent / u128::from(len) * u128::from(bytes_per_second) / 1_000_000_000;
            let step = u128::from(bytes_per_second) * u128::from(STEP + late) / 1_000_000_000;
            prop_assert!(sent + rounding + step >= due, "{sent} of {due}");
        }
    }

    #[test]
    fn without_a_limit_there_is_no_rate() {
        let limit = SendLimit::default();
        assert_eq!(limit.rate(), None);
        limit.set(NonZeroU64::new(5));
        assert!(limit.rate().is_some());
        limit.set(None);
        assert_eq!(limit.rate(), None);
    }
}
