//! What is known of a node, as checks see it.

use std::cell::OnceCell;

use gdr_node::pci::Function;
use gdr_node::topology::Relation;
use gdr_node::{Bdf, Datum, GpuDevice, Inventory, RdmaDevice, Source};

use crate::check::Purpose;
use crate::facts::Facts;

/// The most pairs that are looked at: what a capture claims is not always so.
const MOST_PAIRS: usize = 1 << 13;

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

/// What is known of a node, as checks see it.
pub struct Context<'a> {
    /// Where everything else is read.
    pub source: &'a dyn Source,
    /// What was read already.
    pub inventory: &'a Inventory,
    /// What the node is wanted for, where somebody said so.
    pub purpose: Option<Purpose>,
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
            only: None,
            nics: OnceCell::new(),
            pairs: OnceCell::new(),
            facts: OnceCell::new(),
        }
    }

    /// The same node, for one purpose.
    #[must_use]
    pub fn wanted_for(mut self, purpose: Purpose) -> Self {
        self.purpose = Some(purpose);
        self
    }

    /// The same node, of which only one GPU and one NIC matter.
    #[must_use]
    pub fn between(mut self, gpu: Bdf, nic: Bdf) -> Self {
        self.only = Some((gpu, nic));
        self
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
                (self.inventory.rdma.present())
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

    /// Every GPU with every NIC, where the tree tells how far apart they are; at most the first
    /// 8192, which no machine has.
    pub fn pairs(&self) -> &[Pair<'a>] {
        self.pairs.get_or_init(|| {
            let Some(topology) = self.inventory.topology() else {
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

    /// The PCI function at an address.
    pub fn function(&self, bdf: Bdf) -> Option<&'a Function> {
        self.inventory.function(bdf)
    }

    /// Facts that several checks need.
    pub fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| Facts::read(self.source))
    }
}
