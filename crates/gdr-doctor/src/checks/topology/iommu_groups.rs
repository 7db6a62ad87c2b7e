use super::{direct, is_handed};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("iommu.groups"),
    title: "devices are in the IOMMU groups that the platform needs",
    why: "The kernel puts devices that ACS does not isolate into one IOMMU group. A ConnectX's DMA \
          function must be in its GPU's group. Devices of different guests must be in different \
          groups, and a guest owns whole groups. In other cases groups do not matter. They form \
          once, at boot.",
    inputs: "/sys/bus/pci/devices/*/iommu_group of GPUs, NICs and DMA functions.",
    criteria: "fail: a DMA function is not in its GPU's group. warn: a guest's device shares a \
               group with one that the host uses. pass: otherwise. skip: no IOMMU, or a guest.",
    sources: &[
        "rdma-core kernel-boot/rdma_topo",
        "https://github.com/NVIDIA/NV-Kernels/issues/20",
        "Linux Documentation/driver-api/vfio.rst",
    ],
    symptom_of: &["acs.directnic", "acs.virt"],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let tree = context.inventory.tree.by_ref().known("the PCI tree")?;
    if context.is_guest() {
        return Err(Unjudged::skip("in a guest the groups of the host matter"));
    }
    let group = |bdf: Bdf| context.fact(bdf, |function| function.iommu_group);
    let mut findings = Vec::new();
    for path in direct::paths(context) {
        findings.extend(apart(context, path, &group(path.dma), &group(path.gpu)));
    }
    for function in tree.functions().filter(|it| is_handed(context, it.bdf)) {
        let Ok(number) = function.iommu_group else {
            continue;
        };
        let others = tree.functions().filter(|other| {
            other.iommu_group == Ok(number)
                && !other.is_bridge()
                && !is_handed(context, other.bdf)
                && other.driver.is_ok()
        });
        let others: Vec<String> = others.map(|other| other.bdf.to_string()).collect();
        if !others.is_empty() {
            findings.push(
                Finding::warn(format!(
                    "it belongs to a guest and shares IOMMU group {number} with {} of the host",
                    others.join(", ")
                ))
                .about(Subject::Function(function.bdf))
                .fix(Fix::manual(
                    "Isolate the devices, or assign the whole group",
                    "turn ACS on at the ports above them and reboot, or bind the others to \
                     vfio-pci too",
                )),
            );
        }
    }
    if !findings.is_empty() {
        return Ok(findings);
    }
    let known: Vec<Datum<u32>> = (context.gpus().map(|gpu| gpu.bdf))
        .chain(context.nics().iter().map(|nic| nic.bdf))
        .map(group)
        .collect();
    Ok(vec![match known.iter().find(|group| !group.is_ok()) {
        _ if known.is_empty() => Finding::skip("there is no GPU and no RDMA NIC"),
        Some(Err(Absence::Missing)) => Finding::skip("no IOMMU is on, so there are no groups"),
        Some(absent) => Finding::unknown("the IOMMU group of a GPU or NIC", absent),
        None => Finding::pass("no device here needs a certain IOMMU group"),
    }])
}

fn apart(
    context: &Context<'_>,
    path: direct::DirectPath,
    dma: &Datum<u32>,
    gpu: &Datum<u32>,
) -> Option<Finding> {
    let subject = path.subject(context);
    let finding = match (dma, gpu) {
        (Ok(dma), Ok(gpu)) if dma == gpu => Finding::pass(format!(
            "it shares IOMMU group {gpu} with DMA function {}",
            path.dma
        ))
        .about(subject),
        (Ok(_), Ok(_)) => Finding::fail(format!(
            "it is not in the IOMMU group of DMA function {}: the driver refuses to map its memory",
            path.dma
        ))
        .about(subject)
        .fix(Fix::manual(
            "Set the ACS bits that acs.directnic shows and reboot",
            "the kernel forms the groups at boot from the ACS bits of the ports",
        )),
        (Err(Absence::Missing), _) | (_, Err(Absence::Missing)) => return None,
        (Ok(_), absent) | (absent, _) => Finding::unknown("its IOMMU group", absent).about(subject),
    };
    Some(
        finding
            .evidence(format!("iommu_group of {}", path.dma), dma.shown())
            .evidence(format!("iommu_group of {}", path.gpu), gpu.shown()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::acs_directnic::tests::with_dma_function;
    use super::super::acs_virt::tests::handed;
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn a_node_without_guests_and_dma_functions_passes() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let mut off = example::healthy();
        for bdf in example::GPUS.iter().chain(&example::NICS) {
            off = off.without(&format!("/sys/bus/pci/devices/{bdf}/iommu_group"));
        }
        assert_eq!(verdict(&CHECK, &off), Skip);
    }

    #[test]
    fn a_dma_function_must_share_its_gpus_group() {
        // The example's switch is one group.
        assert_eq!(verdict(&CHECK, &with_dma_function()), Pass);
        let apart = with_dma_function().link_to(
            &format!("/sys/bus/pci/devices/{}/iommu_group", example::NICS[1]),
            "../../../../../kernel/iommu_groups/99",
        );
        assert_eq!(verdict(&CHECK, &apart), Fail);
    }

    #[test]
    fn a_group_that_a_guest_shares_with_the_host_is_a_warning() {
        assert_eq!(verdict(&CHECK, &handed()), Warn);
    }
}
