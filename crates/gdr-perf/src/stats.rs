//! Statistics of durations.

use hdrhistogram::{CreationError, Histogram};
use serde::{Deserialize, Serialize};

use crate::error::{Result, SettingsError};

/// Durations, recorded in a histogram with 3 significant digits. Quantiles are accurate to 0.1 %, the other figures are
/// exact. Memory use does not grow with the number of samples.
#[derive(Clone, Debug)]
pub struct Samples {
    /// In picoseconds, because means of batches have fractions of a nanosecond.
    picoseconds: Histogram<u64>,
    mean: f64,
    /// Sum of squared distances from the mean (Welford).
    squares: f64,
    min: f64,
    max: f64,
}

/// Statistics of a set of durations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many.
    pub samples: u64,
    /// The shortest.
    pub min_ns: f64,
    /// The arithmetic mean.
    pub mean_ns: f64,
    /// 50 % of the durations are at most this long.
    pub median_ns: f64,
    /// 90 % of the durations are at most this long.
    pub p90_ns: f64,
    /// 99 % of the durations are at most this long.
    pub p99_ns: f64,
    /// 99.9 % of the durations are at most this long.
    pub p999_ns: f64,
    /// The longest.
    pub max_ns: f64,
    /// The standard deviation of the samples about their mean.
    pub stddev_ns: f64,
}

const DIGITS: u8 = 3;
const PS_PER_NS: f64 = 1000.0;
/// Longest duration that is recorded exactly: 10 hours.
const MOST_PS: u64 = 36_000_000_000_000_000;

impl Samples {
    /// None yet.
    ///
    /// # Errors
    /// [`crate::Error::Settings`] when there is no memory for the histogram.
    pub fn new() -> Result<Self> {
        let picoseconds = Histogram::new_with_bounds(1, MOST_PS, DIGITS)
            .map_err(|error: CreationError| SettingsError::Histogram(error.to_string()))?;
        Ok(Self {
            picoseconds,
            mean: 0.0,
            squares: 0.0,
            min: f64::INFINITY,
            max: 0.0,
        })
    }

    /// Adds a duration of `ns` nanoseconds; a negative one counts as none.
    pub fn record(&mut self, ns: f64) {
        self.record_equal(ns, 1);
    }

    /// Like [`Samples::record`], for `count` durations that are equal.
    pub(crate) fn record_equal(&mut self, ns: f64, count: u64) {
        if count == 0 {
            return;
        }
        let ns = ns.max(0.0);
        self.picoseconds
            .saturating_record_n((ns * PS_PER_NS).round() as u64, count);
        let (count, all) = (count as f64, self.len() as f64);
        let (distance, part) = (ns - self.mean, count / all);
        self.mean += distance * part;
        // As Chan, Golub and LeVeque combine two sets: no rounding makes it negative.
        self.squares += distance * distance * count * (1.0 - part);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// Returns the number of samples.
    pub fn len(&self) -> u64 {
        self.picoseconds.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.picoseconds.is_empty()
    }

    /// Returns the duration that the fraction `quantile` (0 to 1) of the samples does not exceed, in nanoseconds,
    /// accurate to 0.1 %.
    pub fn quantile_ns(&self, quantile: f64) -> f64 {
        // The histogram returns the upper end of a bin, which may exceed the longest sample.
        let ns = self.picoseconds.value_at_quantile(quantile) as f64 / PS_PER_NS;
        ns.clamp(self.min.min(self.max), self.max)
    }

    /// Returns the durations in buckets of 0.1 % width, shortest first, without empty buckets.
    pub fn buckets(&self) -> Vec<Bucket> {
        let recorded = self.picoseconds.iter_recorded();
        recorded
            .map(|bucket| Bucket {
                to_ns: bucket.value_iterated_to() as f64 / PS_PER_NS,
                count: bucket.count_at_value(),
            })
            .collect()
    }

    /// Computes all figures.
    ///
    /// # Errors
    /// [`crate::Error::Settings`] when there are no samples.
    pub fn summary(&self) -> Result<Summary> {
        if self.is_empty() {
            return Err(SettingsError::NoSamples.into());
        }
        let samples = self.len();
        Ok(Summary {
            samples,
            min_ns: self.min,
            mean_ns: self.mean,
            median_ns: self.quantile_ns(0.5),
            p90_ns: self.quantile_ns(0.9),
            p99_ns: self.quantile_ns(0.99),
            p999_ns: self.quantile_ns(0.999),
            max_ns: self.max,
            stddev_ns: (self.squares / samples as f64).sqrt(),
        })
    }
}

/// Durations of about the same length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Longest duration of the bucket, in nanoseconds.
    pub to_ns: f64,
    /// How many.
    pub count: u64,
}

impl Summary {
    /// Returns the median in microseconds, as the text output prints it.
    pub fn median_us(&self) -> f64 {
        self.median_ns / 1000.0
    }

    /// Returns the minimum in microseconds.
    pub fn min_us(&self) -> f64 {
        self.min_ns / 1000.0
    }

    /// Returns the mean in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.mean_ns / 1000.0
    }
}

/// A bin of a [`histogram`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bin {
    /// Its lower end, nanoseconds.
    pub from_ns: f64,
    /// Upper end in nanoseconds, exclusive except in the last bin.
    pub to_ns: f64,
    /// Durations in it.
    pub count: u64,
}

