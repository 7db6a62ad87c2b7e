//! Deadlines for waits.

use std::time::{Duration, Instant};

/// The point in time at which a wait gives up. Every wait in this crate takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// Returns the deadline `limit` from now, capped at a century.
    pub fn after(limit: Duration) -> Self {
        /// A hundred years of 365 days, which every platform's clock can represent.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
        Self(Instant::now() + limit.min(CENTURY))
    }

    /// Returns the deadline at `instant`.
    pub const fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// Returns the deadline as an instant.
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// Returns the time left, or zero once the deadline has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Returns whether the deadline has passed.
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
