//! The XML of hwloc (`lstopo --of xml`, versions 2 and 3).

use gdr_cuda::Bdf;
use roxmltree::{Document, Node, ParsingOptions};

use super::nccl_xml::{MOST_NODES, check_depth};
use super::{ImportError, check_length};
use crate::inventory::Inventory;
use crate::numa::NumaLayout;
use crate::pci::{
    BusRange, Class, DeviceId, Function, Identity, NumaNode, Parent, RootBus, Tree, VendorId,
};
use crate::rdma::RdmaDevice;
use crate::source::Datum;

/// Reads the PCI tree, the NUMA nodes and the names of RDMA devices.
///
/// # Errors
///
/// [`ImportError::TooLong`], [`ImportError::TooDeep`], and [`ImportError::HwlocXml`] for what is
/// no XML or no topology with PCI functions.
pub fn read(text: &str) -> Result<Inventory, ImportError> {
    check_length(text)?;
    check_depth(text)?;
    let options = ParsingOptions {
        nodes_limit: 16 * MOST_NODES,
        // hwloc names its DTD.
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options)
        .map_err(|error| ImportError::HwlocXml(error.to_string()))?;
    let topology = document.root_element();
    if !topology.has_tag_name("topology") {
        return Err(ImportError::HwlocXml(
            "the outermost element is not <topology>".to_owned(),
        ));
    }
    let mut found = Found::default();
    found.below(topology, None, None);
    if found.functions.is_empty() {
        return Err(ImportError::HwlocXml(
            "it has no PCI functions (lstopo leaves out most without --whole-io)".to_owned(),
        ));
    }
    let mut layout = NumaLayout::unknown();
    found.nodes.sort();
    found.nodes.dedup();
    if !found.nodes.is_empty() {
        layout.online = Datum::Present(found.nodes);
    }
    let tree = Tree::new(found.functions);
    let mut inventory = Inventory::of_tree(Datum::Present(tree), layout);
    if !found.rdma.is_empty() {
        inventory.rdma = Datum::Present(found.rdma);
    }
    Ok(inventory)
}

#[derive(Default)]
struct Found {
    functions: Vec<(Function, Parent)>,
    nodes: Vec<NumaNode>,
    rdma: Vec<RdmaDevice>,
}

impl Found {
    /// Takes in the objects in one. Elements are nested no deeper than was checked.
    fn below(&mut self, of: Node<'_, '_>, numa: Option<NumaNode>, parent: Option<Parent>) {
        for object in of.children().filter(|child| child.has_tag_name("object")) {
            let numa = match object.attribute("nodeset") {
                Some(set) => only_node(set),
                None => numa,
            };
            match object.attribute("type").unwrap_or_default() {
                "NUMANode" => {
                    let number = object.attribute("os_index").and_then(|n| n.parse().ok());
                    self.nodes.extend(number.map(NumaNode));
                }
                "Bridge" if object.attribute("pci_busid").is_none() => {
                    let root = object.attribute("bridge_pci").and_then(buses);
                    let root = root.map(|(domain, range)| RootBus {
                        domain,
                        bus: range.secondary,
                    });
                    self.below(object, numa, root.map(Parent::Root));
                    continue;
                }
                "Bridge" | "PCIDev" => {
                    if let Some(function) = function(object, numa) {
                        let own = Parent::Bridge(function.bdf);
                        let root = Parent::Root(RootBus {
                            domain: function.bdf.domain,
                            bus: function.bdf.bus,
                        });
                        self.functions.push((function, parent.unwrap_or(root)));
                        self.below(object, numa, Some(own));
                        continue;
                    }
                }
                "OSDev" => self.device(object, parent),
                _ => {}
            }
            self.below(object, numa, parent);
        }
    }

    /// An operating system's device in a function, if it is of RDMA.
    fn device(&mut self, object: Node<'_, '_>, parent: Option<Parent>) {
        let name = object.attribute("name").unwrap_or_default();
        let kind = object.attribute("osdev_type").unwrap_or_default();
        let is_rdma = matches!(kind, "3" | "OpenFabrics") || name.starts_with("mlx");
        if let Some(Parent::Bridge(function)) = parent.filter(|_| is_rdma && !name.is_empty()) {
            self.rdma.push(RdmaDevice {
                name: name.to_owned(),
                function: Datum::Present(function),
                firmware: Datum::NotCollected,
                board: Datum::NotCollected,
                ports: Vec::new(),
            });
        }
    }
}

