//! What a sweep measures.

use std::time::Duration;

use super::super::settings::{Destination, Settings};
use crate::error::{Result, SettingsError};

/// The smallest size, which is also the ratio between two sizes.
const SMALLEST: u64 = 4;
const RATIO: u64 = 4;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct SweepSettings {
    /// The largest size, at most 1 GiB. Sizes start at 4 bytes, and each is four times the previous one.
    pub largest: u64,
    /// Maximum number of rounds for a latency.
    pub rounds: u32,
    /// GPU memory at the far end of the paths. The transfer preference `Auto` measures both paths, the direct one if
    /// the memory permits it.
    pub destination: Destination,
    /// Deadline of one round, extended by a second for each 64 MiB.
    pub timeout: Duration,
}

impl Default for SweepSettings {
    fn default() -> Self {
        Self {
            largest: 64 << 20,
            rounds: 2000,
            destination: Destination::default(),
            timeout: Duration::from_secs(10),
        }
    }
}

impl SweepSettings {
    /// Returns the sizes, from the smallest to the largest.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let largest = self.largest;
        std::iter::successors(Some(SMALLEST), |size| size.checked_mul(RATIO))
            .take_while(move |size| *size <= largest)
    }

    pub(super) fn limit(&self, size: u64) -> Duration {
        let settings = Settings {
            size,
            timeout: self.timeout,
            ..Settings::default()
        };
        settings.limit()
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        let settings = Settings {
            size: self.largest,
            iterations: self.rounds,
            timeout: self.timeout,
            ..Settings::default()
        };
        settings.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_from_4_bytes_to_the_largest() {
        let sizes = |largest| {
            let settings = SweepSettings {
                largest,
                ..SweepSettings::default()
            };
            settings.sizes().collect::<Vec<_>>()
        };
        assert_eq!(sizes(100), [4, 16, 64]);
        assert_eq!(sizes(1 << 30).last(), Some(&(1 << 30)));
    }
}
