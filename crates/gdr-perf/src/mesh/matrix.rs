//! The measured pairs, and which of them are slower than pairs of their kind.

use serde::Serialize;

/// What connects two ranks, as far as it decides what to expect of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Both ranks are on one host.
    SameHost,
    /// They are on two hosts.
    BetweenHosts,
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
    },
    /// It failed.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Cell {
    /// Bytes a nanosecond, if it was measured.
    pub fn gb_per_s(&self) -> Option<f64> {
        match self.outcome {
            CellOutcome::Measured { gb_per_s } => Some(gb_per_s),
            CellOutcome::Failed { .. } => None,
        }
    }
}

/// A rank or a direction that is slower than others of its kind, or failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outlier")]
pub enum Outlier {
    /// Most directions of this rank.
    Rank {
        /// The rank.
        rank: usize,
        /// Of its directions, those that are slow or failed.
        affected: usize,
        /// All of its directions.
        of: usize,
        /// Of those that were measured, the median of their rates divided by the expected ones.
        of_expected: Option<f64>,
        /// The first reason, if any failed.
        reason: Option<String>,
    },
    /// One direction between two ranks that are not outliers themselves.
    Direction {
        /// The rank that wrote.
        from: usize,
        /// The rank whose memory was written.
        to: usize,
        /// Its rate divided by the expected one.
        of_expected: Option<f64>,
        /// Why it failed, if it did.
        reason: Option<String>,
    },
}

/// The median rate of the directions of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// The kind.
    pub link: Link,
    /// How many were measured.
    pub measured: usize,
    /// Bytes a nanosecond (GB/s).
    pub median_gb_per_s: f64,
}

/// The expectation of each kind of link: the median of its own directions.
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

/// The directions that have less than the part `least` of what is expected of their kind, or failed;
/// those of a rank with mostly such directions are one outlier, the rank.
pub fn outliers(cells: &[Cell], least: f64) -> Vec<Outlier> {
    let expected = expected(cells);
    let part = |cell: &Cell| {
        let of_kind = expected
            .iter()
            .find(|expected| expected.link == cell.link)?;
        Some(cell.gb_per_s()? / of_kind.median_gb_per_s)
    };
    let is_affected = |cell: &Cell| part(cell).is_none_or(|part| part < least);
    let ranks = cells
        .iter()
        .map(|cell| cell.from.max(cell.to) + 1)
        .max()
        .unwrap_or(0);
    let mut left: Vec<&Cell> = cells.iter().filter(|cell| is_affected(cell)).collect();
    let mut found = Vec::new();
    // The rank with the most affected directions first: those do not count against its partners.
    loop {
        let of = |rank: usize| move |cell: &&&Cell| cell.from == rank || cell.to == rank;
        let counted = (0..ranks).map(|rank| (left.iter().filter(of(rank)).count(), rank));
        let Some((affected, rank)) =
            counted.max_by_key(|(count, rank)| (*count, usize::MAX - rank))
        else {
            break;
        };
        let own: Vec<&Cell> = cells
            .iter()
            .filter(|cell| cell.from == rank || cell.to == rank)
            .collect();
        // With two ranks, neither is known to be the cause.
        if ranks < 3 || 2 * affected <= own.len() {
            break;
        }
        let mut parts: Vec<f64> = own.iter().filter_map(|cell| part(cell)).collect();
        found.push(Outlier::Rank {
            rank,
            affected,
            of: own.len(),
            of_expected: median(&mut parts),
            reason: own.iter().find_map(|cell| reason(cell)),
        });
        left.retain(|cell| cell.from != rank && cell.to != rank);
    }
    found.extend(left.into_iter().map(|cell| Outlier::Direction {
        from: cell.from,
        to: cell.to,
        of_expected: part(cell),
        reason: reason(cell),
    }));
    found
}

