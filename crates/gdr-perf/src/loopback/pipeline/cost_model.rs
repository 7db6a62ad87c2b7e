//! Cost of an operation as a fixed part plus a part per byte.

use serde::Serialize;

/// Model of durations by size: `fixed_ns + ns_per_byte * size`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostModel {
    /// Cost of an operation regardless of size.
    pub fixed_ns: f64,
    /// Cost per byte.
    pub ns_per_byte: f64,
    /// Largest difference between the model and a measured duration, relative to the measured one.
    pub worst_error: f64,
}

/// Which of two modes is faster according to their models, among the measured sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "faster", content = "bytes")]
pub enum Crossing {
    /// The direct mode is faster at every size.
    Direct,
    /// The staged mode is faster at every size.
    Staged,
    /// The direct mode is faster below this many bytes.
    DirectBelow(u64),
    /// The direct mode is faster from this many bytes on.
    DirectFrom(u64),
    /// Neither: at both the smallest and the largest size, the modes differ by no more than the models' errors.
    Unclear,
}

impl CostModel {
    /// Fits a model to durations in nanoseconds by size. Minimizes the squares of *relative* errors, because durations
    /// span several orders of magnitude. Neither part is negative.
    ///
    /// Returns `None` for fewer than two different sizes, or if a duration is not positive.
    pub fn fit(durations: &[(u64, f64)]) -> Option<Self> {
        let first = durations.first()?.0;
        let is_usable = |ns: f64| ns.is_finite() && ns > 0.0;
        if durations.iter().all(|(size, _)| *size == first)
            || !durations.iter().all(|(_, ns)| is_usable(*ns))
        {
            return None;
        }
        // Weighted sums. A weight of 1 / ns^2 makes the error relative.
        let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (size, ns) in durations {
            let (x, y, weight) = (*size as f64, *ns, 1.0 / (ns * ns));
            w += weight;
            wx += weight * x;
            wy += weight * y;
            wxx += weight * x * x;
            wxy += weight * x * y;
        }
        let slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
        let fixed = (wy - slope * wx) / w;
        let (fixed_ns, ns_per_byte) = if fixed < 0.0 {
            (0.0, wxy / wxx)
        } else if slope < 0.0 {
            (wy / w, 0.0)
        } else {
            (fixed, slope)
        };
        let mut model = Self {
            fixed_ns,
            ns_per_byte,
            worst_error: 0.0,
        };
        model.worst_error = durations
            .iter()
            .map(|(size, ns)| (model.duration_ns(*size) / ns - 1.0).abs())
            .fold(0.0, f64::max);
        Some(model)
    }

    /// Returns the duration of an operation of `size` bytes, in nanoseconds.
    pub fn duration_ns(&self, size: u64) -> f64 {
        self.fixed_ns + self.ns_per_byte * size as f64
    }

    /// Returns whether the durations of two models differ by more than the models' errors.
    fn differs(&self, other: &Self, size: u64) -> bool {
        let [own, others] = [self, other].map(|model| model.duration_ns(size));
        (own - others).abs() > own * self.worst_error + others * other.worst_error
    }
}

