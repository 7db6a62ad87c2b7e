//! Checks of limits, device nodes, containers, CPUs.

use crate::check::Check;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[];
