//! The sizes to measure.

/// Returns the powers of two from `first`, rounded up to one, up to and including `last`.
pub fn powers_of_two(first: u64, last: u64) -> Vec<u64> {
    let start = first.max(1).checked_next_power_of_two();
    std::iter::successors(start, |size| size.checked_mul(2))
        .take_while(|&size| size <= last)
        .collect()
}

/// Returns the powers of two from 1 up to, but not including, the largest that is at most `bound`: the range of
/// `gdrcopy_copybw -l`.
pub fn below_power_of_two(bound: u64) -> Vec<u64> {
    match bound.checked_ilog2() {
        Some(log) => (0..log).map(|shift| 1 << shift).collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sweep_has_both_its_ends() {
        assert_eq!(powers_of_two(1, 16), [1, 2, 4, 8, 16]);
        assert_eq!(powers_of_two(3, 20), [4, 8, 16]);
        assert_eq!(powers_of_two(0, 1), [1]);
        assert!(powers_of_two(8, 4).is_empty());
        assert_eq!(powers_of_two(1 << 63, u64::MAX), [1 << 63]);
        assert!(powers_of_two(u64::MAX, u64::MAX).is_empty());
    }

    #[test]
    fn the_range_of_copybw_stops_before_its_bound() {
        assert_eq!(below_power_of_two(16), [1, 2, 4, 8]);
        assert_eq!(below_power_of_two(17), [1, 2, 4, 8]);
        assert!(below_power_of_two(1).is_empty());
        assert!(below_power_of_two(0).is_empty());
    }

    proptest! {
        #[test]
        fn every_size_of_a_sweep_is_a_power_of_two_in_range(first: u64, last: u64) {
            let sizes = powers_of_two(first, last);
            prop_assert!(sizes.windows(2).all(|pair| pair[1] == 2 * pair[0]));
            let fits = |&size: &u64| size.is_power_of_two() && size >= first && size <= last;
            prop_assert!(sizes.iter().all(fits));
        }
    }
}
