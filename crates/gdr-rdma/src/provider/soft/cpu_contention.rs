//! Whether other threads want the CPU of a thread that polls in a loop.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::os::involuntary_switches;

/// A yield that takes longer may have let another thread run. Without another thread it takes well
/// below a microsecond, but longer under an emulator or an interrupt: then the kernel's count decides.
const SWITCH: Duration = Duration::from_micros(2);
/// After so many yields at which no other thread ran, the CPU counts as free.
const QUIET_YIELDS: u32 = 64;

/// What the yields of polling threads showed.
#[derive(Debug)]
pub(super) struct CpuContention {
    /// How many yields in sequence returned at once, up to [`QUIET_YIELDS`].
    quiet: AtomicU32,
}

impl CpuContention {
    pub(super) fn new() -> Self {
        // It is found out once: the library opens files for it, those of the process's control group.
        static SEVERAL: OnceLock<bool> = OnceLock::new();
        let several = *SEVERAL
            .get_or_init(|| thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1));
        Self {
            quiet: AtomicU32::new(if several { QUIET_YIELDS } else { 0 }),
        }
    }

    /// Yields the CPU.
    pub(super) fn yield_now(&self) {
        thread_local! {
            /// The switches of this thread when it last asked for them.
            static SWITCHES: Cell<i64> = const { Cell::new(0) };
        }
        let start = Instant::now();
        thread::yield_now();
        self.record(start.elapsed(), || {
            let now = involuntary_switches();
            SWITCHES.replace(now) != now
        });
    }

    /// Records a yield. `has_switched` asks the kernel whether another thread ran, which takes a system
    /// call.
    fn record(&self, yielded: Duration, has_switched: impl FnOnce() -> bool) {
        let quiet = match yielded > SWITCH && has_switched() {
            true => 0,
            false => (self.quiet.load(Ordering::Relaxed) + 1).min(QUIET_YIELDS),
        };
        self.quiet.store(quiet, Ordering::Relaxed);
    }

    /// Whether other threads want this CPU.
    pub(super) fn is_present(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) < QUIET_YIELDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_yield_shows_contention_and_many_short_ones_its_end() {
        let contention = CpuContention {
            quiet: AtomicU32::new(QUIET_YIELDS),
        };
        let short = Duration::from_nanos(400);
        contention.record(short, || unreachable!("no system call after a short yield"));
        assert!(!contention.is_present());
        contention.record(Duration::from_micros(20), || true);
        for _ in 0..QUIET_YIELDS {
            assert!(contention.is_present());
            contention.record(short, || true);
        }
        assert!(!contention.is_present());
    }

    #[test]
    fn a_long_yield_at_which_no_other_thread_ran_is_no_contention() {
        let contention = CpuContention {
            quiet: AtomicU32::new(QUIET_YIELDS),
        };
        // An emulator takes so long for the system call alone.
        contention.record(Duration::from_micros(20), || false);
        assert!(!contention.is_present());
    }
}
