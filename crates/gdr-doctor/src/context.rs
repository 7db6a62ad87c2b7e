//! The facts of a node, as checks read them.

use std::cell::OnceCell;
use std::fmt;

use gdr_node::kernel_log::records;
use gdr_node::pci::{Function, Tree};
use gdr_node::topology::{Relation, SmiClass, Topology};
use gdr_node::{
    Absence, Bdf, Datum, DatumExt, GpuDevice, Inventory, RdmaDevice, Source, virtual_path,
};
use serde::Serialize;

use crate::check_id::Workload;
use crate::facts::{Container, Facts, Machine};
use crate::gpudirect_support::model;
use crate::timestamp::Timestamp;

/// The most pairs that are examined: a capture may claim any number of devices.
const MOST_PAIRS: usize = 1 << 13;

/// The capture that a report was made from.
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
    /// `mlx5_0`, or its address if it has no name.
    pub name: String,
    /// Its function.
    pub bdf: Bdf,
    /// Its facts as an RDMA device.
    pub rdma: Option<&'a RdmaDevice>,
}

/// A GPU, a NIC and their distance.
#[derive(Clone, Debug)]
pub struct Pair<'a> {
    /// The GPU.
    pub gpu: GpuDevice,
    /// The NIC.
    pub nic: Nic<'a>,
    /// Their distance.
    pub relation: Relation,
}

/// A unit of systemd, as `systemctl show` prints it.
pub(crate) struct Unit(String);

impl Unit {
    /// Returns the value of a property: `active` for `ActiveState`.
    pub(crate) fn property(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns whether the unit runs.
    pub(crate) fn is_active(&self) -> bool {
        self.property("ActiveState") == Some("active")
    }
}

/// What is known of a node, as checks see it.
pub struct Context<'a> {
    /// The source of all other facts.
    pub source: &'a dyn Source,
    /// The inventory that was read from the source.
    pub inventory: &'a Inventory,
    /// The workload, if the caller gave one.
    pub purpose: Option<Workload>,
    /// The time of the report, if the caller gave it.
    pub made: Option<Timestamp>,
    /// The file that the node was read from; `None` for the node itself.
    pub capture: Option<Capture>,
    only: Option<(Bdf, Bdf)>,
    nics: OnceCell<Vec<Nic<'a>>>,
    pairs: OnceCell<Vec<Pair<'a>>>,
    facts: OnceCell<Facts>,
}

impl<'a> Context<'a> {
    /// Returns a node, without a workload.
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

    /// Returns the same node, for one workload.
    #[must_use]
    pub fn for_workload(mut self, purpose: Workload) -> Self {
        self.purpose = Some(purpose);
        self
    }

    /// Returns the same node, with the time of the report.
    #[must_use]
    pub fn made(mut self, at: Timestamp) -> Self {
        self.made = Some(at);
        self
    }

    /// Returns the same node, read from this file.
    #[must_use]
    pub fn captured(mut self, capture: Capture) -> Self {
        self.capture = Some(capture);
        self
    }

    /// Returns the same node, limited to one GPU and one NIC.
    #[must_use]
    pub fn between(mut self, gpu: Bdf, nic: Bdf) -> Self {
        self.only = Some((gpu, nic));
        self
    }

    /// Returns the names of the GPU and the NIC that the report is limited to.
    pub fn pair(&self) -> Option<(String, String)> {
        let (gpu, nic) = self.only?;
        let gpu = self.gpus().find(|it| it.bdf == gpu)?.index.to_string();
        let named = self.nics().iter().find(|it| it.bdf == nic);
        Some((
            gpu,
            named.map_or_else(|| nic.to_string(), |it| it.name.clone()),
        ))
    }

    /// Returns the text of a file, trimmed.
    pub fn text(&self, path: &str) -> Datum<String> {
        self.source.text(path)
    }

