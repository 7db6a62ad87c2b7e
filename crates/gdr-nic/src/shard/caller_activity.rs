//! How much of the time the program's own threads drive the engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::shard::clock::nanoseconds;

/// The longest gap between two calls of a program that only polls.
const LONGEST_GAP: Duration = Duration::from_micros(5);
/// A program with fewer calls per interval is not polling, even if they took all of its time.
const FEWEST_CALLS: u64 = 4;

/// Calls in which the program's threads drive the engine. Times are read from the device's clock.
#[derive(Debug, Default)]
pub(crate) struct CallerActivity {
    /// See [`count_roughly`].
    calls: AtomicU64,
    /// When the last call ended.
    last: AtomicU64,
    /// The total of gaps between calls longer than [`LONGEST_GAP`].
    absent: AtomicU64,
}

impl CallerActivity {
    /// Records that a call begins. Returns how many calls came before it.
    pub(crate) fn begin(&self, now: u64) -> u64 {
        // Calls of several threads may overlap, which gives a gap of 0.
        let gap = now.saturating_sub(self.last.load(Ordering::Relaxed));
        // A short gap occurs within a polling loop, and the engine misses nothing.
        if gap > nanoseconds(LONGEST_GAP) {
            self.absent.fetch_add(gap, Ordering::Relaxed);
        }
        count_roughly(&self.calls)
    }

    /// Records that a call ends.
    pub(crate) fn end(&self, now: u64) {
        self.last.store(now, Ordering::Relaxed);
    }

    fn totals(&self, now: u64) -> Totals {
        let gap = now.saturating_sub(self.last.load(Ordering::Relaxed));
        let current = if gap > nanoseconds(LONGEST_GAP) {
            gap
        } else {
            0
        };
        Totals {
            at: now,
            calls: self.calls.load(Ordering::Relaxed),
            // The current gap is added to `absent` when it ends.
            absent: self.absent.load(Ordering::Relaxed).wrapping_add(current),
        }
    }
}

/// Adds 1, and returns the count before. Threads that count at the same time may lose some: an addition that loses none
/// takes longer than the rest of an idle poll.
pub(crate) fn count_roughly(count: &AtomicU64) -> u64 {
    let before = count.load(Ordering::Relaxed);
    count.store(before.wrapping_add(1), Ordering::Relaxed);
    before
}

#[derive(Clone, Copy, Debug)]
struct Totals {
    at: u64,
    calls: u64,
    absent: u64,
}

/// The activity between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    len: u64,
    calls: u64,
    absent: u64,
}

impl Interval {
    /// Returns whether the program polled the whole time. If it computes or watches memory in between, it depends on
    /// the progress thread.
    pub(crate) fn is_polled(&self) -> bool {
        // Tolerates a tenth: a thread that is interrupted occasionally still polls.
        self.calls >= FEWEST_CALLS && self.absent <= self.len / 10
    }

    /// Returns whether the program polled at all.
    pub(crate) fn has_calls(&self) -> bool {
        self.calls > 0
    }
}

/// Samples caller activity.
#[derive(Debug)]
pub(crate) struct Sampler(Totals);

impl Sampler {
    pub(crate) fn new(activity: &CallerActivity, now: u64) -> Self {
        Self(activity.totals(now))
    }

    /// Returns the interval since the last sample, if it is at least `least` long.
    pub(crate) fn sample(
        &mut self,
        activity: &CallerActivity,
        now: u64,
        least: Duration,
    ) -> Option<Interval> {
        let len = now.saturating_sub(self.0.at);
        if len < nanoseconds(least) {
            return None;
        }
        let last = std::mem::replace(&mut self.0, activity.totals(now));
        Some(Interval {
            len,
            calls: self.0.calls.wrapping_sub(last.calls),
            absent: self.0.absent.saturating_sub(last.absent),
        })
    }

    /// Starts a new interval.
    pub(crate) fn restart(&mut self, activity: &CallerActivity, now: u64) {
        self.0 = activity.totals(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_micros(250);

    /// Returns an interval of calls of length `call` with gaps of length `gap`.
    fn interval(call: u64, gap: u64) -> Interval {
        let (activity, mut now) = (CallerActivity::default(), 1_000_000);
        activity.end(now);
        let mut sampler = Sampler::new(&activity, now);
        let end = now + nanoseconds(INTERVAL);
        while now + gap + call <= end {
            activity.begin(now + gap);
            now += gap + call;
            activity.end(now);
        }
        sampler.sample(&activity, end, INTERVAL).unwrap()
    }

    #[test]
    fn a_program_that_polls_in_a_loop_drives_the_engine_itself() {
        assert!(interval(500, 100).is_polled());
        // Each posts a large message.
        assert!(interval(15_000, 1_000).is_polled());
    }

    #[test]
    fn a_program_that_waits_for_bytes_in_memory_between_polls_does_not() {
        // A message takes 40 us, and the program watches memory for 10 of them.
        assert!(!interval(30_000, 10_000).is_polled());
        assert!(!interval(500, 10_000).is_polled());
    }

    #[test]
    fn a_program_that_has_stopped_polling_does_not_whatever_it_did_before() {
        let activity = CallerActivity::default();
        let mut sampler = Sampler::new(&activity, 0);
        for n in 0..100 {
            activity.begin(n * 1_000);
            activity.end(n * 1_000 + 500);
        }
        let polled = sampler.sample(&activity, 100_000, Duration::ZERO).unwrap();
        assert!(polled.is_polled());
        let silent = sampler.sample(&activity, 350_000, INTERVAL).unwrap();
        assert!(!silent.is_polled() && !silent.has_calls());
        // The gap at the last sample does not also count as absence in the next interval.
        for n in 0..100 {
            activity.begin(350_000 + n * 1_000);
            activity.end(350_500 + n * 1_000);
        }
        let again = sampler.sample(&activity, 450_000, Duration::ZERO).unwrap();
        assert!(again.is_polled(), "{again:?}");
    }

    #[test]
    fn an_interval_that_is_too_short_is_not_sampled() {
        let activity = CallerActivity::default();
        let mut sampler = Sampler::new(&activity, 0);
        assert_eq!(sampler.sample(&activity, 249_999, INTERVAL), None);
        assert!(sampler.sample(&activity, 250_000, INTERVAL).is_some());
    }
}
