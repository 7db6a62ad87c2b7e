//! The clock of a device.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Counts nanoseconds of the monotonic clock from its creation; wraps after 584 years.
///
/// Every poll reads it. Subtracting two `Instant`s takes more instructions than everything else that an idle poll does
/// in user space; here it is a single one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: u64,
}

impl Clock {
    /// Returns a clock that starts now.
    pub(crate) fn start() -> Self {
        let epoch = monotonic_clock();
        Self { epoch }
    }

    /// Returns nanoseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        monotonic_clock().wrapping_sub(self.epoch)
    }
}

/// Returns nanoseconds of the system's monotonic clock, which completions' [`time`](gdr_roce::Completion::time) refers
/// to.
pub fn monotonic_clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Never negative on the monotonic clock.
    let (seconds, nanoseconds) = (now.tv_sec as u64, now.tv_nsec as u64);
    seconds
        .wrapping_mul(1_000_000_000)
        .wrapping_add(nanoseconds)
}

/// Converts a duration to nanoseconds, for storage in an atomic.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn it_counts_as_an_instant_does() {
        let outer = Instant::now();
        let clock = Clock::start();
        let inner = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        let shortest = nanoseconds(inner.elapsed());
        let counted = clock.now();
        let longest = nanoseconds(outer.elapsed());
        assert!((shortest..=longest).contains(&counted), "{counted}");
    }
}
