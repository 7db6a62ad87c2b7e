//! Checks of what the kernel has logged.

use crate::check::Check;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[];
