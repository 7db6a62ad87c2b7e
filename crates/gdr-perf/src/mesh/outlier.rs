//! Ranks and directions that are slower than others of their kind, and possible causes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::matrix::{Cell, Expected, part_of_expected};
use crate::stats::median;

/// Among ranks that share CPUs, a rank is slow if its best direction stays below this part of the median of the
/// directions between other ranks. On two busy CPUs, the best of four equal ranks reached 0.66 and more; a rank that
/// was stopped for three quarters of the time reached 0.38 and less.
const SLOW_THROUGHOUT: f64 = 0.5;
/// Minimum number of ranks for blaming one of them. Of two ranks, neither is known to be the cause.
const LEAST_RANKS: usize = 3;

/// A rank or a direction that is slower than others of its kind, or has failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outlier {
    /// What is slow, or has failed.
    #[serde(flatten)]
    pub subject: OutlierSubject,
    /// Median, over its slow directions that no earlier outlier contains, of rate divided by expected rate.
    pub of_expected: Option<f64>,
    /// The first reason, if any of these failed.
    pub reason: Option<String>,
    /// What the doctor found on its hosts. Ranks that were not asked, or did not answer, have no entry.
    pub doctor: Vec<DoctorAnswer>,
}

/// What is slow, or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outlier")]
pub enum OutlierSubject {
    /// Most directions of a rank.
    Rank {
        /// The rank.
        rank: usize,
        /// Which of its directions.
        side: RankSide,
        /// How many of those directions are slow or failed.
        affected: usize,
        /// How many of those directions there are.
        of: usize,
    },
    /// One direction between two ranks that are not outliers themselves.
    Direction {
        /// The rank that wrote.
        from: usize,
        /// The rank whose memory was written.
        to: usize,
    },
}

/// Which directions of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankSide {
    /// Directions in which the rank writes.
    Outgoing,
    /// Directions in which the rank's memory is written.
    Incoming,
    /// Both.
    Both,
}

/// The findings of the doctor on the host of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorAnswer {
    /// The rank.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// Worst first; empty if nothing is wrong.
    pub findings: Vec<DoctorFinding>,
}

/// A finding of the doctor that may explain why a rank is slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorFinding {
    /// The check, such as `link.width`.
    pub check: String,
    /// One sentence: the fact and its consequence.
    pub summary: String,
    /// How to fix it, if known.
    pub fix: Option<String>,
}

impl RankSide {
    /// Returns whether it includes a direction of `rank`.
    const fn includes(self, rank: usize, from: usize, to: usize) -> bool {
        match self {
            Self::Outgoing => from == rank,
            Self::Incoming => to == rank,
            Self::Both => from == rank || to == rank,
        }
    }
}

impl OutlierSubject {
    /// Returns whether a direction is a part of it.
    pub const fn includes(self, from: usize, to: usize) -> bool {
        match self {
            Self::Rank { rank, side, .. } => side.includes(rank, from, to),
            Self::Direction {
                from: its_from,
                to: its_to,
            } => its_from == from && its_to == to,
        }
    }

    /// Returns the ranks where the cause may be.
    pub fn ranks(self) -> Vec<usize> {
        match self {
            Self::Rank { rank, .. } => vec![rank],
            Self::Direction { from, to } => vec![from, to],
        }
    }
}

impl fmt::Display for OutlierSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank { rank, side, .. } => match side {
                RankSide::Outgoing => write!(f, "rank {rank} outgoing"),
                RankSide::Incoming => write!(f, "rank {rank} incoming"),
                RankSide::Both => write!(f, "rank {rank}"),
            },
            Self::Direction { from, to } => write!(f, "rank {from} to rank {to}"),
        }
    }
}

/// Returns the directions that stay below the part `least` of what is expected of their kind, or failed.
///
/// If most directions from a rank, most to it, or both are affected, they form one outlier, namely the rank with that
/// side. Its partners are not blamed.
pub fn outliers(cells: &[Cell], expected: &[Expected], least: f64) -> Vec<Outlier> {
    let part = |cell: &Cell| part_of_expected(cell, expected);
    let affected: Vec<&Cell> = cells
        .iter()
        .filter(|cell| part(cell).is_none_or(|part| part < least))
        .collect();
    let ranks = cells.iter().map(|cell| cell.from.max(cell.to) + 1).max();
    let ranks = ranks.unwrap_or(0);
    let all = Counts::of(cells, ranks);
    let bad = Counts::of(affected.iter().copied(), ranks);
    let mut left = affected;
    let mut found = Vec::new();
    while let Some((rank, side)) = worst_rank(&all, &left, ranks) {
        let is_own = |cell: &mut &Cell| side.includes(rank, cell.from, cell.to);
        let own: Vec<&Cell> = left.extract_if(.., is_own).collect();
        let subject = OutlierSubject::Rank {
            rank,
            side,
            affected: bad.on(rank, side),
            of: all.on(rank, side),
        };
        found.push(outlier(subject, &own, part));
    }
    found.extend(left.into_iter().map(|cell| {
        let (from, to) = (cell.from, cell.to);
        outlier(OutlierSubject::Direction { from, to }, &[cell], part)
    }));
    found
}

