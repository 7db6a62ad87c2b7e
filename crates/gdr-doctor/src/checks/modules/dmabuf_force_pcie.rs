use crate::checks::prelude::*;
use crate::gpudirect_support::dma_functions;

pub(super) const CHECK: Check = Check {
    id: CheckId("dmabuf.force_pcie"),
    title: "the DMA function of each ConnectX shares an IOMMU group with a GPU",
    why: "On Grace and Blackwell machines NVIDIA's driver maps GPU memory for the DMA function of \
          a ConnectX over PCI Express, although the path through the CPU is shorter (FORCE_PCIE). \
          It does so only if both are in one IOMMU group.",
    inputs: "Functions 15b3:2100; /sys/bus/pci/devices/*/iommu_group of these and of the GPUs; \
             `topology not supported for mapping type FORCE_PCIE` in the kernel log.",
    criteria: "pass: each DMA function shares its group with a GPU. fail: one does not, or the \
               driver logged a refusal. skip: no such function.",
    sources: &[
        "NVIDIA open-gpu-kernel-modules kernel-open/nvidia/nv-dmabuf.c",
        "rdma-core kernel-boot/rdma_topo",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["acs.directnic", "iommu.groups"],
    scope: Scope::Several(run),
    together: Some("all DMA functions"),
    ..super::CHECK
};

const REFUSAL: &str = "topology not supported for mapping type FORCE_PCIE";

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let tree = context.inventory.tree.by_ref();
    tree.known("the list of PCI functions")?;
    let functions = dma_functions(context);
    if functions.is_empty() {
        return Err(Unjudged::skip("no ConnectX has a DMA function"));
    }
    let refusal = context.logged(|line| line.contains(REFUSAL));
    Ok(runner::each(functions, |dma| {
        (
            Subject::Function(dma),
            judge(context, dma, refusal.as_deref()),
        )
    }))
}

fn judge(context: &Context<'_>, dma: Bdf, refusal: Option<&str>) -> Judgement {
    let group = |bdf: Bdf| context.fact(bdf, |function| function.iommu_group);
    let number = match group(dma) {
        Err(Absence::Missing) => {
            return Err(Unjudged::skip("no IOMMU is on, so there are no groups"));
        }
        group => group.known("its IOMMU group")?,
    };
    let partner = context.gpus().find(|gpu| group(gpu.bdf) == Ok(number));
    let finding = match (partner, refusal) {
        (Some(gpu), None) => {
            Finding::pass(format!("it shares IOMMU group {number} with {}", gpu.index))
        }
        (Some(_), Some(_)) => {
            Finding::fail("the driver refused to map GPU memory over PCI Express for a NIC")
        }
        (None, _) => Finding::fail(
            "no GPU is in its IOMMU group: the driver refuses to map GPU memory for it",
        ),
    };
    let finding = finding.evidence(format!("iommu_group of {dma}"), number);
    let finding = finding.evidence_all(refusal.map(|line| ("kernel log", line)));
    Ok(finding.fix_if_bad(Fix::manual(
        "Set the ACS bits that acs.directnic shows and reboot",
        "the kernel forms the groups at boot from the ACS bits of the ports",
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn with_dma_function() -> MemorySource {
        turned_into(
            example::healthy(),
            example::NICS[1],
            (0x15b3, 0x2100),
            0x08_0100,
        )
    }

    #[test]
    fn a_shared_group_passes_and_separate_groups_or_a_refusal_fail() {
        assert_eq!(verdict(&CHECK, &with_dma_function()), Pass);
        let apart = with_dma_function().link_to(
            &format!("/sys/bus/pci/devices/{}/iommu_group", example::NICS[1]),
            "../../../../../kernel/iommu_groups/99",
        );
        assert_eq!(verdict(&CHECK, &apart), Fail);
        let refused = with_dma_function().file(
            virtual_path::KERNEL_LOG,
            format!("[ 1.0] NVRM: dma-buf attach failed: {REFUSAL}\n"),
        );
        assert_eq!(verdict(&CHECK, &refused), Fail);
    }

    #[test]
    fn a_node_without_a_dma_function_is_skipped() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
    }
}
