//! Checks of devices, drivers and kernel modules.

use gdr_node::{Bdf, RdmaDevice};

use super::simple_value;
use crate::check::{Check, Group};
use crate::context::Context;
use crate::finding::{Subject, Verdict};

mod dmabuf_force_pcie;
mod dmabuf_gpu;
mod dmabuf_nic;
mod fabricmanager;
mod gdrdrv;
mod gpu_cc;
mod gpu_class;
mod gpu_compute_mode;
mod gpu_driver;
mod gpu_ecc;
mod gpu_mig;
mod gpu_present;
mod gpu_processes;
mod modules_lockdown;
mod nic_driver;
mod nic_present;
mod nvidia_flavour;
mod nvidia_params;
mod nvidia_persistence;
mod nvidia_userspace_match;
mod nvidia_version;
mod ofed_flavour;
mod peermem_age;
mod peermem_conflict;
mod peermem_loaded;
mod peermem_registered;
mod peermem_symbol;
mod uverbs_abi;

/// The fields that the checks of this group share.
const CHECK: Check = Check {
    group: Group::Modules,
    ..Check::DEFAULT
};

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &gpu_present::CHECK,
    &gpu_class::CHECK,
    &gpu_driver::CHECK,
    &nic_present::CHECK,
    &nic_driver::CHECK,
    &modules_lockdown::CHECK,
    &nvidia_version::CHECK,
    &nvidia_flavour::CHECK,
    &nvidia_userspace_match::CHECK,
    &nvidia_params::CHECK,
    &nvidia_persistence::CHECK,
    &fabricmanager::CHECK,
    &gpu_mig::CHECK,
    &gpu_compute_mode::CHECK,
    &gpu_processes::CHECK,
    &gpu_ecc::CHECK,
    &gpu_cc::CHECK,
    &ofed_flavour::CHECK,
    &uverbs_abi::CHECK,
    &dmabuf_gpu::CHECK,
    &dmabuf_nic::CHECK,
    &dmabuf_force_pcie::CHECK,
    &peermem_conflict::CHECK,
    &peermem_symbol::CHECK,
    &peermem_loaded::CHECK,
    &peermem_registered::CHECK,
    &peermem_age::CHECK,
    &gdrdrv::CHECK,
    &simple_value::NVIDIA_FS,
];

/// Returns the verdict, or info if another method makes up for the fault.
fn unless(made_up_for: bool, verdict: Verdict) -> Verdict {
    if made_up_for { Verdict::Info } else { verdict }
}

/// A PCI function that is an RDMA NIC, with or without a driver.
struct NicFunction<'a> {
    bdf: Bdf,
    rdma: Option<&'a RdmaDevice>,
}

impl NicFunction<'_> {
    fn subject(&self) -> Subject {
        let name = (self.rdma).map_or_else(|| self.bdf.to_string(), |rdma| rdma.name.clone());
        Subject::Nic {
            name,
            bdf: self.bdf,
        }
    }
}

/// Returns the PCI functions that are RDMA devices, and those that should be by their identity. A virtual function
/// counts only if it is an RDMA device: others are reserved for guests. If the report is about one pair, only its NIC
/// counts.
fn nic_functions<'a>(context: &Context<'a>) -> Vec<NicFunction<'a>> {
    let inventory = context.inventory;
    let mut functions: Vec<NicFunction<'a>> = inventory
        .rdma_functions()
        .map(|(rdma, bdf)| NicFunction {
            bdf,
            rdma: Some(rdma),
        })
        .collect();
    let asked = context.nics();
    if !asked.is_empty() && asked.len() < functions.len() {
        functions.retain(|nic| asked.iter().any(|it| it.bdf == nic.bdf));
        return functions;
    }
    for function in (inventory.tree.as_ref().ok().into_iter()).flat_map(|tree| tree.functions()) {
        let known = functions.iter().any(|nic| nic.bdf == function.bdf);
        if !known && gdr_node::is_rdma_nic(function) {
            functions.push(NicFunction {
                bdf: function.bdf,
                rdma: None,
            });
        }
    }
    functions
}
