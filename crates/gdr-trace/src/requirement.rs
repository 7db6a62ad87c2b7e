//! Requirements on a run.

use std::fmt;
use std::str::FromStr;

use crate::Traffic;

/// Minimum share of bytes that a NIC itself reads from or writes to GPU memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requirement {
    direct_percent: f64,
}

/// The share that `direct` alone requires. Besides their data, programs send control messages from host memory.
const MOST_OF_IT: f64 = 95.0;

impl Requirement {
    /// Returns the least share in percent.
    pub const fn least_percent(&self) -> f64 {
        self.direct_percent
    }

    /// Returns whether the traffic has that share. Without any traffic it has not.
    pub fn is_met(&self, traffic: &Traffic) -> bool {
        traffic
            .direct_percent()
            .is_some_and(|percent| percent >= self.direct_percent)
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "direct={}%", self.direct_percent)
    }
}

/// A requirement that is not of the form `direct` or `direct=95%`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a requirement: give direct, or direct=N% with N from 0 to 100")]
pub struct ParseRequirementError(String);

impl FromStr for Requirement {
    type Err = ParseRequirementError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = match text.strip_prefix("direct") {
            Some("") => Some(MOST_OF_IT),
            Some(rest) => rest
                .strip_prefix('=')
                .map(|number| number.strip_suffix('%').unwrap_or(number))
                .and_then(|number| number.parse().ok()),
            None => None,
        };
        percent
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(|direct_percent| Self { direct_percent })
            .ok_or_else(|| ParseRequirementError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cell, MemoryKind, Operation};

    #[test]
    fn a_requirement_is_a_share_with_or_without_a_percent_sign() {
        for (text, percent) in [
            ("direct", 95.0),
            ("direct=100%", 100.0),
            ("direct=0.5", 0.5),
        ] {
            let requirement: Requirement = text.parse().unwrap();
            assert_eq!(requirement.least_percent(), percent);
        }
        for text in [
            "",
            "direct=",
            "direct=101",
            "direct=-1",
            "direct=NaN",
            "staged",
        ] {
            let refused: Result<Requirement, _> = text.parse();
            assert_eq!(refused, Err(ParseRequirementError(text.to_owned())));
        }
    }

    #[test]
    fn a_share_is_met_from_its_percentage_on_and_not_without_traffic() {
        let traffic = |bytes: [u64; 2]| {
            let kinds = [MemoryKind::Host, MemoryKind::DmaBuf]
                .into_iter()
                .zip(bytes);
            let mut traffic = Traffic::default();
            for (memory, bytes) in kinds {
                traffic.add(&Cell {
                    operation: Operation::Send,
                    memory,
                    operations: 1,
                    bytes,
                });
            }
            traffic
        };
        let requirement: Requirement = "direct=95%".parse().unwrap();
        assert!(requirement.is_met(&traffic([5, 95])));
        assert!(!requirement.is_met(&traffic([6, 94])));
        assert!(!requirement.is_met(&traffic([0, 0])));
        let any: Requirement = "direct=0".parse().unwrap();
        assert!(!any.is_met(&Traffic::default()));
    }
}
