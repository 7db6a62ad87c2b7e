//! The topology as a file for `NCCL_TOPO_FILE`.

use std::collections::BTreeMap;
use std::fmt::Write;

use gdr_pci::Bdf;

use crate::devices::{Device, DeviceKind};
use crate::inventory::Inventory;
use crate::pci::{Function, Link, NumaNode};
use crate::source::Source;
use gdr_render::Escaped;

/// A function of NCCL's tree: a device, or the upper port of a switch.
#[derive(Default)]
struct Node {
    device: Option<Device>,
    below: BTreeMap<Bdf, Node>,
}

/// Returns the topology in NCCL's XML, as NCCL detects it: below the NUMA node's CPU, with each switch's upstream port,
/// without root ports and host bridges. NCCL adds the driver's facts (`gpu`, `nvlink`) when it reads the file.
pub fn nccl_xml(source: &dyn Source, inventory: &Inventory) -> String {
    let mut cpus: BTreeMap<Option<NumaNode>, Node> = BTreeMap::new();
    let Some(tree) = inventory.tree.as_ref().ok() else {
        return "<system version=\"1\">\n</system>\n".to_owned();
    };
    for device in inventory.devices() {
        let Some((_, chain)) = tree.chain(device.bdf) else {
            continue;
        };
        // NCCL goes up two directories at a time (ncclTopoGetXmlFromSys).
        let mut way: Vec<Bdf> = chain.iter().rev().skip(1).step_by(2).copied().collect();
        way.reverse();
        let top = way.first().copied().unwrap_or(device.bdf);
        let numa = tree
            .get(top)
            .and_then(|function| function.numa.as_ref().ok().copied());
        let mut at = cpus.entry(numa).or_default();
        for bridge in way {
            at = at.below.entry(bridge).or_default();
        }
        let bdf = device.bdf;
        at.below.entry(bdf).or_default().device = Some(device);
    }
    let mut out = String::from("<system version=\"1\">\n");
    let model = Cpu::read(source);
    for (numa, node) in &cpus {
        // Writing to a string never fails.
        let _ = writeln!(
            out,
            "  <cpu numaid=\"{}\"{}{}>",
            numa.map_or_else(|| "-1".to_owned(), |node| node.to_string()),
            affinity(source, *numa),
            model.attributes()
        );
        for (bdf, below) in &node.below {
            put(&mut out, 2, *bdf, below, inventory);
        }
        out.push_str("  </cpu>\n");
    }
    out.push_str("</system>\n");
    out
}

fn put(out: &mut String, depth: usize, bdf: Bdf, node: &Node, inventory: &Inventory) {
    let indent = "  ".repeat(depth);
    let function = inventory.function(bdf);
    let _ = write!(out, "{indent}<pci busid=\"{bdf}\"");
    if let Some(function) = function {
        identity(out, function);
    }
    out.push_str(">\n");
    if let Some(device) = &node.device
        && device.kind == DeviceKind::Nic
    {
        let _ = writeln!(
            out,
            "{indent}  <nic>\n{indent}    <net name=\"{}\"{}/>\n{indent}  </nic>",
            Escaped(&device.name),
            speed(device, inventory)
        );
    }
    for (bdf, below) in &node.below {
        put(out, depth + 1, *bdf, below, inventory);
    }
    let _ = writeln!(out, "{indent}</pci>");
}

fn identity(out: &mut String, function: &Function) {
    let identity = &function.identity;
    if let Some(class) = identity.class {
        let _ = write!(out, " class=\"0x{:06x}\"", class.0);
    }
    for (name, value) in [
        ("vendor", identity.vendor.map(|id| id.0)),
        ("device", identity.device.map(|id| id.0)),
        ("subsystem_vendor", identity.subsystem_vendor.map(|id| id.0)),
        ("subsystem_device", identity.subsystem_device.map(|id| id.0)),
    ] {
        if let Some(value) = value {
            let _ = write!(out, " {name}=\"0x{value:04x}\"");
        }
    }
    // NCCL uses a link's best speed, as an idle link is slower.
    let best = function
        .link_capable
        .as_ref()
        .ok()
        .or(function.link.as_ref().ok())
        .copied();
    if let Some(Link { speed, width }) = best {
        let _ = write!(
            out,
            " link_speed=\"{}\" link_width=\"{}\"",
            speed.in_sysfs(),
            width.0
        );
    }
}

