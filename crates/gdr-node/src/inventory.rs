//! The devices of a node that matter to GPUDirect RDMA: GPUs, RDMA devices, and the fabric between them.

use std::fmt;

use gdr_pci::Bdf;

use crate::import::LeftOut;
use crate::numa::NumaLayout;
use crate::nvlink::{self, NvLinks};
use crate::pci::{self, Function, Tree, VendorId};
use crate::rdma::{Netdev, RdmaDevice};
use crate::source::{Absence, Datum, DatumExt, Source};
use crate::topology::Topology;

/// A GPU's index in PCI address order, as in nvidia-smi and with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuIndex(pub u32);

impl fmt::Display for GpuIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU{}", self.0)
    }
}

/// An NVIDIA GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuDevice {
    /// Its index among the GPUs of the node.
    pub index: GpuIndex,
    /// Its PCI address.
    pub bdf: Bdf,
}

/// A snapshot of the devices that matter to GPUDirect RDMA.
///
/// ```
/// use gdr_node::{Inventory, LiveRoot};
///
/// let inventory = Inventory::read(&LiveRoot::new());
/// for gpu in &inventory.gpus {
///     println!("{} is {}", gpu.index, gpu.bdf);
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// The PCI functions.
    pub tree: Datum<Tree>,
    /// The NUMA nodes.
    pub numa: NumaLayout,
    /// The NVIDIA GPUs by address.
    pub gpus: Vec<GpuDevice>,
    /// The RDMA devices, in natural order (`mlx5_2` before `mlx5_10`).
    pub rdma: Datum<Vec<RdmaDevice>>,
    /// The network interfaces, by name.
    pub netdevs: Datum<Vec<Netdev>>,
    /// The NVLinks between GPUs, if NVIDIA's management library reported them.
    pub nvlinks: Vec<NvLinks>,
    /// The parts of the capture that were not read.
    pub left_out: Vec<LeftOut>,
}

impl Inventory {
    /// Reads the devices of a node from sysfs.
    pub fn read(source: &dyn Source) -> Self {
        let tree = pci::read_functions(&source);
        let mut inventory = Self::of_tree(tree, NumaLayout::read(&source));
        inventory.rdma = RdmaDevice::read_all(&source).map(|mut devices| {
            devices.sort_by_key(|device| natural(&device.name));
            devices
        });
        inventory.netdevs = Netdev::read_all(&source);
        inventory.nvlinks = nvlink::read(source);
        inventory
    }

