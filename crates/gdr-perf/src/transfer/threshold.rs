//! Thresholds for every size.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::report::TransferRow;

/// A rate with its unit: `80Gbps`, `10GB/s`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MinimumRate {
    /// In GB/s of 10^9 bytes.
    pub gb_per_s: f64,
}

/// A limit of one latency figure: `10us`, `p99=25us`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaximumLatency {
    /// The figure.
    pub of: LatencyFigure,
    /// Nanoseconds.
    pub ns: f64,
}

/// A figure of the latencies of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatencyFigure {
    /// The smallest.
    Min,
    /// The arithmetic mean.
    Mean,
    /// Half are no longer.
    #[default]
    Median,
    /// 90 % are at most this long.
    P90,
    /// 99 % are at most this long.
    P99,
    /// 99.9 % are at most this long.
    #[serde(rename = "p99.9")]
    P999,
    /// 99.99 % are at most this long.
    #[serde(rename = "p99.99")]
    P9999,
    /// The longest.
    Max,
}

/// A text that is not a valid threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidThreshold {
    /// A rate that is a time, or has an unknown unit.
    #[error("`{text}` is {what}: use a rate with a unit, such as 80Gbps, 10GB/s or 900MB/s")]
    Rate {
        /// The text.
        text: String,
        /// What it is.
        what: &'static str,
    },
    /// A time that is a rate, or has an unknown unit.
    #[error("`{text}` is {what}: use a time with a unit, such as 10us, 800ns or p99=25us")]
    Latency {
        /// The text.
        text: String,
        /// What it is.
        what: &'static str,
    },
    /// An unknown latency figure.
    #[error("`{0}` is not a latency figure: use min, mean, median, p90, p99, p99.9, p99.99 or max")]
    Figure(String),
}

/// Units of rates in GB/s. Names are in lower case, except that B means bytes and b bits.
const RATES: [(&str, f64); 14] = [
    ("Gbps", 0.125),
    ("Gb/s", 0.125),
    ("Gbit/s", 0.125),
    ("Mbps", 0.000_125),
    ("Mb/s", 0.000_125),
    ("Mbit/s", 0.000_125),
    ("GB/s", 1.0),
    ("GBps", 1.0),
    ("MB/s", 0.001),
    ("MBps", 0.001),
    ("Tbps", 125.0),
    ("Tb/s", 125.0),
    ("GiB/s", 1.073_741_824),
    ("MiB/s", 0.001_048_576),
];

/// Units of times in nanoseconds.
const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

/// Parses a positive number and its unit.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let number: f64 = text[..end].parse().ok()?;
    (number > 0.0).then(|| (number, text[end..].trim_start()))
}

fn unit(units: &[(&str, f64)], name: &str) -> Option<f64> {
    let found = units.iter().find(|(unit, _)| *unit == name);
    found.map(|(_, factor)| *factor)
}

/// Names what a text is instead of the expected quantity.
fn kind(text: &str) -> &'static str {
    match number_and_unit(text) {
        Some((_, name)) if unit(&TIMES, name).is_some() => "a time",
        Some((_, name)) if unit(&RATES, name).is_some() => "a rate",
        Some(_) => "a number with an unknown unit",
        None if text.parse::<f64>().is_ok() => "a number without a unit",
        None => "not a quantity",
    }
}

impl FromStr for MinimumRate {
    type Err = InvalidThreshold;

    fn from_str(text: &str) -> Result<Self, InvalidThreshold> {
        let rate = number_and_unit(text).and_then(|(number, name)| {
            Some(Self {
                gb_per_s: number * unit(&RATES, name)?,
            })
        });
        rate.ok_or_else(|| InvalidThreshold::Rate {
            text: text.to_owned(),
            what: kind(text),
        })
    }
}

impl FromStr for MaximumLatency {
    type Err = InvalidThreshold;

    fn from_str(text: &str) -> Result<Self, InvalidThreshold> {
        let (of, time) = match text.split_once('=') {
            Some((figure, time)) => (figure.parse()?, time),
            None => (LatencyFigure::default(), text),
        };
        let ns = number_and_unit(time)
            .and_then(|(number, name)| Some(number * unit(&TIMES, name)?))
            .ok_or_else(|| InvalidThreshold::Latency {
                text: text.to_owned(),
                what: kind(time),
            })?;
        Ok(Self { of, ns })
    }
}

impl fmt::Display for MinimumRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}GB/s", self.gb_per_s)
    }
}

