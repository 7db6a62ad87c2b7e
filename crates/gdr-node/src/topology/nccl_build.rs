//! Making NCCL's graph from one of its files, or from a PCI tree as NCCL would.

use gdr_cuda::Bdf;

use super::nccl::{Kind, LOCAL, NcclGraph, Wire};
use crate::import::nccl_xml::{Cpu, GpuLink, NcclTopology, Net, PciNode};
use crate::pci::{Bandwidth, Function, Identity, Link, Tree, VendorId};

/// 1 GB/s, NCCL's unit.
const GB: u64 = 1_000_000_000;

impl NcclGraph {
    /// The graph of a file of NCCL.
    ///
    /// Files that are handed to NCCL as templates have no `gpu` and `nic` elements, which NCCL
    /// adds for the devices it finds; here every function of their classes counts as found.
    pub fn from_topology(topology: &NcclTopology) -> Self {
        let mut graph = Self::default();
        let mut cpus: Vec<(usize, &Cpu)> = Vec::new();
        for cpu in &topology.cpus {
            let at = graph.add(Kind::Cpu, None);
            for (other, known) in &cpus {
                if known.host == cpu.host {
                    graph.join(at, *other, Wire::System, between_cpus(cpu));
                }
            }
            cpus.push((at, cpu));
            for node in &cpu.pci {
                graph.add_pci(node, at);
            }
            if !cpu.nets.is_empty() {
                let nic = graph.add(Kind::Nic, None);
                graph.take_nets(nic, &cpu.nets);
                graph.join(nic, at, Wire::Pci, LOCAL);
            }
        }
        for (at, cpu) in cpus {
            for node in &cpu.pci {
                graph.add_links(node, at);
            }
        }
        graph.flatten_broadcom(topology);
        graph
    }

    /// The graph that NCCL would make of these functions of a tree (`ncclTopoGetXmlFromSys`).
    ///
    /// NCCL goes up two directories at a time, so that the two ports of a switch make one node
    /// and a root port none, until a directory is no function. There it takes the CPU of the NUMA
    /// node of the last function that it came to; functions on no node share a CPU. Host bridges
    /// do not exist to it.
    pub fn from_tree(tree: &Tree, devices: &[Bdf]) -> Self {
        let mut graph = Self::default();
        let mut cpus: Vec<(Option<u32>, usize)> = Vec::new();
        for &device in devices {
            let (Some(function), Some((_, chain))) = (tree.get(device), tree.chain(device)) else {
                continue;
            };
            if graph.index(device).is_some() {
                continue;
            }
            let is_gpu = function.identity.class.is_some_and(|class| class.is_gpu());
            let mut at = if is_gpu {
                graph.add(Kind::Gpu, Some(device))
            } else if let Some(card) = graph.card_of(device) {
                // The ports of one card are one to NCCL, and so are the virtual functions on one
                // bus (NCCL_IB_MERGE_VFS, on unless set otherwise).
                graph.nodes[card].names.push(device);
                continue;
            } else {
                graph.add(Kind::Nic, Some(device))
            };
            let mut top = function;
            let mut bridges = chain.iter().rev();
            let mut joined = false;
            while let (Some(_), Some(switch)) = (bridges.next(), bridges.next()) {
                let bandwidth = upstream_bandwidth(tree, top);
                let known = graph.index(*switch);
                let node = known.unwrap_or_else(|| graph.add(Kind::Switch, Some(*switch)));
                graph.join(at, node, Wire::Pci, bandwidth);
                at = node;
                joined = known.is_some();
                match tree.get(*switch) {
                    Some(function) if !joined => top = function,
                    _ => break,
                }
            }
            if !joined {
                let numa = top.numa.present().map(|node| node.0);
                let known = cpus
                    .iter()
                    .find(|(node, _)| *node == numa)
                    .map(|(_, cpu)| *cpu);
                let cpu = known.unwrap_or_else(|| graph.add_cpu(numa, &mut cpus));
                graph.join(at, cpu, Wire::Pci, upstream_bandwidth(tree, top));
            }
        }
        graph
    }

