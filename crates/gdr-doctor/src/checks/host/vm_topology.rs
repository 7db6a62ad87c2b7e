//! `vm.topology`: a guest shows how its devices hang together.

use gdr_node::Datum;
use gdr_node::topology::Note;

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::checks::pcie::devices;
use crate::context::Context;
use crate::facts::Machine;
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("vm.topology"),
    group: Group::Host,
    title: "a guest shows how its GPUs and NICs hang together",
    documentation: Documentation {
        means: "A hypervisor that puts all devices on one bus hides which GPU shares a switch with \
                which NIC. Libraries then take every pair for equally far and choose badly, or do \
                without GPUDirect RDMA: half the bandwidth.",
        reads: "The PCI tree, and whether this is a guest.",
        judges: "skip: no guest, or no GPU with a NIC. warn: every GPU and every NIC is right on a \
                 root bus. pass: they are below bridges. unknown: not collected.",
        sources: &[
            "https://github.com/NVIDIA/nccl/issues/1464",
            "https://github.com/NVIDIA/nccl/issues/949",
            "https://github.com/cloud-hypervisor/cloud-hypervisor/pull/6235",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    match &context.facts().machine {
        Datum::Present(Machine::Virtual) => {}
        Datum::Present(Machine::Bare) => return vec![Finding::skip("this is no guest")],
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "whether this is a guest",
                absent,
            )];
        }
    }
    let absent = devices::gpus(context).err();
    if let Some(why) = absent.or(devices::nics(context).err()) {
        return why;
    }
    let pairs = context.pairs();
    let flat = |notes: &[Note]| notes.contains(&Note::FlatBus);
    // NVLink and PHB alike: what counts is that no bridge is shown.
    let all_flat = !pairs.is_empty() && pairs.iter().all(|pair| flat(&pair.relation.notes));
    if !all_flat {
        return vec![Finding::pass(
            Subject::Node,
            "the guest shows bridges above its GPUs and NICs",
        )];
    }
    let first = &pairs[0];
    vec![
        Finding::warn(
            Subject::Node,
            "every GPU and NIC is right on a root bus: which of them are near each other is hidden",
        )
        .evidence(
            format!("{} and {}", first.gpu.bdf, first.nic.bdf),
            "no bridge above either",
        )
        .fix(Fix::user(
            "Tell NCCL how they hang together",
            "export NCCL_TOPO_FILE=/path/to/topology.xml   # from the provider of the machine, or \
             gdr topo --format nccl-xml on the host",
        ))
        .fix(Fix::manual(
            "Let the host show it",
            "on the host give the guest root ports and switches like the real ones (QEMU: pxb-pcie, \
             pcie-root-port, x3130), with Direct Translated in ACS on and ATS on in the NICs",
        )),
    ]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    const GUEST: &str = "flags\t: fpu hypervisor\n";

    fn flat() -> MemorySource {
        let put = |node: MemorySource, bdf: &str, vendor: &str, class: &str| {
            let at = format!("/sys/devices/pci0000:00/{bdf}");
            node.link_to(
                &format!("/sys/bus/pci/devices/{bdf}"),
                &format!("../../../devices/pci0000:00/{bdf}"),
            )
            .file(&format!("{at}/vendor"), vendor)
            .file(&format!("{at}/class"), class)
        };
        let node = MemorySource::new().file("/proc/cpuinfo", GUEST);
        let node = put(node, "0000:00:05.0", "0x10de", "0x030200");
        let node = put(node, "0000:00:06.0", "0x15b3", "0x020700");
        let nic = "/sys/devices/pci0000:00/0000:00:06.0/infiniband/mlx5_0";
        node.link_to(
            "/sys/class/infiniband/mlx5_0",
            &format!("../..{}", &nic[4..]),
        )
        .link_to(&format!("{nic}/device"), "../../../0000:00:06.0")
    }

    #[test]
    fn a_flat_guest_is_warned_of_and_one_with_bridges_passes() {
        assert_eq!(verdict(&CHECK, &flat()), Verdict::Warn);
        let guest = example::healthy().file("/proc/cpuinfo", GUEST);
        assert_eq!(verdict(&CHECK, &guest), Verdict::Pass);
    }

    #[test]
    fn outside_of_a_guest_it_is_no_question_and_what_was_not_collected_is_unknown() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
