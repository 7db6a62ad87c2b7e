//! Checks of ports, GIDs, MTU, flow control.

use crate::check::Check;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[];
