//! Checks of distances, ACS and the IOMMU.

use crate::check::Check;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[];