impl Crossing {
    /// Returns the size at which the faster mode changes; `None` if one mode is faster at every size.
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::Direct | Self::Staged | Self::Unclear => None,
            Self::DirectBelow(bytes) | Self::DirectFrom(bytes) => Some(bytes),
        }
    }

    /// Compares two models at sizes from `smallest` to `largest`.
    pub fn between(direct: &CostModel, staged: &CostModel, smallest: u64, largest: u64) -> Self {
        // Two lines are farthest apart at one of the ends.
        if !direct.differs(staged, smallest) && !direct.differs(staged, largest) {
            return Self::Unclear;
        }
        let is_faster = |size| direct.duration_ns(size) < staged.duration_ns(size);
        match (is_faster(smallest), is_faster(largest)) {
            (true, true) => return Self::Direct,
            (false, false) => return Self::Staged,
            _ => {}
        }
        // Two lines intersect once.
        let size = (staged.fixed_ns - direct.fixed_ns) / (direct.ns_per_byte - staged.ns_per_byte);
        let size = (size.round() as u64).clamp(smallest, largest);
        match is_faster(smallest) {
            true => Self::DirectBelow(size),
            false => Self::DirectFrom(size),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(fixed_ns: f64, ns_per_byte: f64) -> CostModel {
        CostModel {
            fixed_ns,
            ns_per_byte,
            worst_error: 0.0,
        }
    }

    #[test]
    fn a_model_needs_two_sizes_and_positive_durations() {
        assert_eq!(CostModel::fit(&[]), None);
        assert_eq!(CostModel::fit(&[(4, 1.0), (4, 2.0)]), None);
        assert_eq!(CostModel::fit(&[(4, 1.0), (8, 0.0)]), None);
        assert_eq!(CostModel::fit(&[(4, 1.0), (8, f64::NAN)]), None);
    }

    #[test]
    fn no_part_of_a_model_is_negative() {
        let faster_when_longer = CostModel::fit(&[(4, 20.0), (4096, 10.0)]).unwrap();
        assert_eq!(faster_when_longer.ns_per_byte, 0.0);
        assert!((10.0..20.0).contains(&faster_when_longer.fixed_ns));
        let superlinear = CostModel::fit(&[(4, 1.0), (8, 100.0)]).unwrap();
        assert_eq!(superlinear.fixed_ns, 0.0);
        assert!(superlinear.worst_error > 0.5);
    }

    #[test]
    fn the_crossing_is_where_the_lines_meet() {
        let between = |(fixed, per_byte), (other_fixed, other_per_byte), largest| {
            let (direct, staged) = (model(fixed, per_byte), model(other_fixed, other_per_byte));
            Crossing::between(&direct, &staged, 4, largest)
        };
        let (quick_start, quick_bytes) = ((10.0, 1.0), (110.0, 0.5));
        let meets = between(quick_start, quick_bytes, 1 << 20);
        assert_eq!(meets, Crossing::DirectBelow(200));
        let meets = between(quick_bytes, quick_start, 1 << 20);
        assert_eq!(meets, Crossing::DirectFrom(200));
        let cheaper = between((1.0, 0.1), (2.0, 0.1), 1 << 20);
        assert_eq!(cheaper, Crossing::Direct);
        let equal = between((2.0, 0.1), (2.0, 0.1), 1 << 20);
        assert_eq!(equal, Crossing::Unclear);
        let meets_beyond = between(quick_start, quick_bytes, 100);
        assert_eq!(meets_beyond, Crossing::Direct);
    }

    #[test]
    fn modes_that_differ_by_less_than_their_errors_have_no_clear_difference() {
        let of = |fixed, worst_error| CostModel {
            worst_error,
            ..model(fixed, 0.001)
        };
        let between = |error| Crossing::between(&of(95.0, error), &of(100.0, error), 4, 100);
        assert_eq!(between(0.02), Crossing::Direct);
        assert_eq!(between(0.03), Crossing::Unclear);
    }

    proptest! {
        #[test]
        fn durations_of_a_model_give_it_back(
            fixed in 0.0..1e7_f64,
            per_byte in 1e-3..10.0_f64,
            exponents in prop::collection::btree_set(2_u32..31, 2..12),
        ) {
            let truth = model(fixed, per_byte);
            let durations: Vec<_> = exponents
                .iter()
                .map(|exponent| (1_u64 << exponent, truth.duration_ns(1 << exponent)))
                .collect();
            let fitted = CostModel::fit(&durations).unwrap();
            prop_assert!(fitted.worst_error < 1e-6, "{fitted:?}");
            for (size, ns) in durations {
                prop_assert!((fitted.duration_ns(size) / ns - 1.0).abs() < 1e-6);
            }
        }

        #[test]
        fn a_model_of_any_durations_is_finite_and_not_negative(
            durations in prop::collection::vec((4_u64..1 << 31, 1.0..1e12_f64), 2..20),
        ) {
            if let Some(model) = CostModel::fit(&durations) {
                for part in [model.fixed_ns, model.ns_per_byte, model.worst_error] {
                    prop_assert!(part.is_finite() && part >= 0.0, "{model:?}");
                }
            }
        }
    }
}
