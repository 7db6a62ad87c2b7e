//! Checks of devices, drivers and kernel modules.

use crate::check::Check;

mod gpu_present;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[&gpu_present::CHECK];