/// Returns the ranks whose directions are all far slower than the directions between the others. Where ranks share
/// CPUs, a single direction may be slow by chance, and the others use the CPU time that a slow rank leaves.
pub(super) fn slow_throughout(cells: &[Cell], expected: &[Expected]) -> Vec<Outlier> {
    let ranks = cells.iter().map(|cell| cell.from.max(cell.to) + 1).max();
    let slow = (0..ranks.unwrap_or(0)).filter_map(|rank| {
        let is_own = |cell: &&Cell| RankSide::Both.includes(rank, cell.from, cell.to);
        let (own, others): (Vec<&Cell>, Vec<&Cell>) = cells.iter().partition(is_own);
        let mut others: Vec<f64> = others.into_iter().filter_map(Cell::gb_per_s).collect();
        let most = median(&mut others)? * SLOW_THROUGHOUT;
        let is_slow = |cell: &&Cell| cell.gb_per_s().is_some_and(|rate| rate < most);
        let subject = OutlierSubject::Rank {
            rank,
            side: RankSide::Both,
            affected: own.len(),
            of: own.len(),
        };
        let part = |cell: &Cell| part_of_expected(cell, expected);
        (!own.is_empty() && own.iter().all(is_slow)).then(|| outlier(subject, &own, part))
    });
    slow.collect()
}

/// Returns an outlier with these directions, without those that another outlier has already.
fn outlier(
    subject: OutlierSubject,
    directions: &[&Cell],
    part: impl Fn(&Cell) -> Option<f64>,
) -> Outlier {
    let mut parts: Vec<f64> = directions.iter().filter_map(|cell| part(cell)).collect();
    let reason = directions.iter().find_map(|cell| cell.failure());
    Outlier {
        subject,
        of_expected: median(&mut parts),
        reason: reason.map(str::to_owned),
        doctor: Vec::new(),
    }
}

/// Number of directions of each rank.
struct Counts {
    outgoing: Vec<usize>,
    incoming: Vec<usize>,
}

impl Counts {
    fn of<'a>(cells: impl IntoIterator<Item = &'a Cell>, ranks: usize) -> Self {
        let mut counts = Self {
            outgoing: vec![0; ranks],
            incoming: vec![0; ranks],
        };
        for cell in cells {
            counts.outgoing[cell.from] += 1;
            counts.incoming[cell.to] += 1;
        }
        counts
    }

    fn on(&self, rank: usize, side: RankSide) -> usize {
        match side {
            RankSide::Outgoing => self.outgoing[rank],
            RankSide::Incoming => self.incoming[rank],
            RankSide::Both => self.outgoing[rank] + self.incoming[rank],
        }
    }
}