    fn add_cpu(&mut self, numa: Option<u32>, cpus: &mut Vec<(Option<u32>, usize)>) -> usize {
        let at = self.add(Kind::Cpu, None);
        for (_, other) in cpus.iter() {
            // Which CPUs these are is not known here, and NCCL's figure hangs on it.
            self.join(at, *other, Wire::System, LOCAL);
        }
        cpus.push((numa, at));
        at
    }

    fn card_of(&self, device: Bdf) -> Option<usize> {
        let same = |name: &Bdf| (name.domain, name.bus) == (device.domain, device.bus);
        self.nodes
            .iter()
            .position(|node| node.kind == Kind::Nic && node.names.iter().any(same))
    }

    fn add_pci(&mut self, pci: &PciNode, parent: usize) {
        let kind = kind_of(pci);
        // A bus that hangs on an NVLink switch or on a POWER bridge is none to NCCL.
        let Some(kind) = kind else { return };
        let at = self.add(kind, Some(pci.bdf));
        if let Some(gpu) = &pci.gpu {
            self.nodes[at].gdr = gpu.gdr;
        }
        self.take_nets(at, &pci.nets);
        self.join(at, parent, Wire::Pci, nccl_bandwidth(pci.link));
        if kind == Kind::Switch {
            for child in &pci.children {
                self.add_pci(child, at);
            }
        }
    }

    fn take_nets(&mut self, at: usize, nets: &[Net]) {
        for net in nets {
            self.nodes[at].nets.push(net.name.clone());
            let gdr = self.nodes[at].gdr;
            // One device that can is enough for the card.
            self.nodes[at].gdr = match (gdr, net.gdr) {
                (Some(a), Some(b)) => Some(a || b),
                (known, None) | (None, known) => known,
            };
        }
    }

    fn add_links(&mut self, pci: &PciNode, cpu: usize) {
        let Some(at) = self.index(pci.bdf) else {
            return;
        };
        if let Some(gpu) = &pci.gpu {
            for link in &gpu.links {
                if let Some(other) = self.other_end(link, cpu) {
                    let each = nvlink_bandwidth(gpu.sm);
                    let bandwidth = Bandwidth(each.saturating_mul(link.count.into()));
                    self.join(at, other, Wire::NvLink, bandwidth);
                }
            }
            if gpu.c2c > 0 {
                self.join(at, cpu, Wire::C2c, LOCAL);
            }
        }
        for peer in &pci.peers {
            if let Some(peer) = self.index(*peer) {
                self.join(at, peer, Wire::Local, LOCAL);
            }
        }
        for child in &pci.children {
            self.add_links(child, cpu);
        }
    }

    /// What an NVLink leads to: another GPU, the CPU of POWER, or else the one NVLink switch that
    /// all of them are to NCCL.
    fn other_end(&mut self, link: &GpuLink, cpu: usize) -> Option<usize> {
        let class = link.class?;
        if class.is_gpu() {
            return self.index(link.target?);
        }
        if class.0 == 0x06_8001 {
            return Some(cpu);
        }
        let known = self
            .nodes
            .iter()
            .position(|node| node.kind == Kind::NvSwitch);
        Some(known.unwrap_or_else(|| self.add(Kind::NvSwitch, None)))
    }

    /// Makes one node of a two-level switch of Broadcom (`ncclTopoFlattenBcmSwitches`).
    fn flatten_broadcom(&mut self, topology: &NcclTopology) {
        let mut stack: Vec<&PciNode> = topology.cpus.iter().flat_map(|cpu| &cpu.pci).collect();
        while let Some(upper) = stack.pop() {
            stack.extend(&upper.children);
            let Some(generation) = broadcom(&upper.identity, 0) else {
                continue;
            };
            for lower in &upper.children {
                if broadcom(&lower.identity, 1) != Some(generation) {
                    continue;
                }
                if let (Some(into), Some(from)) = (self.index(upper.bdf), self.index(lower.bdf)) {
                    self.fold(from, into);
                }
            }
        }
    }

