use gdr_node::topology::{NcclClass, Note, SmiClass};

use super::slots;
use crate::checks::prelude::*;
use crate::gpudirect_support::model;

pub(super) const CHECK: Check = Check {
    id: CheckId("topo.pair"),
    title: "each GPU has a NIC below the same switch",
    why: "Traffic between a GPU and a NIC is fastest below one switch (PIX, PXB). Through the host \
          bridge (PHB, NODE) it depends on the CPU, and NCCL does not use GPUDirect RDMA by \
          default. Through the interconnect between NUMA nodes (SYS) it is often slower than \
          staging through host memory.",
    inputs: "The paths of the functions in /sys/devices, numa_node, and the NUMA layout, by the \
             rules of `nvidia-smi topo -m`.",
    criteria: "For each GPU and its nearest NICs: pass: PIX or PXB, or a GPU with a chip-to-chip \
               link to its CPU. warn: PHB or NODE; SYS within one socket, or if firmware assigns \
               no NUMA nodes. fail: SYS. info: a guest whose PCI tree is not the machine's. \
               unknown: a listing without bridges; or the known NICs are far and the place of \
               others is not known. skip: no GPU or no NIC.",
    sources: &[
        "nvidia-smi topo -m, legend",
        "NCCL src/graph/paths.cc (NCCL_NET_GDR_LEVEL: PXB by default)",
    ],
    symptom_of: &["nic.driver"],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let pairs = runner::pairs(context)?;
    // The pairs of one GPU are adjacent.
    let of_each_gpu = pairs.chunk_by(|a, b| a.gpu.bdf == b.gpu.bdf);
    Ok(runner::each(of_each_gpu, |nearest| {
        let pair = nearest[0];
        (Subject::gpu(&pair.gpu), judge(context, pair, nearest))
    }))
}

