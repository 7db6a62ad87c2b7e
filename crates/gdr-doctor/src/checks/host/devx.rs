//! `devx`: GPU-initiated communication has the rights that it needs.

use gdr_node::Datum;

use super::memory_lock::{Capability, has};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::checks::pcie::devices;
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("devx"),
    group: Group::Host,
    title: "GPU-initiated communication (IBGDA) has the rights that it needs",
    documentation: Documentation {
        means: "NVSHMEM's IBGDA and DeepEP make queues by DEVX and map the NIC's doorbells into the \
                GPU. In a container without the rights for it allocating them returns nothing: \
                \"NULL value cannot allocate mlx5dv_devx_uar\".",
        reads: "Bits 13 (CAP_NET_RAW) and 17 (CAP_SYS_RAWIO) of CapEff in /proc/self/status.",
        judges: "pass: both. info: not both, for NVSHMEM warn. skip: no NIC of mlx5_core. unknown: \
                 not collected.",
        sources: &[
            "Linux drivers/infiniband/hw/mlx5/devx.c: mlx5_ib_devx_create",
            "https://github.com/sgl-project/sglang/issues/12533",
            "https://github.com/NVIDIA/nvshmem/issues/23",
        ],
    },
    purposes: &[Purpose::Nvshmem],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let nics = match devices::nics(context) {
        Ok(nics) => nics,
        Err(why) => return why,
    };
    let is_mlx5 = |driver: &Datum<String>| driver.present().is_some_and(|it| it == "mlx5_core");
    if !nics.iter().any(|(_, function)| is_mlx5(&function.driver)) {
        return vec![Finding::skip("no NIC belongs to mlx5_core")];
    }
    let wanted = [
        ("CAP_NET_RAW", Capability::NET_RAW),
        ("CAP_SYS_RAWIO", Capability::SYS_RAWIO),
    ];
    let mut lacking = Vec::new();
    for (name, capability) in wanted {
        match has(context, capability) {
            Datum::Present(true) => {}
            Datum::Present(false) => lacking.push(name),
            absent => {
                return vec![Finding::unknown(
                    Subject::Node,
                    "the set of rights of this process",
                    &absent,
                )];
            }
        }
    }
    if lacking.is_empty() {
        return vec![Finding::pass(
            Subject::Node,
            "this process has the rights for DEVX queues and doorbells",
        )];
    }
    let lacking = lacking.join(" and ");
    let summary = format!("this process lacks {lacking}: GPU-initiated transports may fail");
    let finding = if context.purpose == Some(Purpose::Nvshmem) {
        Finding::warn(Subject::Node, summary)
    } else {
        Finding::info(Subject::Node, summary)
    };
    vec![
        finding
            .evidence("/proc/self/status", format!("CapEff without {lacking}"))
            .fix(
                Fix::user(
                    "Start the container with these rights",
                    "docker run --cap-add NET_RAW --cap-add SYS_RAWIO …   # or --privileged",
                )
                .risk(
                    Risk::Medium,
                    "SYS_RAWIO lets the container reach the machine's registers",
                ),
            ),
    ]
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    #[test]
    fn root_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
    }

    #[test]
    fn lacking_rights_are_told_of_and_for_nvshmem_warned_of() {
        let node = example::healthy().file("/proc/self/status", "CapEff:\t0000000000002000\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Info);
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory).wanted_for(Purpose::Nvshmem);
        let found = run(&context);
        assert_eq!(found[0].verdict, Verdict::Warn);
        assert!(found[0].summary.contains("CAP_SYS_RAWIO"));
        assert!(!found[0].summary.contains("CAP_NET_RAW"));
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_mlx5_is_no_question() {
        let node = example::healthy().without("/proc/self");
        let node = node.not_collected("/proc/self/status");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
