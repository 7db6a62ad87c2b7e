//! The clock of a device.

use std::sync::atomic::{AtomicU64, Ordering};
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

/// A time that was read recently, of threads that read the clock all the time.
///
/// Reading the system's clock takes longer than the rest of an idle poll, because it waits until all earlier
/// instructions are done. The processor's own counter is read without that, to decide whether the last time is recent.
#[derive(Debug, Default)]
pub(crate) struct RecentTime {
    /// The processor's counter when `time` was read.
    ticks: AtomicU64,
    time: AtomicU64,
}

/// Ticks of the processor's counter, about a microsecond, for which a time counts as recent.
const RECENT: u64 = 2000;

impl RecentTime {
    /// Returns the time of a clock. It may be out of date by 2000 ticks of the processor's counter.
    pub(crate) fn now(&self, clock: &Clock) -> u64 {
        let Some(ticks) = ticks() else {
            return clock.now();
        };
        // Acquire: the time is not older than the ticks. Counters of two processors may differ, and a difference below
        // zero is a large one.
        if ticks.wrapping_sub(self.ticks.load(Ordering::Acquire)) < RECENT {
            return self.time.load(Ordering::Relaxed);
        }
        let now = clock.now();
        self.time.store(now, Ordering::Relaxed);
        self.ticks.store(ticks, Ordering::Release);
        now
    }
}

/// Returns the processor's counter, if reading it takes less time than reading the clock.
fn ticks() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction, and it accesses no memory. A process that has forbidden it to
    // itself (PR_SET_TSC) gets a signal.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    None
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
    fn a_recent_time_is_hardly_older_than_the_time() {
        let (clock, recent) = (Clock::start(), RecentTime::default());
        let mut last = 0;
        for n in 0..1000 {
            if n % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let before = clock.now();
            let now = recent.now(&clock);
            // No processor counts 2000 ticks in more than this.
            let oldest = before.saturating_sub(nanoseconds(Duration::from_micros(200)));
            assert!((oldest.max(last)..=clock.now()).contains(&now), "{now}");
            last = now;
        }
    }

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