fn judge(context: &Context<'_>, pair: &Pair<'_>, nearest: &[&Pair<'_>]) -> Judgement {
    let names = some_of(nearest);
    let relation = &pair.relation;
    let class = relation.smi;
    let note = |wanted: fn(&Note) -> bool| relation.notes.iter().any(wanted);
    let unproven = note(|note| matches!(note, Note::NoProximity(_) | Note::ProximityUnknown(_)));
    let one_socket = note(|note| *note == Note::OneSocket);
    let linked = model(context, pair.gpu.bdf).is_some_and(|name| has_chip_link(&name));
    // If the report is about one pair, its NIC need not be the nearest.
    let named = match context.pair() {
        Some(_) => format!("{names} is"),
        None => format!("its nearest NIC is {names}"),
    };
    let is_far = !matches!(class, SmiClass::Pix | SmiClass::Pxb | SmiClass::Same);
    let (verdict, summary) = match class {
        _ if !is_far => (
            Verdict::Pass,
            format!("{names} at {class}: {}", relation.why),
        ),
        _ if linked => (
            Verdict::Pass,
            format!("{names} over the chip-to-chip link to the CPU ({class} by PCI)"),
        ),
        // A hypervisor may show any tree, and its host's decides.
        _ if context.is_guest() && (note(|note| *note == Note::FlatBus) || is_far) => (
            Verdict::Info,
            format!("{names} at {class}, but the guest's PCI tree is not the machine's"),
        ),
        _ if context.facts().machine.is_unknown() && note(|note| *note == Note::FlatBus) => (
            Verdict::Unknown,
            format!("{names} at {class} by this listing, which shows no bridge"),
        ),
        _ if context.pair().is_none() && context.every_distance_from(pair.gpu.bdf).is_unknown() => {
            (
                Verdict::Unknown,
                format!("{names} at {class}; the place of other NICs is not known"),
            )
        }
        SmiClass::Phb | SmiClass::Node => (
            Verdict::Warn,
            format!(
                "{named} at {class}: {}; NCCL does not use GPUDirect RDMA at this distance by \
                 default",
                relation.why
            ),
        ),
        _ if one_socket => (
            Verdict::Warn,
            format!(
                "{named} at {class}, on another NUMA node of the same socket: \
                 measure",
            ),
        ),
        _ if unproven => (
            Verdict::Warn,
            format!("{named} at {class} by what is known: {}", relation.why),
        ),
        _ => (
            Verdict::Fail,
            format!(
                "{named} at {class}: {}; staging through host memory is often faster",
                relation.why
            ),
        ),
    };
    let mut finding = Finding::new(verdict, summary)
        .symptom_of("vm.topology")
        .evidence(
            format!("path from {} to {}", pair.gpu.bdf, pair.nic.bdf),
            way(pair),
        );
    for note in &relation.notes {
        finding = finding.evidence("note", note);
    }
    if context.is_guest() && is_far {
        return Ok(finding.fix(Fix::user(
            "Give NCCL the host's topology",
            "export NCCL_TOPO_FILE=/path/to/topology.xml   # of the provider, or gdr topo --format \
             nccl-xml on the host",
        )));
    }
    if !verdict.is_bad() {
        return Ok(finding);
    }
    let nearer = context.nearer_nics(pair);
    if !nearer.is_empty() {
        let names: Vec<&str> = nearer.iter().map(|(name, _)| name.as_str()).collect();
        let classes: Vec<String> = (nearer.iter())
            .map(|(name, class)| format!("{name} at {class}"))
            .collect();
        finding = finding
            .evidence("nearer NICs", classes.join(", "))
            .fix(Fix::user(
                "Use a NIC that is nearer to this GPU",
                format!("export NCCL_IB_HCA='={}'", names.join(",")),
            ));
        return Ok(finding);
    }
    finding = finding.fix(move_card(context, pair));
    // Worth a measurement: the host bridge of many servers forwards well.
    let level = match relation.nccl {
        NcclClass::Sys => "SYS",
        _ => "PHB",
    };
    Ok(finding.fix(Fix::user(
        "Make NCCL use GPUDirect RDMA at this distance, and measure",
        format!("export NCCL_NET_GDR_LEVEL={level}"),
    )))
}

fn way(pair: &Pair<'_>) -> String {
    let places: Vec<String> = (pair.relation.steps.iter())
        .map(|step| step.place.to_string())
        .collect();
    places.join(" - ")
}

fn move_card(context: &Context<'_>, pair: &Pair<'_>) -> Fix {
    let slots = slots::nearer_to(context, pair.gpu.bdf, &pair.relation);
    let title = "Move a NIC nearer to the GPU";
    if slots.is_empty() {
        Fix::hardware(
            title,
            "move the NIC or the GPU to a slot below the same switch, or at least the same root \
             port; no empty slot that is nearer is known",
        )
    } else {
        Fix::hardware(
            title,
            format!(
                "move a NIC to an empty slot that is nearer: {}",
                slots.join(", ")
            ),
        )
    }
}

/// Returns the names of the NICs, or of the first few if there are many.
fn some_of(pairs: &[&Pair<'_>]) -> String {
    const MOST: usize = 4;
    let names: Vec<&str> = (pairs.iter().take(MOST))
        .map(|pair| pair.nic.name.as_str())
        .collect();
    match pairs.len().saturating_sub(MOST) {
        0 => names.join(", "),
        more => format!("{} or one of {more} more", names.join(", ")),
    }
}

/// Returns whether a GPU of this name is connected to its CPU by NVLink-C2C.
fn has_chip_link(name: &str) -> bool {
    ["GH200", "GB200", "GB300", "GB10"]
        .iter()
        .any(|chip| name.contains(chip))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    /// Returns the example with the RDMA devices of these numbers only.
    fn with_nics(keep: &[usize]) -> MemorySource {
        let others = (0..10).filter(|number| !keep.contains(number));
        without_nics(example::healthy(), others)
    }

    #[test]
    fn nics_below_the_same_switch_pass() {
        let found = findings(&CHECK, &example::healthy());
        assert_eq!(found.len(), 8);
        assert!(found.iter().all(|it| it.verdict == Pass));
        assert!(
            found[0].summary.starts_with("mlx5_1, mlx5_2 at PIX"),
            "{}",
            found[0].summary
        );
    }

    #[test]
    fn another_host_bridge_is_a_warning_and_another_socket_fails() {
        let found = findings(&CHECK, &with_nics(&[0]));
        let verdicts: Vec<Verdict> = found.iter().map(|it| it.verdict).collect();
        assert_eq!(verdicts[..4], [Warn; 4]);
        assert_eq!(verdicts[4..], [Fail; 4]);
        assert_contains!(found[0].summary, "NODE");
        let fixes: Vec<String> = found[4]
            .fixes
            .iter()
            .map(|fix| fix.actions[0].to_string())
            .collect();
        assert!(fixes[1].ends_with("NCCL_NET_GDR_LEVEL=SYS"), "{fixes:?}");
    }

    fn of_pair(nic: usize) -> Finding {
        let node = example::healthy();
        let inventory = gdr_node::Inventory::read(&node);
        let (gpu, nic) = (example::GPUS[0], example::NICS[nic]);
        let context = Context::new(&node, &inventory);
        let context = context.between(gpu.parse().unwrap(), nic.parse().unwrap());
        CHECK.run(&context).remove(0)
    }

    #[test]
    fn a_report_about_one_pair_does_not_call_its_nic_the_nearest() {
        let far = of_pair(3);
        assert_eq!(far.verdict, Warn);
        assert!(
            far.summary.starts_with("mlx5_3 is at NODE"),
            "{}",
            far.summary
        );
        let nearer = far.evidence.iter().find(|it| it.source == "nearer NICs");
        assert_eq!(nearer.unwrap().value, "mlx5_1 at PIX, mlx5_2 at PIX");
        let advice = far.fixes[0].actions[0].to_string();
        assert_eq!(advice, "export NCCL_IB_HCA='=mlx5_1,mlx5_2'");
        assert_eq!(of_pair(1).verdict, Pass);
    }

    #[test]
    fn an_empty_slot_below_the_switch_is_in_the_fix() {
        let node = (example::healthy())
            .without("/sys/bus/pci/devices/0000:19:00.0")
            .without("/sys/bus/pci/devices/0000:1b:00.0");
        let node = without_nics(node, 1..10);
        let found = worst(&CHECK, &node);
        let first = findings(&CHECK, &node).remove(0);
        let advice = first.fixes[0].actions[0].to_string();
        assert_contains!(advice, "empty slot that is nearer: ");
        // The slot is not offered for GPUs below other switches.
        assert!(
            found.fixes[0].actions[0]
                .to_string()
                .contains("no empty slot")
        );
    }

    #[test]
    fn sys_without_numa_nodes_of_firmware_is_a_warning() {
        let mut node = with_nics(&[0]);
        for bdf in example::GPUS.iter().chain([&example::NICS[0]]) {
            node = node.file(&format!("/sys/bus/pci/devices/{bdf}/numa_node"), "-1\n");
        }
        assert_eq!(verdict(&CHECK, &node), Warn);
    }

    #[test]
    fn another_numa_node_of_one_socket_is_a_warning() {
        let node = with_nics(&[0]);
        let package = "/sys/devices/system/cpu/cpu48/topology/physical_package_id";
        assert_eq!(verdict(&CHECK, &node), Fail);
        assert_eq!(verdict(&CHECK, &node.file(package, "0\n")), Warn);
    }

    #[test]
    fn a_gpu_with_a_chip_to_chip_link_passes() {
        let devices: Vec<String> = example::GPUS
            .iter()
            .map(|bdf| format!("{{\"pci\":\"{bdf}\",\"name\":\"NVIDIA GH200 480GB\"}}"))
            .collect();
        let node = with_nics(&[0]).file(
            virtual_path::CUDA_DEVICES,
            format!("{{\"devices\":[{}]}}", devices.join(",")),
        );
        assert_eq!(verdict(&CHECK, &node), Pass);
    }

    #[test]
    fn a_guest_with_a_flat_bus_is_info() {
        let node = flat_guest();
        assert_eq!(verdict(&CHECK, &node), Info);
        let bare = node.file("/proc/cpuinfo", "flags : fpu\n");
        assert_eq!(verdict(&CHECK, &bare), Warn);
    }

    #[test]
    fn a_node_without_nics_is_skipped() {
        assert_eq!(verdict(&CHECK, &with_nics(&[])), Skip);
    }
}
