use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("topo.numa"),
    title: "each GPU and its NIC are on one NUMA node",
    why: "If a GPU and its NIC are on different NUMA nodes, their traffic crosses the interconnect \
          between the nodes. If firmware assigns no node (-1), libraries guess and may place \
          memory and threads on any node.",
    inputs: "/sys/bus/pci/devices/*/numa_node, /sys/devices/system/node/online.",
    criteria: "pass: the same node, or the machine has only one. warn: different nodes. info: \
               firmware assigns none. skip: no GPU or no NIC.",
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
            "the machine has only NUMA node {node}"
        ))]);
    }
    let findings = runner::each(pairs, |pair| (Subject::pair(pair), judge(context, pair)));
    let all_same = |verdict| findings.iter().all(|it| it.verdict == verdict);
    if all_same(Verdict::Pass) {
        return Ok(vec![Finding::pass(
            "each GPU and its NICs are on one NUMA node",
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
        .fix(Fix::hardware(
            "Move both to one socket",
            "move one of the cards; on AMD set NPS1 if the nodes belong to one socket",
        )),
        (Err(Absence::Missing), Err(Absence::Missing) | Ok(_)) | (Ok(_), Err(Absence::Missing)) => {
            Finding::info("firmware does not assign NUMA nodes to them: libraries guess").fix(
                Fix::manual(
                    "Make firmware assign NUMA nodes",
                    "update the firmware, or look in its setup for ACPI SRAT, SLIT and NUMA nodes \
                     per socket",
                ),
            )
        }
        (Ok(_) | Err(Absence::Missing), absent) | (absent, _) => {
            Finding::unknown("the NUMA node of the GPU or the NIC", absent)
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
    fn pairs_on_one_node_pass_with_one_finding() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
    }

    #[test]
    fn different_nodes_are_a_warning_unless_the_machine_has_only_one() {
        let node = on_node(example::healthy(), example::NICS[1], "1\n");
        assert_eq!(verdict(&CHECK, &node), Warn);
        let one = node.file("/sys/devices/system/node/online", "0\n");
        assert_eq!(verdict(&CHECK, &one), Pass);
    }

    #[test]
    fn an_unassigned_node_is_info() {
        let node = on_node(example::healthy(), example::GPUS[0], "-1\n");
        assert_eq!(verdict(&CHECK, &node), Info);
    }

    #[test]
    fn an_uncollected_node_is_unknown() {
        let at = format!("/sys/bus/pci/devices/{}/numa_node", example::GPUS[0]);
        assert_eq!(
            verdict(&CHECK, &example::healthy().not_collected(&at)),
            Unknown
        );
    }
}
