//! The checks: a folder for each group, a file for each check.

use crate::check::Check;

mod cpu;
#[cfg(test)]
mod fixture;
mod host;
pub(crate) mod kernel_log;
mod modules;
mod network;
mod pcie;
pub(crate) mod simple_value;
mod topology;

pub(crate) use network::ports;
pub(crate) use network::roce_gid::best as best_gid;

/// The names that almost every check uses.
mod prelude {
    pub(super) use gdr_node::pci::{DeviceId, Function, VendorId};
    pub(super) use gdr_node::{Absence, Bdf, Datum, DatumExt, GpuDevice, RdmaDevice, virtual_path};

    pub(super) use crate::check::{Check, CheckId, Workload};
    pub(super) use crate::context::{Context, Nic, Pair};
    pub(super) use crate::facts::{Container, Library, Machine};
    pub(super) use crate::finding::{Finding, Subject, Verdict};
    pub(super) use crate::fix::{Action, Effect, Fix, Persistence, Privilege, Risk};
    pub(super) use crate::runner::{self, Judgement, Known, Scope, Unjudged};
    pub(super) use crate::version::{Flavour, NvidiaDriver, Version};

    pub(super) use super::network::ports::Which;
}

/// Returns every check, in the order of reports.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        modules::CHECKS,
        topology::CHECKS,
        pcie::CHECKS,
        host::CHECKS,
        network::CHECKS,
        kernel_log::CHECKS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Returns the check of this name.
pub fn find(id: &str) -> Option<&'static Check> {
    all().find(|check| check.id.0 == id)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use gdr_node::virtual_path;

    use super::fixture::{MemorySource, Verdict, example, verdict};
    use super::*;
    use crate::finding::Verdict::{Skip, Unknown};

    #[test]
    fn every_check_has_a_unique_name_and_documentation() {
        let mut names = HashSet::new();
        for check in all() {
            assert!(names.insert(check.id), "{} exists twice", check.id);
            let said = check.documentation();
            assert!(!check.title.is_empty(), "{}", check.id);
            for text in [said.why, said.inputs, said.criteria] {
                assert!(!text.is_empty(), "{}", check.id);
            }
            assert!(!said.sources.is_empty(), "{} has no source", check.id);
        }
    }

    #[test]
    fn every_cause_that_a_check_names_exists() {
        for check in all() {
            for cause in check.symptom_of {
                assert!(find(cause).is_some(), "{} names {cause}", check.id);
            }
        }
    }

    /// A path, and the checks that need it.
    type Needed = (&'static str, &'static [&'static str]);

    fn assert_verdicts(table: &[Needed], expected: Verdict, change: fn(&str) -> MemorySource) {
        for (path, ids) in table {
            let node = change(path);
            for id in *ids {
                assert_eq!(verdict(find(id).unwrap(), &node), expected, "{id}: {path}");
            }
        }
    }

    #[test]
    fn checks_are_unknown_without_the_file_that_they_need() {
        #[rustfmt::skip]
        let table: &[Needed] = &[
            (virtual_path::DEVICE_NODES, &["dev.nodes", "dev.nvidia", "gdrdrv"]),
            ("/proc/cpuinfo", &["gpu.cc", "nic.max_acc_out_read"]),
            (virtual_path::CUDA_DEVICES, &["gpu.compute_mode", "gpu.ecc"]),
            (virtual_path::LIBRARIES, &["nvidia.userspace_match", "uverbs.abi"]),
            ("/sys/class/infiniband/mlx5_1/ports/1/lid", &["ib.lid"]),
            ("/sys/class/infiniband/mlx5_1/ports/1/link_layer", &["ll.mismatch"]),
            ("/sys/class/infiniband/mlx5_1/ports/1/state", &["mgmt.nic"]),
            ("/sys/class/infiniband/mlx5_1/ports/1/counters/link_downed", &["port.flap"]),
            ("/sys/class/infiniband/mlx5_1/ports/1/rate", &["port.rate"]),
            ("/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", &["roce.tos"]),
            (virtual_path::KERNEL_LOG, &["pci.slotpower", "iommu.faults"]),
        ];
        assert_verdicts(table, Unknown, |path| {
            example::healthy().not_collected(path)
        });
        assert_verdicts(table, Unknown, |path| example::healthy().denied(path));
    }

    #[test]
    fn checks_are_skipped_on_a_node_without_their_subject() {
        #[rustfmt::skip]
        let table: &[Needed] = &[
            ("/proc/driver/nvidia/version", &["dev.nvidia", "gpu.mig", "nvidia.flavour"]),
            ("/sys/class/infiniband", &["dmabuf.nic", "uverbs.abi", "ats", "iommu.mode", "topo.bestnic", "topo.numa"]),
            ("/proc/driver/nvidia/params", &["nvidia.params"]),
        ];
        assert_verdicts(table, Skip, |path| example::healthy().without(path));
    }
}
