//! Helpers that run checks on fictional nodes in tests.

pub(super) use gdr_node::{Inventory, MemorySource, Source, example, virtual_path};

use crate::check::Check;
use crate::context::Context;
pub(super) use crate::finding::Finding;
pub(super) use crate::finding::Verdict::{self, Fail, Info, Pass, Skip, Unknown, Warn};

/// An unused entry of a GID table.
pub(super) const UNUSED_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";

/// Returns the findings of a check on a node.
pub(super) fn findings(check: &Check, node: &MemorySource) -> Vec<Finding> {
    let inventory = Inventory::read(node);
    check.run(&Context::new(node, &inventory))
}

/// Returns the verdicts of a check on a node.
pub(super) fn verdicts(check: &Check, node: &MemorySource) -> Vec<Verdict> {
    let findings = findings(check, node);
    findings.into_iter().map(|found| found.verdict).collect()
}

/// Returns the finding with the worst verdict; the first of equals.
pub(super) fn worst(check: &Check, node: &MemorySource) -> Finding {
    let mut worst: Option<Finding> = None;
    for found in findings(check, node) {
        if worst.as_ref().is_none_or(|it| it.verdict < found.verdict) {
            worst = Some(found);
        }
    }
    worst.unwrap()
}

/// Returns the finding with the worst verdict, which must be this one.
#[track_caller]
pub(super) fn judged(check: &Check, node: &MemorySource, verdict: Verdict) -> Finding {
    let found = worst(check, node);
    assert_eq!(found.verdict, verdict, "{}", found.summary);
    found
}

/// Returns the findings of a check about a listing of lspci, without any other fact.
pub(super) fn of_listing(check: &Check, text: &str) -> Vec<Finding> {
    let tree = gdr_node::import::lspci::read(text).unwrap().into_tree();
    let inventory = Inventory::of_tree(Ok(tree), gdr_node::NumaLayout::unknown());
    check.run(&Context::new(&MemorySource::partial(), &inventory))
}

/// Returns a guest with a GPU and a NIC directly on one root bus.
pub(super) fn flat_guest() -> MemorySource {
    let devices = [
        ("0000:00:05.0", "0x10de\n", "0x030200\n"),
        ("0000:00:06.0", "0x15b3\n", "0x020700\n"),
    ];
    let node = MemorySource::new()
        .file("/proc/cpuinfo", "flags\t: fpu hypervisor\n")
        .file("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
        .link_to(
            "/sys/class/infiniband/mlx5_0/device",
            "../../../devices/pci0000:00/0000:00:06.0",
        );
    devices
        .into_iter()
        .fold(node, |node, (bdf, vendor, class)| {
            let at = format!("/sys/devices/pci0000:00/{bdf}");
            node.link_to(
                &format!("/sys/bus/pci/devices/{bdf}"),
                &format!("../../../devices/pci0000:00/{bdf}"),
            )
            .file(&format!("{at}/vendor"), vendor)
            .file(&format!("{at}/class"), class)
        })
}

/// Returns the node without some of the example's RDMA devices, by number.
pub(super) fn without_nics(
    node: MemorySource,
    numbers: impl IntoIterator<Item = usize>,
) -> MemorySource {
    numbers.into_iter().fold(node, |node, number| {
        node.without(&format!("/sys/class/infiniband/mlx5_{number}"))
    })
}

/// Returns the healthy node without its Ethernet devices.
pub(super) fn without_ethernet() -> MemorySource {
    without_nics(example::healthy(), [0, 5])
}

/// Returns the healthy node without a peer-memory module.
pub(super) fn without_peermem() -> MemorySource {
    example::healthy()
        .file("/proc/modules", "ib_core 1 0 - Live 0x0\n")
        .without("/sys/module/nvidia_peermem")
}

/// Returns the worst verdict of a check on a node.
pub(super) fn verdict(check: &Check, node: &MemorySource) -> Verdict {
    worst(check, node).verdict
}

/// Returns the node with the vendor, the device ID and the class of a function replaced.
pub(super) fn turned_into(
    node: MemorySource,
    bdf: &str,
    (vendor, device): (u16, u16),
    class: u32,
) -> MemorySource {
    let path = format!("/sys/bus/pci/devices/{bdf}/config");
    let mut config = node.read(&path).unwrap();
    config[..2].copy_from_slice(&vendor.to_le_bytes());
    config[2..4].copy_from_slice(&device.to_le_bytes());
    config[9..12].copy_from_slice(&class.to_le_bytes()[..3]);
    node.file(&path, config)
}

/// Returns the node with a function bound to another driver.
pub(super) fn bound_to(node: MemorySource, bdf: &str, driver: &str) -> MemorySource {
    node.link_to(
        &format!("/sys/bus/pci/devices/{bdf}/driver"),
        &format!("../../../../bus/pci/drivers/{driver}"),
    )
}

/// Returns the healthy node whose CUDA lists only this GPU, with these fields in JSON.
pub(super) fn cuda_says(gpu: usize, fields: &str) -> MemorySource {
    let text = format!(
        r#"{{"devices":[{{"pci":"{}",{fields}}}]}}"#,
        example::GPUS[gpu]
    );
    example::healthy().file(virtual_path::CUDA_DEVICES, text)
}

/// Returns the healthy node with `change` applied to each line of its device nodes; `None` removes the line.
pub(super) fn with_nodes(change: impl Fn(&str) -> Option<String>) -> MemorySource {
    let node = example::healthy();
    let text = node.text(virtual_path::DEVICE_NODES).unwrap();
    let changed: Vec<String> = text.lines().filter_map(change).collect();
    node.file(virtual_path::DEVICE_NODES, changed.join("\n"))
}