    /// Returns the GPUs of the report.
    pub fn gpus(&self) -> impl Iterator<Item = &'a GpuDevice> {
        let only = self.only;
        (self.inventory.gpus.iter()).filter(move |gpu| only.is_none_or(|(it, _)| gpu.bdf == it))
    }

    /// Returns the NICs of the report: RDMA devices by name; if these are not known, InfiniBand controllers and NICs of
    /// vendors of RDMA NICs, by address.
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

    /// Returns every pair of a GPU and a NIC whose distance is known; at most 8192, more than any machine has.
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

    /// Returns the names and distances of the NICs that are nearer to a pair's GPU than its NIC, including those that
    /// the report leaves out.
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

    /// Returns every GPU with its nearest NICs: the pairs that a job would use. If the report is limited to one pair,
    /// that pair.
    pub fn nearest_pairs(&self) -> Vec<&Pair<'a>> {
        // The pairs of one GPU are adjacent.
        let of_each_gpu = self.pairs().chunk_by(|a, b| a.gpu.bdf == b.gpu.bdf);
        of_each_gpu
            .flat_map(|pairs| {
                let least = pairs.iter().map(|pair| pair.relation.smi).min();
                (pairs.iter()).filter(move |pair| Some(pair.relation.smi) == least)
            })
            .collect()
    }

    /// Returns the number of GPUs that a job can use: they answer, NVIDIA's driver is bound to them, and CUDA lists
    /// them if it was called. If there is none, the reason.
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
            (None, Err(absence)) => format!("the list of GPUs is {absence}"),
        };
        Err(format!("no GPU is usable: {why}"))
    }

    /// Returns the reason why a job cannot use a GPU, if there is one.
    fn unusable(&self, gpu: &GpuDevice) -> Option<String> {
        let function = self.function(gpu.bdf);
        if function.is_some_and(|function| function.gone) {
            return Some("it does not answer".to_owned());
        }
        match function.map(|function| &function.driver) {
            Some(Ok(driver)) if driver != "nvidia" => {
                return Some(format!("bound to {driver} instead of NVIDIA's driver"));
            }
            Some(Err(Absence::Missing)) => return Some("no driver is bound to it".to_owned()),
            _ => {}
        }
        let facts = self.facts();
        if facts.nvidia == Err(Absence::Missing) {
            return Some("NVIDIA's driver is not loaded".to_owned());
        }
        match &facts.cuda {
            Ok(cuda) => match (&cuda.error, cuda.gpu(gpu.bdf)) {
                (Some(error), _) => Some(format!("CUDA: {error}")),
                (None, None) => Some("CUDA does not list it".to_owned()),
                (None, Some(_)) => None,
            },
            Err(Absence::Missing) => Some("libcuda.so.1 is not installed".to_owned()),
            _ => None,
        }
    }

    /// [`Ok`] if every GPU of the node is known. A function whose vendor or class was not captured
    /// may be a GPU, and the driver or CUDA may list GPUs that the list of functions does not have.
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
        let excerpt = self.inventory.gpus.is_empty() && self.is_listing(tree);
        if excerpt
            || tree
                .functions()
                .any(|it| it.bridge.is_none() && it.identity.may_be_nvidia_gpu())
            || !named().iter().all(is_listed)
        {
            return Err(Absence::NotCollected);
        }
        Ok(())
    }

    /// Returns whether the functions are from a listing, which may be cut off anywhere: that it has
    /// no GPU or no NIC does not show that the node has none. sysfs is complete.
    fn is_listing(&self, tree: &Tree) -> bool {
        let sysfs = self.source.list("/sys/bus/pci/devices");
        sysfs == Err(Absence::NotCollected) && !tree.is_empty()
    }

    /// Returns whether a listing has only some of the functions, like `lspci -d 10de:` or what
    /// `grep` let through. A complete one has a host bridge and what every machine has beside
    /// bridges, GPUs and NICs: storage, USB, system peripherals. sysfs is always complete.
    fn is_excerpt(&self, tree: &Tree) -> bool {
        let classes = || tree.functions().map(|function| function.identity.class);
        let has_host_bridge = classes().any(|class| class.is_none_or(|it| it.is_host_bridge()));
        let is_other = |base| !matches!(base, 0x02 | 0x03 | 0x06);
        let has_others = classes().any(|class| class.is_none_or(|it| is_other(it.base())));
        self.is_listing(tree) && !(has_host_bridge && has_others)
    }

    /// Returns whether a function whose identity is not known for certain may be an RDMA NIC.
    /// Beside known ones, a function of a maker without RDMA NICs is not taken for one.
    fn may_have_more_nics(&self, tree: &Tree) -> bool {
        let has_nics = !self.inventory.nics().is_empty();
        tree.functions().any(|function| {
            let identity = &function.identity;
            function.bridge.is_none()
                && identity.may_be_rdma_nic()
                && (!has_nics || identity.maker_may_make_rdma_nics())
        })
    }

    /// [`Ok`] if the list of functions has every NIC that is one by its identity.
    pub fn every_nic_by_identity(&self) -> Datum<()> {
        match &self.inventory.tree {
            Ok(tree)
                if self.may_have_more_nics(tree)
                    || self.is_excerpt(tree)
                    || self.inventory.nics().is_empty() && self.is_listing(tree) =>
            {
                Err(Absence::NotCollected)
            }
            tree => tree.by_ref().map(|_| ()),
        }
    }

    /// [`Ok`] if every RDMA NIC of the node is known.
    pub fn every_nic(&self) -> Datum<()> {
        let rdma = self.inventory.rdma.by_ref();
        if rdma.is_unknown() {
            return rdma.map(|_| ());
        }
        self.every_nic_by_identity()
    }

    /// [`Ok`] if the distance of every NIC from a GPU is known. Otherwise the nearest NIC is not
    /// known.
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

    /// Returns the PCI function at an address.
    pub fn function(&self, bdf: Bdf) -> Option<&'a Function> {
        self.inventory.function(bdf)
    }

    /// Returns one fact about the PCI function at an address.
    pub(crate) fn fact<T>(&self, bdf: Bdf, fact: impl FnOnce(&Function) -> Datum<T>) -> Datum<T> {
        (self.function(bdf)).map_or(Err(Absence::NotCollected), fact)
    }

    /// Returns whether this is known to be a container.
    pub(crate) fn is_container(&self) -> bool {
        self.facts().container == Ok(Container::Yes)
    }

    /// Returns whether this is known to be a guest of a hypervisor.
    pub(crate) fn is_guest(&self) -> bool {
        self.facts().machine == Ok(Machine::Virtual)
    }

    /// Returns whether this is known to be a machine whose GPU has no memory of its own and whose
    /// NIC is on its board (DGX Spark and others with a GB10).
    pub(crate) fn is_spark(&self) -> bool {
        let product = ["product_name", "board_name", "product_family"]
            .iter()
            .filter_map(|name| self.text(&format!("/sys/class/dmi/id/{name}")).ok());
        let of_gpus = self.gpus().filter_map(|gpu| model(self, gpu.bdf));
        let is_spark = |text: &str| {
            let text = text.to_ascii_lowercase().replace('_', " ");
            text.contains("dgx spark") || text.contains("gb10")
        };
        product.chain(of_gpus).any(|text| is_spark(&text))
            || self
                .logged(|text| text.starts_with("DMI:") && is_spark(text))
                .is_some()
    }

    /// Returns the last message of the kernel log for which `wanted` is true, where the log is known.
    pub(crate) fn logged(&self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let log = self.text(virtual_path::KERNEL_LOG).ok()?;
        let found = records(&log).filter(|record| wanted(&record.text)).last();
        found.map(|record| record.line.to_owned())
    }

    /// Returns a unit of systemd.
    pub(crate) fn unit(&self, name: &str) -> Datum<Unit> {
        let text = self.text(&format!("{}/{name}", virtual_path::SYSTEMD));
        text.map(Unit)
    }

    /// Facts that several checks need.
    pub fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| {
            let mut facts = Facts::read(self.source);
            let tree = self.inventory.tree.as_ref().ok();
            // The processor and the kernel's log take precedence.
            if facts.machine.is_unknown()
                && tree.is_some_and(|tree| tree.functions().any(|it| it.identity.is_emulated()))
            {
                facts.machine = Ok(Machine::Virtual);
            }
            facts
        })
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};
    use snapshot::assert_contains;

    use super::*;

    fn usable(node: &MemorySource) -> Result<usize, String> {
        let inventory = Inventory::read(node);
        Context::new(node, &inventory).usable_gpus()
    }

    #[test]
    fn a_gpu_is_usable_if_it_answers_and_cuda_lists_it() {
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
        assert_contains!(unread, "not collected");
    }
}
