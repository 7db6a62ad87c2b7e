//! The measured directions, and the expected rate of each kind.

use serde::Serialize;

use crate::stats::median;
use crate::wire::Wire;

/// The kind of connection between two ranks, which determines what rate to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Both ranks are on one host.
    SameHost,
    /// The ranks are on different hosts.
    BetweenHosts,
}

impl Link {
    /// Returns its name in documents and CSV.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SameHost => "same_host",
            Self::BetweenHosts => "between_hosts",
        }
    }
}

/// One direction between two ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The rank that wrote.
    pub from: usize,
    /// The rank whose memory was written.
    pub to: usize,
    /// What connects them.
    pub link: Link,
    /// The result.
    #[serde(flatten)]
    pub outcome: CellOutcome,
}

/// The result of one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum CellOutcome {
    /// It was measured, and the bytes were compared.
    Measured {
        /// Bytes a nanosecond (GB/s).
        gb_per_s: f64,
        /// The wire that carried the written bytes; `None` for a kernel device.
        wire: Option<Wire>,
    },
    /// It failed.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Cell {
    /// Returns why it failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        match &self.outcome {
            CellOutcome::Measured { .. } => None,
            CellOutcome::Failed { reason } => Some(reason),
        }
    }

    /// Bytes per nanosecond, if it was measured.
    pub fn gb_per_s(&self) -> Option<f64> {
        match self.outcome {
            CellOutcome::Measured { gb_per_s, .. } => Some(gb_per_s),
            CellOutcome::Failed { .. } => None,
        }
    }
}

/// Median rate of the directions of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// The kind.
    pub link: Link,
    /// How many were measured.
    pub measured: usize,
    /// Bytes a nanosecond (GB/s).
    pub median_gb_per_s: f64,
}

/// Returns the expectation of each kind of link: the median of its own directions.
pub fn expected(cells: &[Cell]) -> Vec<Expected> {
    [Link::SameHost, Link::BetweenHosts]
        .into_iter()
        .filter_map(|link| {
            let of_kind = cells.iter().filter(|cell| cell.link == link);
            let mut rates: Vec<f64> = of_kind.filter_map(Cell::gb_per_s).collect();
            Some(Expected {
                link,
                measured: rates.len(),
                median_gb_per_s: median(&mut rates)?,
            })
        })
        .collect()
}

/// Returns the rate of a direction divided by the expected one of its kind; `None` if it was not measured.
pub(super) fn part_of_expected(cell: &Cell, expected: &[Expected]) -> Option<f64> {
    let of_kind = expected
        .iter()
        .find(|expected| expected.link == cell.link)?;
    Some(cell.gb_per_s()? / of_kind.median_gb_per_s)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the cells of ranks, four on each host; a cell without a rate failed.
    pub(in super::super) fn cells(
        ranks: usize,
        rate: impl Fn(usize, usize) -> Option<f64>,
    ) -> Vec<Cell> {
        let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| Cell {
                from,
                to,
                link: match from / 4 == to / 4 {
                    true => Link::SameHost,
                    false => Link::BetweenHosts,
                },
                outcome: match rate(from, to) {
                    Some(gb_per_s) => CellOutcome::Measured {
                        gb_per_s,
                        wire: None,
                    },
                    None => CellOutcome::Failed {
                        reason: format!("{to} is gone"),
                    },
                },
            })
            .collect()
    }

    /// Returns the rate of a healthy direction.
    pub(in super::super) fn usual(from: usize, to: usize) -> f64 {
        if from / 4 == to / 4 { 40.0 } else { 10.0 }
    }

    #[test]
    fn the_expectation_is_that_of_the_kind_of_link() {
        let cells = cells(8, |from, to| Some(usual(from, to)));
        let expected = expected(&cells);
        let rates: Vec<_> = expected.iter().map(|e| e.median_gb_per_s).collect();
        assert_eq!(rates, [40.0, 10.0]);
        let parts = cells.iter().map(|cell| part_of_expected(cell, &expected));
        assert!(parts.into_iter().all(|part| part == Some(1.0)));
    }

    #[test]
    fn a_kind_of_which_nothing_was_measured_has_no_expectation() {
        let cells = cells(8, |from, to| (from / 4 == to / 4).then_some(40.0));
        let expected = expected(&cells);
        assert_eq!(expected.len(), 1);
        assert_eq!(
            (expected[0].link, expected[0].measured),
            (Link::SameHost, 24)
        );
        let between = cells.iter().find(|cell| cell.link == Link::BetweenHosts);
        assert_eq!(part_of_expected(between.unwrap(), &expected), None);
    }
}
