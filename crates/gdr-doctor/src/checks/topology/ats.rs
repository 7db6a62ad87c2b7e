use super::iommu::{Domain, domain};
use super::is_handed;
use crate::checks::prelude::*;
use crate::gpudirect_support::dma_functions;

pub(super) const CHECK: Check = Check {
    id: CheckId("ats"),
    title: "NICs use ATS if guests need it, and only then",
    why: "With Address Translation Services (ATS) a NIC asks the IOMMU for translations \
          beforehand. A guest's NIC needs ATS for direct access to the guest's GPU. On a host \
          whose IOMMU does not translate, each request for a translation only adds latency.",
    inputs: "The ATS control register of the NICs (extended capability 0x000f, bit 15 of the word \
             at offset 6); the types of their IOMMU domains. Needs root.",
    criteria: "pass: off, or on with a translating IOMMU. warn: on although the IOMMU does not \
               translate; or off on a guest's NIC if a guest has a GPU too. fail: such a NIC \
               without the capability. unknown: it is not known whether a guest has a GPU. skip: \
               no NIC, a guest's NIC if no guest has a GPU, or this is a guest.",
    sources: &[
        "PCI Express Base Specification 6.0, 10.5",
        "rdma-core kernel-boot/rdma_topo",
    ],
    scope: Scope::Several(run),
    together: Some("all NICs"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let inventory = context.inventory;
    let tree = inventory.tree.by_ref().known("the PCI tree")?;
    if context.is_guest() {
        return Err(Unjudged::skip("in a guest the host configures ATS"));
    }
    let findings = runner::each(tree.functions(), |function| {
        let named = context.nics().iter().find(|nic| nic.bdf == function.bdf);
        let (name, bdf) = (function.bdf.to_string(), function.bdf);
        let subject = named.map_or(Subject::Nic { name, bdf }, Subject::nic);
        let judgement = if function.identity.is_network() && is_handed(context, bdf) {
            of_guest(context, function)
        } else if named.is_some() {
            of_host(context, function)
        } else {
            Err(Unjudged::OutOfScope)
        };
        (subject, judgement)
    });
    if findings.is_empty() {
        return Err(runner::no_nic(context));
    }
    Ok(findings)
}

fn of_host(context: &Context<'_>, function: &Function) -> Judgement {
    let ats = match &function.ats {
        Err(Absence::Missing) => {
            return Ok(Finding::pass(
                "it does not have ATS and does not need \
                                                          it",
            ));
        }
        ats => ats.known("its ATS control register")?,
    };
    let needless = matches!(
        domain(context, function.bdf).1,
        Ok(Domain::Off | Domain::Identity)
    );
    let finding = match (ats.enabled, needless) {
        (false, _) => Finding::pass("ATS is off"),
        (true, true) if dma_functions(context).is_empty() => Finding::warn(
            "ATS is on although the IOMMU does not translate: each translation request adds \
             latency",
        )
        .fix(switch(function.bdf, false)),
        (true, _) => Finding::pass("ATS is on and the IOMMU translates"),
    };
    Ok(finding.evidence(
        format!("ATS control of {}", function.bdf),
        format!("Enable{}", if ats.enabled { '+' } else { '-' }),
    ))
}

/// Returns whether a GPU is assigned to a guest.
fn gpu_is_handed(context: &Context<'_>) -> Datum<bool> {
    let gpus = &context.inventory.gpus;
    if gpus.iter().any(|gpu| is_handed(context, gpu.bdf)) {
        return Ok(true);
    }
    let drivers = gpus.iter().filter_map(|gpu| context.function(gpu.bdf));
    let unknown = drivers
        .map(|function| &function.driver)
        .find(|it| it.is_unknown());
    match unknown {
        Some(absent) => absent.by_ref().map(|_| false),
        None => context.every_gpu().map(|()| false),
    }
}

fn of_guest(context: &Context<'_>, function: &Function) -> Judgement {
    if !gpu_is_handed(context).known("whether a GPU is assigned to a guest")? {
        return Err(Unjudged::skip(
            "it belongs to a guest, and no GPU does: it does not need ATS",
        ));
    }
    // A virtual function has the capability if its physical function has it.
    let (verdict, summary) = match &function.ats {
        Ok(ats) if ats.enabled => (Verdict::Pass, "ATS is on, which its guest needs"),
        Ok(_) => (
            Verdict::Warn,
            "it belongs to a guest and ATS is off: its requests to the guest's GPU go through the \
             root complex. ATS is turned on when a guest runs",
        ),
        Err(Absence::Missing) => (
            Verdict::Fail,
            "it belongs to a guest and does not have ATS: its requests to the guest's GPU go \
             through the root complex or fail",
        ),
        Err(absence) => return Err(*absence).known("its ATS control register"),
    };
    let finding = Finding::new(verdict, summary);
    Ok(match verdict {
        Verdict::Fail => finding.fix(switch(function.bdf, true)),
        _ => finding,
    })
}

fn switch(bdf: Bdf, on: bool) -> Fix {
    let state = if on { "true" } else { "false" };
    Fix::manual(
        format!("Turn ATS {} in the firmware", if on { "on" } else { "off" }),
        format!("`mlxconfig -d {bdf} set ATS_ENABLED={state}`, then power-cycle the host"),
    )
    .risk(Risk::Medium, "the host restarts")
}

#[cfg(test)]
mod tests {
    use super::super::acs_virt::tests::handed;
    use super::*;
    use crate::checks::fixture::*;

    fn with_ats(node: MemorySource, nic: usize) -> MemorySource {
        example::edit(node, example::NICS[nic], |space| {
            space.ats(true);
        })
    }

    #[test]
    fn off_passes_and_on_without_need_is_a_warning() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        let found = worst(&CHECK, &with_ats(example::healthy(), 3));
        assert_eq!(
            (found.verdict, found.subject.to_string().as_str()),
            (Warn, "mlx5_3")
        );
        let path = format!("/sys/bus/pci/devices/{}/iommu_group/type", example::NICS[3]);
        let translating = with_ats(example::healthy(), 3).file(&path, "DMA-FQ\n");
        assert_eq!(verdict(&CHECK, &translating), Pass);
    }

    #[test]
    fn a_nic_of_a_guest_with_a_gpu_needs_ats() {
        assert_eq!(verdict(&CHECK, &handed()), Warn);
        assert_eq!(verdict(&CHECK, &with_ats(handed(), 1)), Pass);
        let path = format!("/sys/bus/pci/devices/{}/config", example::NICS[1]);
        // Without extended capabilities.
        let mut config = gdr_node::Source::read(&handed(), &path).unwrap();
        config[0x100..].fill(0);
        assert_eq!(verdict(&CHECK, &handed().file(&path, config)), Fail);
    }

    #[test]
    fn a_nic_of_a_guest_does_not_need_ats_if_no_guest_has_a_gpu() {
        let nic = example::NICS[1];
        let node = bound_to(example::healthy(), nic, "vfio-pci");
        let path = format!("/sys/bus/pci/devices/{nic}/config");
        let mut config = gdr_node::Source::read(&node, &path).unwrap();
        config[0x100..].fill(0);
        let node = node.file(&path, config);
        assert!(!verdicts(&CHECK, &node).contains(&Fail));
        let gpu = bound_to(node.clone(), example::GPUS[0], "vfio-pci");
        assert_eq!(verdict(&CHECK, &gpu), Fail);
        let driver = format!("/sys/bus/pci/devices/{}/driver", example::GPUS[0]);
        assert_eq!(verdict(&CHECK, &node.not_collected(&driver)), Unknown);
    }

    #[test]
    fn an_unreadable_register_is_unknown() {
        let mut node = example::healthy();
        for nic in example::NICS {
            node = example::edit(node, nic, |space| {
                space.header_only();
            });
        }
        assert_eq!(verdicts(&CHECK, &node), [Unknown]);
    }
}
