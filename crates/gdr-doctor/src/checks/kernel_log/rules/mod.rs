//! The table of rules about messages of the kernel.

use super::rule::{Rule, judge};
use crate::check::{Check, Documentation, Group};
use crate::context::Context;
use crate::finding::Finding;

mod gpu;
mod nic;
mod peer_memory;
mod platform;
#[cfg(test)]
mod tests;

/// What all of them read.
const READS: &str = "The kernel's log from /dev/kmsg, which many systems show to root only.";

/// The check that the rule at a place in the table is.
pub(super) const fn check<const N: usize>() -> Check {
    let rule = RULES[N];
    Check {
        id: rule.id,
        group: Group::KernelLog,
        title: rule.title,
        documentation: Documentation {
            means: rule.means,
            reads: READS,
            judges: rule.judges,
            sources: rule.sources,
        },
        purposes: rule.purposes,
        symptom_of: rule.symptom_of,
        run: run::<N>,
    }
}

fn run<const N: usize>(context: &Context<'_>) -> Vec<Finding> {
    judge(context, RULES[N])
}

/// Every rule.
pub(super) const RULES: &[&Rule] = &[
    &gpu::XID,
    &gpu::SXID,
    &peer_memory::PEERMEM_SYMBOL,
    &peer_memory::PEERMEM_CONTEXT,
    &peer_memory::DMABUF_TOPOLOGY,
    &peer_memory::DMABUF_FORCE_PCIE,
    &peer_memory::DMABUF_STRUCT_PAGE,
    &peer_memory::UMEM,
    &nic::ACCESS_REG,
    &nic::NIC_HEALTH,
    &platform::AER,
    &platform::IOMMU_FAULT,
    &platform::LOCKDOWN,
    &gpu::NCCL_SEGFAULT,
];
