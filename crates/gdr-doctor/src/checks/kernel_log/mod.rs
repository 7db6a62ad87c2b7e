//! Checks of what the kernel has logged.

use crate::check::Check;

mod crash;
mod message;
mod rule;
mod rules;
mod xid;

use rules::check;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &check::<0>(),
    &check::<1>(),
    &crash::CHECK,
    &check::<2>(),
    &check::<3>(),
    &check::<4>(),
    &check::<5>(),
    &check::<6>(),
    &check::<7>(),
    &check::<8>(),
    &check::<9>(),
    &check::<10>(),
    &check::<11>(),
    &check::<12>(),
    &check::<13>(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_the_table_is_a_check() {
        assert_eq!(CHECKS.len(), rules::RULES.len() + 1);
        assert!(CHECKS.iter().all(|check| check.id.0.starts_with("klog.")));
    }
}
