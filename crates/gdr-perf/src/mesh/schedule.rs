//! The order in which pairs of ranks are measured.

/// Two ranks; the first is the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// The lower rank.
    pub first: usize,
    /// The higher rank.
    pub second: usize,
}

impl Pair {
    fn of(one: usize, other: usize) -> Self {
        Self {
            first: one.min(other),
            second: one.max(other),
        }
    }

    /// Returns the other rank, if `rank` is one of the two.
    pub fn partner(self, rank: usize) -> Option<usize> {
        match rank {
            _ if rank == self.first => Some(self.second),
            _ if rank == self.second => Some(self.first),
            _ => None,
        }
    }
}

/// Returns rounds in which every two of `ranks` ranks meet exactly once. Each rank is in at most one pair of a round,
/// so that pairs of a round do not share a GPU or a NIC.
///
/// Circle method: one rank stays fixed, the others move on by one place each round.
pub fn rounds(ranks: usize) -> Vec<Vec<Pair>> {
    if ranks < 2 {
        return Vec::new();
    }
    // With an odd number, the rank that would meet the additional one pauses.
    let places = ranks.next_multiple_of(2);
    let moving = places - 1;
    (0..moving)
        .map(|round| {
            let at = |place: usize| (round + place) % moving;
            let fixed = (moving, at(0));
            let others = (1..places / 2).map(|place| (at(place), at(moving - place)));
            let pairs = std::iter::once(fixed).chain(others);
            pairs
                .filter(|(one, other)| *one < ranks && *other < ranks)
                .map(|(one, other)| Pair::of(one, other))
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_rank_has_no_partner() {
        assert!(rounds(0).is_empty());
        assert!(rounds(1).is_empty());
        assert_eq!(rounds(2), [[Pair::of(1, 0)]]);
    }

    #[test]
    fn a_pair_knows_the_partner_of_its_ranks_only() {
        let pair = Pair::of(7, 3);
        assert_eq!((pair.first, pair.second), (3, 7));
        assert_eq!(pair.partner(3), Some(7));
        assert_eq!(pair.partner(7), Some(3));
        assert_eq!(pair.partner(5), None);
    }

    proptest! {
        #[test]
        fn every_two_ranks_meet_once_and_no_rank_twice_in_a_round(ranks in 2_usize..130) {
            let rounds = rounds(ranks);
            prop_assert_eq!(rounds.len(), ranks.next_multiple_of(2) - 1);
            let mut met = HashSet::new();
            for round in &rounds {
                let mut busy = HashSet::new();
                for pair in round {
                    prop_assert!(pair.first < pair.second && pair.second < ranks);
                    prop_assert!(busy.insert(pair.first) && busy.insert(pair.second));
                    prop_assert!(met.insert(*pair));
                }
                // At most one rank pauses.
                prop_assert_eq!(busy.len(), ranks - ranks % 2);
            }
            prop_assert_eq!(met.len(), ranks * (ranks - 1) / 2);
        }
    }
}
