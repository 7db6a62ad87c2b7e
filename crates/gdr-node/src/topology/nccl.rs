//! Distances as NCCL computes them: shortest paths in its graph of a node.

use std::collections::BTreeMap;

use gdr_pci::Bdf;

use super::class::NcclClass;
use crate::pci::Bandwidth;

/// Bandwidth of a link within a device (`LOC_BW` of NCCL, 5000 GB/s).
pub(super) const LOCAL: Bandwidth = Bandwidth(5_000_000_000_000);

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gpu,
    Nic,
    Switch,
    Cpu,
    NvSwitch,
}

/// The kind of a link, in NCCL's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Local,
    NvLink,
    C2c,
    Pci,
    System,
}

impl Wire {
    fn class(self) -> NcclClass {
        match self {
            Self::Local => NcclClass::Loc,
            Self::NvLink => NcclClass::Nvl,
            Self::C2c => NcclClass::C2c,
            Self::Pci => NcclClass::Pix,
            Self::System => NcclClass::Sys,
        }
    }
}

/// A node of the graph.
pub(super) type Paths = Vec<Option<NcclPath>>;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// The node's addresses; the ports of a card share a node.
    pub(super) names: Vec<Bdf>,
    /// Its network devices' names in NCCL's file.
    pub(super) nets: Vec<String>,
    pub(super) gdr: Option<bool>,
    pub(super) wires: Vec<(Wire, Bandwidth, usize)>,
}

/// A device in NCCL's distance table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclDevice<'a> {
    /// The device at an address.
    At(Bdf),
    /// The GPU at an address that is also that of a NIC.
    Gpu(Bdf),
    /// A network device by name, which need not have an address.
    Net(&'a str),
}

/// The graph that NCCL builds for a node (NCCL `src/graph/topo.cc`).
#[derive(Clone, Debug, Default)]
pub struct NcclGraph {
    pub(super) nodes: Vec<Node>,
    /// Nodes by address. A NIC and its switch may share one.
    places: BTreeMap<Bdf, Vec<usize>>,
    nets: BTreeMap<String, usize>,
    nv_switch: Option<usize>,
}

/// A path in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclPath {
    /// Its class.
    pub class: NcclClass,
    /// Its bandwidth, as estimated by NCCL.
    pub bandwidth: Bandwidth,
    /// The number of links.
    pub hops: u32,
}

/// The path that NCCL uses from a GPU to a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclRoute {
    /// The class printed in NCCL's log.
    pub class: NcclClass,
    /// The relaying GPU, for PXN.
    pub via: Option<Bdf>,
}

