//! The matrix of `nvidia-smi topo -m`, in the terms of nvidia-smi, NCCL or UCX.

use std::fmt::Write;

use gdr_pci::Bdf;

use crate::devices::{Device, DeviceKind};
use crate::inventory::Inventory;
use crate::source::{Absence, Datum, Source};
use crate::topology::{DistanceClass, NcclClass, SmiClass, UcxClass};

/// The most devices in a matrix. Large servers have a hundred, or a thousand with virtual functions.
pub const MOST_DEVICES: usize = 4096;

/// The vocabulary of the classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vocabulary {
    /// nvidia-smi's: PIX, PXB, PHB, NODE, SYS.
    #[default]
    Smi,
    /// NCCL's: PIX, PXB, PHB, SYS.
    Nccl,
    /// UCX's: default, phb, node, sys.
    Ucx,
}

impl Vocabulary {
    /// Returns the legend, one class per line.
    pub const fn legend(self) -> &'static str {
        match self {
            Self::Smi => SMI_LEGEND,
            Self::Nccl => NCCL_LEGEND,
            Self::Ucx => UCX_LEGEND,
        }
    }
}

/// The legend of `nvidia-smi topo -m`.
const SMI_LEGEND: &str = "\x20 X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
";

const NCCL_LEGEND: &str = "\x20 X    = Self
  SYS  = The interconnect between NUMA nodes
  PHB  = The CPU; host bridges of one NUMA node are one to NCCL
  PXB  = Several PCIe switches
  PIX  = One PCIe switch
  LOC  = Ports of one card, as NCCL sees it
GPUDirect RDMA is used by default up to PXB (P2C where GPU and CPU are joined chip to chip).
";

const UCX_LEGEND: &str = "\x20 X       = Self
  sys     = Another NUMA node: 220 MB/s assumed
  node    = Another host bridge of the same NUMA node: 17000 MB/s assumed
  phb     = The same host bridge: up to 3500 MB/s assumed
  default = Below a common bridge: no limit assumed
";

/// Headings of nvidia-smi's columns after the matrix.
pub const AFFINITY_HEADINGS: &str = "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID";

/// The CPUs and memory nearest to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The CPUs: `0-31,64-95`.
    pub cpus: Datum<String>,
    /// The NUMA node.
    pub numa: Datum<String>,
    /// The NUMA node of the GPU's own memory, if it has one (Grace).
    pub gpu_numa: Datum<String>,
}

impl Affinity {
    /// Reads the affinity of a device.
    pub fn read(source: &dyn Source, inventory: &Inventory, device: &Device) -> Self {
        let bdf = device.bdf;
        Self {
            cpus: source.text(&format!("/sys/bus/pci/devices/{bdf}/local_cpulist")),
            // As in nvidia-smi: on a machine with one NUMA node every device is on it.
            numa: inventory
                .function(bdf)
                .map_or(Err(Absence::Missing), |function| function.numa)
                .or_else(|_| inventory.numa.only_node().ok_or(Absence::Missing))
                .map(|node| node.to_string()),
            gpu_numa: gpu_numa(source, bdf),
        }
    }
}

/// Reads `Node: 8` from the driver's file about a GPU whose memory is a NUMA node.
fn gpu_numa(source: &dyn Source, bdf: Bdf) -> Datum<String> {
    let text = source.text(&format!("/proc/driver/nvidia/gpus/{bdf}/numa_status"));
    text.and_then(|text| {
        let field = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| Some(line.trim().strip_prefix(name)?.trim().to_owned()))
        };
        let is_online = field("Status:").is_some_and(|status| status == "online");
        let node = field("Node:").filter(|_| is_online);
        node.filter(|node| node.parse::<u32>().is_ok())
            .ok_or(Absence::Missing)
    })
}

/// The cells of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    /// The devices, of rows and of columns, at most [`MOST_DEVICES`].
    pub devices: Vec<Device>,
    /// Distance classes: a row per device, with a class per device.
    pub classes: Vec<Vec<DistanceClass>>,
    /// The number of devices that are left out.
    pub left_out: usize,
    headings: Vec<String>,
}

