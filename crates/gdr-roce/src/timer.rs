//! Time, and the three timers of a reliable connection.

use std::ops::Add;
use std::time::Duration;

/// A moment, as the time since an epoch that the caller picks and keeps.
///
/// This crate never asks the operating system; the caller says what time it is. Time must not
/// run backwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Time(Duration);

impl Time {
    /// The epoch itself.
    pub const EPOCH: Self = Self(Duration::ZERO);

    /// The moment this long after the epoch.
    pub const fn since_epoch(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// How long after the epoch this is.
    pub const fn elapsed(self) -> Duration {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

/// How long a requester waits for an answer: 4.096 us x 2^n, n from 1 to 31 (IBTA 9.7.6.1.3).
/// 0 means for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// No timer: a lost packet may hang the connection.
    pub const NEVER: Self = Self(0);

    /// The low five bits of `exponent`.
    pub const fn new(exponent: u8) -> Self {
        Self(exponent & 0x1f)
    }

    /// The exponent, 0 to 31.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// The wait; `None` means for ever.
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            n => Some(Duration::from_nanos(4096 << n)),
        }
    }
}

/// How long a receiver that has no buffer asks the sender to wait: a code of five bits (IBTA
/// table "Encoding for RNR NAK timer field").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// In units of 10 us, by code. Code 0 is the longest.
    const TENS_OF_MICROS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// The low five bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The wait: 10 us to 655.36 ms.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::TENS_OF_MICROS[self.0 as usize] as u64 * 10)
    }
}

/// How often a request is sent again, without progress in between, before the connection is
/// given up: 0 to 7.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RetryCount(u8);

impl RetryCount {
    /// `times`, at most 7.
    pub const fn new(times: u8) -> Self {
        Self(if times > 7 { 7 } else { times })
    }

    /// How often, 0 to 7.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// How often a request is sent again to a receiver that had no buffer: 0 to 6, or for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RnrRetry(u8);

impl RnrRetry {
    /// Until the receiver has a buffer: the code 7.
    pub const FOREVER: Self = Self(7);

    /// The code: 0 to 6 times, 7 and above for ever.
    pub const fn new(code: u8) -> Self {
        Self(if code > 7 { 7 } else { code })
    }

    /// How often; `None` means for ever.
    pub const fn times(self) -> Option<u8> {
        if self.0 == 7 { None } else { Some(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_timer_doubles_with_each_exponent() {
        assert_eq!(AckTimeout::NEVER.duration(), None);
        assert_eq!(
            AckTimeout::new(1).duration(),
            Some(Duration::from_nanos(8192))
        );
        // perftest's and most programs' default, about 67 ms.
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
    fn receiver_not_ready_waits_follow_the_table() {
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
    fn seven_receiver_retries_are_endless() {
        assert_eq!(RnrRetry::new(7), RnrRetry::FOREVER);
        assert_eq!(RnrRetry::FOREVER.times(), None);
        assert_eq!(RnrRetry::new(6).times(), Some(6));
        assert_eq!(RetryCount::new(200).get(), 7);
    }
}
