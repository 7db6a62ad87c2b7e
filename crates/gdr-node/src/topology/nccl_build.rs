//! Building NCCL's graph from one of its files or from a PCI tree.

use gdr_pci::Bdf;

use super::nccl::{Kind, LOCAL, NcclGraph, Wire};
use crate::import::nccl_xml::{Cpu, GpuLink, NcclTopology, Net, PciNode};
use crate::pci::{Bandwidth, Function, Identity, Link, Tree, VendorId};

/// 1 GB/s, NCCL's unit.
const GB: u64 = 1_000_000_000;

impl NcclGraph {
    /// Builds the graph described by an NCCL file.
    ///
    /// NCCL's template files have no `gpu` and `nic` elements; NCCL adds them for the devices it finds. Here every
    /// function of these classes counts as found.
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

    /// Builds the graph as NCCL does for these functions of a tree (`ncclTopoGetXmlFromSys`).
    ///
    /// NCCL ascends two directories at a time, so that a switch's two ports become one node and root ports are skipped,
    /// until a directory is not a function. It then uses the CPU of the last function's NUMA node; functions without a
    /// node share a CPU. Host bridges are ignored.
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
                // NCCL treats the ports of a card as one, and also the virtual functions on a bus (NCCL_IB_MERGE_VFS,
                // on by default).
                graph.name(card, device);
                continue;
            } else {
                graph.add(Kind::Nic, Some(device))
            };
            let mut top = function;
            let mut bridges = chain.iter().rev();
            let mut joined = false;
            while let (Some(_), Some(switch)) = (bridges.next(), bridges.next()) {
                let bandwidth = upstream_bandwidth(tree, top);
                let known =
                    (graph.index_of(*switch, Kind::Switch)).or_else(|| graph.index(*switch));
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
                let numa = top.numa.as_ref().ok().map(|node| node.0);
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
            // NCCL's bandwidth depends on the CPU model, which is unknown here.
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
        let is_device = !pci.gpus.is_empty() || !pci.nets.is_empty();
        // NCCL ignores the bus of an NVLink switch or a POWER bridge.
        if kind.is_none() && !is_device {
            return;
        }
        // A device that is also a switch becomes two nodes with the same address.
        let is_switch =
            (is_device && !pci.children.is_empty()) || (!is_device && kind == Some(Kind::Switch));
        let parent = if is_switch {
            self.add_node(Kind::Switch, pci, parent)
        } else {
            parent
        };
        if !pci.gpus.is_empty() || (!is_device && kind == Some(Kind::Gpu)) {
            let at = self.add_node(Kind::Gpu, pci, parent);
            // If one rank may not, the GPU may not.
            let flags = pci.gpus.iter().filter_map(|gpu| gpu.gdr);
            self.nodes[at].gdr = flags.reduce(|a, b| a && b);
        }
        if !pci.nets.is_empty() || (!is_device && kind == Some(Kind::Nic)) {
            self.add_nic(pci, parent);
        }
        if is_switch {
            for child in &pci.children {
                self.add_pci(child, parent);
            }
        }
    }

    fn add_node(&mut self, kind: Kind, pci: &PciNode, parent: usize) -> usize {
        let at = self.add(kind, Some(pci.bdf));
        self.join(at, parent, Wire::Pci, nccl_bandwidth(pci.link));
        at
    }

    /// Adds a NIC. NCCL merges a card's ports, which may have separate elements, by dropping the function number of the
    /// NIC's address (`ncclTopoAddPci`).
    fn add_nic(&mut self, pci: &PciNode, parent: usize) {
        let mut ports = (0..8).map(|function| Bdf {
            function,
            ..pci.bdf
        });
        let known = ports.find_map(|port| self.index_of(port, Kind::Nic));
        let at = match known {
            Some(card) => {
                self.name(card, pci.bdf);
                card
            }
            None => self.add_node(Kind::Nic, pci, parent),
        };
        self.take_nets(at, &pci.nets);
    }

    fn take_nets(&mut self, at: usize, nets: &[Net]) {
        for net in nets {
            self.add_net(at, &net.name);
            let gdr = self.nodes[at].gdr;
            // If one device can, the card can.
            self.nodes[at].gdr = match (gdr, net.gdr) {
                (Some(a), Some(b)) => Some(a || b),
                (known, None) | (None, known) => known,
            };
        }
    }

    fn add_links(&mut self, pci: &PciNode, cpu: usize) {
        let gpu_at = self.index_of(pci.bdf, Kind::Gpu);
        for (gpu, at) in pci.gpus.iter().zip(std::iter::repeat(gpu_at)) {
            let Some(at) = at else { break };
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
            let switch = |graph: &Self, bdf| graph.index_of(bdf, Kind::Switch);
            if let (Some(at), Some(peer)) = (switch(self, pci.bdf), switch(self, *peer)) {
                self.join(at, peer, Wire::Local, LOCAL);
            }
        }
        for child in &pci.children {
            self.add_links(child, cpu);
        }
    }

    /// Returns an NVLink's target: another GPU, the CPU of POWER, or else the merged NVLink switch.
    fn other_end(&mut self, link: &GpuLink, cpu: usize) -> Option<usize> {
        let class = link.class?;
        if class.is_gpu() {
            return self.index_of(link.target?, Kind::Gpu);
        }
        if class.0 == 0x06_8001 {
            return Some(cpu);
        }
        Some(self.nv_switch())
    }

    /// Merges a two-level Broadcom switch into one node (`ncclTopoFlattenBcmSwitches`).
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
                let switch = |bdf| self.index_of(bdf, Kind::Switch);
                if let (Some(into), Some(from)) = (switch(upper.bdf), switch(lower.bdf)) {
                    self.fold(from, into);
                }
            }
        }
    }

    /// Moves a node's wires and name to another node.
    fn fold(&mut self, from: usize, into: usize) {
        if from == into {
            return;
        }
        for name in self.take_names(from) {
            self.name(into, name);
        }
        for (wire, bandwidth, to) in std::mem::take(&mut self.nodes[from].wires) {
            self.nodes[to].wires.retain(|(_, _, back)| *back != from);
            if to != into {
                self.join(into, to, wire, bandwidth);
            }
        }
    }
}

