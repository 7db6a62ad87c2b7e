use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("topo.numa"),
    title: "each GPU and its NIC are on one NUMA node",
    why: "Where a GPU and its NIC are on different NUMA nodes their traffic crosses the \
          interconnect between them. Where firmware names no node (-1) libraries guess, and pin \
          memory and threads anywhere.",
    inputs: "/sys/bus/pci/devices/*/numa_node, /sys/devices/system/node/online.",
    criteria: "pass: the same node, or there is but one. warn: different nodes. info: firmware \
          names none. skip: no GPU or no NIC.",
    sources: &[
        "ACPI Specification 6.5, 6.2.14 (_PXM)",
        "https://github.com/rapidsai/cuCascade/issues/119",
    ],
    symptom_of: &["topo.pair"],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let pairs = runner::pairs(context)?;
    if let Some(node) = context.inventory.numa.only_node() {
        return Ok(vec![Finding::pass(format!(
            "there is but one NUMA node, {node}"
        ))]);
    }
    let findings = runner::each(pairs, |pair| (Subject::pair(pair), judge(context, pair)));
    let all_same = |verdict| findings.iter().all(|it| it.verdict == verdict);
    if all_same(Verdict::Pass) {
        return Ok(vec![Finding::pass(
            "each GPU is on the NUMA node of its NICs",
        )]);
    }
    if let Some(first) = findings.first().filter(|_| all_same(Verdict::Unknown)) {
        return Ok(vec![Finding {
            subject: Subject::Node,
            ..first.clone()
        }]);
    }
    let mut rest = findings;
    rest.retain(|it| it.verdict != Verdict::Pass);
    Ok(rest)
}

fn judge(context: &Context<'_>, pair: &Pair<'_>) -> Judgement {
    let numa = |bdf| context.fact(bdf, |function| function.numa);
    let (gpu, nic) = (numa(pair.gpu.bdf), numa(pair.nic.bdf));
    let finding = match (&gpu, &nic) {
        (Ok(gpu), Ok(nic)) if gpu == nic => Finding::pass(format!("both are on NUMA node {gpu}")),
        (Ok(gpu), Ok(nic)) => Finding::warn(format!(
            "the GPU is on NUMA node {gpu} and the NIC on {nic}"
        ))
        .fix(Fix::manual(
            "Put both below one socket",
            "move one of the cards; on AMD set NPS1 if the nodes are parts of one socket",
        )),
        (Err(Absence::Missing), Err(Absence::Missing) | Ok(_)) | (Ok(_), Err(Absence::Missing)) => {
            Finding::info("firmware does not say on which NUMA node they are: libraries guess").fix(
                Fix::manual(
                    "Let firmware tell",
                    "update the firmware, or look there for ACPI SRAT, SLIT and NUMA per socket",
                ),
            )
        }
        (Ok(_) | Err(Absence::Missing), absent) | (absent, _) => {
            Finding::unknown("the NUMA node of GPU or NIC", absent)
        }
    };
    Ok(finding
        .evidence(format!("numa_node of {}", pair.gpu.bdf), gpu.shown())
        .evidence(format!("numa_node of {}", pair.nic.bdf), nic.shown()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn on_node(node: MemorySource, bdf: &str, numa: &str) -> MemorySource {
        node.file(&format!("/sys/bus/pci/devices/{bdf}/numa_node"), numa)
    }

    #[test]
    fn pairs_on_one_node_pass_together() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
    }

    #[test]
    fn different_nodes_are_warned_of_unless_there_is_but_one() {
        let node = on_node(example::healthy(), example::NICS[1], "1\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Warn);
        let one = node.file("/sys/devices/system/node/online", "0\n");
        assert_eq!(verdict(&CHECK, &one), Pass);
    }

    #[test]
    fn silence_of_firmware_is_worth_knowing() {
        let node = on_node(example::healthy(), example::GPUS[0], "-1\n");
        assert_eq!(verdict(&CHECK, &node), Info);
    }

    #[test]
    fn what_was_not_collected_is_not_judged() {
        let at = format!("/sys/bus/pci/devices/{}/numa_node", example::GPUS[0]);
        assert_eq!(
            verdict(&CHECK, &example::healthy().not_collected(&at)),
            Unknown
        );
        let none = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