impl NcclGraph {
    /// Returns the GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = Bdf> {
        self.named(Kind::Gpu)
    }

    /// Returns the PCI network devices, one per card.
    pub fn nics(&self) -> impl Iterator<Item = Bdf> {
        self.named(Kind::Nic)
    }

    /// Returns the class between two devices by their addresses.
    pub fn class(&self, a: Bdf, b: Bdf) -> Option<NcclClass> {
        self.path(a, b).map(|path| path.class)
    }

    /// Returns the path between two devices by their addresses.
    pub fn path(&self, a: Bdf, b: Bdf) -> Option<NcclPath> {
        let (a, b) = (self.index(a)?, self.index(b)?);
        self.paths_to(b)[a]
    }

    /// Returns the classes from each of these devices to every one, in their order.
    pub fn classes(&self, devices: &[NcclDevice<'_>]) -> Vec<Vec<Option<NcclClass>>> {
        let place = |device: &NcclDevice<'_>| match *device {
            NcclDevice::At(bdf) => self.index(bdf),
            NcclDevice::Gpu(bdf) => self.index_of(bdf, Kind::Gpu),
            NcclDevice::Net(name) => self.nets.get(name).copied(),
        };
        let places: Vec<Option<usize>> = devices.iter().map(place).collect();
        // The ports of a card share a node, and so a column. Only classes are kept, which take a byte per device, not
        // paths.
        let mut columns: BTreeMap<usize, Vec<Option<NcclClass>>> = BTreeMap::new();
        for to in places.iter().flatten() {
            columns.entry(*to).or_insert_with(|| {
                let paths = self.paths_to(*to);
                let class = |from: &Option<usize>| paths[(*from)?].map(|path| path.class);
                places.iter().map(class).collect()
            });
        }
        (0..devices.len())
            .map(|row| {
                let class = |to: &Option<usize>| columns.get(&(*to)?)?[row];
                places.iter().map(class).collect()
            })
            .collect()
    }

    /// Returns whether NCCL may use GPUDirect RDMA between two devices: `None` if its file has no `gdr` for either,
    /// `Some(false)` if either has `gdr="0"`.
    pub fn is_gdr_allowed(&self, gpu: Bdf, nic: Bdf) -> Option<bool> {
        let (gpu, nic) = (self.index(gpu)?, self.index(nic)?);
        match (self.nodes[gpu].gdr, self.nodes[nic].gdr) {
            (None, None) => None,
            _ => Some(self.may_gdr(gpu, nic)),
        }
    }

    /// Returns the path from a GPU to a network device, given the device's name.
    pub fn path_to_net(&self, gpu: Bdf, net: &str) -> Option<NcclPath> {
        let net = *self.nets.get(net)?;
        self.paths_to(net)[self.index(gpu)?]
    }

    /// Returns the path that NCCL uses from a GPU to a network device after searching for better ones
    /// (`ncclTopoComputePaths`): via the CPU over a chip-to-chip link (P2C), or through a GPU closer to the device
    /// (PXN). A GPU or device with `gdr="0"` cannot relay, and a pair that includes one uses the CPU.
    pub fn route(&self, gpu: Bdf, nic: Bdf) -> Option<NcclRoute> {
        let (gpu, nic) = (self.index(gpu)?, self.index(nic)?);
        let to_nic = self.paths_to(nic);
        let mut class = to_nic[gpu]?.class;
        if self.is_p2c(gpu, &to_nic) {
            class = class.min(NcclClass::P2c);
        }
        let nearest = self
            .indices(Kind::Gpu)
            .filter_map(|gpu| Some((gpu, to_nic[gpu]?)))
            .min_by_key(|(_, path)| (std::cmp::Reverse(path.bandwidth), path.class));
        if let Some((relay, near)) = nearest.filter(|(relay, _)| *relay != gpu) {
            let direct = to_nic[gpu]?;
            let joined = self.paths_to(relay)[gpu].is_some_and(|path| path.class <= NcclClass::Nvl);
            let better = near.bandwidth > direct.bandwidth || class > NcclClass::Pxn;
            if near.class <= NcclClass::P2c && self.may_gdr(relay, nic) && joined && better {
                let via = self.nodes[relay].names.first().copied();
                return Some(NcclRoute {
                    class: NcclClass::Pxn,
                    via,
                });
            }
        }
        if class < NcclClass::Phb && !self.may_gdr(gpu, nic) {
            class = NcclClass::Phb;
        }
        Some(NcclRoute { class, via: None })
    }

    /// Connects two GPUs by NVLinks of 20 GB/s each. GPUs outside the graph are ignored.
    pub fn add_nvlinks(&mut self, a: Bdf, b: Bdf, links: u64) {
        if let (Some(a), Some(b)) = (self.index(a), self.index(b)) {
            let bandwidth = Bandwidth(links.saturating_mul(20_000_000_000));
            self.join(a, b, Wire::NvLink, bandwidth);
        }
    }

    pub(super) fn add(&mut self, kind: Kind, name: Option<Bdf>) -> usize {
        let at = self.nodes.len();
        self.nodes.push(Node {
            kind,
            names: Vec::new(),
            nets: Vec::new(),
            gdr: None,
            wires: Vec::new(),
        });
        if let Some(name) = name {
            self.name(at, name);
        }
        at
    }

    /// Gives a node one more address.
    pub(super) fn name(&mut self, at: usize, name: Bdf) {
        self.nodes[at].names.push(name);
        self.places.entry(name).or_default().push(at);
    }

    /// Adds a network device to a node.
    pub(super) fn add_net(&mut self, at: usize, name: &str) {
        self.nodes[at].nets.push(name.to_owned());
        self.nets.entry(name.to_owned()).or_insert(at);
    }

    pub(super) fn join(&mut self, a: usize, b: usize, wire: Wire, bandwidth: Bandwidth) {
        for (from, to) in [(a, b), (b, a)] {
            let wires = &mut self.nodes[from].wires;
            match wires
                .iter_mut()
                .find(|(known, _, at)| *known == wire && *at == to)
            {
                // Both ends of an NVLink list it.
                Some((_, known, _)) => *known = (*known).max(bandwidth),
                None => wires.push((wire, bandwidth, to)),
            }
        }
    }

    /// Returns the device at an address, in preference to a switch there.
    pub(super) fn index(&self, bdf: Bdf) -> Option<usize> {
        let places = self.places.get(&bdf)?;
        let is_device = |at: &usize| matches!(self.nodes[*at].kind, Kind::Gpu | Kind::Nic);
        let device = places.iter().copied().find(is_device);
        device.or_else(|| places.first().copied())
    }

    /// Returns the node of this kind at an address.
    pub(super) fn index_of(&self, bdf: Bdf, kind: Kind) -> Option<usize> {
        let mut places = self.places.get(&bdf)?.iter().copied();
        places.find(|at| self.nodes[*at].kind == kind)
    }

    /// Returns the NVLink switch; NCCL merges all of them into one.
    pub(super) fn nv_switch(&mut self) -> usize {
        if let Some(known) = self.nv_switch {
            return known;
        }
        let at = self.add(Kind::NvSwitch, None);
        self.nv_switch = Some(at);
        at
    }

    /// Removes and returns a node's addresses.
    pub(super) fn take_names(&mut self, from: usize) -> Vec<Bdf> {
        let names = std::mem::take(&mut self.nodes[from].names);
        for name in &names {
            if let Some(places) = self.places.get_mut(name) {
                places.retain(|at| *at != from);
            }
        }
        names
    }

    fn indices(&self, kind: Kind) -> impl Iterator<Item = usize> {
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(_, node)| node.kind == kind)
            .map(|(at, _)| at)
    }

    fn named(&self, kind: Kind) -> impl Iterator<Item = Bdf> {
        self.indices(kind)
            .filter_map(|at| self.nodes[at].names.first().copied())
    }

    fn may_gdr(&self, gpu: usize, nic: usize) -> bool {
        self.nodes[gpu].gdr != Some(false) && self.nodes[nic].gdr != Some(false)
    }

    /// Returns whether a GPU has a chip-to-chip link to its CPU, and this is one of its nearest network devices
    /// attached to a CPU.
    fn is_p2c(&self, gpu: usize, to_nic: &[Option<NcclPath>]) -> bool {
        let Some(cpu) = self.nodes[gpu]
            .wires
            .iter()
            .find(|(wire, _, to)| *wire == Wire::C2c && self.nodes[*to].kind == Kind::Cpu)
            .map(|(_, _, to)| *to)
        else {
            return false;
        };
        let from_gpu = self.paths_to(gpu);
        let reach = |path: NcclPath| (std::cmp::Reverse(path.bandwidth), path.class);
        let nearest = self
            .indices(Kind::Nic)
            .filter_map(|nic| from_gpu[nic])
            .map(reach)
            .min();
        to_nic[gpu]
            .map(reach)
            .is_some_and(|this| nearest.is_none_or(|nearest| this <= nearest))
            && to_nic[cpu].is_some_and(|path| path.class == NcclClass::Phb)
    }

    /// Returns the paths from every node to one (`ncclTopoSetPaths`), by best class, then highest bandwidth, then
    /// fewest hops. A GPU forwards only traffic that arrived over a single NVLink.
    fn paths_to(&self, base: usize) -> Paths {
        let mut paths: Paths = vec![None; self.nodes.len()];
        paths[base] = Some(NcclPath {
            class: NcclClass::Loc,
            bandwidth: LOCAL,
            hops: 0,
        });
        let mut front = vec![base];
        let mut waiting = vec![false; self.nodes.len()];
        while !front.is_empty() {
            let mut next = Vec::new();
            for at in front {
                waiting[at] = false;
                let Some(path) = paths[at] else { continue };
                for &(wire, bandwidth, to) in &self.nodes[at].wires {
                    let Some(class) = self.step(base, at, path, wire, to) else {
                        continue;
                    };
                    let new = NcclPath {
                        class: class.max(path.class),
                        bandwidth: path.bandwidth.min(bandwidth),
                        hops: path.hops + 1,
                    };
                    let rank =
                        |path: NcclPath| (path.class, std::cmp::Reverse(path.bandwidth), path.hops);
                    // Terminates: each change lowers a rank, and ranks are finite.
                    if paths[to].is_none_or(|known| rank(new) < rank(known)) {
                        paths[to] = Some(new);
                        if !std::mem::replace(&mut waiting[to], true) {
                            next.push(to);
                        }
                    }
                }
            }
            front = next;
        }
        paths
    }

    /// Returns the class of a path extended by one step, or `None` if the step is not allowed.
    fn step(
        &self,
        base: usize,
        at: usize,
        path: NcclPath,
        wire: Wire,
        to: usize,
    ) -> Option<NcclClass> {
        let (from, into) = (self.nodes[at].kind, self.nodes[to].kind);
        let by_nvlink_to_gpu = wire == Wire::NvLink && into == Kind::Gpu && path.hops <= 1;
        if at != base && from == Kind::Gpu && !by_nvlink_to_gpu {
            return None;
        }
        let cpu = from == Kind::Cpu || into == Kind::Cpu;
        Some(match wire {
            Wire::Pci if cpu => NcclClass::Phb,
            _ if from == Kind::Switch && into == Kind::Switch => NcclClass::Pxb,
            Wire::NvLink if from == Kind::Gpu && path.class == NcclClass::Nvl && path.hops == 1 => {
                NcclClass::Nvb
            }
            _ => wire.class(),
        })
    }
}
