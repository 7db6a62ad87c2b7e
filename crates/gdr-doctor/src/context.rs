//! What is known of a node, as checks see it.

use std::cell::OnceCell;
use std::fmt;

use gdr_node::pci::{Class, Function, Tree, VendorId};
use gdr_node::topology::{Relation, SmiClass, Topology};
use gdr_node::{Absence, Bdf, Datum, DatumExt, GpuDevice, Inventory, RdmaDevice, Source};
use serde::Serialize;

use crate::check_id::Workload;
use crate::facts::Facts;
use crate::timestamp::Timestamp;

/// The most pairs that are looked at: what a capture claims is not always so.
const MOST_PAIRS: usize = 1 << 13;

/// A capture that a report was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capture {
    /// The file, as it was named.
    pub file: String,
    /// When it was collected.
    pub collected: Option<Timestamp>,
}

impl fmt::Display for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.collected {
            Some(at) => write!(f, "from {}, collected {at}", self.file),
            None => write!(f, "from {}", self.file),
        }
    }
}

/// An RDMA device, or a NIC that should be one.
#[derive(Clone, Debug)]
pub struct Nic<'a> {
    /// `mlx5_0`, or its address where it has no name.
    pub name: String,
    /// Its function.
    pub bdf: Bdf,
    /// What sysfs says of it as an RDMA device.
    pub rdma: Option<&'a RdmaDevice>,
}

/// A GPU, a NIC, and how far apart they are.
#[derive(Clone, Debug)]
pub struct Pair<'a> {
    /// The GPU.
    pub gpu: GpuDevice,
    /// The NIC.
    pub nic: Nic<'a>,
    /// How far apart.
    pub relation: Relation,
}

/// Whether a function may be a GPU of NVIDIA's for all that is known of it.
fn may_be_gpu(function: &Function) -> bool {
    may_be(function, VendorId::NVIDIA, Class::is_gpu)
}

/// Whether a function may be a NIC of Mellanox's for all that is known of it.
fn may_be_nic(function: &Function) -> bool {
    may_be(function, VendorId::MELLANOX, Class::is_network)
}

/// Whether the maker or the class of a function is not known and the other is the wanted one, or
/// not known either. What a tool has named it knows: the makers and classes that matter here are
/// recognized by their names.
fn may_be(function: &Function, maker: VendorId, wanted: fn(Class) -> bool) -> bool {
    let identity = &function.identity;
    (identity.vendor.is_none() || identity.class.is_none())
        && identity.name.is_none()
        && function.bridge.is_none()
        && identity.vendor.is_none_or(|vendor| vendor == maker)
        && identity.class.is_none_or(wanted)
}

/// What is known of a node, as checks see it.
pub struct Context<'a> {
    /// Where everything else is read.
    pub source: &'a dyn Source,
    /// What was read already.
    pub inventory: &'a Inventory,
    /// What the node is wanted for, where the caller gave it.
    pub purpose: Option<Workload>,
    /// When the report is made, where the caller said.
    pub made: Option<Timestamp>,
    /// The file that the node was read from; `None` for the node itself.
    pub capture: Option<Capture>,
    only: Option<(Bdf, Bdf)>,
    nics: OnceCell<Vec<Nic<'a>>>,
    pairs: OnceCell<Vec<Pair<'a>>>,
    facts: OnceCell<Facts>,
}

impl<'a> Context<'a> {
    /// A node, for no purpose in particular.
    pub fn new(source: &'a dyn Source, inventory: &'a Inventory) -> Self {
        Self {
            source,
            inventory,
            purpose: None,
            made: None,
            capture: None,
            only: None,
            nics: OnceCell::new(),
            pairs: OnceCell::new(),
            facts: OnceCell::new(),
        }
    }

    /// The same node, for one purpose.
    #[must_use]
    pub fn for_workload(mut self, purpose: Workload) -> Self {
        self.purpose = Some(purpose);
        self
    }

