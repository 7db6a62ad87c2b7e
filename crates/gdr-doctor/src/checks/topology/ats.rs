//! `ats`: NICs ask the IOMMU beforehand where that is needed, and not where it is not.

use gdr_node::pci::Function;
use gdr_node::{Bdf, Datum};

use super::iommu::{Domain, domain};
use super::{is_guest, is_handed};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::{Fix, Risk};
use crate::reach::dma_functions;

pub(super) const CHECK: Check = Check {
    id: CheckId("ats"),
    group: Group::Topology,
    title: "NICs use ATS where guests need it, and not without need",
    documentation: Documentation {
        means: "With Address Translation Services a NIC asks the IOMMU for addresses beforehand. A \
                guest's NIC needs that to reach the guest's GPU straight. On the host itself, with \
                addresses left as they are, each question is only a delay.",
        reads: "The ATS control register (extended capability 0x000f, bit 15 of the word 6 bytes \
                in) of NICs; the kinds of their IOMMU domains. Needs root.",
        judges: "pass: off, or on with a translating IOMMU. warn: on while addresses are left as \
                 they are; or off at a NIC of a guest. fail: a NIC of a guest that has none. skip: \
                 no NIC, or a guest.",
        sources: &[
            "PCI Express Base Specification 6.0, 10.5",
            "rdma-core kernel-boot/rdma_topo",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let inventory = context.inventory;
    let Some(tree) = inventory.tree.present() else {
        return vec![Finding::unknown(
            Subject::Node,
            "the PCI tree",
            &inventory.tree,
        )];
    };
    if is_guest(context) {
        return vec![Finding::skip("in a guest the host decides about ATS")];
    }
    let mut findings: Vec<Finding> = Vec::new();
    for function in tree.functions() {
        let named = context.nics().iter().find(|nic| nic.bdf == function.bdf);
        let handed = function.identity.is_network() && is_handed(context, function.bdf);
        let subject = match named {
            Some(nic) => Subject::nic(nic),
            None if handed => Subject::Nic {
                name: function.bdf.to_string(),
                bdf: function.bdf,
            },
            None => continue,
        };
        findings.push(if handed {
            of_guest(subject, function)
        } else {
            of_host(context, subject, function)
        });
    }
    if findings.is_empty() {
        return vec![if inventory.rdma.is_unknown() {
            Finding::unknown(Subject::Node, "the list of RDMA devices", &inventory.rdma)
        } else {
            Finding::skip("there is no RDMA NIC that is a PCI function")
        }];
    }
    let alike = findings
        .windows(2)
        .all(|two| (two[0].verdict, &two[0].summary) == (two[1].verdict, &two[1].summary));
    if alike && findings.len() > 1 {
        findings.truncate(1);
        findings[0].subject = Subject::Node;
        findings[0].summary = format!("all NICs: {}", findings[0].summary);
    }
    findings
}

fn of_host(context: &Context<'_>, subject: Subject, function: &Function) -> Finding {
    let ats = match &function.ats {
        Datum::Present(ats) => *ats,
        Datum::Missing => return Finding::pass(subject, "has no ATS, and needs none here"),
        absent => return Finding::unknown(subject, "its ATS control register", absent),
    };
    let needless = matches!(
        domain(context, function.bdf).1,
        Datum::Present(Domain::Off | Domain::Identity)
    );
    let finding = match (ats.enabled, needless) {
        (false, _) => Finding::pass(subject, "ATS is off"),
        (true, true) if dma_functions(context).is_empty() => Finding::warn(
            subject,
            "ATS is on while the IOMMU leaves addresses as they are: each question is a delay",
        )
        .fix(switch(function.bdf, false)),
        (true, _) => Finding::pass(subject, "ATS is on, as a translating IOMMU wants it"),
    };
    finding.evidence(
        format!("ATS control of {}", function.bdf),
        format!("Enable{}", if ats.enabled { '+' } else { '-' }),
    )
}

fn of_guest(subject: Subject, function: &Function) -> Finding {
    // A virtual function has no say of its own where the physical one lends it ATS.
    let (verdict, summary) = match &function.ats {
        Datum::Present(ats) if ats.enabled => (Verdict::Pass, "ATS is on, as its guest needs it"),
        Datum::Present(_) => (
            Verdict::Warn,
            "belongs to a guest and has ATS off: the guest's GPU is reached through the root. It \
             goes on when a guest runs with it",
        ),
        Datum::Missing => (
            Verdict::Fail,
            "belongs to a guest and has no ATS: the guest's GPU is reached through the root, or \
             not at all",
        ),
        absent => return Finding::unknown(subject, "its ATS control register", absent),
    };
    let finding = Finding::new(verdict, subject, summary);
    if verdict == Verdict::Fail {
        finding.fix(switch(function.bdf, true))
    } else {
        finding
    }
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
    use gdr_node::{MemorySource, example};

    use super::super::acs_virt::tests::handed;
    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};

    fn with_ats(node: MemorySource, nic: usize) -> MemorySource {
        example::edit(node, example::NICS[nic], |space| {
            space.ats(true);
        })
    }

    #[test]
    fn off_passes_and_on_without_need_is_warned_of() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
        let found = worst(&CHECK, &with_ats(example::healthy(), 3));
        assert_eq!(
            (found.verdict, found.subject.to_string().as_str()),
            (Verdict::Warn, "mlx5_3")
        );
        let path = format!("/sys/bus/pci/devices/{}/iommu_group/type", example::NICS[3]);
        let translating = with_ats(example::healthy(), 3).file(&path, "DMA-FQ\n");
        assert_eq!(verdict(&CHECK, &translating), Verdict::Pass);
    }

    #[test]
    fn a_guests_nic_needs_it() {
        assert_eq!(verdict(&CHECK, &handed()), Verdict::Warn);
        assert_eq!(verdict(&CHECK, &with_ats(handed(), 1)), Verdict::Pass);
        let path = format!("/sys/bus/pci/devices/{}/config", example::NICS[1]);
        // No chain of extended capabilities at all.
        let mut config = gdr_node::Source::read(&handed(), &path)
            .into_present()
            .unwrap();
        config[0x100..].fill(0);
        assert_eq!(
            verdict(&CHECK, &handed().file(&path, config)),
            Verdict::Fail
        );
    }

    #[test]
    fn what_may_not_be_read_is_not_off() {
        let mut node = example::healthy();
        for nic in example::NICS {
            node = example::edit(node, nic, |space| {
                space.header_only();
            });
        }
        assert_eq!(verdicts(&CHECK, &node), [Verdict::Unknown]);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let none = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Verdict::Skip);
    }
}