impl fmt::Display for MaximumLatency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}us", self.of, self.ns / 1000.0)
    }
}

impl LatencyFigure {
    const ALL: [(&'static str, Self); 8] = [
        ("min", Self::Min),
        ("mean", Self::Mean),
        ("median", Self::Median),
        ("p90", Self::P90),
        ("p99", Self::P99),
        ("p99.9", Self::P999),
        ("p99.99", Self::P9999),
        ("max", Self::Max),
    ];

    /// Returns the figure of a row.
    fn of(self, row: &TransferRow) -> f64 {
        let figures = &row.latency.summary;
        match self {
            Self::Min => figures.min_ns,
            Self::Mean => figures.mean_ns,
            Self::Median => figures.median_ns,
            Self::P90 => figures.p90_ns,
            Self::P99 => figures.p99_ns,
            Self::P999 => figures.p999_ns,
            Self::P9999 => row.latency.p9999_ns,
            Self::Max => figures.max_ns,
        }
    }
}

impl FromStr for LatencyFigure {
    type Err = InvalidThreshold;

    fn from_str(text: &str) -> Result<Self, InvalidThreshold> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        found
            .map(|(_, figure)| figure)
            .ok_or_else(|| InvalidThreshold::Figure(text.to_owned()))
    }
}

impl fmt::Display for LatencyFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.into_iter().find(|(_, figure)| figure == self);
        f.pad(found.map_or("", |(name, _)| name))
    }
}

/// Thresholds for every size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// The lowest rate.
    pub minimum_rate: Option<MinimumRate>,
    /// Minimum message rate, in millions per second.
    pub minimum_mpps: Option<f64>,
    /// The longest latencies.
    pub maximum_latencies: Vec<MaximumLatency>,
}

impl Thresholds {
    /// Returns whether there are any.
    pub fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// Returns whether a rate is judged.
    pub(super) fn has_rates(&self) -> bool {
        self.minimum_rate.is_some() || self.minimum_mpps.is_some()
    }

    /// Returns why a row does not meet them, in a sentence for each.
    pub fn judge(&self, row: &TransferRow) -> Vec<String> {
        let mut failures = Vec::new();
        if let Some(MinimumRate { gb_per_s }) = self.minimum_rate
            && row.gb_per_s < gb_per_s
        {
            failures.push(format!(
                "{} bytes: {:.3} GB/s is less than {gb_per_s:.3} GB/s ({:.1} Gb/s)",
                row.size,
                row.gb_per_s,
                8.0 * gb_per_s
            ));
        }
        if let Some(minimum) = self.minimum_mpps
            && row.mpps < minimum
        {
            failures.push(format!(
                "{} bytes: {:.3} million messages a second are fewer than {minimum:.3}",
                row.size, row.mpps
            ));
        }
        for MaximumLatency { of, ns } in &self.maximum_latencies {
            let found = of.of(row);
            if found > *ns {
                failures.push(format!(
                    "{} bytes: a {of} latency of {:.2} us is more than {:.2} us",
                    row.size,
                    found / 1000.0,
                    ns / 1000.0
                ));
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_have_a_unit_and_the_right_one() {
        let rate = |text: &str| text.parse::<MinimumRate>().map(|rate| rate.gb_per_s);
        assert_eq!(rate("80Gbps"), Ok(10.0));
        assert_eq!(rate("10 GB/s"), Ok(10.0));
        assert_eq!(rate("1GiB/s"), Ok(1.073_741_824));
        assert_eq!(rate("400Gb/s"), Ok(50.0));
        for (text, what) in [
            ("10us", "is a time"),
            ("10", "a number without a unit"),
            ("10furlongs", "an unknown unit"),
            ("fast", "not a quantity"),
            ("-3Gbps", "not a quantity"),
        ] {
            let error = rate(text).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("80Gbps"), "{error}");
        }
        let latency = |text: &str| text.parse::<MaximumLatency>();
        let median = MaximumLatency {
            of: LatencyFigure::Median,
            ns: 10_000.0,
        };
        assert_eq!(latency("10us"), Ok(median));
        let tail = MaximumLatency {
            of: LatencyFigure::P999,
            ns: 2e6,
        };
        assert_eq!(latency("p99.9=2ms"), Ok(tail));
        assert!(
            latency("10Gbps")
                .unwrap_err()
                .to_string()
                .contains("is a rate")
        );
        assert!(
            latency("p42=1us")
                .unwrap_err()
                .to_string()
                .contains("p99.99")
        );
    }
}