fn reason(cell: &Cell) -> Option<String> {
    match &cell.outcome {
        CellOutcome::Failed { reason } => Some(reason.clone()),
        CellOutcome::Measured { .. } => None,
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The cells as CSV with a header line.
pub fn csv(cells: &[Cell]) -> String {
    let mut text = String::from("from,to,link,gb_per_s,gbit_per_s,failed\n");
    for cell in cells {
        let link = match cell.link {
            Link::SameHost => "same_host",
            Link::BetweenHosts => "between_hosts",
        };
        let (rate, bits) = match cell.gb_per_s() {
            Some(rate) => (rate.to_string(), (rate * 8.0).to_string()),
            None => (String::new(), String::new()),
        };
        let failed = reason(cell).unwrap_or_default().replace(['"', '\n'], " ");
        text += &format!(
            "{},{},{link},{rate},{bits},\"{failed}\"\n",
            cell.from, cell.to
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cells(ranks: usize, rate: impl Fn(usize, usize) -> Option<f64>) -> Vec<Cell> {
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
                    Some(gb_per_s) => CellOutcome::Measured { gb_per_s },
                    None => CellOutcome::Failed {
                        reason: format!("{to} is gone"),
                    },
                },
            })
            .collect()
    }

    fn usual(from: usize, to: usize) -> f64 {
        if from / 4 == to / 4 { 40.0 } else { 10.0 }
    }

    #[test]
    fn the_expectation_is_that_of_the_kind_of_link() {
        let cells = cells(8, |from, to| Some(usual(from, to)));
        let rates: Vec<_> = expected(&cells).iter().map(|e| e.median_gb_per_s).collect();
        assert_eq!(rates, [40.0, 10.0]);
        assert_eq!(outliers(&cells, 0.7), []);
    }

    #[test]
    fn a_slow_rank_is_one_outlier_and_its_partners_are_none() {
        let cells = cells(8, |from, to| {
            let slow = from == 5 || to == 5;
            Some(usual(from, to) * if slow { 0.3 } else { 1.0 })
        });
        let found = outliers(&cells, 0.7);
        let [
            Outlier::Rank {
                rank: 5,
                affected: 14,
                of: 14,
                of_expected: Some(part),
                reason: None,
            },
        ] = found[..]
        else {
            panic!("{found:?}");
        };
        assert!((0.25..0.35).contains(&part), "{part}");
    }

    #[test]
    fn two_dead_ranks_are_two_outliers_with_the_reason() {
        let is_dead = |rank| rank == 0 || rank == 6;
        let cells = cells(8, |from, to| {
            (!is_dead(from) && !is_dead(to)).then(|| usual(from, to))
        });
        let found = outliers(&cells, 0.7);
        let ranks: Vec<_> = found
            .iter()
            .map(|outlier| match outlier {
                Outlier::Rank {
                    rank,
                    reason: Some(_),
                    of_expected: None,
                    ..
                } => *rank,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ranks, [0, 6]);
    }

    #[test]
    fn a_slow_direction_is_named_by_its_two_ranks() {
        let cells = cells(8, |from, to| {
            Some(usual(from, to) * if (from, to) == (2, 7) { 0.5 } else { 1.0 })
        });
        let found = outliers(&cells, 0.7);
        assert!(
            matches!(
                found[..],
                [Outlier::Direction {
                    from: 2,
                    to: 7,
                    reason: None,
                    ..
                }]
            ),
            "{found:?}"
        );
    }

    #[test]
    fn of_two_ranks_neither_is_blamed() {
        let cells = cells(2, |_, _| None);
        let found = outliers(&cells, 0.7);
        assert!(
            found.iter().all(|o| matches!(o, Outlier::Direction { .. })),
            "{found:?}"
        );
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn csv_has_a_line_for_each_direction() {
        let text = csv(&cells(3, |from, to| (from != 2).then(|| usual(from, to))));
        assert_eq!(text.lines().count(), 7);
        assert!(text.contains("0,1,same_host,40,320,\"\"\n"), "{text}");
        assert!(text.contains("2,0,same_host,,,\"0 is gone\"\n"), "{text}");
    }

    proptest! {
        #[test]
        fn every_affected_direction_is_covered_by_an_outlier(
            ranks in 2_usize..12,
            rates in prop::collection::vec(prop::option::of(0.1..50.0_f64), 144),
        ) {
            let cells = cells(ranks, |from, to| rates[from * 12 + to]);
            let found = outliers(&cells, 0.7);
            let expected = expected(&cells);
            for cell in &cells {
                let median = expected.iter().find(|e| e.link == cell.link);
                let affected = match (cell.gb_per_s(), median) {
                    (Some(rate), Some(expected)) => rate / expected.median_gb_per_s < 0.7,
                    _ => true,
                };
                let covered = found.iter().any(|outlier| match outlier {
                    Outlier::Rank { rank, .. } => [cell.from, cell.to].contains(rank),
                    Outlier::Direction { from, to, .. } => (*from, *to) == (cell.from, cell.to),
                });
                prop_assert!(!affected || covered, "{cell:?} {found:?}");
            }
        }
    }
}
