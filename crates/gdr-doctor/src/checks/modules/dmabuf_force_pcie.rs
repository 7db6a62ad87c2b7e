use crate::checks::prelude::*;
use crate::gpudirect_support::dma_functions;

pub(super) const CHECK: Check = Check {
    id: CheckId("dmabuf.force_pcie"),
    title: "a ConnectX's DMA function may map the GPU beside it",
    why: "On Grace and Blackwell machines GPU memory is mapped for a ConnectX's DMA function over \
          PCI Express although the CPU would be nearer (FORCE_PCIE). NVIDIA's driver allows that \
          only where both are in one IOMMU group.",
    inputs: "Functions 15b3:2100 and the GPUs' /sys/bus/pci/devices/*/iommu_group; the kernel's \
          log: `topology not supported for mapping type FORCE_PCIE`.",
    criteria: "pass: each DMA function shares the group of a GPU. fail: one shares none, or the \
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
        return Err(Unjudged::skip("no ConnectX with a DMA function"));
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
            return Err(Unjudged::skip("there is no IOMMU, so there are no groups"));
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
            "it shares its IOMMU group with no GPU: the driver refuses to map GPU memory for it",
        ),
    };
    let finding = finding.evidence(format!("iommu_group of {dma}"), number);
    let finding = finding.evidence_all(refusal.map(|line| ("kernel log", line)));
    Ok(finding.fix_if_bad(Fix::manual(
        "Set ACS as acs.directnic says and reboot",
        "groups form at boot, from the ACS bits of the ports",
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
    fn one_group_passes_and_two_fail() {
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
    fn without_such_a_function_nothing_is_judged() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
    }
}
