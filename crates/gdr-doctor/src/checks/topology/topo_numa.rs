//! `topo.numa`: each GPU and its NIC are on one NUMA node.

use gdr_node::Datum;

use super::pairs_in_use;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::{Context, Pair};
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("topo.numa"),
    group: Group::Topology,
    title: "each GPU and its NIC are on one NUMA node",
    documentation: Documentation {
        means: "Where a GPU and its NIC are on different NUMA nodes their traffic crosses the \
                interconnect between them. Where firmware names no node (-1) libraries guess, and \
                pin memory and threads anywhere.",
        reads: "/sys/bus/pci/devices/*/numa_node, /sys/devices/system/node/online.",
        judges: "pass: the same node, or there is but one. warn: different nodes. info: firmware \
                 names none. skip: no GPU or no NIC.",
        sources: &[
            "ACPI Specification 6.5, 6.2.14 (_PXM)",
            "https://github.com/rapidsai/cuCascade/issues/119",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("topo.pair")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let pairs = match pairs_in_use(context) {
        Ok(pairs) => pairs,
        Err(why) => return vec![*why],
    };
    if let Some(node) = context.inventory.numa.only_node() {
        return vec![Finding::pass(
            Subject::Node,
            format!("there is but one NUMA node, {node}"),
        )];
    }
    let findings: Vec<Finding> = pairs.iter().map(|pair| judge(context, pair)).collect();
    let all_same = |verdict| findings.iter().all(|it| it.verdict == verdict);
    use crate::finding::Verdict;
    if all_same(Verdict::Pass) {
        return vec![Finding::pass(
            Subject::Node,
            "each GPU is on the NUMA node of its NICs",
        )];
    }
    if let Some(first) = findings.first().filter(|_| all_same(Verdict::Unknown)) {
        return vec![Finding {
            subject: Subject::Node,
            ..first.clone()
        }];
    }
    let mut rest = findings;
    rest.retain(|it| it.verdict != Verdict::Pass);
    rest
}

fn judge(context: &Context<'_>, pair: &Pair<'_>) -> Finding {
    let subject = Subject::pair(pair);
    let numa = |bdf| {
        context
            .function(bdf)
            .map_or(Datum::NotCollected, |function| function.numa.clone())
    };
    let (gpu, nic) = (numa(pair.gpu.bdf), numa(pair.nic.bdf));
    let finding = match (&gpu, &nic) {
        (Datum::Present(gpu), Datum::Present(nic)) if gpu == nic => {
            Finding::pass(subject, format!("both are on NUMA node {gpu}"))
        }
        (Datum::Present(gpu), Datum::Present(nic)) => Finding::warn(
            subject,
            format!("the GPU is on NUMA node {gpu} and the NIC on {nic}"),
        )
        .fix(Fix::manual(
            "Put both below one socket",
            "move one of the cards; on AMD set NPS1 if the nodes are parts of one socket",
        )),
        (Datum::Missing, Datum::Missing | Datum::Present(_))
        | (Datum::Present(_), Datum::Missing) => Finding::info(
            subject,
            "firmware does not say on which NUMA node they are: libraries guess",
        )
        .fix(Fix::manual(
            "Let firmware tell",
            "update the firmware, or look there for ACPI SRAT, SLIT and NUMA per socket",
        )),
        (Datum::Present(_) | Datum::Missing, absent) | (absent, _) => {
            Finding::unknown(subject, "the NUMA node of GPU or NIC", absent)
        }
    };
    finding
        .evidence(format!("numa_node of {}", pair.gpu.bdf), gpu.to_string())
        .evidence(format!("numa_node of {}", pair.nic.bdf), nic.to_string())
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    fn on_node(node: MemorySource, bdf: &str, numa: &str) -> MemorySource {
        node.file(&format!("/sys/bus/pci/devices/{bdf}/numa_node"), numa)
    }

    #[test]
    fn pairs_on_one_node_pass_together() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
    }

    #[test]
    fn different_nodes_are_warned_of_unless_there_is_but_one() {
        let node = on_node(example::healthy(), example::NICS[1], "1\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Warn);
        let one = node.file("/sys/devices/system/node/online", "0\n");
        assert_eq!(verdict(&CHECK, &one), Verdict::Pass);
    }

    #[test]
    fn silence_of_firmware_is_worth_knowing() {
        let node = on_node(example::healthy(), example::GPUS[0], "-1\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Info);
    }

    #[test]
    fn what_was_not_collected_is_not_judged() {
        let at = format!("/sys/bus/pci/devices/{}/numa_node", example::GPUS[0]);
        assert_eq!(
            verdict(&CHECK, &example::healthy().not_collected(&at)),
            Verdict::Unknown
        );
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let none = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Verdict::Skip);
    }
}
