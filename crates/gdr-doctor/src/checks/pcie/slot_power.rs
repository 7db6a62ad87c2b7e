//! `pci.slotpower`: slots give NICs the power that they need.

use gdr_node::{Bdf, Datum, virtual_path};

use super::devices;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

/// What mlx5_core says (Linux drivers/net/ethernet/mellanox/mlx5/core/events.c).
const WORDS: &str = "insufficient power on the PCIe slot";

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.slotpower"),
    group: Group::Pcie,
    title: "slots give NICs the power that they need",
    documentation: Documentation {
        means: "A slot tells its card how much power it may draw. A NIC that is told too little \
                keeps its ports or its optical modules off, or runs them slower.",
        reads: "The kernel log: \"Detected insufficient power on the PCIe slot\" of mlx5_core.",
        judges: "pass: no such message. warn: one about a NIC. unknown: the kernel log is not known.",
        sources: &[
            "Linux drivers/net/ethernet/mellanox/mlx5/core/events.c: pcie_core",
            "https://github.com/leptonai/gpud (kmsg matchers)",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    if let Err(why) = devices::nics(context) {
        return why;
    }
    let log = match context.text(virtual_path::KERNEL_LOG) {
        Datum::Present(log) => log,
        absent => return vec![Finding::unknown(Subject::Node, "the kernel log", &absent)],
    };
    let mut findings: Vec<Finding> = Vec::new();
    for line in log.lines().filter(|line| line.contains(WORDS)) {
        let bdf: Option<Bdf> = line.split_whitespace().find_map(|word| {
            let word = word.trim_end_matches(':');
            word.contains(':').then(|| word.parse().ok()).flatten()
        });
        if bdf.is_some_and(|bdf| devices::is_left_out(context, bdf)) {
            continue;
        }
        let nic = context.nics().iter().find(|nic| Some(nic.bdf) == bdf);
        let subject = match (nic, bdf) {
            (Some(nic), _) => Subject::nic(nic),
            (None, Some(bdf)) => Subject::Function(bdf),
            (None, None) => Subject::Node,
        };
        if findings.iter().any(|found| found.subject == subject) {
            continue;
        }
        findings.push(
            Finding::warn(subject, "its slot gives it less power than it asked for")
                .evidence(virtual_path::KERNEL_LOG, line.trim())
                .fix(Fix::manual(
                    "Give it more power",
                    "in the BIOS raise the slot's power limit (75 W); or move the card to a slot \
                     that gives 75 W; where the slot does and says otherwise, bring the BIOS up \
                     to date",
                )),
        );
    }
    if findings.is_empty() {
        findings.push(Finding::pass(
            Subject::Node,
            "no NIC has complained of too little power",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    #[test]
    fn a_quiet_log_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
    }

    #[test]
    fn a_nic_that_complains_is_named_once() {
        let line = "mlx5_core 0000:19:00.0: mlx5_pcie_event:304:(pid 1): Detected insufficient \
                    power on the PCIe slot (27W).\n";
        let log = format!("[    9.1] {line}[   11.2] {line}");
        let node = example::healthy().file(virtual_path::KERNEL_LOG, log);
        assert_eq!(verdicts(&CHECK, &node), [Verdict::Warn]);
        assert_eq!(worst(&CHECK, &node).subject.to_string(), "mlx5_1");
    }

    #[test]
    fn a_log_that_may_not_be_read_is_unknown_and_no_nic_is_no_question() {
        let node = example::healthy().denied(virtual_path::KERNEL_LOG);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