impl Cells {
    /// Returns the cells for a node's GPUs and NICs; none if its tree is unknown.
    pub fn new(inventory: &Inventory, vocabulary: Vocabulary) -> Self {
        let mut devices = inventory.devices();
        let left_out = devices.len().saturating_sub(MOST_DEVICES);
        devices.truncate(MOST_DEVICES);
        let topology = inventory.topology();
        let Some(topology) = topology.ok().filter(|_| !devices.is_empty()) else {
            return Self {
                devices: Vec::new(),
                classes: Vec::new(),
                left_out: 0,
                headings: Vec::new(),
            };
        };
        let distances = topology.distances(devices.iter().map(|device| device.bdf));
        let class = |a: usize, b: usize| {
            let class = match vocabulary {
                Vocabulary::Smi => distances.smi(a, b).map(DistanceClass::Smi),
                Vocabulary::Nccl => distances.nccl(a, b).map(DistanceClass::Nccl),
                Vocabulary::Ucx => distances.ucx(a, b).map(DistanceClass::Ucx),
            };
            match class {
                Some(_) if devices[a].bdf == devices[b].bdf => DistanceClass::Same,
                class => class.unwrap_or(DistanceClass::Unknown),
            }
        };
        // The distance is symmetric.
        let places = 0..devices.len();
        let mut classes: Vec<Vec<DistanceClass>> = (places.clone())
            .map(|a| (0..=a).map(|b| class(a, b)).collect())
            .collect();
        for a in places {
            let (upper, lower) = classes.split_at_mut(a + 1);
            upper[a].extend(lower.iter().map(|row| row[a]));
        }
        let mut nics = 0..;
        let headings = (devices.iter())
            .map(|device| match device.kind {
                DeviceKind::Gpu => device.name.clone(),
                DeviceKind::Nic => format!("NIC{}", nics.next().unwrap_or(0_u32)),
            })
            .collect();
        Self {
            devices,
            classes,
            left_out,
            headings,
        }
    }

    /// Returns the heading of a column: `GPU0`, `NIC0`; empty beyond the last.
    pub fn heading(&self, index: usize) -> &str {
        self.headings.get(index).map_or("", String::as_str)
    }
}

/// How text is colored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paint {
    /// No colours.
    #[default]
    Plain,
    /// With terminal escapes: near is green, far is red.
    Terminal,
}

impl Paint {
    /// Returns a word in the color of a class.
    pub fn word(self, class: DistanceClass, word: &str) -> String {
        let colour = match class {
            _ if self == Self::Plain => None,
            DistanceClass::Smi(SmiClass::Nv(_) | SmiClass::Pix | SmiClass::Pxb)
            | DistanceClass::Ucx(UcxClass::Default) => Some(32),
            DistanceClass::Nccl(class) if class.is_gdr_by_default() => Some(32),
            DistanceClass::Smi(SmiClass::Phb | SmiClass::Node)
            | DistanceClass::Nccl(NcclClass::Phb)
            | DistanceClass::Ucx(UcxClass::Phb | UcxClass::Node) => Some(33),
            DistanceClass::Same => Some(2),
            _ => Some(31),
        };
        match colour {
            Some(colour) => format!("\x1b[{colour}m{word}\x1b[0m"),
            None => word.to_owned(),
        }
    }
}