/// Returns a port's rate in Mb/s, from text such as `400 Gb/sec (4X NDR)`.
fn speed(device: &Device, inventory: &Inventory) -> String {
    let rate = inventory.rdma.as_ref().ok().and_then(|all| {
        let device = all.iter().find(|it| it.name == device.name)?;
        let text = device.ports.first()?.rate.as_ref().ok()?;
        let gigabits: f64 = text.split_whitespace().next()?.parse().ok()?;
        Some(gigabits * 1000.0)
    });
    match rate {
        Some(megabits) if megabits.is_finite() && (0.0..1e9).contains(&megabits) => {
            format!(" speed=\"{megabits:.0}\"")
        }
        _ => String::new(),
    }
}

fn affinity(source: &dyn Source, numa: Option<NumaNode>) -> String {
    numa.and_then(|node| {
        source
            .text(&format!("/sys/devices/system/node/node{node}/cpumap"))
            .ok()
    })
    .filter(|map| !map.is_empty())
    .map_or(String::new(), |map| {
        format!(" affinity=\"{}\"", Escaped(&map))
    })
}

/// The processor facts that NCCL uses.
#[derive(Default)]
struct Cpu {
    vendor: Option<String>,
    family: Option<u32>,
    model: Option<u32>,
}

impl Cpu {
    fn read(source: &dyn Source) -> Self {
        let Some(text) = source.text("/proc/cpuinfo").ok() else {
            return Self::default();
        };
        let field = |name: &str| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        Self {
            vendor: field("vendor_id"),
            family: field("cpu family").and_then(|text| text.parse().ok()),
            model: field("model").and_then(|text| text.parse().ok()),
        }
    }

    fn attributes(&self) -> String {
        let Some(vendor) = &self.vendor else {
            return String::new();
        };
        let mut out = format!(" arch=\"x86_64\" vendor=\"{}\"", Escaped(vendor));
        if let (Some(family), Some(model)) = (self.family, self.model) {
            let _ = write!(out, " familyid=\"{family}\" modelid=\"{model}\"");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::example;
    use crate::import::nccl_xml as reader;
    use crate::topology::NcclGraph;

    #[test]
    fn the_file_means_the_same_to_nccl_as_the_tree() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let text = nccl_xml(&node, &inventory);
        let graph = NcclGraph::from_topology(&reader::read(&text).unwrap());
        let topology = inventory.topology().unwrap();
        for gpu in &inventory.gpus {
            for (_, nic) in inventory.rdma_functions() {
                let relation = topology.relation(gpu.bdf, nic).unwrap();
                assert_eq!(
                    graph.class(gpu.bdf, nic),
                    Some(relation.nccl),
                    "{} {nic}",
                    gpu.bdf
                );
            }
        }
    }

    #[test]
    fn speeds_are_in_the_words_that_nccl_compares() {
        // kvDictPciGen of NCCL's src/graph/topo.cc, the words of sysfs.
        for (said, written) in [
            ("2.5 GT/s PCIe", "2.5 GT/s PCIe"),
            ("5 GT/s", "5.0 GT/s PCIe"),
            ("8.0 GT/s PCIe", "8.0 GT/s PCIe"),
            ("32GT/s", "32.0 GT/s PCIe"),
            ("64.0 GT/s PCIe", "64.0 GT/s PCIe"),
        ] {
            let speed: crate::pci::LinkSpeed = said.parse().unwrap();
            assert_eq!(speed.in_sysfs(), written);
        }
        let node = example::node();
        let text = nccl_xml(&node, &Inventory::read(&node));
        assert_contains!(text, " link_speed=\"32.0 GT/s PCIe\"");
    }
}