    /// Moves the wires of one node to another, and its name.
    fn fold(&mut self, from: usize, into: usize) {
        if from == into {
            return;
        }
        let names = std::mem::take(&mut self.nodes[from].names);
        self.nodes[into].names.extend(names);
        for (wire, bandwidth, to) in std::mem::take(&mut self.nodes[from].wires) {
            self.nodes[to].wires.retain(|(_, _, back)| *back != from);
            if to != into {
                self.join(into, to, wire, bandwidth);
            }
        }
    }
}

fn kind_of(pci: &PciNode) -> Option<Kind> {
    if pci.gpu.is_some() {
        return Some(Kind::Gpu);
    }
    if !pci.nets.is_empty() {
        return Some(Kind::Nic);
    }
    match pci.identity.class {
        Some(class) if class.is_gpu() => Some(Kind::Gpu),
        Some(class) if class.is_network() => Some(Kind::Nic),
        Some(class) if class.subclass() == 0x0680 => None,
        _ => Some(Kind::Switch),
    }
}

/// The generation of a Broadcom switch in base mode that NCCL takes apart (`getBcmGen`).
fn broadcom(identity: &Identity, level: u16) -> Option<u8> {
    let vendor = identity.vendor? == VendorId::BROADCOM_LSI
        && identity.subsystem_vendor? == VendorId::BROADCOM_LSI;
    match (
        vendor,
        identity.device?.0,
        identity.subsystem_device?.0 & 0xf000,
    ) {
        (true, 0xc010, 0xa000) => Some(4),
        (true, 0xc030, board) if board == level * 0x1000 => Some(5),
        _ => None,
    }
}

/// What NCCL reckons that a PCI link carries: in 100 Mb/s a lane, by generation (`kvDictPciGen`).
fn nccl_bandwidth(link: Link) -> Bandwidth {
    let lane: u64 = match link.speed.generation() {
        1 => 15,
        2 => 30,
        4 => 120,
        5 => 240,
        6 => 480,
        _ => 60,
    };
    Bandwidth(lane * u64::from(link.width.0) * (GB / 80))
}

/// The link above a function, by the best that both of its ends can do.
fn upstream_bandwidth(tree: &Tree, function: &Function) -> Bandwidth {
    let above = match tree.parent(function.bdf) {
        Some(crate::pci::Parent::Bridge(bridge)) => tree.get(bridge),
        _ => None,
    };
    let ends = [Some(function), above].into_iter().flatten();
    let link = ends
        .filter_map(|end| end.link_capable.present().copied())
        .reduce(Link::meet);
    link.map_or(LOCAL, nccl_bandwidth)
}

/// What NCCL reckons that one NVLink carries, by the compute capability of the GPU.
fn nvlink_bandwidth(sm: Option<u32>) -> u64 {
    match sm.unwrap_or(80) {
        100.. => GB * 401 / 10,
        90.. => GB * 206 / 10,
        86 => GB * 12,
        60..70 => GB * 18,
        _ => GB * 20,
    }
}

/// What NCCL reckons that goes between two CPUs (`ncclTopoGetInterCpuBw`).
fn between_cpus(cpu: &Cpu) -> Bandwidth {
    let model = cpu.model.filter(|_| cpu.family == Some(6)).unwrap_or(0);
    match (cpu.arch.as_deref(), cpu.vendor.as_deref()) {
        (Some("ppc64"), _) => Bandwidth(32 * GB),
        (Some("arm64"), _) => Bandwidth(6 * GB),
        (Some("x86_64"), Some("GenuineIntel")) => Bandwidth(
            GB * match model {
                0xcf.. => 40,
                0x8f.. => 22,
                0x55.. => 10,
                _ => 6,
            },
        ),
        (Some("x86_64"), Some("AuthenticAMD")) => Bandwidth(16 * GB),
        _ => LOCAL,
    }
}
