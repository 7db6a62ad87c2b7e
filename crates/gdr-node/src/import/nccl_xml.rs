//! Topology files of NCCL (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) and RCCL.

use gdr_pci::Bdf;
use roxmltree::{Document, Node, ParsingOptions};

use super::{ImportError, LeftOut, check_length};
use crate::pci::{Class, DeviceId, Identity, Link, LinkSpeed, LinkWidth, VendorId};

/// The deepest element nesting. Machines have less than a dozen switches in a row.
const MOST_DEPTH: usize = 64;

/// The most elements and text nodes in a file. Files of whole racks have some thousands.
pub(super) const MOST_NODES: u32 = 1 << 16;

/// The most CPUs in a file; each is connected to all others of its host.
const MOST_CPUS: usize = 512;

/// A topology as NCCL writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcclTopology {
    /// The CPUs, which NCCL equates with NUMA nodes.
    pub cpus: Vec<Cpu>,
    /// Elements skipped because a required attribute is missing or invalid.
    pub skipped_elements: usize,
}

impl NcclTopology {
    /// Returns the parts that were not read.
    pub fn left_out(&self) -> Option<LeftOut> {
        (self.skipped_elements > 0).then_some(LeftOut::Elements(self.skipped_elements))
    }
}

/// A `cpu` element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// `numaid`; -1 if firmware assigned none.
    pub numa: i32,
    /// `host_hash`, which distinguishes the hosts of one NVLink domain.
    pub host: Option<String>,
    /// `arch`: `x86_64`, `arm64`, `ppc64`.
    pub arch: Option<String>,
    /// `vendor`: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// `familyid`.
    pub family: Option<u32>,
    /// `modelid`.
    pub model: Option<u32>,
    /// The PCI elements below it.
    pub pci: Vec<PciNode>,
    /// Network devices without PCI.
    pub nets: Vec<Net>,
}

/// A `pci` element: a switch (under the name of its upstream port) or a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciNode {
    /// `busid`.
    pub bdf: Bdf,
    /// `class`, `vendor`, `device` and the board's.
    pub identity: Identity,
    /// `link_speed` and `link_width`. NCCL assumes Gen3 and a width of 16 if they are missing.
    pub link: Link,
    /// Its `gpu` elements: one per rank that shares the GPU.
    pub gpus: Vec<Gpu>,
    /// The `net` elements in its `nic` elements.
    pub nets: Vec<Net>,
    /// The PCI elements below it.
    pub children: Vec<PciNode>,
    /// `pcilink`: switches reachable without going through their parents.
    pub peers: Vec<Bdf>,
}

/// A `gpu` element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// `dev`.
    pub dev: Option<u32>,
    /// `rank`.
    pub rank: Option<u32>,
    /// `sm`: the compute capability, 90 for 9.0.
    pub sm: Option<u32>,
    /// `gdr`: whether the network may access its memory.
    pub gdr: Option<bool>,
    /// Its links to other GPUs and to switches.
    pub links: Vec<GpuLink>,
    /// The number of chip-to-chip links to its CPU.
    pub c2c: u32,
}

/// An `nvlink` or `xgmi` element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLink {
    /// `target`; `None` for a switch whose address is hidden from a virtual machine.
    pub target: Option<Bdf>,
    /// `tclass`: the class of the target.
    pub class: Option<Class>,
    /// `count`.
    pub count: u32,
}

/// A `net` element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// `name`: `mlx5_0`.
    pub name: String,
    /// `dev`.
    pub dev: Option<u32>,
    /// `speed`, in Mb/s.
    pub megabits: Option<u32>,
    /// `gdr`: whether it may access a GPU's memory.
    pub gdr: Option<bool>,
}

