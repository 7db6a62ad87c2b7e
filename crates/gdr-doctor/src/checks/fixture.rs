//! How tests put checks to nodes that do not exist.

use gdr_node::{Inventory, MemorySource};

use crate::check::Check;
use crate::context::Context;
use crate::finding::{Finding, Verdict};

/// What a check finds on a node.
pub(super) fn findings(check: &Check, node: &MemorySource) -> Vec<Finding> {
    let inventory = Inventory::read(node);
    (check.run)(&Context::new(node, &inventory))
}

/// The verdicts of what a check finds on a node.
pub(super) fn verdicts(check: &Check, node: &MemorySource) -> Vec<Verdict> {
    let findings = findings(check, node);
    findings.into_iter().map(|found| found.verdict).collect()
}

/// The one finding of the worst verdict, the first of equals.
pub(super) fn worst(check: &Check, node: &MemorySource) -> Finding {
    let mut worst: Option<Finding> = None;
    for found in findings(check, node) {
        if worst.as_ref().is_none_or(|it| it.verdict < found.verdict) {
            worst = Some(found);
        }
    }
    worst.unwrap()
}

/// The worst verdict of what a check finds on a node.
pub(super) fn verdict(check: &Check, node: &MemorySource) -> Verdict {
    worst(check, node).verdict
}
