//! `nic.present`: an RDMA NIC is on the PCI bus.

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("nic.present"),
    group: Group::Modules,
    title: "an RDMA NIC is on the PCI bus",
    documentation: Documentation {
        means: "Without an RDMA NIC nothing from outside reaches GPU memory but through the CPU. \
                RDMA devices made of software (rxe, siw) do not count: they cannot reach it.",
        reads: "/sys/class/infiniband/*/device; of PCI functions class 0x0207xx (InfiniBand), and \
                class 0x02xxxx with vendor 0x15b3.",
        judges: "pass: there is one. fail: none. unknown: PCI functions are not known, or which \
                 network cards do RDMA.",
        sources: &["PCI Code and ID Assignment Specification, base class 02h"],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let functions = super::nic_functions(context);
    if functions.is_empty() {
        let inventory = context.inventory;
        if !inventory.tree.is_present() {
            return vec![super::no_nic(context)];
        }
        let cards = (inventory.tree.present().into_iter())
            .flat_map(|tree| tree.functions())
            .filter(|function| function.identity.is_network())
            .count();
        if inventory.rdma.is_unknown() && cards > 0 {
            return vec![Finding::unknown(
                Subject::Node,
                "whether one of the network cards does RDMA",
                &inventory.rdma,
            )];
        }
        return vec![
            Finding::fail(Subject::Node, "there is no RDMA NIC")
                .evidence("/sys/class/infiniband", "no device that is a PCI function")
                .evidence(
                    "/sys/bus/pci/devices",
                    "no InfiniBand controller and no NIC of vendor 0x15b3",
                )
                .fix(Fix::manual(
                    "Make an RDMA NIC visible",
                    "seat the card; in a virtual machine, pass the NIC or one of its virtual \
                     functions through; in a container, share /dev/infiniband and look again",
                )),
        ];
    }
    let names: Vec<String> = functions
        .iter()
        .map(|nic| match nic.rdma {
            Some(rdma) => format!("{} {}", rdma.name, nic.bdf),
            None => nic.bdf.to_string(),
        })
        .collect();
    let count = match names.len() {
        1 => "1 RDMA NIC".to_owned(),
        n => format!("{n} RDMA NICs"),
    };
    vec![
        Finding::pass(Subject::Node, format!("{count} on the PCI bus"))
            .evidence("PCI functions", names.join(", ")),
    ]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdicts, worst};
    use crate::finding::Verdict;

    #[test]
    fn nics_pass_with_and_without_their_driver() {
        assert!(
            worst(&CHECK, &example::healthy())
                .summary
                .starts_with("10 ")
        );
        let unbound = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdicts(&CHECK, &unbound), [Verdict::Pass]);
    }

    #[test]
    fn a_node_without_one_fails_and_one_that_was_not_read_is_not_judged() {
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdicts(&CHECK, &bare), [Verdict::Fail]);
        assert_eq!(
            verdicts(&CHECK, &MemorySource::partial()),
            [Verdict::Unknown]
        );
    }
}