/// Returns the kind of a function by its class.
fn kind_of(pci: &PciNode) -> Option<Kind> {
    match pci.identity.class {
        Some(class) if class.is_gpu() => Some(Kind::Gpu),
        Some(class) if class.is_network() => Some(Kind::Nic),
        Some(class) if class.subclass() == 0x0680 => None,
        _ => Some(Kind::Switch),
    }
}

/// Returns the generation of a Broadcom switch in base mode, which NCCL flattens (`getBcmGen`).
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

/// Returns NCCL's estimate of a PCI link's bandwidth. Its table (`kvDictPciGen`) is in units of 100 Mb/s per lane.
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

/// Returns the bandwidth of the link above a function, at the best speed and width that both ends support.
fn upstream_bandwidth(tree: &Tree, function: &Function) -> Bandwidth {
    let above = match tree.parent(function.bdf) {
        Some(crate::pci::Parent::Bridge(bridge)) => tree.get(bridge),
        _ => None,
    };
    let ends = [Some(function), above].into_iter().flatten();
    let link = ends
        .filter_map(|end| end.link_capable.as_ref().ok().copied())
        .reduce(Link::meet);
    link.map_or(LOCAL, nccl_bandwidth)
}

/// Returns NCCL's estimate of an NVLink's bandwidth, by the GPU's compute capability.
fn nvlink_bandwidth(sm: Option<u32>) -> u64 {
    match sm.unwrap_or(80) {
        100.. => GB * 401 / 10,
        90.. => GB * 206 / 10,
        86 => GB * 12,
        60..70 => GB * 18,
        _ => GB * 20,
    }
}

