//! The costs of all paths of a machine.

use std::collections::BTreeMap;

use super::curve::CostCurve;
use super::path::{CopyDirection, CopyPath, HostMemory};

/// The copies that a cost curve describes: one kind of copy, on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    /// The direction of the copies.
    pub direction: CopyDirection,
    /// The host memory.
    pub host: HostMemory,
    /// The path.
    pub path: CopyPath,
}

/// The cost of copies on a machine, by series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    curves: BTreeMap<Series, CostCurve>,
    queued_copy_ns: Option<f64>,
}

impl Calibration {
    /// Creates a calibration without any path, with which a planner chooses CPU copies by the calling thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the costs of a series.
    pub fn set(&mut self, series: Series, curve: CostCurve) {
        self.curves.insert(series, curve);
    }

    /// Returns the costs of a series.
    pub fn curve(&self, series: &Series) -> Option<&CostCurve> {
        self.curves.get(series)
    }

    /// Returns all series with their costs.
    pub fn curves(&self) -> impl Iterator<Item = (&Series, &CostCurve)> {
        self.curves.iter()
    }

    /// Sets the cost, in nanoseconds, of a short copy by the copy engine if several are queued. Anything but a positive
    /// number is ignored.
    pub fn set_queued_copy(&mut self, ns: f64) {
        self.queued_copy_ns = (ns.is_finite() && ns > 0.0).then_some(ns);
    }

    /// Returns the cost, in nanoseconds, of a short copy by the copy engine if several are queued. This is less than
    /// for a single copy, because the waits overlap. `None` if it is unknown.
    pub fn queued_copy_ns(&self) -> Option<f64> {
        self.queued_copy_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_queued_copy_is_a_positive_number_or_unknown() {
        let mut calibration = Calibration::new();
        for (ns, kept) in [
            (5.0, Some(5.0)),
            (0.0, None),
            (f64::NAN, None),
            (-1.0, None),
        ] {
            calibration.set_queued_copy(ns);
            assert_eq!(calibration.queued_copy_ns(), kept);
        }
    }
}
