//! Checks of the kernel log.

use crate::check::{Check, Group};

mod crash;
pub mod expressions;
pub(crate) mod rule;
mod rules;
pub(crate) mod xid;

use rules::{gpu, nic, peer_memory, platform};

/// The fields that the checks of this group share.
const CHECK: Check = Check {
    group: Group::KernelLog,
    inputs: "The kernel log from /dev/kmsg, which many systems show to root only.",
    ..Check::DEFAULT
};

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &gpu::XID,
    &gpu::GPU_START,
    &gpu::SXID,
    &gpu::FABRIC,
    &crash::CHECK,
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
    &gpu::DRIVER_MISMATCH,
    &gpu::BAR_UNASSIGNED,
    &peer_memory::DRIVER_SYMBOL,
    &nic::NIC_COMMAND,
    &platform::PCIE_BANDWIDTH,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_every_check_begins_with_klog() {
        assert!(CHECKS.iter().all(|check| check.id.0.starts_with("klog.")));
    }
}
