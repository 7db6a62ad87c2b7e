//! What the doctor finds on this host that may slow down a rank of `gdr mesh`.

use gdr_doctor::{Context, Diagnosis, Group, Selection, Subject, diagnose};
use gdr_node::{Bdf, Inventory};
use gdr_perf::mesh::DoctorFinding;
use gdr_rdma::{Device, Provider};

use crate::gpu_context::GpuContext;
use crate::host_source;

/// Returns the doctor's findings about the GPU and the RDMA device of this rank, as far as it has them.
pub(super) fn of_this_rank(gpu: Option<&GpuContext>, device: &Device) -> Vec<DoctorFinding> {
    let node = host_source::this_node();
    let inventory = Inventory::read(&node);
    let real = gpu.filter(|gpu| gpu.simulated.is_none());
    let gpu = real.map(|gpu| gpu.target.gpu().info().bdf);
    let kernel = device.provider() != Provider::Soft;
    // A kernel device's name may be followed by its port.
    let name = device.name().split(':').next().unwrap_or_default();
    let mut functions = inventory.rdma_functions().filter(|_| kernel);
    let nic = functions.find(|(rdma, _)| rdma.name == name);
    let nic = nic.map(|(_, function)| function);
    let mut context = Context::new(&node, &inventory);
    if let (Some(gpu), Some(nic)) = (gpu, nic) {
        context = context.between(gpu, nic);
    }
    likely(&diagnose(&context, &selection(gpu, nic)))
}

/// Checks about hardware that a rank does not use explain nothing about it.
fn selection(gpu: Option<Bdf>, nic: Option<Bdf>) -> Selection {
    let groups: &[Group] = match (gpu, nic) {
        (Some(_), Some(_)) => &Group::ALL,
        (Some(_), None) => &[Group::Pcie, Group::Host],
        (None, Some(_)) => &[Group::Pcie, Group::Host, Group::Network],
        (None, None) => &[Group::Host],
    };
    Selection::all().groups(groups.iter().copied())
}

/// Returns the root causes, the worst first.
fn likely(diagnosis: &Diagnosis) -> Vec<DoctorFinding> {
    let causes = diagnosis.root_causes().into_iter();
    causes
        .map(|(_, reported)| DoctorFinding {
            check: reported.check.id.0.to_owned(),
            summary: match &reported.finding.subject {
                Subject::Node => reported.finding.summary.clone(),
                subject => format!("{subject}: {}", reported.finding.summary),
            },
            fix: reported.finding.fixes.first().map(|fix| fix.title.clone()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use gdr_node::example;

    use super::*;

    #[test]
    fn the_root_causes_of_a_node_are_likely_the_worst_first() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory);
        let diagnosis = diagnose(&context, &Selection::all());
        let found = likely(&diagnosis);
        let causes = diagnosis.root_causes();
        assert!(!causes.is_empty());
        assert_eq!(found.len(), causes.len());
        for (found, (_, cause)) in found.iter().zip(causes) {
            assert_eq!(found.check, cause.check.id.0);
            assert!(found.summary.ends_with(&cause.finding.summary));
        }
    }

    #[test]
    fn hardware_that_a_rank_does_not_use_explains_nothing_about_it() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory);
        let groups = |gpu: Option<Bdf>, nic: Option<Bdf>| {
            let diagnosis = diagnose(&context, &selection(gpu, nic));
            let groups = diagnosis.groups().into_iter();
            groups.map(|(group, _)| group).collect::<Vec<_>>()
        };
        let (gpu, nic) = (inventory.gpus[0].bdf, inventory.nics()[0].bdf);
        assert_eq!(groups(None, None), [Group::Host]);
        assert_eq!(groups(Some(gpu), None), [Group::Pcie, Group::Host]);
        let with_nic = [Group::Pcie, Group::Host, Group::Network];
        assert_eq!(groups(None, Some(nic)), with_nic);
        assert_eq!(groups(Some(gpu), Some(nic)), Group::ALL);
    }
}