/// Reads a topology.
///
/// # Errors
///
/// [`ImportError::TooLong`]; [`ImportError::Xml`] if it is not XML or has too many elements; [`ImportError::TooDeep`];
/// and [`ImportError::NotRecognized`] if the root element is not `system` (the graphs of `NCCL_GRAPH_DUMP_FILE` are a
/// different kind of file).
pub fn read(text: &str) -> Result<NcclTopology, ImportError> {
    check_length(text)?;
    check_depth(text)?;
    let options = ParsingOptions {
        nodes_limit: MOST_NODES,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options)
        .map_err(|error| ImportError::Xml(error.to_string()))?;
    let system = document.root_element();
    if !system.has_tag_name("system") {
        return Err(ImportError::NotRecognized {
            expected: "topology of NCCL",
            found: "the outermost element is not <system>",
            command: "NCCL_TOPO_DUMP_FILE=topo.xml <any NCCL program>",
        });
    }
    let mut skipped_elements = 0;
    let mut cpus = Vec::new();
    for element in system.children().filter(Node::is_element) {
        if element.has_tag_name("cpu") && cpus.len() < MOST_CPUS {
            cpus.push(cpu(element, &mut skipped_elements)?);
        } else {
            skipped_elements += 1;
        }
    }
    Ok(NcclTopology {
        cpus,
        skipped_elements,
    })
}

/// Rejects a text that nests elements too deeply, before a parser recurses into it.
pub(super) fn check_depth(text: &str) -> Result<(), ImportError> {
    let mut depth: usize = 0;
    for (at, _) in text.match_indices('<') {
        let rest = &text[at + 1..];
        match rest.bytes().next() {
            Some(b'/') => depth = depth.saturating_sub(1),
            Some(b'!' | b'?') => {}
            _ => {
                let end = rest.find('>').unwrap_or(rest.len());
                depth += usize::from(!rest[..end].ends_with('/'));
            }
        }
        if depth > MOST_DEPTH {
            return Err(ImportError::TooDeep(MOST_DEPTH));
        }
    }
    Ok(())
}

fn cpu(element: Node<'_, '_>, skipped: &mut usize) -> Result<Cpu, ImportError> {
    let text = |name| element.attribute(name).map(str::to_owned);
    let mut cpu = Cpu {
        numa: number(element, "numaid").unwrap_or(-1),
        host: text("host_hash"),
        arch: text("arch"),
        vendor: text("vendor"),
        family: number(element, "familyid"),
        model: number(element, "modelid"),
        pci: Vec::new(),
        nets: Vec::new(),
    };
    for child in element.children().filter(Node::is_element) {
        match child.tag_name().name() {
            "pci" => cpu.pci.extend(pci(child, skipped, 0)?),
            "nic" => cpu.nets.extend(nets(child)),
            _ => *skipped += 1,
        }
    }
    Ok(cpu)
}

fn pci(
    element: Node<'_, '_>,
    skipped: &mut usize,
    depth: usize,
) -> Result<Option<PciNode>, ImportError> {
    if depth > MOST_DEPTH {
        return Err(ImportError::TooDeep(MOST_DEPTH));
    }
    let Some(bdf) = element
        .attribute("busid")
        .and_then(|text| text.parse().ok())
    else {
        *skipped += 1;
        return Ok(None);
    };
    let half = |name| hex(element, name).and_then(|value| u16::try_from(value).ok());
    let speed = element
        .attribute("link_speed")
        .and_then(|text| text.parse().ok());
    let width = number(element, "link_width").filter(|width| *width != 0);
    let mut node = PciNode {
        bdf,
        identity: Identity {
            class: hex(element, "class").map(Class),
            vendor: half("vendor").map(VendorId),
            device: half("device").map(DeviceId),
            subsystem_vendor: half("subsystem_vendor").map(VendorId),
            subsystem_device: half("subsystem_device").map(DeviceId),
            name: None,
        },
        link: Link {
            speed: speed.unwrap_or(LinkSpeed::GEN3),
            width: LinkWidth(width.unwrap_or(16)),
        },
        gpus: Vec::new(),
        nets: Vec::new(),
        children: Vec::new(),
        peers: Vec::new(),
    };
    for child in element.children().filter(Node::is_element) {
        match child.tag_name().name() {
            "pci" => node.children.extend(pci(child, skipped, depth + 1)?),
            "gpu" => node.gpus.push(gpu(child)),
            "nic" => node.nets.extend(nets(child)),
            "pcilink" => {
                node.peers.extend(
                    child
                        .attribute("target")
                        .and_then(|text| text.parse::<Bdf>().ok()),
                );
            }
            _ => *skipped += 1,
        }
    }
    Ok(Some(node))
}