/// The node in a set with one member: `0x00000002`. Words beyond the first, each for 32 nodes,
/// stand before it.
fn only_node(set: &str) -> Option<NumaNode> {
    let words: Vec<u32> = (set.split(','))
        .map(|word| {
            let digits = word.trim().trim_start_matches("0x");
            if digits.is_empty() {
                Some(0)
            } else {
                u32::from_str_radix(digits, 16).ok()
            }
        })
        .collect::<Option<_>>()?;
    let ones: u32 = words.iter().map(|word| word.count_ones()).sum();
    let (place, word) = (words.iter().rev().zip(0..))
        .find_map(|(word, place)| (*word != 0).then_some((place, *word)))?;
    (ones == 1).then(|| NumaNode(32 * place + word.trailing_zeros()))
}

/// `0000:[2b-3b]`
fn buses(text: &str) -> Option<(u32, BusRange)> {
    let (domain, range) = text.split_once(":[")?;
    let (first, last) = range.strip_suffix(']')?.split_once('-')?;
    Some((
        u32::from_str_radix(domain, 16).ok()?,
        BusRange {
            secondary: u8::from_str_radix(first, 16).ok()?,
            subordinate: u8::from_str_radix(last, 16).ok()?,
        },
    ))
}

fn function(object: Node<'_, '_>, numa: Option<NumaNode>) -> Option<Function> {
    let bdf: Bdf = object.attribute("pci_busid")?.parse().ok()?;
    let mut function = Function::new(bdf);
    function.bridge = (object.attribute("bridge_pci").and_then(buses)).map(|(_, range)| range);
    function.numa = numa.into();
    // `0302 [10de:1db8] [10de:131d] a1 00`
    let mut words = object.attribute("pci_type").unwrap_or_default().split(' ');
    let class = words
        .next()
        .and_then(|word| u16::from_str_radix(word, 16).ok());
    let mut pair = || {
        let word = words.next()?.strip_prefix('[')?.strip_suffix(']')?;
        let (vendor, device) = word.split_once(':')?;
        let half = |digits| u16::from_str_radix(digits, 16).ok();
        Some((VendorId(half(vendor)?), DeviceId(half(device)?)))
    };
    let (ids, board) = (pair(), pair());
    let name = (object.children())
        .find(|child| child.has_tag_name("info") && child.attribute("name") == Some("PCIDevice"))
        .and_then(|info| info.attribute("value"));
    function.identity = Identity {
        class: class.map(|class| Class(u32::from(class) << 8)),
        vendor: ids.map(|(vendor, _)| vendor),
        device: ids.map(|(_, device)| device),
        subsystem_vendor: board.map(|(vendor, _)| vendor),
        subsystem_device: board.map(|(_, device)| device),
        name: name.map(str::to_owned),
    };
    Some(function)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::SmiClass;

    const XML: &str = r#"<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd">
      <topology version="2.0"><object type="Machine" nodeset="0x3">
        <object type="Package" nodeset="0x00000002">
          <object type="NUMANode" os_index="1" nodeset="0x00000002"/>
          <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[2b-3b]">
            <object type="Bridge" bridge_pci="0000:[2c-3b]" pci_busid="0000:2b:00.0" pci_type="0604 [8086:2030] [0:0] 04 00">
              <object type="PCIDev" pci_busid="0000:2c:00.0" pci_type="0302 [10de:1db8] [10de:131d] a1 00"/>
              <object type="PCIDev" pci_busid="0000:2c:00.1" pci_type="0207 [15b3:101b] [15b3:0001] 00 00">
                <object type="OSDev" name="mlx5_0" osdev_type="3"/>
              </object>
            </object>
          </object>
        </object>
        <object type="NUMANode" os_index="0" nodeset="0x1"/>
      </object></topology>"#;

    #[test]
    fn bridges_functions_nodes_and_names_are_found() {
        let inventory = read(XML).unwrap();
        assert_eq!(inventory.devices().len(), 2);
        let nic = inventory.device("mlx5_0").unwrap();
        let relation = (inventory.topology().unwrap())
            .relation(inventory.gpus[0].bdf, nic.bdf)
            .unwrap();
        assert_eq!(relation.smi, SmiClass::Pix);
        let numa = inventory.function(nic.bdf).unwrap().numa.clone();
        assert_eq!(numa, Datum::Present(NumaNode(1)));
        assert_eq!(inventory.numa.online.present().unwrap().len(), 2);
    }

    #[test]
    fn sets_of_nodes_may_be_longer_than_a_word() {
        assert_eq!(only_node("0x00000004"), Some(NumaNode(2)));
        assert_eq!(only_node("0x1,0x0"), Some(NumaNode(32)));
        assert_eq!(only_node("0x00000003"), None);
        assert_eq!(only_node("0xf...f"), None);
    }

    #[test]
    fn other_xml_is_refused_by_name() {
        for text in ["<topology/>", "<other/>", "<topology", ""] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("lstopo --of xml"), "{error}");
        }
    }
}
