//! `iommu.groups`: GPUs and NICs are in the IOMMU groups that their platform wants.

use gdr_node::{Bdf, Datum};

use super::{direct, is_guest, is_handed};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("iommu.groups"),
    group: Group::Topology,
    title: "IOMMU groups are as the platform wants them",
    documentation: Documentation {
        means: "The kernel puts devices that ACS does not keep apart into one IOMMU group. A \
                ConnectX's DMA function has to share its GPU's group; devices of different guests \
                must not share one, and a guest owns a group as a whole. Elsewhere groups do not \
                matter. They form once, at boot.",
        reads: "/sys/bus/pci/devices/*/iommu_group of GPUs, NICs and DMA functions.",
        judges: "fail: a DMA function apart from its GPU. warn: a guest's device in a group with \
                 one that the host drives. pass: otherwise. skip: no IOMMU, or a guest.",
        sources: &[
            "rdma-core kernel-boot/rdma_topo",
            "https://github.com/NVIDIA/NV-Kernels/issues/20",
            "Linux Documentation/driver-api/vfio.rst",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("acs.directnic"), CheckId("acs.virt")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let Some(tree) = context.inventory.tree.present() else {
        return vec![Finding::unknown(
            Subject::Node,
            "the PCI tree",
            &context.inventory.tree,
        )];
    };
    if is_guest(context) {
        return vec![Finding::skip("in a guest the groups of the host decide")];
    }
    let group = |bdf: Bdf| {
        context
            .function(bdf)
            .map_or(Datum::NotCollected, |function| function.iommu_group.clone())
    };
    let mut findings = Vec::new();
    for path in direct::paths(context) {
        findings.extend(apart(context, path, &group(path.dma), &group(path.gpu)));
    }
    for function in tree.functions().filter(|it| is_handed(context, it.bdf)) {
        let Datum::Present(number) = function.iommu_group else {
            continue;
        };
        let others = tree.functions().filter(|other| {
            other.iommu_group == Datum::Present(number)
                && !other.is_bridge()
                && !is_handed(context, other.bdf)
                && other.driver.is_present()
        });
        let others: Vec<String> = others.map(|other| other.bdf.to_string()).collect();
        if !others.is_empty() {
            findings.push(
                Finding::warn(
                    Subject::Function(function.bdf),
                    format!(
                        "belongs to a guest and shares IOMMU group {number} with {} of the host",
                        others.join(", ")
                    ),
                )
                .fix(Fix::manual(
                    "Keep the devices apart, or hand over all of the group",
                    "switch ACS on at the ports above them and reboot, or bind the others to \
                     vfio-pci too",
                )),
            );
        }
    }
    if !findings.is_empty() {
        return findings;
    }
    let known: Vec<Datum<u32>> = (context.gpus().map(|gpu| gpu.bdf))
        .chain(context.nics().iter().map(|nic| nic.bdf))
        .map(group)
        .collect();
    vec![match known.iter().find(|group| !group.is_present()) {
        _ if known.is_empty() => Finding::skip("there is no GPU and no RDMA NIC"),
        Some(Datum::Missing) => Finding::skip("there is no IOMMU, so there are no groups"),
        Some(absent) => Finding::unknown(Subject::Node, "the IOMMU group of a GPU or NIC", absent),
        None => Finding::pass(Subject::Node, "nothing here wants certain IOMMU groups"),
    }]
}

fn apart(
    context: &Context<'_>,
    path: direct::DirectPath,
    dma: &Datum<u32>,
    gpu: &Datum<u32>,
) -> Option<Finding> {
    let subject = (context.gpus())
        .find(|it| it.bdf == path.gpu)
        .map_or(Subject::Function(path.dma), Subject::gpu);
    let finding = match (dma, gpu) {
        (Datum::Present(dma), Datum::Present(gpu)) if dma == gpu => Finding::pass(
            subject,
            format!("shares IOMMU group {gpu} with DMA function {}", path.dma),
        ),
        (Datum::Present(_), Datum::Present(_)) => Finding::fail(
            subject,
            format!(
                "is in another IOMMU group than DMA function {}: the driver refuses to map its \
                 memory for it",
                path.dma
            ),
        )
        .fix(Fix::manual(
            "Set ACS as acs.directnic says and reboot",
            "groups form at boot, from the ACS bits of the ports",
        )),
        (Datum::Missing, _) | (_, Datum::Missing) => return None,
        (Datum::Present(_), absent) | (absent, _) => {
            Finding::unknown(subject, "its IOMMU group", absent)
        }
    };
    Some(
        finding
            .evidence(format!("iommu_group of {}", path.dma), dma.to_string())
            .evidence(format!("iommu_group of {}", path.gpu), gpu.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::super::acs_directnic::tests::with_dma_function;
    use super::super::acs_virt::tests::handed;
    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    #[test]
    fn groups_do_not_matter_on_a_plain_node() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        let mut off = example::healthy();
        for bdf in example::GPUS.iter().chain(&example::NICS) {
            off = off.without(&format!("/sys/bus/pci/devices/{bdf}/iommu_group"));
        }
        assert_eq!(verdict(&CHECK, &off), Verdict::Skip);
    }

    #[test]
    fn a_dma_function_shares_its_gpus_group() {
        // The example's switch is one group.
        assert_eq!(verdict(&CHECK, &with_dma_function()), Verdict::Pass);
        let apart = with_dma_function().link_to(
            &format!("/sys/bus/pci/devices/{}/iommu_group", example::NICS[1]),
            "../../../../../kernel/iommu_groups/99",
        );
        assert_eq!(verdict(&CHECK, &apart), Verdict::Fail);
    }

    #[test]
    fn a_guest_does_not_share_a_group_with_the_host() {
        assert_eq!(verdict(&CHECK, &handed()), Verdict::Warn);
    }

    #[test]
    fn what_was_not_collected_is_not_judged() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
