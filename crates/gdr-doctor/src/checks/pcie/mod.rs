//! Checks of links, BARs and registers of PCI functions.

use crate::check::Check;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[];
