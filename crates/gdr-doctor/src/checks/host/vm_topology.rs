use gdr_node::topology::{Note, SmiClass};

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("vm.topology"),
    title: "a guest shows the PCI topology of its GPUs and NICs",
    why: "If a hypervisor puts all devices on one bus, the guest does not show which GPU and NIC \
          share a switch. Libraries then treat all pairs as equally far, choose badly or do not \
          use GPUDirect RDMA: half the bandwidth.",
    inputs: "The PCI tree, and whether this is a guest.",
    criteria: "skip: not a guest, or no GPU or no NIC. warn: no GPU and NIC are below one switch, \
               or all are directly on a root bus. pass: a GPU and a NIC are below one switch. \
               unknown: not collected.",
    sources: &[
        "https://github.com/NVIDIA/nccl/issues/1464",
        "https://github.com/NVIDIA/nccl/issues/949",
        "https://github.com/cloud-hypervisor/cloud-hypervisor/pull/6235",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let machine = context.facts().machine.by_ref();
    if machine.known("whether this is a guest")? == &Machine::Bare {
        return Err(Unjudged::skip("this is not a guest"));
    }
    runner::gpus(context)?;
    runner::nics(context)?;
    let pairs = context.pairs();
    let Some(first) = pairs.first() else {
        let places: Datum<()> = Err(Absence::NotCollected);
        return Ok(Finding::unknown("the places of GPUs and NICs", &places));
    };
    let is_near = |pair: &Pair<'_>| matches!(pair.relation.smi, SmiClass::Pix | SmiClass::Pxb);
    if pairs.iter().any(is_near) {
        return Ok(Finding::pass(
            "the guest shows switches above its GPUs and NICs",
        ));
    }
    let is_flat = |pair: &Pair<'_>| pair.relation.notes.contains(&Note::FlatBus);
    let (summary, shown) = if pairs.iter().all(is_flat) {
        (
            "every GPU and NIC is directly on a root bus: their real distances are hidden",
            "no bridge is above either".to_owned(),
        )
    } else {
        (
            "no GPU and NIC are below one switch in the PCI tree that the hypervisor made: their \
             real distances are hidden",
            first.relation.smi.to_string(),
        )
    };
    Ok(Finding::warn(summary)
    .evidence(
        format!("{} and {}", first.gpu.bdf, first.nic.bdf),
        shown,
    )
    .fix(Fix::user(
        "Give NCCL the topology",
        "export NCCL_TOPO_FILE=/path/to/topology.xml   # from the provider of the machine, or \
             gdr topo --format nccl-xml on the host",
    ))
    .fix(Fix::manual(
        "Make the host show the topology",
        "on the host, give the guest root ports and switches like the real ones (QEMU: pxb-pcie, \
         pcie-root-port, x3130); turn on Direct Translated in ACS, and ATS in the NICs",
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    const GUEST: &str = "flags\t: fpu hypervisor\n";

    #[test]
    fn a_guest_without_common_switches_is_a_warning_and_one_with_them_passes() {
        assert_eq!(verdict(&CHECK, &flat_guest()), Warn);
        let guest = example::healthy().file("/proc/cpuinfo", GUEST);
        assert_eq!(verdict(&CHECK, &guest), Pass);
        let far = without_nics(guest, 1..10);
        assert_eq!(verdict(&CHECK, &far), Warn);
    }

    #[test]
    fn a_node_that_is_not_a_guest_is_skipped() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
    }
}
