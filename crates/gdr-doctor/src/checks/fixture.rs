//! Helpers that run checks on fictional nodes in tests.

pub(super) use gdr_node::{Inventory, MemorySource, Source, example, virtual_path};

use crate::check::Check;
use crate::context::Context;
pub(super) use crate::finding::Finding;
pub(super) use crate::finding::Verdict::{self, Fail, Info, Pass, Skip, Unknown, Warn};

/// The findings of a check on a node.
pub(super) fn findings(check: &Check, node: &MemorySource) -> Vec<Finding> {
    let inventory = Inventory::read(node);
    check.run(&Context::new(node, &inventory))
}

/// The verdicts of a check on a node.
pub(super) fn verdicts(check: &Check, node: &MemorySource) -> Vec<Verdict> {
    let findings = findings(check, node);
    findings.into_iter().map(|found| found.verdict).collect()
}

/// The finding with the worst verdict; the first of equals.
pub(super) fn worst(check: &Check, node: &MemorySource) -> Finding {
    let mut worst: Option<Finding> = None;
    for found in findings(check, node) {
        if worst.as_ref().is_none_or(|it| it.verdict < found.verdict) {
            worst = Some(found);
        }
    }
    worst.unwrap()
}

/// The worst verdict of a check on a node.
pub(super) fn verdict(check: &Check, node: &MemorySource) -> Verdict {
    worst(check, node).verdict
}

/// The node with the vendor, the device ID and the class of a function replaced.
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

/// The node with a function bound to another driver.
pub(super) fn bound_to(node: MemorySource, bdf: &str, driver: &str) -> MemorySource {
    node.link_to(
        &format!("/sys/bus/pci/devices/{bdf}/driver"),
        &format!("../../../../bus/pci/drivers/{driver}"),
    )
}

/// The healthy node whose CUDA lists only this GPU, with these fields in JSON.
pub(super) fn cuda_says(gpu: usize, fields: &str) -> MemorySource {
    let text = format!(
        r#"{{"devices":[{{"pci":"{}",{fields}}}]}}"#,
        example::GPUS[gpu]
    );
    example::healthy().file(virtual_path::CUDA_DEVICES, text)
}

/// The healthy node with `change` applied to each line of its device nodes; `None` removes the
/// line.
pub(super) fn with_nodes(change: impl Fn(&str) -> Option<String>) -> MemorySource {
    let node = example::healthy();
    let text = node.text(virtual_path::DEVICE_NODES).unwrap();
    let changed: Vec<String> = text.lines().filter_map(change).collect();
    node.file(virtual_path::DEVICE_NODES, changed.join("\n"))
}
