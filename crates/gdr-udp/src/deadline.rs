//! Deadlines of waits.

use std::time::{Duration, Instant};

/// A point in time at which a wait gives up. Every wait of this crate takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// Returns the deadline `limit` from now; at most a century.
    pub fn after(limit: Duration) -> Self {
        /// A hundred years of 365 days, which every clock can hold.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
        Self(Instant::now() + limit.min(CENTURY))
    }

    /// Returns the deadline at `instant`.
    pub const fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// The instant of the deadline.
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// The time until the deadline; zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether the deadline has passed.
    pub fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_limit_is_a_valid_deadline() {
        let deadline = Deadline::after(Duration::MAX);
        assert!(!deadline.has_passed());
        assert!(deadline.remaining() > Duration::from_secs(86_400));
    }

    #[test]
    fn a_limit_of_zero_has_passed_at_once() {
        let deadline = Deadline::after(Duration::ZERO);
        assert!(deadline.has_passed());
        assert_eq!(deadline.remaining(), Duration::ZERO);
    }
}
