//! `dmabuf.force_pcie`: a ConnectX's DMA function may map the GPU beside it.

use gdr_node::{Bdf, Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::Fix;
use crate::reach::dma_functions;

pub(super) const CHECK: Check = Check {
    id: CheckId("dmabuf.force_pcie"),
    group: Group::Modules,
    title: "a ConnectX's DMA function may map the GPU beside it",
    documentation: Documentation {
        means: "On Grace and Blackwell machines GPU memory is mapped for a ConnectX's DMA function \
                over PCI Express although the CPU would be nearer (FORCE_PCIE). NVIDIA's driver \
                allows that only where both are in one IOMMU group.",
        reads: "Functions 15b3:2100 and the GPUs' /sys/bus/pci/devices/*/iommu_group; the \
                kernel's log: `topology not supported for mapping type FORCE_PCIE`.",
        judges: "pass: each DMA function shares the group of a GPU. fail: one shares none, or the \
                 driver logged a refusal. skip: no such function.",
        sources: &[
            "NVIDIA open-gpu-kernel-modules kernel-open/nvidia/nv-dmabuf.c",
            "rdma-core kernel-boot/rdma_topo",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("acs.directnic"), CheckId("iommu.groups")],
    run,
};

const REFUSAL: &str = "topology not supported for mapping type FORCE_PCIE";

fn run(context: &Context<'_>) -> Vec<Finding> {
    let inventory = context.inventory;
    if !inventory.tree.is_present() {
        return vec![Finding::unknown(
            Subject::Node,
            "the list of PCI functions",
            &inventory.tree,
        )];
    }
    let functions = dma_functions(context);
    if functions.is_empty() {
        return vec![Finding::skip("no ConnectX with a DMA function")];
    }
    let log = context.text(virtual_path::KERNEL_LOG).into_present();
    let refusal = (log.iter().flat_map(|log| log.lines())).find(|line| line.contains(REFUSAL));
    let findings = functions
        .into_iter()
        .map(|dma| judge(context, dma, refusal))
        .collect();
    super::once(findings, "all DMA functions")
}

fn judge(context: &Context<'_>, dma: Bdf, refusal: Option<&str>) -> Finding {
    let subject = Subject::Function(dma);
    let group = |bdf: Bdf| {
        context
            .function(bdf)
            .map_or(Datum::NotCollected, |function| function.iommu_group.clone())
    };
    let number = match group(dma) {
        Datum::Present(number) => number,
        Datum::Missing => return Finding::skip("there is no IOMMU, so there are no groups"),
        absent => return Finding::unknown(subject, "its IOMMU group", &absent),
    };
    let partner = context
        .gpus()
        .find(|gpu| group(gpu.bdf) == Datum::Present(number));
    let finding = match (partner, refusal) {
        (Some(gpu), None) => Finding::pass(
            subject,
            format!("it shares IOMMU group {number} with {}", gpu.index),
        ),
        (Some(_), Some(_)) => Finding::fail(
            subject,
            "the driver refused to map GPU memory over PCI Express for a NIC",
        ),
        (None, _) => Finding::fail(
            subject,
            "it shares its IOMMU group with no GPU: the driver refuses to map GPU memory for it",
        ),
    };
    let finding = finding.evidence(format!("iommu_group of {dma}"), number.to_string());
    let finding = match refusal {
        Some(line) => finding.evidence("kernel log", line),
        None => finding,
    };
    if finding.verdict.is_bad() {
        finding.fix(Fix::manual(
            "Set ACS as acs.directnic says and reboot",
            "groups form at boot, from the ACS bits of the ports",
        ))
    } else {
        finding
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{turned_into, verdict};
    use crate::finding::Verdict;

    fn with_dma_function() -> MemorySource {
        turned_into(
            example::healthy(),
            example::NICS[1],
            (0x15b3, 0x2100),
            0x08_0100,
        )
    }

    #[test]
    fn one_group_passes_and_two_fail() {
        assert_eq!(verdict(&CHECK, &with_dma_function()), Verdict::Pass);
        let apart = with_dma_function().link_to(
            &format!("/sys/bus/pci/devices/{}/iommu_group", example::NICS[1]),
            "../../../../../kernel/iommu_groups/99",
        );
        assert_eq!(verdict(&CHECK, &apart), Verdict::Fail);
        let refused = with_dma_function().file(
            virtual_path::KERNEL_LOG,
            format!("[ 1.0] NVRM: dma-buf attach failed: {REFUSAL}\n"),
        );
        assert_eq!(verdict(&CHECK, &refused), Verdict::Fail);
    }

    #[test]
    fn without_such_a_function_or_a_capture_nothing_is_judged() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
