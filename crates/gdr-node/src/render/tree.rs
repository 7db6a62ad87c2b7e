//! The paths from the CPUs to GPUs and NICs, as indented text.

use super::layout::{Branch, Layout};
use super::{link, redirects};
use crate::devices::Device;
use crate::inventory::Inventory;
use crate::pci::Function;
use crate::source::{Absence, DatumExt};

/// Returns the tree: NUMA nodes, host bridges, bridges, devices. Bridges without a GPU or NIC below them are left out.
/// Links show their current speed and width, and their capability if higher; an idle GPU lowers its speed.
pub fn tree(inventory: &Inventory) -> String {
    if let Some(words) = nothing(inventory) {
        return words;
    }
    let layout = Layout::new(inventory).unwrap_or(Layout { nodes: Vec::new() });
    let mut lines = Vec::new();
    for node in &layout.nodes {
        lines.push(match node.node {
            Some(number) => format!("NUMA node {number}"),
            None => unplaced(inventory).to_owned(),
        });
        let last = node.roots.len();
        for (index, root) in node.roots.iter().enumerate() {
            let end = index + 1 == last;
            let unknown = match inventory.tree.as_ref().ok() {
                Some(tree) if tree.is_severed(root.root) => {
                    "  (the bridges above it are not in the capture)"
                }
                _ => "",
            };
            lines.push(format!("{}{}{unknown}", corner(end), root.root));
            put_all(&mut lines, stem(end), &root.branches, inventory);
        }
    }
    let switches: Vec<String> = (inventory.nvswitches())
        .map(|switch| switch.bdf.to_string())
        .collect();
    if !switches.is_empty() {
        lines.push(format!("NVSwitches: {}", switches.join(", ")));
    }
    lines.join("\n") + "\n"
}

/// Returns the text for a node without devices; `None` if it has some.
pub fn nothing(inventory: &Inventory) -> Option<String> {
    match &inventory.tree {
        // A listing may be truncated; only sysfs proves that there is none.
        Ok(_) if inventory.devices().is_empty() && inventory.rdma.is_unknown() => {
            Some("No GPU and no RDMA NIC is known: the capture names none.\n".to_owned())
        }
        Ok(_) if inventory.devices().is_empty() => {
            Some("There is no GPU and no RDMA NIC.\n".to_owned())
        }
        Ok(_) => None,
        Err(absence) => Some(without_tree(*absence) + "\n"),
    }
}

/// Returns the message for a node whose PCI functions are unknown.
pub fn without_tree(absence: Absence) -> String {
    match absence {
        Absence::Missing => {
            "/sys/bus/pci does not exist, so no PCI function is known: mount sysfs at /sys."
                .to_owned()
        }
        absence => format!("The PCI tree is {absence}."),
    }
}

/// Returns the heading for devices to which the firmware, or the capture, assigns no NUMA node.
pub(super) fn unplaced(inventory: &Inventory) -> &'static str {
    let is_collected = (inventory.devices().iter())
        .filter_map(|device| inventory.function(device.bdf))
        .any(|function| function.numa == Err(Absence::Missing));
    if is_collected {
        "no NUMA node (firmware does not say)"
    } else {
        "NUMA node unknown (the capture does not say)"
    }
}

const fn corner(last: bool) -> &'static str {
    if last { "└─ " } else { "├─ " }
}

const fn stem(last: bool) -> &'static str {
    if last { "   " } else { "│  " }
}

fn put_all(lines: &mut Vec<String>, before: &str, branches: &[Branch], inventory: &Inventory) {
    for (index, branch) in branches.iter().enumerate() {
        let end = index + 1 == branches.len();
        match branch {
            Branch::Device(device) => lines.push(format!(
                "{before}{}{}",
                corner(end),
                device_line(device, inventory)
            )),
            Branch::Bridge { bdf, below } => {
                let what = inventory.function(*bdf).map_or(String::new(), bridge_words);
                lines.push(format!("{before}{}{bdf}{what}", corner(end)));
                let inside = format!("{before}{}", stem(end));
                put_all(lines, &inside, below, inventory);
            }
        }
    }
}

fn bridge_words(function: &Function) -> String {
    let mut words = String::new();
    if let Ok(express) = function.express.as_ref() {
        words.push_str(&format!("  {}", express.port));
    }
    if let Some(link) = link(function) {
        words.push_str(&format!("  {link}"));
    }
    if let Some(bits) = redirects(function) {
        words.push_str(&format!("  ACS {bits}"));
    }
    words
}

fn device_line(device: &Device, inventory: &Inventory) -> String {
    let mut line = format!("{}  {}", device.name, device.bdf);
    let Some(function) = inventory.function(device.bdf) else {
        return line;
    };
    if let Some(name) = &function.identity.name {
        line.push_str(&format!("  {name}"));
    }
    if let Some(link) = link(function) {
        line.push_str(&format!("  {link}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::{MemorySource, example};

    #[test]
    fn a_device_is_below_its_bridges() {
        let node = example::node();
        let text = tree(&Inventory::read(&node));
        let at = |needle: &str| {
            text.find(needle)
                .unwrap_or_else(|| panic!("{needle}: {text}"))
        };
        assert!(at("NUMA node 0") < at("pci0000:15"));
        assert!(at("pci0000:15") < at(example::ROOT_PORTS[0]));
        assert!(at(example::GPU_PORTS[0]) < at("GPU0"));
        assert!(at("GPU0") < at("NUMA node 1"));
    }

    #[test]
    fn faults_on_a_path_are_shown() {
        let node = example::node();
        let text = tree(&Inventory::read(&node));
        let line = |needle: &str| text.lines().find(|line| line.contains(needle)).unwrap();
        assert!(line(example::REDIRECTING_PORT).contains("ACS ReqRedir"));
        assert!(line(example::NARROW_NIC).contains("x8 of"));
    }

    #[test]
    fn nothing_to_show_is_said() {
        let text = tree(&Inventory::read(&MemorySource::partial()));
        assert_contains!(text, "not collected");
        let empty = MemorySource::new().directory("/sys/bus/pci/devices");
        assert!(tree(&Inventory::read(&empty)).contains("no GPU"));
    }
}