    /// The same node, in a report that is made at this moment.
    #[must_use]
    pub fn made(mut self, at: Timestamp) -> Self {
        self.made = Some(at);
        self
    }

    /// The same node, read from this file.
    #[must_use]
    pub fn captured(mut self, capture: Capture) -> Self {
        self.capture = Some(capture);
        self
    }

    /// The same node, of which only one GPU and one NIC matter.
    #[must_use]
    pub fn between(mut self, gpu: Bdf, nic: Bdf) -> Self {
        self.only = Some((gpu, nic));
        self
    }

    /// The GPU and the NIC that alone matter, by name.
    pub fn pair(&self) -> Option<(String, String)> {
        let (gpu, nic) = self.only?;
        let gpu = self.gpus().find(|it| it.bdf == gpu)?.index.to_string();
        let named = self.nics().iter().find(|it| it.bdf == nic);
        Some((
            gpu,
            named.map_or_else(|| nic.to_string(), |it| it.name.clone()),
        ))
    }

    /// A file's text, without the blanks around it.
    pub fn text(&self, path: &str) -> Datum<String> {
        self.source.text(path)
    }

    /// The GPUs that matter.
    pub fn gpus(&self) -> impl Iterator<Item = &'a GpuDevice> {
        let only = self.only;
        (self.inventory.gpus.iter()).filter(move |gpu| only.is_none_or(|(it, _)| gpu.bdf == it))
    }

    /// The NICs that matter: RDMA devices by name; where these are not known, the functions that
    /// are InfiniBand controllers or whose maker builds RDMA NICs, by address.
    pub fn nics(&self) -> &[Nic<'a>] {
        self.nics.get_or_init(|| {
            let rdma = |name: &str| {
                (self.inventory.rdma.as_ref().ok())
                    .and_then(|all| all.iter().find(|device| device.name == name))
            };
            (self.inventory.nics().into_iter())
                .filter(|nic| self.only.is_none_or(|(_, it)| nic.bdf == it))
                .map(|nic| Nic {
                    rdma: rdma(&nic.name),
                    name: nic.name,
                    bdf: nic.bdf,
                })
                .collect()
        })
    }

    /// Every GPU with every NIC, where the tree shows how far apart they are; at most the first
    /// 8192, which no machine has.
    pub fn pairs(&self) -> &[Pair<'a>] {
        self.pairs.get_or_init(|| {
            let Ok(topology) = self.inventory.topology() else {
                return Vec::new();
            };
            let mut pairs = Vec::new();
            for gpu in self.gpus() {
                for nic in self.nics() {
                    if pairs.len() == MOST_PAIRS {
                        return pairs;
                    }
                    if let Ok(relation) = topology.relation(gpu.bdf, nic.bdf) {
                        pairs.push(Pair {
                            gpu: *gpu,
                            nic: nic.clone(),
                            relation,
                        });
                    }
                }
            }
            pairs
        })
    }

    /// The NICs that are nearer to a pair's GPU than its NIC is, by name, and their classes. Those
    /// that were not asked about count, too.
    pub fn nearer_nics(&self, pair: &Pair<'_>) -> Vec<(String, SmiClass)> {
        let Ok(topology) = self.inventory.topology() else {
            return Vec::new();
        };
        let classes = (self.inventory.nics().into_iter()).filter_map(|nic| {
            let relation = topology.relation(pair.gpu.bdf, nic.bdf).ok()?;
            Some((nic.name, relation.smi))
        });
        let mut nearer: Vec<(String, SmiClass)> = classes
            .filter(|(_, class)| *class < pair.relation.smi)
            .collect();
        let least = nearer.iter().map(|(_, class)| *class).min();
        nearer.retain(|(_, class)| Some(*class) == least);
        nearer
    }

    /// Every GPU with the NICs that are nearest to it: the pairs that a job would use. A pair that
    /// was asked for by name is always among them.
    pub fn nearest_pairs(&self) -> Vec<&Pair<'a>> {
        // The pairs of one GPU are neighbours.
        let of_each_gpu = self.pairs().chunk_by(|a, b| a.gpu.bdf == b.gpu.bdf);
        of_each_gpu
            .flat_map(|pairs| {
                let least = pairs.iter().map(|pair| pair.relation.smi).min();
                (pairs.iter()).filter(move |pair| Some(pair.relation.smi) == least)
            })
            .collect()
    }

    /// How many of the GPUs a job can use, for all that is known: they answer, NVIDIA's driver has
    /// them, and CUDA shows them where it was asked. Why not, where there is none.
    pub fn usable_gpus(&self) -> Result<usize, String> {
        let mut reasons = Vec::new();
        let mut usable = 0;
        for gpu in self.gpus() {
            match self.unusable(gpu) {
                Some(why) => reasons.push(format!("{}: {why}", gpu.index)),
                None => usable += 1,
            }
        }
        if usable > 0 {
            return Ok(usable);
        }
        let why = match (reasons.first(), self.every_gpu()) {
            (Some(first), _) if reasons.len() == 1 => first.clone(),
            (Some(first), _) => format!("{first} (and {} more)", reasons.len() - 1),
            (None, Ok(())) => "there is no NVIDIA GPU".to_owned(),
            (None, Err(absence)) => format!("which PCI functions are GPUs is {absence}"),
        };
        Err(format!("no GPU is usable: {why}"))
    }

    /// Why a job cannot use a GPU, where that is known.
    fn unusable(&self, gpu: &GpuDevice) -> Option<String> {
        let function = self.function(gpu.bdf);
        if function.is_some_and(|function| function.gone) {
            return Some("it does not answer".to_owned());
        }
        match function.map(|function| &function.driver) {
            Some(Ok(driver)) if driver != "nvidia" => {
                return Some(format!("bound to {driver} and not to NVIDIA's driver"));
            }
            Some(Err(Absence::Missing)) => return Some("no driver is bound to it".to_owned()),
            _ => {}
        }
        let facts = self.facts();
        if facts.nvidia == Err(Absence::Missing) {
            return Some("NVIDIA's driver is not loaded".to_owned());
        }
        match &facts.cuda {
            Ok(cuda) => match (&cuda.error, cuda.device(gpu.bdf)) {
                (Some(error), _) => Some(format!("CUDA: {error}")),
                (None, None) => Some("CUDA does not show it".to_owned()),
                (None, Some(_)) => None,
            },
            Err(Absence::Missing) => {
                Some("CUDA's library, libcuda.so.1, is not installed".to_owned())
            }
            _ => None,
        }
    }

    /// Whether every GPU of the node is known: [`Ok`], or why not. A function of which
    /// the maker or the class was not captured may be a GPU, and the driver or CUDA may name GPUs
    /// that the list of functions does not show.
    pub fn every_gpu(&self) -> Datum<()> {
        let tree = match &self.inventory.tree {
            Ok(tree) => tree,
            Err(absence) => return Err(*absence),
        };
        let named = || {
            let driver = self.source.list("/proc/driver/nvidia/gpus").ok();
            let by_driver = driver.into_iter().flatten();
            let by_cuda = self.facts().cuda.as_ref().ok().into_iter();
            let by_cuda = by_cuda.flat_map(|cuda| cuda.devices.iter().map(|it| it.pci.clone()));
            by_driver.chain(by_cuda).collect::<Vec<String>>()
        };
        let is_listed = |name: &String| {
            let at: Option<Bdf> = name.parse().ok();
            self.inventory.gpus.iter().any(|gpu| Some(gpu.bdf) == at)
        };
        let excerpt = self.inventory.gpus.is_empty() && self.is_excerpt(tree);
        if excerpt || tree.functions().any(may_be_gpu) || !named().iter().all(is_listed) {
            return Err(Absence::NotCollected);
        }
        Ok(())
    }

    /// Whether a listing shows some of the functions only, such as `lspci -d 10de:` does: every
    /// machine has a host bridge. What sysfs shows is whole.
    fn is_excerpt(&self, tree: &Tree) -> bool {
        let classes = || tree.functions().map(|function| function.identity.class);
        self.inventory.rdma == Err(Absence::NotCollected)
            && !tree.is_empty()
            && classes().all(|class| class.is_some_and(|class| !class.is_host_bridge()))
    }

    /// Whether the list of functions shows every NIC that is one by its identity.
    pub fn every_nic_by_identity(&self) -> Datum<()> {
        match &self.inventory.tree {
            Ok(tree) if tree.functions().any(may_be_nic) || self.is_excerpt(tree) => {
                Err(Absence::NotCollected)
            }
            tree => tree.by_ref().map(|_| ()),
        }
    }

    /// Whether every RDMA NIC of the node is known: [`Ok`], or why not.
    pub fn every_nic(&self) -> Datum<()> {
        let rdma = self.inventory.rdma.by_ref();
        if rdma.is_unknown() {
            return rdma.map(|_| ());
        }
        self.every_nic_by_identity()
    }

    /// Whether it is known of every NIC how far from a GPU it is: [`Ok`], or why not.
    /// Only then one of them is the nearest.
    pub fn every_distance_from(&self, gpu: Bdf) -> Datum<()> {
        let every_nic = self.every_nic_by_identity();
        if every_nic.is_unknown() {
            return every_nic;
        }
        let mut devices = self.inventory.rdma.as_ref().ok().into_iter().flatten();
        if let Some(unknown) = devices.find(|device| device.function.is_unknown()) {
            return unknown.function.by_ref().map(|_| ());
        }
        let has_place = |topology: &Topology<'_>| {
            let mut nics = self.inventory.nics().into_iter();
            nics.all(|nic| topology.relation(gpu, nic.bdf).is_ok())
        };
        match self.inventory.topology() {
            Ok(topology) if has_place(&topology) => Ok(()),
            _ => Err(Absence::NotCollected),
        }
    }

    /// The PCI function at an address.
    pub fn function(&self, bdf: Bdf) -> Option<&'a Function> {
        self.inventory.function(bdf)
    }

    /// One fact about the PCI function at an address.
    pub(crate) fn fact<T>(&self, bdf: Bdf, fact: impl FnOnce(&Function) -> Datum<T>) -> Datum<T> {
        (self.function(bdf)).map_or(Err(Absence::NotCollected), fact)
    }

    /// Facts that several checks need.
    pub fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| Facts::read(self.source))
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};

    use super::*;

    fn usable(node: &MemorySource) -> Result<usize, String> {
        let inventory = Inventory::read(node);
        Context::new(node, &inventory).usable_gpus()
    }

    #[test]
    fn a_gpu_is_usable_where_it_answers_and_cuda_shows_it() {
        assert_eq!(usable(&example::healthy()), Ok(8));
        let gpus = || example::GPUS.iter();
        let lost = gpus().fold(example::healthy(), |node, gpu| {
            node.file(&format!("/sys/bus/pci/devices/{gpu}/config"), [0xff; 64])
        });
        assert!(
            usable(&lost)
                .unwrap_err()
                .contains("GPU0: it does not answer")
        );
        let refused = example::healthy().file(
            virtual_path::CUDA_DEVICES,
            "{\"error\":\"CUDA_ERROR_SYSTEM_NOT_READY\",\"devices\":[]}",
        );
        assert!(usable(&refused).unwrap_err().contains("SYSTEM_NOT_READY"));
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert!(
            usable(&bare)
                .unwrap_err()
                .contains("there is no NVIDIA GPU")
        );
        let unread = usable(&MemorySource::partial()).unwrap_err();
        assert!(unread.contains("not collected"), "{unread}");
    }
}