/// Returns the rank and side with the most affected directions among `left`, if these are more than half of its own.
fn worst_rank(all: &Counts, left: &[&Cell], ranks: usize) -> Option<(usize, RankSide)> {
    if ranks < LEAST_RANKS {
        return None;
    }
    let left = Counts::of(left.iter().copied(), ranks);
    let side_of = |rank| {
        let is_bad = |side| 2 * left.on(rank, side) > all.on(rank, side);
        let side = match (is_bad(RankSide::Outgoing), is_bad(RankSide::Incoming)) {
            (true, true) => RankSide::Both,
            (true, false) => RankSide::Outgoing,
            (false, true) => RankSide::Incoming,
            (false, false) => return None,
        };
        Some((rank, side))
    };
    // Of equal ranks, the lowest.
    let suspects = (0..ranks).rev().filter_map(side_of);
    suspects.max_by_key(|(rank, side)| left.on(*rank, *side))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::matrix::expected;
    use super::super::matrix::tests::{cells, usual};
    use super::*;

    fn found(cells: &[Cell]) -> Vec<Outlier> {
        outliers(cells, &expected(cells), 0.7)
    }

    /// Returns the cells of eight ranks. The directions that `is_slow` selects have 30 % of the usual rate.
    fn with_slow(is_slow: impl Fn(usize, usize) -> bool) -> Vec<Outlier> {
        found(&cells(8, |from, to| {
            Some(usual(from, to) * if is_slow(from, to) { 0.3 } else { 1.0 })
        }))
    }

    #[test]
    fn of_ranks_that_share_cpus_only_one_that_is_slow_throughout_is_an_outlier() {
        let judged = |rate: &dyn Fn(usize, usize) -> f64| {
            let cells = cells(4, |from, to| Some(rate(from, to)));
            let slow = slow_throughout(&cells, &expected(&cells)).into_iter();
            slow.map(|outlier| outlier.subject).collect::<Vec<_>>()
        };
        assert_eq!(judged(&|from, to| (from * 4 + to) as f64 / 8.0 + 1.0), []);
        let slow = |from, to| if from == 2 || to == 2 { 0.49 } else { 1.0 };
        let rank = OutlierSubject::Rank {
            rank: 2,
            side: RankSide::Both,
            affected: 6,
            of: 6,
        };
        assert_eq!(judged(&slow), [rank]);
        let but_one = |from, to| {
            if (from, to) == (0, 2) {
                0.51
            } else {
                slow(from, to)
            }
        };
        assert_eq!(judged(&but_one), []);
        // Of two ranks, neither is known to be the cause.
        let two = cells(2, |_, _| Some(1.0));
        assert_eq!(slow_throughout(&two, &expected(&two)), []);
    }

    #[test]
    fn ranks_that_are_alike_are_no_outliers() {
        assert_eq!(with_slow(|_, _| false), []);
    }

    #[test]
    fn a_slow_rank_is_one_outlier_and_its_partners_are_none() {
        for (side, affected) in [
            (RankSide::Outgoing, 7),
            (RankSide::Incoming, 7),
            (RankSide::Both, 14),
        ] {
            let found = with_slow(|from, to| side.includes(5, from, to));
            let [outlier] = &found[..] else {
                panic!("{side:?}: {found:?}");
            };
            let subject = OutlierSubject::Rank {
                rank: 5,
                side,
                affected,
                of: affected,
            };
            assert_eq!(outlier.subject, subject);
            assert_eq!(outlier.reason, None);
            let part = outlier.of_expected.unwrap();
            assert!((0.25..0.35).contains(&part), "{part}");
        }
    }

    #[test]
    fn a_rank_that_sends_slowly_and_a_slow_direction_to_it_are_two_outliers() {
        let found = with_slow(|from, to| from == 5 || (from, to) == (1, 5));
        let subjects: Vec<_> = found.iter().map(|it| it.subject.to_string()).collect();
        assert_eq!(subjects, ["rank 5 outgoing", "rank 1 to rank 5"]);
    }

    #[test]
    fn the_part_of_a_side_is_that_of_its_slow_directions() {
        let found = with_slow(|from, to| from == 5 && to != 0);
        assert_eq!(found.len(), 1, "{found:?}");
        let of_expected = found[0].of_expected.unwrap();
        assert!((of_expected - 0.3).abs() < 1e-9, "{of_expected}");
        assert!(
            matches!(
                found[0].subject,
                OutlierSubject::Rank {
                    affected: 6,
                    of: 7,
                    ..
                }
            ),
            "{found:?}"
        );
    }

    #[test]
    fn two_dead_ranks_are_two_outliers_with_the_reason() {
        let is_dead = |rank| rank == 0 || rank == 6;
        let found = found(&cells(8, |from, to| {
            (!is_dead(from) && !is_dead(to)).then(|| usual(from, to))
        }));
        let ranks: Vec<_> = found
            .iter()
            .map(|outlier| match outlier {
                Outlier {
                    subject:
                        OutlierSubject::Rank {
                            rank,
                            side: RankSide::Both,
                            ..
                        },
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
        let found = with_slow(|from, to| (from, to) == (2, 7));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0].subject,
            OutlierSubject::Direction { from: 2, to: 7 }
        );
        assert_eq!(found[0].subject.ranks(), [2, 7]);
        assert_eq!(found[0].reason, None);
    }

    #[test]
    fn of_two_ranks_neither_is_blamed() {
        let found = found(&cells(2, |_, _| None));
        assert_eq!(found.len(), 2);
        for outlier in found {
            assert!(
                matches!(outlier.subject, OutlierSubject::Direction { .. }),
                "{outlier:?}"
            );
        }
    }

    #[test]
    fn a_document_has_the_kind_of_an_outlier_and_its_side() {
        let found = with_slow(|from, to| from == 5 || (from, to) == (2, 7));
        let document = serde_json::to_value(&found).unwrap();
        assert_eq!(document[0]["outlier"], "rank");
        assert_eq!(document[0]["side"], "outgoing");
        assert_eq!(document[1]["outlier"], "direction");
        assert_eq!(
            (&document[1]["from"], &document[1]["to"]),
            (&2.into(), &7.into())
        );
    }

    proptest! {
        #[test]
        fn an_affected_direction_is_in_one_outlier_and_a_direction_alone_in_no_other(
            ranks in 2_usize..12,
            rates in prop::collection::vec(prop::option::of(0.1..50.0_f64), 144),
        ) {
            let cells = cells(ranks, |from, to| rates[from * 12 + to]);
            let expected = expected(&cells);
            let found = outliers(&cells, &expected, 0.7);
            for cell in &cells {
                let part = part_of_expected(cell, &expected);
                let affected = part.is_none_or(|part| part < 0.7);
                let mut covering = found
                    .iter()
                    .filter(|outlier| outlier.subject.includes(cell.from, cell.to));
                prop_assert!(!affected || covering.next().is_some(), "{cell:?} {found:?}");
                if covering.next().is_some() {
                    let is_rank = |it: &Outlier| matches!(it.subject, OutlierSubject::Rank { .. });
                    let mut covering = found
                        .iter()
                        .filter(|outlier| outlier.subject.includes(cell.from, cell.to));
                    prop_assert!(covering.all(is_rank), "{cell:?} {found:?}");
                }
            }
        }
    }
}
