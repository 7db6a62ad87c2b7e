//! `irq.affinity`: interrupts of NICs go to CPUs near them.

use std::collections::BTreeSet;

use gdr_node::Datum;

use super::devices;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::{Context, Nic};
use crate::cpus::parse_cpus;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix};

pub(super) const CHECK: Check = Check {
    id: CheckId("irq.affinity"),
    group: Group::Pcie,
    title: "interrupts of NICs go to CPUs near them",
    documentation: Documentation {
        means: "A completion that wakes its waiter by an interrupt on another socket arrives later. \
                Programs that poll do not notice. Drivers spread interrupts over near CPUs first \
                and over far ones when there are more interrupts than near CPUs, so that some far \
                ones are nothing to mend.",
        reads: "/sys/bus/pci/devices/<NIC>/msi_irqs, /proc/irq/<n>/effective_affinity_list, \
                local_cpulist of the NIC.",
        judges: "pass: all are near. info: some are not. warn: more than half are not. unknown: the \
                 interrupts or the NIC's CPUs are not known. skip: it has no such interrupts.",
        sources: &[
            "Linux Documentation/core-api/irq/irq-affinity.rst",
            "https://github.com/Mellanox/mlnx-tools (set_irq_affinity)",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    match devices::nics(context) {
        Ok(nics) => nics.iter().map(|(nic, _)| judge(context, nic)).collect(),
        Err(why) => why,
    }
}

fn judge(context: &Context<'_>, nic: &Nic<'_>) -> Finding {
    let subject = Subject::nic(nic);
    let path = |name: &str| format!("/sys/bus/pci/devices/{}/{name}", nic.bdf);
    let near = context.text(&path("local_cpulist"));
    let near: BTreeSet<u32> = match near.as_ref().and_then(|text| parse_cpus(text).into()) {
        Datum::Present(near) => near,
        absent => return Finding::unknown(subject, "which CPUs are near it", &absent),
    };
    let irqs = match context.source.list(&path("msi_irqs")) {
        Datum::Present(irqs) => irqs,
        Datum::Missing => {
            let mut finding = Finding::skip("it has no message-signalled interrupts");
            finding.subject = subject;
            return finding;
        }
        absent => return Finding::unknown(subject, "the list of its interrupts", &absent),
    };
    let mut known = 0;
    let mut far = Vec::new();
    let mut absence = Datum::Missing;
    for irq in &irqs {
        let file = format!("/proc/irq/{irq}/effective_affinity_list");
        let text = context.text(&file);
        // An interrupt that is not in use has no CPU.
        match text.as_ref().and_then(|text| parse_cpus(text).into()) {
            Datum::Present(cpus) if cpus.is_empty() => {}
            Datum::Present(cpus) => {
                known += 1;
                if cpus.is_disjoint(&near) {
                    far.push((file, text.to_string()));
                }
            }
            absent => absence = absent,
        }
    }
    if known == 0 && absence.is_unknown() {
        return Finding::unknown(subject, "where its interrupts go", &absence);
    }
    let Some((file, cpus)) = far.first() else {
        return Finding::pass(
            subject,
            format!("its {known} interrupts go to CPUs near it"),
        )
        .evidence(path("local_cpulist"), near_text(context, nic));
    };
    let share = format!(
        "{} of its {known} interrupts go to CPUs far from it",
        far.len()
    );
    let finding = if far.len() * 2 > known {
        Finding::warn(subject, share).fix(Fix::now(
            "Bring its interrupts near",
            Action::Command {
                line: format!(
                    "for irq in /sys/bus/pci/devices/{bdf}/msi_irqs/*; do cat \
                     /sys/bus/pci/devices/{bdf}/local_cpulist > \
                     \"/proc/irq/${{irq##*/}}/smp_affinity_list\"; done",
                    bdf = nic.bdf
                ),
            },
        ))
    } else {
        Finding::info(subject, share)
    };
    finding
        .evidence(file.clone(), cpus.clone())
        .evidence(path("local_cpulist"), near_text(context, nic))
}

fn near_text(context: &Context<'_>, nic: &Nic<'_>) -> String {
    let path = format!("/sys/bus/pci/devices/{}/local_cpulist", nic.bdf);
    context.text(&path).to_string()
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    /// The first interrupts of mlx5_1, which is on the first socket, on the second one.
    fn far(count: u32) -> MemorySource {
        (208..208 + count).fold(example::healthy(), |node, irq| {
            node.file(&format!("/proc/irq/{irq}/effective_affinity_list"), "60\n")
        })
    }

    #[test]
    fn interrupts_that_stay_near_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 10]);
    }

    #[test]
    fn some_far_ones_are_told_of_and_most_warned_of() {
        assert_eq!(verdict(&CHECK, &far(2)), Verdict::Info);
        let found = worst(&CHECK, &far(3));
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.summary.starts_with("3 of its 4"), "{}", found.summary);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_nic_is_no_question() {
        let node = example::healthy()
            .without("/proc/irq")
            .not_collected("/proc/irq");
        assert_eq!(verdict(&CHECK, &node), Verdict::Pass);
        let node = (208..212).fold(example::healthy(), |node, irq| {
            node.denied(&format!("/proc/irq/{irq}/effective_affinity_list"))
        });
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