    /// Derives the inventory from a tree alone, for captures without sysfs.
    pub fn of_tree(tree: Datum<Tree>, numa: NumaLayout) -> Self {
        let is_gpu = |function: &&Function| {
            let identity = &function.identity;
            identity.vendor == Some(VendorId::NVIDIA)
                && identity.class.is_some_and(|class| class.is_gpu())
        };
        let mut addresses: Vec<Bdf> = tree
            .as_ref()
            .ok()
            .into_iter()
            .flat_map(|tree| tree.functions().filter(is_gpu).map(|gpu| gpu.bdf))
            .collect();
        addresses.sort();
        let gpus = (0..)
            .zip(addresses)
            .map(|(index, bdf)| GpuDevice {
                index: GpuIndex(index),
                bdf,
            })
            .collect();
        Self {
            tree,
            numa,
            gpus,
            rdma: Err(Absence::NotCollected),
            netdevs: Err(Absence::NotCollected),
            nvlinks: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Fills in facts that this capture lacks and another capture of the same node has.
    #[must_use]
    pub(crate) fn complete(self, other: Self) -> Self {
        let Ok(mut tree) = self.tree else {
            // Names and links belong to the addresses of the tree.
            let mut other = other;
            other.rdma = known(other.rdma, self.rdma);
            other.netdevs = known(other.netdevs, self.netdevs);
            if other.nvlinks.is_empty() {
                other.nvlinks = self.nvlinks;
            }
            other.left_out.extend(self.left_out);
            return other;
        };
        if let Ok(more) = other.tree {
            tree.complete(more);
        }
        let numa = if self.numa.online.is_unknown() {
            other.numa
        } else {
            self.numa
        };
        let mut whole = Self::of_tree(Ok(tree), numa);
        whole.rdma = known(self.rdma, other.rdma);
        whole.netdevs = known(self.netdevs, other.netdevs);
        whole.nvlinks = self.nvlinks;
        if whole.nvlinks.is_empty() {
            whole.nvlinks = other.nvlinks;
        }
        whole.left_out = self.left_out;
        whole.left_out.extend(other.left_out);
        whole
    }

    /// Returns the PCI function at an address.
    pub fn function(&self, bdf: Bdf) -> Option<&Function> {
        self.tree.as_ref().ok()?.get(bdf)
    }

    /// Returns the distances between its functions, or why the tree is not known.
    pub fn topology(&self) -> Datum<Topology<'_>> {
        let topology = Topology::new(self.tree.by_ref()?, &self.numa);
        let links = self.nvlinks.iter();
        Ok(links.fold(topology, |topology, links| {
            topology.with_nvlinks(links.a, links.b, links.count)
        }))
    }

    /// Returns the RDMA devices that are PCI functions, with the function's address.
    pub fn rdma_functions(&self) -> impl Iterator<Item = (&RdmaDevice, Bdf)> {
        self.rdma
            .as_ref()
            .ok()
            .into_iter()
            .flatten()
            .filter_map(|device| Some((device, *device.function.as_ref().ok()?)))
    }

    /// Returns whether the NIC at an address carries data. On B200 and later baseboards, the first NICs only manage the
    /// NVSwitches and have no network.
    pub fn carries_data(&self, nic: Bdf) -> bool {
        !(self.function(nic)).is_some_and(|function| function.manages_switches)
    }

    /// Returns NVIDIA's NVSwitches.
    pub fn nvswitches(&self) -> impl Iterator<Item = &Function> {
        self.tree
            .as_ref()
            .ok()
            .into_iter()
            .flat_map(Tree::functions)
            .filter(|function| {
                function.identity.vendor == Some(VendorId::NVIDIA)
                    && (function.identity.class).is_some_and(|class| class.subclass() == 0x0680)
            })
    }
}

/// Returns the fact from the first capture that knows it.
fn known<T>(first: Datum<T>, second: Datum<T>) -> Datum<T> {
    if first.is_unknown() { second } else { first }
}

/// Returns the sort key of a name: numbers in it compare as numbers.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (word, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        parts.push((word.to_owned(), number.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    fn function(node: MemorySource, at: &str, vendor: &str, class: &str) -> MemorySource {
        let path = format!("/sys/devices/pci0000:00/{at}");
        node.link_to(
            &format!("/sys/bus/pci/devices/{at}"),
            &format!("../../../devices/pci0000:00/{at}"),
        )
        .file(&format!("{path}/vendor"), vendor)
        .file(&format!("{path}/class"), class)
    }

    #[test]
    fn gpus_are_counted_by_address_and_other_makers_displays_are_not() {
        let node = MemorySource::new();
        let node = function(node, "0000:00:09.0", "0x10de\n", "0x030200\n");
        let node = function(node, "0000:00:01.0", "0x1a03\n", "0x030000\n");
        let node = function(node, "0000:00:03.0", "0x10de\n", "0x030000\n");
        let node = function(node, "0000:00:04.0", "0x10de\n", "0x068000\n");
        let inventory = Inventory::read(&node);
        let named: Vec<String> = inventory
            .gpus
            .iter()
            .map(|gpu| format!("{} {}", gpu.index, gpu.bdf))
            .collect();
        assert_eq!(named, ["GPU0 0000:00:03.0", "GPU1 0000:00:09.0"]);
        assert_eq!(inventory.nvswitches().count(), 1);
    }

    #[test]
    fn the_tenth_device_comes_after_the_second() {
        let node = MemorySource::new()
            .file("/sys/class/infiniband/mlx5_10/node_type", "1: CA\n")
            .file("/sys/class/infiniband/mlx5_2/node_type", "1: CA\n")
            .file("/sys/class/infiniband/mlx5_bond_0/node_type", "1: CA\n");
        let names: Vec<String> = Inventory::read(&node)
            .rdma
            .ok()
            .unwrap()
            .into_iter()
            .map(|device| device.name)
            .collect();
        assert_eq!(names, ["mlx5_2", "mlx5_10", "mlx5_bond_0"]);
    }

    #[test]
    fn a_node_without_pci_has_no_gpus_and_no_topology() {
        let inventory = Inventory::read(&MemorySource::new());
        assert!(inventory.gpus.is_empty());
        assert!(inventory.topology().is_err());
    }
}
