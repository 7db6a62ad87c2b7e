//! `ib.pkey`: InfiniBand ports are members of the default partition.

use gdr_node::Datum;

use super::ib_sm::lid;
use super::ports::{Port, each};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::Finding;
use crate::fix::Fix;

/// The default partition, with the bit of full members and without.
const DEFAULT: [u32; 2] = [0xffff, 0x7fff];

pub(super) const CHECK: Check = Check {
    id: CheckId("ib.pkey"),
    group: Group::Network,
    title: "InfiniBand ports are members of the default partition",
    documentation: Documentation {
        means: "Ports talk to each other only within a partition. Libraries take the first entry \
                of the table, which is the default partition on most fabrics; where it is not, \
                they must be told (NCCL_IB_PKEY, UCX_IB_PKEY).",
        reads: "/sys/class/infiniband/*/ports/*/pkeys/* of InfiniBand ports that are up.",
        judges: "pass: 0xffff or 0x7fff among them. warn: neither. skip: no InfiniBand port is up. \
                 unknown: not collected.",
        sources: &["InfiniBand Architecture Specification 10.9"],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("ib.sm")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    each(
        context,
        |port| port.is_infiniband() && port.is_active(),
        |port| judge(context, port),
        "no InfiniBand port is up",
    )
}

fn judge(context: &Context<'_>, port: &Port<'_>) -> Finding {
    let subject = port.subject();
    let path = format!("{}/pkeys", port.path);
    let names = match context.source.list(&path) {
        Datum::Present(names) => names,
        absent => return Finding::unknown(subject, "the list of its partitions", &absent),
    };
    let entries: Vec<Datum<String>> = names
        .iter()
        .map(|name| context.text(&format!("{path}/{name}")))
        .collect();
    let keys: Vec<u32> = entries
        .iter()
        .filter_map(|entry| lid(entry.present()?))
        .filter(|key| *key != 0)
        .collect();
    let shown = keys
        .iter()
        .map(|key| format!("{key:#06x}"))
        .collect::<Vec<_>>()
        .join(" ");
    let unread = entries.iter().find(|entry| entry.is_unknown());
    let finding = if keys.iter().any(|key| DEFAULT.contains(key)) {
        Finding::pass(subject, "it is a member of the default partition")
    } else if let Some(unread) = unread {
        Finding::unknown(subject, "an entry of its table of partitions", unread)
    } else if keys.is_empty() {
        Finding::warn(subject, "it is a member of no partition").fix(join())
    } else {
        Finding::warn(
            subject,
            "it is not a member of the default partition, which libraries take unless told",
        )
        .fix(Fix::user(
            "Name the partition by its place in the table",
            "export NCCL_IB_PKEY=0 UCX_IB_PKEY=0x0001   # place in the table; key",
        ))
        .fix(join())
    };
    finding.evidence(path, shown)
}

fn join() -> Fix {
    Fix::manual(
        "Add the port to the default partition",
        "in UFM, or in partitions.conf of opensm, add the port's GUID to the partition 0x7fff",
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    const KEYS: &str = "/sys/class/infiniband/mlx5_1/ports/1/pkeys";

    #[test]
    fn the_default_partition_passes_and_others_alone_are_warned_of() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 8]);
        let other = example::healthy().file(&format!("{KEYS}/0"), "0x8001\n");
        assert_eq!(verdict(&CHECK, &other), Verdict::Warn);
        let none = example::healthy().file(&format!("{KEYS}/0"), "0x0000\n");
        assert_eq!(verdict(&CHECK, &none), Verdict::Warn);
        let limited = example::healthy().file(&format!("{KEYS}/0"), "0x7fff\n");
        assert_eq!(verdict(&CHECK, &limited), Verdict::Pass);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_infiniband_is_no_question() {
        let node = example::healthy().without(KEYS).not_collected(KEYS);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
