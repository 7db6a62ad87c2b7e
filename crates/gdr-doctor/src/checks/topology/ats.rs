use super::iommu::{Domain, domain};
use super::is_handed;
use crate::checks::prelude::*;
use crate::gpudirect_support::dma_functions;

pub(super) const CHECK: Check = Check {
    id: CheckId("ats"),
    title: "NICs use ATS where guests need it, and not without need",
    why: "With Address Translation Services a NIC asks the IOMMU for addresses beforehand. A \
          guest's NIC needs that to reach the guest's GPU straight. On the host itself, with \
          addresses left as they are, each question is only a delay.",
    inputs: "The ATS control register (extended capability 0x000f, bit 15 of the word 6 bytes in) \
          of NICs; the kinds of their IOMMU domains. Needs root.",
    criteria: "pass: off, or on with a translating IOMMU. warn: on while addresses are left as \
          they are; or off at a NIC of a guest, where a GPU is with a guest too. fail: such a NIC \
          that has none. unknown: whether a GPU is with a guest. skip: no NIC, a NIC of a guest \
          where no GPU is with one, or a guest.",
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
        return Err(Unjudged::skip("in a guest the host decides about ATS"));
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
        Err(Absence::Missing) => return Ok(Finding::pass("has no ATS, and needs none here")),
        ats => ats.known("its ATS control register")?,
    };
    let needless = matches!(
        domain(context, function.bdf).1,
        Ok(Domain::Off | Domain::Identity)
    );
    let finding = match (ats.enabled, needless) {
        (false, _) => Finding::pass("ATS is off"),
        (true, true) if dma_functions(context).is_empty() => Finding::warn(
            "ATS is on while the IOMMU leaves addresses as they are: each question is a delay",
        )
        .fix(switch(function.bdf, false)),
        (true, _) => Finding::pass("ATS is on, as a translating IOMMU wants it"),
    };
    Ok(finding.evidence(
        format!("ATS control of {}", function.bdf),
        format!("Enable{}", if ats.enabled { '+' } else { '-' }),
    ))
}

/// Whether a GPU is with a guest, whose NIC has to reach it.
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
    if !gpu_is_handed(context).known("whether a GPU is with a guest, too,")? {
        return Err(Unjudged::skip(
            "belongs to a guest, and no GPU does: it needs no ATS",
        ));
    }
    // A virtual function has no say of its own where the physical one lends it ATS.
    let (verdict, summary) = match &function.ats {
        Ok(ats) if ats.enabled => (Verdict::Pass, "ATS is on, as its guest needs it"),
        Ok(_) => (
            Verdict::Warn,
            "belongs to a guest and has ATS off: the guest's GPU is reached through the root. It \
             goes on when a guest runs with it",
        ),
        Err(Absence::Missing) => (
            Verdict::Fail,
            "belongs to a guest and has no ATS: the guest's GPU is reached through the root, or \
             not at all",
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
        format!(
            "Switch ATS {} in the firmware",
            if on { "on" } else { "off" }
        ),
        format!("`mlxconfig -d {bdf} set ATS_ENABLED={state}`, then power the host off and on"),
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
    fn off_passes_and_on_without_need_is_warned_of() {
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
    fn a_guests_nic_needs_it() {
        assert_eq!(verdict(&CHECK, &handed()), Warn);
        assert_eq!(verdict(&CHECK, &with_ats(handed(), 1)), Pass);
        let path = format!("/sys/bus/pci/devices/{}/config", example::NICS[1]);
        // No chain of extended capabilities at all.
        let mut config = gdr_node::Source::read(&handed(), &path).unwrap();
        config[0x100..].fill(0);
        assert_eq!(verdict(&CHECK, &handed().file(&path, config)), Fail);
    }

    #[test]
    fn a_guests_nic_needs_none_where_no_gpu_is_with_a_guest() {
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
    fn what_may_not_be_read_is_not_off() {
        let mut node = example::healthy();
        for nic in example::NICS {
            node = example::edit(node, nic, |space| {
                space.header_only();
            });
        }
        assert_eq!(verdicts(&CHECK, &node), [Unknown]);
        let none = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
