//! Time, timeouts and retry limits.

use std::ops::Add;
use std::time::Duration;

/// A point in time, as the duration since a caller-chosen epoch.
///
/// This crate reads no clock: the caller passes the time, which must not decrease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Time(u64);

impl Time {
    /// The epoch.
    pub const EPOCH: Self = Self(0);

    /// Returns the earlier of two times, or the only one.
    pub(crate) fn earlier(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (only, None) | (None, only) => only,
        }
    }

    /// Returns the point in time `elapsed` after the epoch; at most 584 years.
    pub const fn since_epoch(elapsed: Duration) -> Self {
        Self(nanoseconds(elapsed))
    }

    /// Returns the duration since the epoch.
    pub const fn elapsed(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Returns the duration since `earlier`, or zero if `earlier` is later than this.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns a duration in nanoseconds, which compare and add in single instructions.
pub(crate) const fn nanoseconds(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(duration.subsec_nanos() as u64)
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(later)))
    }
}

/// How long a requester waits for a response: 4.096 us x 2^n for n from 1 to 31; unlimited for 0 (IBTA 9.7.6.1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// No timeout: the connection may hang after a packet loss.
    pub const NEVER: Self = Self(0);

    /// Returns the low five bits of `exponent`.
    pub const fn new(exponent: u8) -> Self {
        Self(exponent & 0x1f)
    }

    /// Returns the exponent, 0 to 31.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// Returns the timeout, or `None` if there is none.
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            n => Some(Duration::from_nanos(4096 << n)),
        }
    }
}

/// The delay after an RNR NAK: a five-bit code (IBTA table "Encoding for RNR NAK timer field").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The delay by code, in units of 10 us. Code 0 is the longest.
    const TENS_OF_MICROS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// Returns the low five bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// Returns the code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the delay, 10 us to 655.36 ms.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::TENS_OF_MICROS[self.0 as usize] as u64 * 10)
    }
}

/// The number of retries without progress before the connection fails, 0 to 7.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RetryCount(u8);

impl RetryCount {
    /// Returns a count of `times` retries, at most 7.
    pub const fn new(times: u8) -> Self {
        Self(if times > 7 { 7 } else { times })
    }

    /// Returns the number of retries, 0 to 7.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// When an unanswered requester fails the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RetryLimit {
    /// After this many retries without progress, each after one [`AckTimeout`] (IBTA 9.9.2.4.1). Earlier
    /// retransmissions, triggered by the measured round-trip time, do not count.
    Count(RetryCount),
    /// After this time without progress. The delay between retries starts from the measured round-trip time and its
    /// variation, at most the [`AckTimeout`], and doubles up to [`MAX_BACKOFF`](Self::MAX_BACKOFF), so that few packets
    /// are sent during an outage. With [`AckTimeout::NEVER`] the connection does not fail.
    NoProgressFor(Duration),
}

impl RetryLimit {
    /// The longest delay between two retries of [`NoProgressFor`](Self::NoProgressFor), unless the [`AckTimeout`] is
    /// longer. A connection resumes within this time after an outage.
    pub const MAX_BACKOFF: Duration = Duration::from_millis(500);
}

/// The number of retries after RNR NAKs: 0 to 6, or unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RnrRetry(u8);

impl RnrRetry {
    /// Unlimited retries, code 7.
    pub const FOREVER: Self = Self(7);

    /// Returns the retry limit of a code: 0 to 6 retries, unlimited for 7 and above.
    pub const fn new(code: u8) -> Self {
        Self(if code > 7 { 7 } else { code })
    }

    /// Returns the number of retries, or `None` if it is unlimited.
    pub const fn times(self) -> Option<u8> {
        if self.0 == 7 { None } else { Some(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ack_timeout_doubles_with_each_exponent() {
        assert_eq!(AckTimeout::NEVER.duration(), None);
        assert_eq!(
            AckTimeout::new(1).duration(),
            Some(Duration::from_nanos(8192))
        );
        // The default of perftest and most programs: about 67 ms.
        assert_eq!(
            AckTimeout::new(14).duration(),
            Some(Duration::from_nanos(67_108_864))
        );
        assert_eq!(
            AckTimeout::new(31).duration(),
            Some(Duration::from_nanos(4096 << 31))
        );
    }

    #[test]
    fn rnr_waits_follow_the_table() {
        let micros = [
            (0, 655_360),
            (1, 10),
            (2, 20),
            (12, 640),
            (14, 1280),
            (31, 491_520),
        ];
        for (code, micros) in micros {
            assert_eq!(
                RnrTimer::new(code).duration(),
                Duration::from_micros(micros)
            );
        }
        let waits: Vec<_> = (1..32)
            .chain([0])
            .map(|c| RnrTimer::new(c).duration())
            .collect();
        assert!(waits.is_sorted());
    }

    #[test]
    fn rnr_retry_code_seven_is_unlimited() {
        assert_eq!(RnrRetry::new(7), RnrRetry::FOREVER);
        assert_eq!(RnrRetry::FOREVER.times(), None);
        assert_eq!(RnrRetry::new(6).times(), Some(6));
        assert_eq!(RetryCount::new(200).get(), 7);
    }
}
