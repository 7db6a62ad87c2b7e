use super::ib_sm::lid;
use super::ports::Port;
use crate::checks::prelude::*;

/// The default partition, for full members and for limited members.
const DEFAULT: [u32; 2] = [0xffff, 0x7fff];

pub(super) const CHECK: Check = Check {
    id: CheckId("ib.pkey"),
    title: "InfiniBand ports are members of the default partition",
    why: "Ports can communicate only within a partition. Libraries use the first entry of the \
          table, which is the default partition on most fabrics. If it is not, the partition must \
          be configured (NCCL_IB_PKEY, UCX_IB_PKEY).",
    inputs: "/sys/class/infiniband/*/ports/*/pkeys/* of active InfiniBand ports.",
    criteria: "pass: the table has 0xffff or 0x7fff. warn: it does not. skip: no InfiniBand port \
               is active. unknown: not collected.",
    sources: &["InfiniBand Architecture Specification 10.9"],
    symptom_of: &["ib.sm"],
    scope: Scope::Port(Which::ActiveInfiniband, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let path = format!("{}/pkeys", port.path);
    let names = context
        .source
        .list(&path)
        .known("the list of its partitions")?;
    let entries: Vec<Datum<String>> = names
        .iter()
        .map(|name| context.text(&format!("{path}/{name}")))
        .collect();
    let keys: Vec<u32> = entries
        .iter()
        .filter_map(|entry| lid(entry.as_ref().ok()?))
        .filter(|key| *key != 0)
        .collect();
    let shown = keys
        .iter()
        .map(|key| format!("{key:#06x}"))
        .collect::<Vec<_>>()
        .join(" ");
    let unread = entries.iter().find(|entry| entry.is_unknown());
    let finding = if keys.iter().any(|key| DEFAULT.contains(key)) {
        Finding::pass("it is a member of the default partition")
    } else if let Some(unread) = unread {
        Finding::unknown("an entry of its partition table", unread)
    } else if keys.is_empty() {
        Finding::warn("it is not a member of any partition").fix(join())
    } else {
        Finding::warn("it is not a member of the default partition, which libraries use by default")
            .fix(Fix::user(
                "Configure the partition by its index in the table",
                "export NCCL_IB_PKEY=0 UCX_IB_PKEY=0x0001   # index in the table; key",
            ))
            .fix(join())
    };
    Ok(finding.evidence(path, shown))
}

fn join() -> Fix {
    Fix::manual(
        "Add the port to the default partition",
        "in UFM, or in partitions.conf of opensm, add the port's GUID to the partition 0x7fff",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    const KEYS: &str = "/sys/class/infiniband/mlx5_1/ports/1/pkeys";

    #[test]
    fn the_default_partition_passes_and_others_alone_are_a_warning() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 8]);
        let other = example::healthy().file(&format!("{KEYS}/0"), "0x8001\n");
        assert_eq!(verdict(&CHECK, &other), Warn);
        let none = example::healthy().file(&format!("{KEYS}/0"), "0x0000\n");
        assert_eq!(verdict(&CHECK, &none), Warn);
        let limited = example::healthy().file(&format!("{KEYS}/0"), "0x7fff\n");
        assert_eq!(verdict(&CHECK, &limited), Pass);
    }

    #[test]
    fn an_uncollected_table_is_unknown() {
        let node = example::healthy().without(KEYS).not_collected(KEYS);
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
