//! Timing of operations that may be shorter than reading the clock.

use std::time::Instant;

use crate::error::Result;
use crate::stats::Samples;

/// Maximum number of batches per measurement, as in GDRCopy's tools.
const MOST_BATCHES: u32 = 100;

/// Batches in which operations are timed. The clock is read before and after each batch, which costs 20 to 50 ns. A
/// sample is the mean of a batch, so samples spread less than single operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    batches: u32,
    per_batch: u32,
}

impl Batches {
    /// Returns batches for `iterations` operations; above 100, their number is rounded up to a multiple of 100.
    pub fn of(iterations: u32) -> Self {
        let batches = iterations.min(MOST_BATCHES);
        Self {
            batches,
            per_batch: iterations.div_ceil(MOST_BATCHES).max(1),
        }
    }

    /// Returns batches for exactly `iterations` operations: up to 100 batches of equal size. A prime number above 100
    /// gives a single batch.
    pub fn exactly(iterations: u32) -> Self {
        let divides = |batches: &u32| iterations.is_multiple_of(*batches);
        let batches = (1..=MOST_BATCHES)
            .rev()
            .find(divides)
            .unwrap_or(1)
            .min(iterations);
        Self {
            batches,
            per_batch: iterations.checked_div(batches).unwrap_or(1),
        }
    }

    /// Returns the total number of operations.
    pub fn iterations(&self) -> u32 {
        self.batches.saturating_mul(self.per_batch)
    }

    /// Operations in each sample.
    pub fn per_sample(&self) -> u32 {
        self.per_batch
    }

    /// Runs and times all operations.
    ///
    /// # Errors
    /// The first error of `operation`, which ends the run.
    pub fn time(&self, mut operation: impl FnMut() -> Result<()>) -> Result<Samples> {
        let mut samples = Samples::new()?;
        for _ in 0..self.batches {
            let start = Instant::now();
            for _ in 0..self.per_batch {
                operation()?;
            }
            samples.record(nanoseconds(start) / f64::from(self.per_batch));
        }
        Ok(samples)
    }
}

/// Nanoseconds since `start`.
pub(crate) fn nanoseconds(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn iterations_are_rounded_up_to_whole_batches() {
        for (asked, batches, per_batch) in [
            (1, 1, 1),
            (100, 100, 1),
            (101, 100, 2),
            (10_000, 100, 100),
            (0, 0, 1),
        ] {
            assert_eq!(
                Batches::of(asked),
                Batches { batches, per_batch },
                "{asked}"
            );
            assert!(Batches::of(asked).iterations() >= asked);
        }
    }

    #[test]
    fn exactly_as_many_iterations_as_asked_can_be_had() {
        for (asked, batches) in [
            (0, 0),
            (1, 1),
            (100, 100),
            (150, 75),
            (101, 1),
            (10_000, 100),
        ] {
            let found = Batches::exactly(asked);
            assert_eq!(
                (found.iterations(), found.batches),
                (asked, batches),
                "{asked}"
            );
        }
    }

    #[test]
    fn every_iteration_is_run_and_every_batch_is_a_sample() {
        let mut runs = 0;
        let samples = Batches::of(250).time(|| {
            runs += 1;
            Ok(())
        });
        assert_eq!(runs, 300);
        assert_eq!(samples.unwrap().len(), 100);
    }

    #[test]
    fn the_first_error_ends_it() {
        let failed = Batches::of(100).time(|| Err(Error::Stopped));
        assert!(matches!(failed, Err(Error::Stopped)));
    }
}
