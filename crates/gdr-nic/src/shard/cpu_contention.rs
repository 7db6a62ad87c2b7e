//! Detects whether other threads want the CPU of a polling thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::os::{has_several_cpus, involuntary_switches};
use crate::shard::clock::{Clock, nanoseconds};

/// A yield that takes longer may have run another thread. Otherwise it takes well below a microsecond, but longer under
/// an emulator or an interrupt; then the kernel's context switch count decides.
const SWITCH: Duration = Duration::from_micros(2);
/// After this many yields without another thread running, the CPU counts as free.
const QUIET_YIELDS: u32 = 64;

/// The outcome of polling threads' yields.
#[derive(Debug)]
pub(crate) struct CpuContention {
    /// Consecutive yields that returned immediately, up to [`QUIET_YIELDS`].
    quiet: AtomicU32,
}

impl CpuContention {
    pub(crate) fn new() -> Self {
        Self {
            // With a single CPU, assume contention until yields show otherwise.
            quiet: AtomicU32::new(if has_several_cpus() { QUIET_YIELDS } else { 0 }),
        }
    }

    /// Yields the CPU.
    pub(crate) fn yield_now(&self, clock: &Clock) -> Yielded {
        thread_local! {
            /// This thread's context switches when last queried.
            static SWITCHES: Cell<i64> = const { Cell::new(0) };
        }
        let start = clock.now();
        thread::yield_now();
        let end = clock.now();
        let lost = self.record(end - start, || {
            let now = involuntary_switches();
            SWITCHES.replace(now) != now
        });
        Yielded { end, lost }
    }

    /// Records a yield. Returns how long another thread had the CPU. `has_switched` asks the kernel whether one ran, by
    /// a system call.
    fn record(&self, yielded: u64, has_switched: impl FnOnce() -> bool) -> u64 {
        // Check the clock first: most yields are short, and asking the kernel takes a system call.
        let before = self.quiet.load(Ordering::Relaxed);
        let (quiet, lost) = match yielded > nanoseconds(SWITCH) && has_switched() {
            true => (0, yielded),
            // The count stops at the bound, so that it cannot wrap.
            false => ((before + 1).min(QUIET_YIELDS), 0),
        };
        // Usually only a load, because a store would move the cache line from the other processors.
        if quiet != before {
            self.quiet.store(quiet, Ordering::Relaxed);
        }
        lost
    }

    /// Whether other threads want this CPU.
    pub(crate) fn is_present(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) < QUIET_YIELDS
    }
}

/// The outcome of a yield, in nanoseconds of the device's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yielded {
    pub(crate) end: u64,
    /// How long another thread had the CPU.
    lost: u64,
}

/// How much of its polling time a thread loses to others by yielding.
///
/// A computing program takes whole time slices, half of the CPU or more. A thread that wakes briefly from time to time,
/// such as another device's progress thread, takes a few percent; letting it run costs less than no longer polling.
#[derive(Debug, Default)]
pub(crate) struct LostTime {
    /// How far the current polling period has been counted.
    counted: Option<u64>,
    polled: u64,
    lost: u64,
}

/// What a window of polling showed about the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cpu {
    /// Other threads used little of it.
    Own,
    /// Another thread computes on it.
    Shared,
}

impl LostTime {
    /// The polling time judged at once: several time slices of a computing thread.
    const WINDOW: Duration = Duration::from_millis(16);
    /// Losing one part in this many of a window indicates a computing thread.
    const SHARE: u64 = 4;

    /// Records that the thread polls at `now`, or still does.
    pub(crate) fn poll(&mut self, now: u64) {
        self.counted.get_or_insert(now);
    }

    /// Records that the thread does something else for a while, which is not counted.
    pub(crate) fn pause(&mut self) {
        self.counted = None;
    }

    /// Counts up to the end of a yield. Returns the verdict once the window is full.
    pub(crate) fn record(&mut self, yielded: Yielded) -> Option<Cpu> {
        // Time before the thread started to poll does not count.
        let since = self.counted.replace(yielded.end).unwrap_or(yielded.end);
        self.polled += yielded.end.saturating_sub(since);
        self.lost += yielded.lost;
        if self.polled < nanoseconds(Self::WINDOW) {
            return None;
        }
        let cpu = match self.lost * Self::SHARE >= self.polled {
            true => Cpu::Shared,
            false => Cpu::Own,
        };
        // Windows are judged separately, so that a thread that has stopped computing is forgotten.
        (self.polled, self.lost) = (0, 0);
        Some(cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the verdict on a thread that polls for `polls` between yields, each of which loses `lost`.
    fn window(polls: Duration, lost: Duration) -> Cpu {
        let (mut time, mut now) = (LostTime::default(), 7);
        let [polls, lost] = [polls, lost].map(nanoseconds);
        loop {
            time.poll(now);
            now += polls + lost;
            if let Some(cpu) = time.record(Yielded { end: now, lost }) {
                return cpu;
            }
        }
    }

    #[test]
    fn a_program_that_computes_shares_the_cpu_and_a_thread_that_wakes_for_a_moment_does_not() {
        // The progress thread of another device wakes every millisecond.
        let [micros, millis] = [Duration::from_micros, Duration::from_millis];
        assert_eq!(window(micros(950), micros(50)), Cpu::Own);
        assert_eq!(window(micros(900), micros(100)), Cpu::Own);
        // Time slices of 4 ms, after a few polls each or after polls that take as long.
        assert_eq!(window(micros(50), millis(4)), Cpu::Shared);
        assert_eq!(window(millis(4), millis(4)), Cpu::Shared);
        assert_eq!(window(micros(100), micros(100)), Cpu::Shared);
    }

    #[test]
    fn one_time_slice_alone_is_no_share() {
        let mut time = LostTime::default();
        let at = |micros: u64, lost: u64| Yielded {
            end: 1000 * micros,
            lost: 1000 * lost,
        };
        time.poll(0);
        assert_eq!(time.record(at(3_500, 3_000)), None);
        assert_eq!(time.record(at(17_000, 0)), Some(Cpu::Own));
    }

    #[test]
    fn time_between_periods_of_polling_is_not_counted() {
        let (mut time, mut now) = (LostTime::default(), 0);
        let lost = 50_000;
        // It loses half of its polling time, and a twentieth of the total time.
        let shown = std::iter::repeat_with(|| {
            time.poll(now);
            now += 2 * lost;
            let shown = time.record(Yielded { end: now, lost });
            time.pause();
            now += 18 * lost;
            shown
        });
        assert_eq!(shown.take(1000).flatten().next(), Some(Cpu::Shared));
    }

    #[test]
    fn one_long_yield_shows_contention_and_many_short_ones_its_end() {
        let contention = CpuContention {
            quiet: AtomicU32::new(QUIET_YIELDS),
        };
        let short = 400;
        contention.record(short, || unreachable!("no system call after a short yield"));
        assert!(!contention.is_present());
        let long = 20_000;
        assert_eq!(contention.record(long, || true), long);
        for _ in 0..QUIET_YIELDS {
            assert!(contention.is_present());
            assert_eq!(contention.record(short, || true), 0);
        }
        assert!(!contention.is_present());
    }

    #[test]
    fn a_long_yield_at_which_no_other_thread_ran_is_no_contention() {
        let contention = CpuContention {
            quiet: AtomicU32::new(QUIET_YIELDS),
        };
        // An emulator takes this long for the system call alone.
        let lost = contention.record(20_000, || false);
        assert_eq!(lost, 0);
        assert!(!contention.is_present());
    }
}
