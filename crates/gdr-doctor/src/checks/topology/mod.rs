//! Checks of distances, ACS and the IOMMU.

use gdr_node::Bdf;

use crate::check::Check;
use crate::context::{Context, Pair};
use crate::facts::Machine;
use crate::finding::{Finding, Subject};

mod acs_path;
mod direct;
mod iommu;
mod iommu_mode;
mod slots;
mod topo_bestnic;
mod topo_pair;

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &topo_pair::CHECK,
    &topo_bestnic::CHECK,
    &acs_path::CHECK,
    &iommu_mode::CHECK,
];

/// The pairs of GPU and NIC that a job would use, or why there are none.
fn pairs_in_use<'a, 'b>(context: &'b Context<'a>) -> Result<Vec<&'b Pair<'a>>, Finding> {
    let pairs = context.nearest_pairs();
    if !pairs.is_empty() {
        return Ok(pairs);
    }
    let inventory = context.inventory;
    Err(if !inventory.tree.is_present() {
        Finding::unknown(Subject::Node, "the PCI tree", &inventory.tree)
    } else if context.gpus().next().is_none() {
        Finding::skip("there is no GPU")
    } else if inventory.rdma.is_unknown() {
        Finding::unknown(Subject::Node, "the list of RDMA devices", &inventory.rdma)
    } else {
        Finding::skip("there is no RDMA NIC that is a PCI function")
    })
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
