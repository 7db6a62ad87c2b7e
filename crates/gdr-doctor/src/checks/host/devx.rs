use crate::checks::prelude::*;
use crate::process::{Capability, Process};

pub(super) const CHECK: Check = Check {
    id: CheckId("devx"),
    title: "this process has the capabilities for GPU-initiated communication (IBGDA)",
    why: "NVSHMEM's IBGDA and DeepEP create queues by DEVX and map the NIC's doorbells for the \
          GPU. In a container without the needed capabilities the allocation fails: \"NULL value \
          cannot allocate mlx5dv_devx_uar\".",
    inputs: "Bits 13 (CAP_NET_RAW) and 17 (CAP_SYS_RAWIO) of CapEff in /proc/self/status.",
    criteria: "pass: both. info: one is missing; warn for NVSHMEM. skip: no NIC of mlx5_core. \
               unknown: not collected.",
    sources: &[
        "Linux drivers/infiniband/hw/mlx5/devx.c: mlx5_ib_devx_create",
        "https://github.com/sgl-project/sglang/issues/12533",
        "https://github.com/NVIDIA/nvshmem/issues/23",
    ],
    workloads: &[Workload::Nvshmem],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let nics = runner::nics(context)?;
    let is_mlx5 = |driver: &Datum<String>| driver.as_ref().ok().is_some_and(|it| it == "mlx5_core");
    if !nics.iter().any(|(_, function)| is_mlx5(&function.driver)) {
        return Err(Unjudged::skip("no NIC is bound to mlx5_core"));
    }
    let wanted = [
        ("CAP_NET_RAW", Capability::NET_RAW),
        ("CAP_SYS_RAWIO", Capability::SYS_RAWIO),
    ];
    let process = Process::read(context.source);
    let mut lacking = Vec::new();
    for (name, capability) in wanted {
        let has = process.has(capability);
        if !has.known("the capabilities of this process")? {
            lacking.push(name);
        }
    }
    if lacking.is_empty() {
        return Ok(Finding::pass(
            "this process has the capabilities for DEVX queues and doorbells",
        ));
    }
    let lacking = lacking.join(" and ");
    let summary = format!(
        "this process does not have {lacking}: GPU-initiated transports may \
                           fail"
    );
    let finding = if context.purpose == Some(Workload::Nvshmem) {
        Finding::warn(summary)
    } else {
        Finding::info(summary)
    };
    Ok(finding
        .evidence("/proc/self/status", format!("CapEff without {lacking}"))
        .fix(
            Fix::user(
                "Start the container with these capabilities",
                "docker run --cap-add NET_RAW --cap-add SYS_RAWIO …   # or --privileged",
            )
            .risk(
                Risk::Medium,
                "SYS_RAWIO lets the container access the machine's registers",
            ),
        ))
}

#[cfg(test)]
mod tests {
    use gdr_node::Inventory;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn root_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
    }

    #[test]
    fn missing_capabilities_are_info_and_for_nvshmem_a_warning() {
        let node = example::healthy().file("/proc/self/status", "CapEff:\t0000000000002000\n");
        assert_eq!(verdict(&CHECK, &node), Info);
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory).for_workload(Workload::Nvshmem);
        let found = CHECK.run(&context);
        assert_eq!(found[0].verdict, Warn);
        assert!(found[0].summary.contains("CAP_SYS_RAWIO"));
        assert!(!found[0].summary.contains("CAP_NET_RAW"));
    }

    #[test]
    fn an_uncollected_status_is_unknown() {
        let node = example::healthy().without("/proc/self");
        let node = node.not_collected("/proc/self/status");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
