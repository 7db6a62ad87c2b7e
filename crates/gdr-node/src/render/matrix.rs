//! The matrix of `nvidia-smi topo -m`, in its words or in those of NCCL or UCX.

use std::fmt::Write;

use crate::devices::{Device, DeviceKind};
use crate::inventory::Inventory;
use crate::source::{Datum, Source};

/// Whose words to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vocabulary {
    /// Those of nvidia-smi: PIX, PXB, PHB, NODE, SYS.
    #[default]
    Smi,
    /// Those of NCCL: PIX, PXB, PHB, SYS.
    Nccl,
    /// Those of UCX: default, phb, node, sys.
    Ucx,
}

impl Vocabulary {
    /// What its words mean, a line each.
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

/// The CPUs and the memory next to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The CPUs: `0-31,64-95`.
    pub cpus: Datum<String>,
    /// The NUMA node.
    pub numa: Datum<String>,
}

impl Affinity {
    /// Reads that of a device.
    pub fn read(source: &dyn Source, inventory: &Inventory, device: &Device) -> Self {
        Self {
            cpus: source.text(&format!(
                "/sys/bus/pci/devices/{}/local_cpulist",
                device.bdf
            )),
            // As nvidia-smi: on a node with one NUMA node it is that one, whatever firmware says.
            numa: inventory
                .function(device.bdf)
                .map_or(Datum::Missing, |function| function.numa.clone())
                .or_else(|| inventory.numa.only_node().into())
                .map(|node| node.to_string()),
        }
    }
}

/// The cells of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    /// The devices, of rows and of columns.
    pub devices: Vec<Device>,
    /// A row a device, a word a device.
    pub words: Vec<Vec<String>>,
}

impl Cells {
    /// The cells for all GPUs and NICs of a node; none where its tree is not known.
    pub fn new(inventory: &Inventory, vocabulary: Vocabulary) -> Self {
        let Some(topology) = inventory.topology() else {
            return Self {
                devices: Vec::new(),
                words: Vec::new(),
            };
        };
        let devices = inventory.devices();
        let word = |a: &Device, b: &Device| match topology.relation(a.bdf, b.bdf) {
            Ok(_) if a.bdf == b.bdf => "X".to_owned(),
            Ok(relation) => match vocabulary {
                Vocabulary::Smi => relation.smi.to_string(),
                Vocabulary::Nccl => relation.nccl.to_string(),
                Vocabulary::Ucx => relation.ucx.class.to_string(),
            },
            Err(_) => "?".to_owned(),
        };
        let words = (devices.iter())
            .map(|a| devices.iter().map(|b| word(a, b)).collect())
            .collect();
        Self { devices, words }
    }

    /// What a column is called: `GPU0`, `NIC0`.
    pub fn heading(&self, index: usize) -> String {
        let Some(device) = self.devices.get(index) else {
            return String::new();
        };
        match device.kind {
            DeviceKind::Gpu => device.name.clone(),
            DeviceKind::Nic => {
                let before = (self.devices[..index].iter())
                    .filter(|other| other.kind == DeviceKind::Nic)
                    .count();
                format!("NIC{before}")
            }
        }
    }
}

/// The matrix as nvidia-smi lays it out: a line a device, cells apart by tabs, the affinity of
/// GPUs, and the legends.
pub fn matrix(source: &dyn Source, inventory: &Inventory, vocabulary: Vocabulary) -> String {
    let cells = Cells::new(inventory, vocabulary);
    let mut out = String::new();
    for index in 0..cells.devices.len() {
        out.push('\t');
        out.push_str(&cells.heading(index));
    }
    out.push_str("\tCPU Affinity\tNUMA Affinity\n");
    for (index, (device, row)) in cells.devices.iter().zip(&cells.words).enumerate() {
        out.push_str(&cells.heading(index));
        for word in row {
            out.push('\t');
            // As nvidia-smi does: ` X `.
            out.push_str(if word == "X" { " X " } else { word });
        }
        if device.kind == DeviceKind::Gpu {
            let affinity = Affinity::read(source, inventory, device);
            let known = |datum: Datum<String>| {
                (datum.into_present())
                    .filter(|text| !text.is_empty())
                    .unwrap_or_else(|| "N/A".to_owned())
            };
            // Writing to a string never fails.
            let _ = write!(out, "\t{}\t{}", known(affinity.cpus), known(affinity.numa));
        }
        out.push('\n');
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
    use super::*;
    use crate::example;
    use crate::import::topo_matrix;

    #[test]
    fn the_reader_of_nvidia_smis_matrix_reads_ours() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let text = matrix(&node, &inventory, Vocabulary::Smi);
        let read = topo_matrix::read_all(&text).unwrap().remove(0);
        let cells = Cells::new(&inventory, Vocabulary::Smi);
        assert_eq!(read.devices.len(), 18);
        for (a, row) in cells.words.iter().enumerate() {
            for (b, word) in row.iter().enumerate() {
                let class = read.class(&cells.heading(a), &cells.heading(b));
                assert_eq!(class.map(|class| class.to_string()).as_ref(), Some(word));
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
        let text = matrix(&node, &Inventory::read(&node), Vocabulary::Smi);
        assert!(text.contains("GPU0\t X \t0-15\t0\n"), "{text}");
    }

    #[test]
    fn each_library_has_its_own_words() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let word = |vocabulary| {
            let cells = Cells::new(&inventory, vocabulary);
            // GPU0 and GPU2 are below different host bridges of one node.
            cells.words[0][2].clone()
        };
        assert_eq!(word(Vocabulary::Smi), "NODE");
        assert_eq!(word(Vocabulary::Nccl), "PHB");
        assert_eq!(word(Vocabulary::Ucx), "node");
    }

    #[test]
    fn a_node_without_a_tree_has_an_empty_matrix() {
        let node = crate::MemorySource::partial();
        let inventory = Inventory::read(&node);
        assert!(matrix(&node, &inventory, Vocabulary::Smi).contains("Legend:"));
    }
}