/// Divides the range of `durations_ns` into `bins` bins of equal width, and counts each duration in exactly one of
/// them.
pub fn histogram(durations_ns: &[f64], bins: usize) -> Vec<Bin> {
    let min = durations_ns.iter().copied().fold(f64::INFINITY, f64::min);
    let max = durations_ns
        .iter()
        .copied()
        .fold(f64::NEG_INFINITY, f64::max);
    if durations_ns.is_empty() || bins == 0 {
        return Vec::new();
    }
    let width = (max - min) / bins as f64;
    let edge = |i: usize| {
        if i == bins {
            max
        } else {
            min + width * i as f64
        }
    };
    let mut found: Vec<Bin> = (0..bins)
        .map(|i| Bin {
            from_ns: edge(i),
            to_ns: edge(i + 1),
            count: 0,
        })
        .collect();
    for &duration in durations_ns {
        // If all are equal, the width is 0, and all are in the last bin, whose upper end is inclusive.
        let index = found
            .partition_point(|bin| bin.to_ns <= duration)
            .min(bins - 1);
        if let Some(bin) = found.get_mut(index) {
            bin.count += 1;
        }
    }
    found
}

/// Returns the median; for an even number of values, the mean of the two in the middle.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    // An even number of values has two in the middle.
    let lower = *values.get(values.len() / 2 - 1)?;
    Some(lower.midpoint(upper))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_median_has_as_many_values_below_as_above() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    fn summary(durations: &[f64]) -> Summary {
        let mut samples = Samples::new().unwrap();
        durations.iter().for_each(|&ns| samples.record(ns));
        samples.summary().unwrap()
    }

    #[test]
    fn one_sample_is_all_figures() {
        let one = summary(&[123.456]);
        assert_eq!(
            (one.min_ns, one.median_ns, one.max_ns),
            (123.456, 123.456, 123.456)
        );
        assert_eq!((one.mean_ns, one.stddev_ns, one.samples), (123.456, 0.0, 1));
    }

    #[test]
    fn equal_durations_have_no_deviation() {
        let mut samples = Samples::new().unwrap();
        samples.record_equal(991_209_975.667_080_4, 35);
        assert_eq!(samples.summary().unwrap().stddev_ns, 0.0);
    }

    proptest! {
        #[test]
        fn equal_durations_are_recorded_together_or_one_by_one(
            durations in prop::collection::vec((0.001_f64..1e9, 0_u64..50), 1..20)
        ) {
            let mut together = Samples::new().unwrap();
            let mut one_by_one = Samples::new().unwrap();
            for (ns, count) in durations {
                together.record_equal(ns, count);
                (0..count).for_each(|_| one_by_one.record(ns));
            }
            prop_assert_eq!(together.buckets(), one_by_one.buckets());
            if let (Ok(together), Ok(one_by_one)) = (together.summary(), one_by_one.summary()) {
                // Rounding errors scale with the longest duration.
                let near = |a: f64, b: f64| (a - b).abs() <= one_by_one.max_ns * 1e-6;
                prop_assert!(near(together.mean_ns, one_by_one.mean_ns));
                prop_assert!(near(together.stddev_ns, one_by_one.stddev_ns));
                prop_assert_eq!(together.max_ns, one_by_one.max_ns);
            }
        }
    }

    #[test]
    fn nothing_has_no_figures() {
        assert!(Samples::new().unwrap().summary().is_err());
        assert!(histogram(&[], 10).is_empty());
    }

    #[test]
    fn parts_of_a_nanosecond_count() {
        assert!((summary(&[0.25, 0.5, 0.75]).median_ns - 0.5).abs() < 0.001);
    }

    #[test]
    fn equal_durations_are_all_counted() {
        let bins = histogram(&[5.0; 7], 10);
        assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), 7);
    }

    fn naive_quantile(sorted: &[f64], quantile: f64) -> f64 {
        let rank = (quantile * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted[rank.min(sorted.len()) - 1]
    }

    proptest! {
        #[test]
        fn figures_are_those_of_a_sorted_list(
            mut durations in prop::collection::vec(0.001_f64..1e9, 1..400)
        ) {
            let found = summary(&durations);
            durations.sort_by(f64::total_cmp);
            let count = durations.len() as f64;
            let mean = durations.iter().sum::<f64>() / count;
            let squares: f64 = durations.iter().map(|ns| (ns - mean).powi(2)).sum();
            let near = |a: f64, b: f64| (a - b).abs() <= b.abs() * 1e-9 + 1e-6;
            prop_assert!(near(found.min_ns, durations[0]));
            prop_assert!(near(found.max_ns, durations[durations.len() - 1]));
            prop_assert!(near(found.mean_ns, mean));
            prop_assert!(near(found.stddev_ns, (squares / count).sqrt()));
            for (quantile, value) in [
                (0.5, found.median_ns),
                (0.9, found.p90_ns),
                (0.99, found.p99_ns),
                (0.999, found.p999_ns),
            ] {
                let expected = naive_quantile(&durations, quantile);
                prop_assert!(
                    (value - expected).abs() <= expected * 0.001 + 0.002,
                    "quantile {quantile}: {value}, not {expected}"
                );
            }
        }

        #[test]
        fn every_duration_is_in_the_bin_whose_ends_surround_it(
            durations in prop::collection::vec(0.0_f64..1e6, 1..200),
            bins in 1_usize..20,
        ) {
            let found = histogram(&durations, bins);
            prop_assert_eq!(found.len(), bins);
            prop_assert_eq!(found.iter().map(|bin| bin.count).sum::<u64>(), durations.len() as u64);
            for (i, bin) in found.iter().enumerate() {
                let last = i == bins - 1;
                let inside = |ns: &&f64| {
                    let first_of_its_value = found.iter().position(|other| **ns < other.to_ns);
                    first_of_its_value.unwrap_or(bins - 1) == i
                        && **ns >= bin.from_ns - 1e-6
                        && (**ns < bin.to_ns || last)
                };
                prop_assert_eq!(durations.iter().filter(inside).count() as u64, bin.count);
            }
        }
    }
}