/// Returns NCCL's estimate of the bandwidth between two CPUs (`ncclTopoGetInterCpuBw`).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::nccl_xml;
    use crate::topology::{NcclClass, NcclDevice};

    fn graph(inside: &str) -> NcclGraph {
        let text = format!("<system version=\"1\"><cpu numaid=\"0\">{inside}</cpu></system>");
        NcclGraph::from_topology(&nccl_xml::read(&text).unwrap())
    }

    fn bdf(text: &str) -> Bdf {
        text.parse().unwrap()
    }

    #[test]
    fn a_nic_and_a_switch_of_one_address_are_two_nodes() {
        let graph = graph(
            r#"<pci busid="0000:10:00.0" class="0x060400">
                 <nic><net name="mlx5_0" gdr="1"/></nic>
                 <pci busid="0000:11:00.0" class="0x030200"><gpu dev="0" gdr="1"/></pci>
                 <pci busid="0000:10:00.0" class="0x020700"><nic><net name="mlx5_1"/></nic></pci>
               </pci>
               <pci busid="0000:20:00.0" class="0x030200"><gpu dev="1"/></pci>"#,
        );
        let class = |a, b| graph.class(bdf(a), bdf(b));
        assert_eq!(graph.gpus().count(), 2);
        assert_eq!(class("11:00.0", "10:00.0"), Some(NcclClass::Pix));
        assert_eq!(class("20:00.0", "10:00.0"), Some(NcclClass::Phb));
        assert_eq!(graph.nics().collect::<Vec<_>>(), [bdf("10:00.0")]);
        for net in ["mlx5_0", "mlx5_1"] {
            let path = graph.path_to_net(bdf("11:00.0"), net).unwrap();
            assert_eq!(path.class, NcclClass::Pix, "{net}");
        }
    }

    #[test]
    fn the_ports_of_a_card_with_an_element_each_are_one_nic() {
        let graph = graph(
            r#"<pci busid="0000:10:00.0" class="0x060400">
                 <pci busid="0000:11:00.0" class="0x030200"><gpu dev="0"/></pci>
                 <pci busid="0000:12:00.0" class="0x020000"><nic><net name="a" gdr="0"/></nic></pci>
                 <pci busid="0000:12:00.1" class="0x020000"><nic><net name="b" gdr="1"/></nic></pci>
               </pci>"#,
        );
        assert_eq!(
            graph.class(bdf("12:00.0"), bdf("12:00.1")),
            Some(NcclClass::Loc)
        );
        assert_eq!(
            graph.class(bdf("11:00.0"), bdf("12:00.1")),
            Some(NcclClass::Pix)
        );
        assert_eq!(graph.nics().count(), 1);
        assert_eq!(
            graph.is_gdr_allowed(bdf("11:00.0"), bdf("12:00.0")),
            Some(true)
        );
    }

    #[test]
    fn a_gpu_of_several_ranks_is_one_device_that_any_of_them_can_bar() {
        let graph = graph(
            r#"<pci busid="0000:11:00.0" class="0x030200"><gpu dev="0" rank="0" gdr="1"/>
                 <gpu dev="0" rank="1" gdr="0"/></pci>
               <pci busid="0000:12:00.0" class="0x020000"><nic><net name="a" gdr="1"/></nic></pci>"#,
        );
        assert_eq!(graph.gpus().count(), 1);
        assert_eq!(
            graph.is_gdr_allowed(bdf("11:00.0"), bdf("12:00.0")),
            Some(false)
        );
        let route = graph.route(bdf("11:00.0"), bdf("12:00.0")).unwrap();
        assert_eq!(route.class, NcclClass::Phb);
    }

    #[test]
    fn the_classes_of_all_pairs_are_those_of_each() {
        let graph = graph(
            r#"<pci busid="0000:10:00.0" class="0x060400">
                 <pci busid="0000:11:00.0" class="0x030200"><gpu dev="0" sm="90">
                   <nvlink target="0000:20:00.0" count="4" tclass="0x030200"/></gpu></pci>
                 <pci busid="0000:12:00.0" class="0x020000"><nic><net name="a"/></nic></pci>
               </pci>
               <pci busid="0000:20:00.0" class="0x030200"><gpu dev="1" sm="90"/></pci>"#,
        );
        let all = ["11:00.0", "12:00.0", "20:00.0", "7f:00.0"].map(bdf);
        let classes = graph.classes(&all.map(NcclDevice::At));
        for (a, row) in all.iter().zip(&classes) {
            for (b, class) in all.iter().zip(row) {
                assert_eq!(*class, graph.class(*a, *b), "{a} {b}");
            }
        }
    }

    #[test]
    fn a_function_that_is_gpu_and_nic_is_both() {
        let graph = graph(
            r#"<pci busid="0000:11:00.0" class="0x030200"><gpu dev="0"/>
                 <nic><net name="a"/></nic><nic><net name="b"/></nic></pci>"#,
        );
        assert_eq!((graph.gpus().count(), graph.nics().count()), (1, 1));
        for net in ["a", "b"] {
            let path = graph.path_to_net(bdf("11:00.0"), net).unwrap();
            assert_eq!(path.class, NcclClass::Phb, "{net}");
        }
    }
}
