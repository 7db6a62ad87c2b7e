//! hwloc's XML (`lstopo --of xml`, versions 2 and 3).

use gdr_pci::Bdf;
use roxmltree::{Document, Node, ParsingOptions};

use super::nccl_xml::{MOST_NODES, check_depth};
use super::{ImportError, check_length};
use crate::inventory::Inventory;
use crate::numa::NumaLayout;
use crate::pci::{
    BusRange, Class, DeviceId, Function, Identity, NumaNode, Parent, RootBus, Tree, VendorId,
};
use crate::rdma::{Netdev, RdmaDevice};
use crate::source::Absence;

/// Reads the PCI tree, the NUMA nodes and the names of RDMA devices.
///
/// # Errors
///
/// [`ImportError::TooLong`], [`ImportError::TooDeep`], and [`ImportError::HwlocXml`] if it is not XML, or not a
/// topology with PCI functions.
pub fn read(text: &str) -> Result<Inventory, ImportError> {
    check_length(text)?;
    check_depth(text)?;
    let options = ParsingOptions {
        nodes_limit: 16 * MOST_NODES,
        // hwloc refers to its DTD.
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
    let major = topology.attribute("version").unwrap_or("2");
    let mut found = Found {
        kinds: match major.split('.').next().and_then(|major| major.parse().ok()) {
            Some(3_u32..) => Kinds::Bits,
            _ => Kinds::Numbers,
        },
        functions: Vec::new(),
        nodes: Vec::new(),
        rdma: Vec::new(),
        netdevs: Vec::new(),
    };
    found.below(topology, None, None);
    if found.functions.is_empty() {
        return Err(ImportError::HwlocWithoutPci);
    }
    let mut layout = NumaLayout::unknown();
    found.nodes.sort();
    found.nodes.dedup();
    if !found.nodes.is_empty() {
        layout.online = Ok(found.nodes);
    }
    let tree = Tree::new(found.functions);
    let mut inventory = Inventory::of_tree(Ok(tree), layout);
    if !found.rdma.is_empty() {
        inventory.rdma = Ok(found.rdma);
    }
    if !found.netdevs.is_empty() {
        inventory.netdevs = Ok(found.netdevs);
    }
    Ok(inventory)
}

/// How an OS device's kind is encoded.
#[derive(Clone, Copy)]
enum Kinds {
    /// As a number, up to version 2: 2 is a network device, 3 an OpenFabrics device.
    Numbers,
    /// As bits, from version 3 on: 16 is a network device, 32 an OpenFabrics device.
    Bits,
}

impl Kinds {
    /// Returns whether a device is a network interface, and whether it is an RDMA device.
    fn of(self, device: Node<'_, '_>) -> (bool, bool) {
        let name = device.attribute("name").unwrap_or_default();
        let kind = device.attribute("osdev_type").unwrap_or_default();
        match (self, kind.parse::<u64>()) {
            (Self::Numbers, Ok(kind)) => (kind == 2, kind == 3),
            (Self::Bits, Ok(bits)) => (bits & (1 << 4) != 0, bits & (1 << 5) != 0),
            (_, Err(_)) => {
                let is_rdma = kind.contains("OpenFabrics") || kind == "3";
                let unsaid = kind.is_empty() && name.starts_with("mlx");
                (kind.contains("Network"), is_rdma || unsaid)
            }
        }
    }
}

struct Found {
    kinds: Kinds,
    netdevs: Vec<Netdev>,
    functions: Vec<(Function, Parent)>,
    nodes: Vec<NumaNode>,
    rdma: Vec<RdmaDevice>,
}

impl Found {
    /// Adds the objects inside an element. The nesting depth was already checked.
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

    /// Adds an OS device inside a function, if it is a network interface or an RDMA device.
    fn device(&mut self, object: Node<'_, '_>, parent: Option<Parent>) {
        let name = object.attribute("name").unwrap_or_default();
        let Some(Parent::Bridge(function)) = parent.filter(|_| !name.is_empty()) else {
            return;
        };
        let (is_network, is_rdma) = self.kinds.of(object);
        let info = |name: &str| {
            let infos = object.children();
            let mut of_name = infos
                .filter(|info| info.has_tag_name("info") && info.attribute("name") == Some(name));
            of_name.find_map(|info| info.attribute("value").map(str::to_owned))
        };
        if is_rdma {
            self.rdma.push(RdmaDevice {
                name: name.to_owned(),
                function: Ok(function),
                firmware: Err(Absence::NotCollected),
                board: Err(Absence::NotCollected),
                ports: Vec::new(),
            });
        }
        if is_network {
            self.netdevs.push(Netdev {
                name: name.to_owned(),
                function: Ok(function),
                address: info("Address").ok_or(Absence::NotCollected),
                port: Err(Absence::NotCollected),
                mtu: Err(Absence::NotCollected),
                state: Err(Absence::NotCollected),
                driver: Err(Absence::NotCollected),
                firmware: Err(Absence::NotCollected),
            });
        }
    }
}

/// Returns the only node in a set: `0x00000002`. Higher words of 32 nodes each come first.
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
    function.numa = numa.ok_or(Absence::Missing);
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
    use snapshot::assert_contains;

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
        let numa = inventory.function(nic.bdf).unwrap().numa;
        assert_eq!(numa, Ok(NumaNode(1)));
        assert_eq!(inventory.numa.online.as_ref().unwrap().len(), 2);
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
            assert_contains!(error, "--of xml");
        }
    }

    #[test]
    fn version_3_has_a_bit_for_each_kind_of_device() {
        let xml = r#"<topology version="3.0"><object type="Machine">
          <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-10]">
            <object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0207 [15b3:1021] [0:0] 00 00">
              <object type="OSDev" name="mlx5_0" osdev_type="32"/>
              <object type="OSDev" name="ib0" osdev_type="16"><info name="Address" value="00:11"/></object>
            </object>
            <object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0502 [1:1] [0:0] 00 00">
              <object type="OSDev" name="dax0.0" osdev_type="3"/>
              <object type="OSDev" name="dax1.0" osdev_type="2"/>
            </object></object></object></topology>"#;
        let names = |inventory: &Inventory| {
            let rdma = inventory.rdma.as_ref().ok().cloned().unwrap_or_default();
            let netdevs = inventory.netdevs.as_ref().ok().cloned().unwrap_or_default();
            let rdma: Vec<String> = rdma.into_iter().map(|it| it.name).collect();
            let netdevs: Vec<String> = netdevs.into_iter().map(|it| it.name).collect();
            (rdma, netdevs)
        };
        let three = read(xml).unwrap();
        assert_eq!(
            names(&three),
            (vec!["mlx5_0".to_owned()], vec!["ib0".to_owned()])
        );
        let two = read(
            &xml.replace("version=\"3.0\"", "version=\"2.0\"")
                .replace("\"32\"", "\"3\"")
                .replace("\"16\"", "\"2\"")
                .replace("\"dax0.0\" osdev_type=\"3\"", "\"dax0.0\" osdev_type=\"6\"")
                .replace("\"dax1.0\" osdev_type=\"2\"", "\"dax1.0\" osdev_type=\"0\""),
        )
        .unwrap();
        assert_eq!(names(&two), names(&three));
    }

    #[test]
    fn xml_of_hwloc_without_pci_is_called_that() {
        let error = read("<topology version=\"3.0\"><object type=\"Machine\"/></topology>");
        let words = error.unwrap_err().to_string();
        assert_contains!(words, "no PCI functions");
        assert!(!words.contains("not an XML file from hwloc"), "{words}");
    }
}