fn gpu(element: Node<'_, '_>) -> Gpu {
    let links = element
        .children()
        .filter(|child| matches!(child.tag_name().name(), "nvlink" | "xgmi"))
        .map(|child| GpuLink {
            target: child.attribute("target").and_then(|text| text.parse().ok()),
            class: hex(child, "tclass").map(Class),
            count: number(child, "count").unwrap_or(0),
        })
        .collect();
    Gpu {
        dev: number(element, "dev"),
        rank: number(element, "rank"),
        sm: number(element, "sm"),
        gdr: flag(element, "gdr"),
        links,
        c2c: element
            .children()
            .filter(|child| child.has_tag_name("c2c"))
            .filter_map(|child| number::<u32>(child, "count"))
            .fold(0, u32::saturating_add),
    }
}

fn nets<'a>(nic: Node<'a, 'a>) -> impl Iterator<Item = Net> {
    nic.children()
        .filter(|child| child.has_tag_name("net"))
        .map(|net| Net {
            name: net.attribute("name").unwrap_or_default().to_owned(),
            dev: number(net, "dev"),
            megabits: number(net, "speed"),
            gdr: flag(net, "gdr"),
        })
}

fn number<T: std::str::FromStr>(element: Node<'_, '_>, name: &str) -> Option<T> {
    element.attribute(name)?.trim().parse().ok()
}

fn hex(element: Node<'_, '_>, name: &str) -> Option<u32> {
    let text = element.attribute(name)?.trim();
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

fn flag(element: Node<'_, '_>, name: &str) -> Option<bool> {
    number::<i32>(element, name).map(|value| value != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_read_with_its_links() {
        let topology = read(
            r#"<!-- words --><system version="1">
              <cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
                <pci busid="0000:18:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
                  <pci busid="0000:1a:00.0" class="0x030200" link_speed="" link_width="0">
                    <gpu dev="0" sm="90" rank="3" gdr="1">
                      <nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>
                      <c2c count="2"/><c2c count="3"/>
                    </gpu>
                  </pci>
                  <pci busid="nonsense"/>
                  <pcilink target="0000:28:00.0"/>
                </pci>
                <nic><net name="eth0" dev="0" speed="100000" gdr="0"/></nic>
              </cpu>
            </system>"#,
        )
        .unwrap();
        let cpu = &topology.cpus[0];
        assert_eq!(
            (cpu.numa, cpu.model, topology.skipped_elements),
            (1, Some(143), 1)
        );
        assert_eq!(cpu.nets[0].name, "eth0");
        let switch = &cpu.pci[0];
        assert_eq!(switch.link.to_string(), "32 GT/s x16");
        assert_eq!(switch.peers, ["0000:28:00.0".parse().unwrap()]);
        let device = &switch.children[0];
        assert_eq!(device.link.to_string(), "8 GT/s x16");
        let gpu = &device.gpus[0];
        assert_eq!((gpu.rank, gpu.gdr, gpu.c2c), (Some(3), Some(true), 5));
        assert_eq!((gpu.links[0].target, gpu.links[0].count), (None, 18));
    }

    #[test]
    fn other_files_are_refused_by_name() {
        assert!(matches!(
            read("<graphs/>"),
            Err(ImportError::NotRecognized { .. })
        ));
        assert!(matches!(read("<system>"), Err(ImportError::Xml(_))));
        assert!(matches!(read(""), Err(ImportError::Xml(_))));
    }

    #[test]
    fn more_elements_than_any_machine_has_are_refused() {
        let many = "<pci/>".repeat(MOST_NODES as usize);
        let error = read(&format!("<system>{many}</system>")).unwrap_err();
        assert!(matches!(error, ImportError::Xml(_)), "{error}");
        let cpus = "<cpu/>".repeat(1000);
        let topology = read(&format!("<system>{cpus}</system>")).unwrap();
        assert_eq!(
            (topology.cpus.len(), topology.skipped_elements),
            (MOST_CPUS, 1000 - MOST_CPUS)
        );
    }

    #[test]
    fn nesting_without_end_is_refused_before_it_is_followed() {
        let deep = "<pci busid=\"0000:01:00.0\">".repeat(1_000_000);
        let text = format!("<system><cpu>{deep}");
        assert_eq!(read(&text), Err(ImportError::TooDeep(MOST_DEPTH)));
    }
}
