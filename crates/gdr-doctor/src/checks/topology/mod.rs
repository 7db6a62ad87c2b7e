//! Checks of distances, ACS and the IOMMU.

use gdr_node::Bdf;

use crate::check::{Check, Group, Workload};
use crate::context::Context;

mod acs_directnic;
mod acs_path;
mod acs_virt;
mod ats;
mod direct;
mod iommu;
mod iommu_faults;
mod iommu_groups;
mod iommu_mode;
mod nvlink_equal;
mod redirect;
mod slots;
mod topo_bestnic;
mod topo_numa;
mod topo_p2p_chipset;
mod topo_pair;

/// The fields that the checks of this group share.
const CHECK: Check = Check {
    group: Group::Topology,
    workloads: Workload::RDMA,
    ..Check::DEFAULT
};

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &topo_pair::CHECK,
    &topo_bestnic::CHECK,
    &topo_p2p_chipset::CHECK,
    &topo_numa::CHECK,
    &nvlink_equal::CHECK,
    &acs_path::CHECK,
    &acs_directnic::CHECK,
    &acs_virt::CHECK,
    &iommu_mode::CHECK,
    &iommu_groups::CHECK,
    &iommu_faults::CHECK,
    &ats::CHECK,
];

/// Returns whether a device is bound to a driver that assigns it to guests.
fn is_handed(context: &Context<'_>, bdf: Bdf) -> bool {
    let function = context.function(bdf);
    let driver = function.and_then(|function| function.driver.as_ref().ok());
    driver.is_some_and(|driver| driver == "vfio-pci" || driver.ends_with("-vfio-pci"))
}
