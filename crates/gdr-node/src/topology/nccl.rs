//! Distances as NCCL finds them: the shortest paths in its graph of a node.

use gdr_cuda::Bdf;

use super::class::NcclClass;
use crate::pci::Bandwidth;

/// Bytes per second of a link within a device (`LOC_BW` of NCCL, 5000 GB/s).
pub(super) const LOCAL: Bandwidth = Bandwidth(5_000_000_000_000);

/// What a node of the graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gpu,
    Nic,
    Switch,
    Cpu,
    NvSwitch,
}

/// What a link of the graph is, in NCCL's order.
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

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// The addresses that stand for the node: the ports of one card share one.
    pub(super) names: Vec<Bdf>,
    /// The names of the network devices in it, as NCCL's file gives them.
    pub(super) nets: Vec<String>,
    pub(super) gdr: Option<bool>,
    pub(super) wires: Vec<(Wire, Bandwidth, usize)>,
}

/// The graph that NCCL makes of a node (NCCL `src/graph/topo.cc`).
#[derive(Clone, Debug, Default)]
pub struct NcclGraph {
    pub(super) nodes: Vec<Node>,
}

/// A path in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclPath {
    /// Its class.
    pub class: NcclClass,
    /// What NCCL reckons that it carries.
    pub bandwidth: Bandwidth,
    /// How many links it has.
    pub hops: u32,
}

/// The way that NCCL sends from a GPU to a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclRoute {
    /// The class that its log prints.
    pub class: NcclClass,
    /// The GPU that relays, for PXN.
    pub via: Option<Bdf>,
}

impl NcclGraph {
    /// The GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = Bdf> {
        self.named(Kind::Gpu)
    }

    /// The network devices on PCI, one for each card.
    pub fn nics(&self) -> impl Iterator<Item = Bdf> {
        self.named(Kind::Nic)
    }

    /// The class between two devices by their addresses.
    pub fn class(&self, a: Bdf, b: Bdf) -> Option<NcclClass> {
        self.path(a, b).map(|path| path.class)
    }

    /// The path between two devices by their addresses.
    pub fn path(&self, a: Bdf, b: Bdf) -> Option<NcclPath> {
        let (a, b) = (self.index(a)?, self.index(b)?);
        self.paths_to(b)[a]
    }

    /// The path from a GPU to a network device by the name of the latter.
    pub fn path_to_net(&self, gpu: Bdf, net: &str) -> Option<NcclPath> {
        let net = self
            .nodes
            .iter()
            .position(|node| node.nets.iter().any(|name| name == net))?;
        self.paths_to(net)[self.index(gpu)?]
    }

    /// The way that NCCL sends from a GPU to a network device after it has looked for better ones
    /// (`ncclTopoComputePaths`): from the CPU over a chip-to-chip link (P2C), or through a GPU
    /// nearer to the device (PXN). A GPU or device whose file says `gdr="0"` relays nothing, and
    /// a pair with one goes through the CPU.
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

    /// Joins two GPUs by NVLinks, each of 20 GB/s. GPUs that are not in the graph stay out.
    pub fn add_nvlinks(&mut self, a: Bdf, b: Bdf, links: u64) {
        if let (Some(a), Some(b)) = (self.index(a), self.index(b)) {
            let bandwidth = Bandwidth(links.saturating_mul(20_000_000_000));
            self.join(a, b, Wire::NvLink, bandwidth);
        }
    }

    pub(super) fn add(&mut self, kind: Kind, name: Option<Bdf>) -> usize {
        let names = name.into_iter().collect();
        self.nodes.push(Node {
            kind,
            names,
            nets: Vec::new(),
            gdr: None,
            wires: Vec::new(),
        });
        self.nodes.len() - 1
    }

    pub(super) fn join(&mut self, a: usize, b: usize, wire: Wire, bandwidth: Bandwidth) {
        for (from, to) in [(a, b), (b, a)] {
            let wires = &mut self.nodes[from].wires;
            match wires
                .iter_mut()
                .find(|(known, _, at)| *known == wire && *at == to)
            {
                // Both ends of an NVLink tell of it.
                Some((_, known, _)) => *known = (*known).max(bandwidth),
                None => wires.push((wire, bandwidth, to)),
            }
        }
    }

    pub(super) fn index(&self, bdf: Bdf) -> Option<usize> {
        self.nodes.iter().position(|node| node.names.contains(&bdf))
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

    /// Whether a GPU has a chip-to-chip link to its CPU and this is one of its nearest network
    /// devices, which hangs on a CPU.
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

    /// The paths from every node to one (`ncclTopoSetPaths`): the best class, then the most
    /// bandwidth, then the fewest hops; a GPU passes on only what came over one NVLink.
    fn paths_to(&self, base: usize) -> Vec<Option<NcclPath>> {
        let mut paths: Vec<Option<NcclPath>> = vec![None; self.nodes.len()];
        paths[base] = Some(NcclPath {
            class: NcclClass::Loc,
            bandwidth: LOCAL,
            hops: 0,
        });
        let mut front = vec![base];
        while !front.is_empty() {
            let mut next = Vec::new();
            for &at in &front {
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
                    // Each change lowers a rank, of which there are finitely many.
                    if paths[to].is_none_or(|known| rank(new) < rank(known)) {
                        paths[to] = Some(new);
                        if !next.contains(&to) {
                            next.push(to);
                        }
                    }
                }
            }
            front = next;
        }
        paths
    }

    /// The class of one step of a path, or `None` where it may not be taken.
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
