//! Checks of distances, ACS and the IOMMU.

use gdr_node::Bdf;

use crate::check::Check;
use crate::context::{Context, Pair};
use crate::facts::Machine;
use crate::finding::{Finding, Subject};

mod acs_directnic;
mod acs_path;
mod acs_virt;
mod ats;
mod direct;
mod iommu;
mod iommu_faults;
mod iommu_groups;
mod iommu_mode;
mod redirect;
mod slots;
mod topo_bestnic;
mod topo_numa;
mod topo_p2p_chipset;
mod topo_pair;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &topo_pair::CHECK,
    &topo_bestnic::CHECK,
    &topo_p2p_chipset::CHECK,
    &topo_numa::CHECK,
    &acs_path::CHECK,
    &acs_directnic::CHECK,
    &acs_virt::CHECK,
    &iommu_mode::CHECK,
    &iommu_groups::CHECK,
    &iommu_faults::CHECK,
    &ats::CHECK,
];

/// The pairs of GPU and NIC that a job would use, or why there are none.
fn pairs_in_use<'a, 'b>(context: &'b Context<'a>) -> Result<Vec<&'b Pair<'a>>, Box<Finding>> {
    let pairs = context.nearest_pairs();
    if !pairs.is_empty() {
        return Ok(pairs);
    }
    let inventory = context.inventory;
    Err(Box::new(if !inventory.tree.is_present() {
        Finding::unknown(Subject::Node, "the PCI tree", &inventory.tree)
    } else if context.gpus().next().is_none() {
        Finding::skip("there is no GPU")
    } else if inventory.rdma.is_unknown() {
        Finding::unknown(Subject::Node, "the list of RDMA devices", &inventory.rdma)
    } else {
        Finding::skip("there is no RDMA NIC that is a PCI function")
    }))
}

/// Whether this is seen from inside a guest. A machine that does not say is taken for itself.
fn is_guest(context: &Context<'_>) -> bool {
    context.facts().machine.present() == Some(&Machine::Virtual)
}

/// Whether a device is bound to a driver that hands it to guests.
fn is_handed(context: &Context<'_>, bdf: Bdf) -> bool {
    let driver = context
        .function(bdf)
        .and_then(|function| function.driver.present());
    driver.is_some_and(|driver| driver == "vfio-pci" || driver.ends_with("-vfio-pci"))
}