/// Returns the matrix in nvidia-smi's layout: a line per device, cells separated by tabs, the affinity of GPUs, and the
/// legends.
pub fn matrix(
    source: &dyn Source,
    inventory: &Inventory,
    vocabulary: Vocabulary,
    paint: Paint,
) -> String {
    let cells = Cells::new(inventory, vocabulary);
    let mut out = String::new();
    for index in 0..cells.devices.len() {
        out.push('\t');
        out.push_str(cells.heading(index));
    }
    out.push_str(AFFINITY_HEADINGS);
    out.push('\n');
    // Writing to a string never fails, here and below.
    for (index, (device, row)) in cells.devices.iter().zip(&cells.classes).enumerate() {
        out.push_str(cells.heading(index));
        for class in row {
            out.push('\t');
            match (class, paint) {
                // As nvidia-smi does: ` X `.
                (DistanceClass::Same, _) => out.push_str(&paint.word(*class, " X ")),
                (class, Paint::Plain) => {
                    let _ = write!(out, "{class}");
                }
                (class, paint) => out.push_str(&paint.word(*class, &class.to_string())),
            }
        }
        if device.kind == DeviceKind::Gpu {
            let affinity = Affinity::read(source, inventory, device);
            let known = |datum: Datum<String>| {
                (datum.ok())
                    .filter(|text| !text.is_empty())
                    .unwrap_or_else(|| "N/A".to_owned())
            };
            let _ = write!(
                out,
                "\t{}\t{}\t\t{}",
                known(affinity.cpus),
                known(affinity.numa),
                known(affinity.gpu_numa)
            );
        }
        out.push('\n');
    }
    if cells.left_out > 0 {
        let _ = writeln!(
            out,
            "\n{} more devices are left out: the matrix has room for {MOST_DEVICES}.",
            cells.left_out
        );
    }
    out.push_str("\nLegend:\n\n");
    out.push_str(vocabulary.legend());
    if (cells.devices.iter()).any(|device| device.kind == DeviceKind::Nic) {
        out.push_str("\nNIC Legend:\n\n");
        for (index, device) in cells.devices.iter().enumerate() {
            if device.kind == DeviceKind::Nic {
                let _ = writeln!(out, "  {}: {}", cells.heading(index), device.name);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::example;
    use crate::import::topo_matrix;

    #[test]
    fn the_reader_of_nvidia_smis_matrix_reads_ours() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let text = matrix(&node, &inventory, Vocabulary::Smi, Paint::Plain);
        let read = topo_matrix::read_all(&text).unwrap().remove(0);
        let cells = Cells::new(&inventory, Vocabulary::Smi);
        assert_eq!(read.devices.len(), 18);
        for (a, row) in cells.classes.iter().enumerate() {
            for (b, word) in row.iter().enumerate() {
                let class = read.class(cells.heading(a), cells.heading(b));
                assert_eq!(class.map(|class| class.to_string()), Some(word.to_string()));
            }
        }
        assert_eq!(read.legend[3].1, "mlx5_3");
    }

    #[test]
    fn on_a_node_with_one_numa_node_a_device_is_on_it() {
        let place = "/sys/devices/pci0000:00/0000:00:06.0";
        let node = crate::MemorySource::new()
            .link_to(
                "/sys/bus/pci/devices/0000:00:06.0",
                "../../../devices/pci0000:00/0000:00:06.0",
            )
            .file(&format!("{place}/vendor"), "0x10de\n")
            .file(&format!("{place}/class"), "0x030200\n")
            .file(&format!("{place}/numa_node"), "-1\n")
            .file(&format!("{place}/local_cpulist"), "0-15\n")
            .file("/sys/devices/system/node/online", "0\n");
        let of = |node: &crate::MemorySource| {
            matrix(
                node,
                &Inventory::read(node),
                Vocabulary::Smi,
                Paint::default(),
            )
        };
        let text = of(&node);
        assert_contains!(text, "GPU0\t X \t0-15\t0\t\tN/A\n");
        let status = "/proc/driver/nvidia/gpus/0000:00:06.0/numa_status";
        let grace = node.file(status, "Node:           8\nStatus:         online\n");
        let text = of(&grace);
        assert_contains!(text, "GPU0\t X \t0-15\t0\t\t8\n");
    }

    #[test]
    fn near_is_green_and_far_is_red_where_colour_is_on() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let text = matrix(&node, &inventory, Vocabulary::Smi, Paint::Terminal);
        assert_contains!(text, "\x1b[32mPIX\x1b[0m");
        assert_contains!(text, "\x1b[31mSYS\x1b[0m");
        let plain = matrix(&node, &inventory, Vocabulary::Smi, Paint::Plain);
        assert!(!plain.contains('\x1b'));
    }

    #[test]
    fn each_library_has_its_own_words() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let word = |vocabulary| {
            let cells = Cells::new(&inventory, vocabulary);
            // GPU0 and GPU2 are below different host bridges of one node.
            cells.classes[0][2].to_string()
        };
        assert_eq!(word(Vocabulary::Smi), "NODE");
        assert_eq!(word(Vocabulary::Nccl), "PHB");
        assert_eq!(word(Vocabulary::Ucx), "node");
    }

    #[test]
    fn a_node_without_a_tree_has_an_empty_matrix() {
        let node = crate::MemorySource::partial();
        let inventory = Inventory::read(&node);
        let text = matrix(&node, &inventory, Vocabulary::Smi, Paint::Plain);
        assert!(text.contains("Legend:"));
    }
}
