//! The cost of a copy as a function of its size.

/// The cost of a copy of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostPoint {
    /// The length in bytes.
    pub len: u64,
    /// The cost in nanoseconds, more than 0.
    pub ns: f64,
}

/// The cost of copies on one path: measured points, connected by straight lines.
///
/// A longer copy never costs less: a point that is lower than its predecessor, because of measurement noise, is raised.
/// Below the first point the cost is constant; above the last point it is proportional to the length.
#[derive(Clone, Debug, PartialEq)]
pub struct CostCurve {
    points: Vec<CostPoint>,
}

/// The points do not form a curve.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCurve {
    /// There are no points.
    #[error("a cost curve needs at least one point")]
    Empty,
    /// A point has length 0.
    #[error("a copy of 0 bytes cannot be a point on a cost curve")]
    EmptyCopy,
    /// Two points have the same length.
    #[error("the cost curve has two points at {0} bytes")]
    Twice(u64),
    /// A cost is not a positive number.
    #[error("a copy of {len} bytes cannot cost {ns} ns: the cost must be positive")]
    Cost {
        /// The length in bytes.
        len: u64,
        /// The cost.
        ns: f64,
    },
}

impl CostCurve {
    /// Creates the curve through `points`, which may be in any order.
    ///
    /// # Errors
    /// [`InvalidCurve`].
    pub fn new(points: impl IntoIterator<Item = CostPoint>) -> Result<Self, InvalidCurve> {
        let mut points: Vec<_> = points.into_iter().collect();
        points.sort_by_key(|point| point.len);
        let mut highest = 0.0_f64;
        let mut before = None;
        for CostPoint { len, ns } in &mut points {
            if *len == 0 {
                return Err(InvalidCurve::EmptyCopy);
            }
            if before == Some(*len) {
                return Err(InvalidCurve::Twice(*len));
            }
            if !(ns.is_finite() && *ns > 0.0) {
                return Err(InvalidCurve::Cost { len: *len, ns: *ns });
            }
            before = Some(*len);
            // Searches rely on costs that never fall, so a cost that is lower because of noise is raised.
            highest = highest.max(*ns);
            *ns = highest;
        }
        match points.is_empty() {
            true => Err(InvalidCurve::Empty),
            false => Ok(Self { points }),
        }
    }

    /// Returns the points, the shortest copy first.
    pub fn points(&self) -> &[CostPoint] {
        &self.points
    }

    /// Returns the cost of a copy of `len` bytes in nanoseconds; 0 for an empty copy.
    pub fn ns(&self, len: u64) -> f64 {
        if len == 0 {
            return 0.0;
        }
        let next = self.points.partition_point(|point| point.len < len);
        match (
            next.checked_sub(1).map(|at| self.points[at]),
            self.points.get(next),
        ) {
            (Some(low), Some(high)) => {
                let part = (len - low.len) as f64 / (high.len - low.len) as f64;
                low.ns + part * (high.ns - low.ns)
            }
            (None, Some(first)) => first.ns,
            // Beyond the measurements, the cost is proportional to the length, and a fixed cost does not matter.
            (Some(last), None) => last.ns * (len as f64 / last.len as f64),
            (None, None) => unreachable!("`new` refuses a curve without points"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curve(points: &[(u64, f64)]) -> Result<CostCurve, InvalidCurve> {
        CostCurve::new(points.iter().map(|&(len, ns)| CostPoint { len, ns }))
    }

    #[test]
    fn a_cost_is_interpolated_between_points_and_in_proportion_above_them() {
        let curve = curve(&[(1000, 300.0), (100, 100.0)]).unwrap();
        for (len, ns) in [
            (0, 0.0),
            (1, 100.0),
            (100, 100.0),
            (550, 200.0),
            (1000, 300.0),
            (2000, 600.0),
        ] {
            assert!((curve.ns(len) - ns).abs() < 1e-9, "{len}");
        }
    }

    #[test]
    fn points_that_are_no_curve_are_refused() {
        assert_eq!(curve(&[]), Err(InvalidCurve::Empty));
        assert_eq!(curve(&[(0, 1.0)]), Err(InvalidCurve::EmptyCopy));
        assert_eq!(curve(&[(8, 1.0), (8, 2.0)]), Err(InvalidCurve::Twice(8)));
        for ns in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = curve(&[(8, ns)]);
            assert!(matches!(refused, Err(InvalidCurve::Cost { len: 8, .. })));
        }
    }

    proptest! {
        #[test]
        fn a_longer_copy_never_costs_less(
            points in prop::collection::btree_map(1_u64..1 << 40, 1.0_f64..1e12, 1..20),
            mut lens in prop::array::uniform2(0_u64..1 << 42),
        ) {
            let points: Vec<_> = points.into_iter().collect();
            let curve = curve(&points).unwrap();
            lens.sort_unstable();
            // Interpolation rounds.
            prop_assert!(curve.ns(lens[0]) <= curve.ns(lens[1]) * (1.0 + 1e-9));
        }
    }
}
