//! Devices of another node, from what was recorded about it.

use std::fmt::Display;

use anyhow::Result;
use gdr_doctor::peermem::{DmaBuf, PeerMemory};
use gdr_doctor::{Capture, Timestamp};
use gdr_node::{
    Absence, Datum, DmaBufImport, GpuFacts, PortState, Probe, RdmaDevice, RdmaFacts, RdmaGid,
    RdmaPort, Source, virtual_path,
};
use gdr_rdma::{ChosenGid, DmaBufSupport, GidEntry, GidType, LinkLayer, NoGid, choose_gid};

use super::gpu_memory::{Exporter, Exports, GpuMemory};
use super::listing::{Gid, Kernel, Listing, Port, Verbs};
use crate::commands::nics::bits_per_second;
use crate::exit::{Exit, InputError};
use crate::node_args::{Node, Which};

/// Lists the devices of a node that is not this machine.
pub(super) fn list(which: &Which) -> Result<(Listing, Exit)> {
    let node = which.open()?;
    let refuse = |what: &str| {
        InputError(format!(
            "{}: {what}; `gdr nics --from` shows the NICs that it contains, and an archive from `gdr \
             collect` contains all facts",
            which.name()
        ))
    };
    let listed = match &node.inventory.rdma {
        Ok(devices) => devices.as_slice(),
        Err(Absence::Missing) => &[],
        Err(Absence::NotCollected) => {
            return Err(refuse("this capture has no RDMA devices, ports and GIDs").into());
        }
        Err(absence) => {
            let what = format!("the list of RDMA devices is {absence}");
            return Err(refuse(&what).into());
        }
    };
    let facts = Facts::read(&node);
    if !listed.is_empty() && listed.iter().all(|device| facts.only_names(device)) {
        let names: Vec<&str> = listed.iter().map(|device| device.name.as_str()).collect();
        let what = format!(
            "this capture has the names of RDMA devices ({}) and neither ports nor GIDs",
            names.join(", ")
        );
        return Err(refuse(&what).into());
    }
    let (verbs, exit) = if listed.is_empty() {
        let error = "the node has none in /sys/class/infiniband".to_owned();
        (Verbs::absent("no_device", error), Exit::Fine)
    } else {
        Verbs::of_devices(listed.iter().map(|device| facts.kernel(device)).collect())
    };
    let capture = which.file().map(|file| Capture {
        file,
        collected: node.collected.map(Timestamp),
    });
    Ok((Listing::of_another_node(verbs, capture), exit))
}

/// Names of facts that are not recorded.
#[derive(Default)]
struct Gaps(Vec<String>);

impl Gaps {
    /// Notes a fact that the node may have. A fact that it does not have is not a gap.
    fn note(&mut self, what: impl Display, absence: Absence) {
        match absence {
            Absence::Missing => {}
            Absence::NotCollected => self.0.push(what.to_string()),
            other => self.0.push(format!("{what} ({})", other.name())),
        }
    }

    /// Returns the fact, or a note.
    fn known<T: Clone>(&mut self, what: impl Display, datum: &Datum<T>) -> Option<T> {
        match datum {
            Ok(value) => Some(value.clone()),
            Err(absence) => {
                self.note(what, *absence);
                None
            }
        }
    }
}

/// What was recorded about a node besides its inventory.
struct Facts<'a> {
    source: &'a dyn Source,
    verbs: Datum<Probe<RdmaFacts>>,
    gpu: Exporter,
    peer: PeerMemory,
}

impl<'a> Facts<'a> {
    fn read(node: &'a Node) -> Self {
        let source = node.source.as_ref();
        let peer = PeerMemory::read(source);
        Self {
            source,
            verbs: Probe::read(source, virtual_path::VERBS_DEVICES),
            gpu: gpu(node, &peer),
            peer,
        }
    }

    /// Returns whether nothing but its name was recorded.
    fn only_names(&self, device: &RdmaDevice) -> bool {
        let unknown = |datum: &Datum<String>| datum == &Err(Absence::NotCollected);
        device.ports.is_empty() && unknown(&device.firmware) && self.verbs.is_err()
    }

    /// Returns what libibverbs reported about a device, or why it cannot be queried. An absence is neither.
    fn answer(&self, name: &str) -> Datum<Result<&RdmaFacts, String>> {
        let verbs = match &self.verbs {
            Ok(verbs) => verbs,
            Err(Absence::Missing) => {
                let why = "libibverbs is not installed on the node, or shows no device";
                return Ok(Err(why.to_owned()));
            }
            Err(absence) => return Err(*absence),
        };
        Ok(match verbs.device(name) {
            Some(device) if device.firmware.is_some() || device.on_demand_paging.is_some() => {
                Ok(device)
            }
            Some(device) => {
                let why = device.dma_buf.clone().map(String::from);
                Err(why.unwrap_or_else(|| "libibverbs says nothing of it".to_owned()))
            }
            None => {
                let why = verbs.error.clone();
                Err(why.unwrap_or_else(|| "libibverbs does not list it".to_owned()))
            }
        })
    }

    fn kernel(&self, device: &RdmaDevice) -> Kernel {
        let mut gaps = Gaps::default();
        let answer = self.answer(&device.name);
        let said = answer
            .as_ref()
            .ok()
            .and_then(|it| it.as_ref().ok().copied());
        let error = answer
            .as_ref()
            .ok()
            .and_then(|it| it.as_ref().err().cloned());
        let firmware = match said.and_then(|said| said.firmware.clone()) {
            Some(firmware) => Some(firmware),
            None => gaps.known("firmware", &device.firmware),
        };
        if let Err(absence) = &answer {
            gaps.note("on-demand paging", *absence);
            gaps.note("dma-buf", *absence);
        }
        if device.ports.is_empty() {
            let ports = format!("/sys/class/infiniband/{}/ports", device.name);
            gaps.known("ports", &self.source.list(&ports));
        }
        let ports = (device.ports.iter())
            .map(|port| {
                let active_mtu = self.active_mtu(&answer, port.number);
                let active_mtu = gaps.known(format!("MTU of port {}", port.number), &active_mtu);
                self.port(device, port, active_mtu, &mut gaps)
            })
            .collect();
        let gpu_memory = error.is_none().then(|| {
            let nic = match said.and_then(|said| said.dma_buf.as_ref()) {
                Some(DmaBufImport::Supported) => DmaBufSupport::Supported,
                Some(DmaBufImport::Unsupported) => {
                    DmaBufSupport::Unsupported("libibverbs reported so".to_owned())
                }
                Some(DmaBufImport::Unknown(why)) => DmaBufSupport::Unknown(why.clone()),
                None => DmaBufSupport::Unknown("not recorded".to_owned()),
            };
            GpuMemory::expect(&nic, &self.gpu, &self.peer)
        });
        Kernel {
            name: device.name.clone(),
            firmware: firmware.filter(|firmware| !firmware.is_empty()),
            on_demand_paging: said.and_then(|said| said.on_demand_paging),
            error,
            ports,
            gpu_memory,
            not_recorded: gaps.0,
        }
    }

    /// Returns the MTU of a port; none if the device cannot be queried.
    fn active_mtu(&self, answer: &Datum<Result<&RdmaFacts, String>>, number: u32) -> Datum<u32> {
        let said = answer.as_ref().map_err(|absence| *absence)?;
        let device = said.as_ref().map_err(|_| Absence::Missing)?;
        let ports = device.ports.as_ref().ok_or(Absence::NotCollected)?;
        let port = ports.iter().find(|port| port.number == number);
        port.ok_or(Absence::NotCollected)?
            .active_mtu
            .ok_or(Absence::Missing)
    }

    fn port(
        &self,
        device: &RdmaDevice,
        port: &RdmaPort,
        active_mtu: Option<u32>,
        gaps: &mut Gaps,
    ) -> Port {
        let number = port.number;
        let state = gaps.known(format!("state of port {number}"), &port.state);
        let layer = gaps.known(format!("link layer of port {number}"), &port.link_layer);
        let rate = gaps.known(format!("rate of port {number}"), &port.rate);
        let link_layer = layer.as_deref().map(link_layer);
        let lid = (link_layer == Some(LinkLayer::InfiniBand)).then(|| {
            let path = format!("/sys/class/infiniband/{}/ports/{number}/lid", device.name);
            gaps.known(format!("LID of port {number}"), &self.source.text(&path))
        });
        let table = match RdmaGid::read_all(self.source, &device.name, number) {
            Err(Absence::Missing) => Ok(Vec::new()),
            table => table,
        };
        let gids = gaps.known(format!("GIDs of port {number}"), &table);
        if link_layer == Some(LinkLayer::Ethernet)
            && let Some(gid) = gids.iter().flatten().find(|gid| gid.version.is_none())
        {
            let what = format!("type of GID {} of port {number}", gid.index);
            gaps.note(what, Absence::NotCollected);
        }
        let choice = gids.as_ref().zip(link_layer);
        let choice = choice.and_then(|(gids, link_layer)| choose(link_layer, gids));
        let (gid, gid_because) = match choice {
            Some(Ok(chosen)) => (Some(chosen.entry.index), Some(chosen.why)),
            Some(Err(none)) => (None, Some(none.to_string())),
            None => (None, None),
        };
        Port {
            port: number,
            active: state.as_ref().map(|state| *state == PortState::Active),
            state: state.map(|state| state.to_string()),
            gigabits_per_second: rate
                .as_deref()
                .and_then(bits_per_second)
                .map(|bits| bits as f64 / 1e9),
            active_mtu,
            lid: lid.flatten().as_deref().and_then(hexadecimal),
            gids: (gids.iter().flatten())
                .map(|gid| listed(gid, link_layer))
                .collect(),
            gid,
            gid_because,
            link_layer: layer,
        }
    }
}

/// Returns the link layer by the kernel's name.
fn link_layer(name: &str) -> LinkLayer {
    match name {
        "InfiniBand" => LinkLayer::InfiniBand,
        "Ethernet" => LinkLayer::Ethernet,
        _ => LinkLayer::Other(0),
    }
}

/// Returns a number as sysfs has it: `0x15`.
fn hexadecimal(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Returns the type of a GID. The kernel uses the same name for InfiniBand and RoCE v1.
fn kind(gid: &RdmaGid, link_layer: Option<LinkLayer>) -> Option<GidType> {
    match (gid.version.as_deref()?, link_layer?) {
        ("IB/RoCE v1", LinkLayer::InfiniBand) => Some(GidType::InfiniBand),
        ("IB/RoCE v1", LinkLayer::Ethernet) => Some(GidType::RoceV1),
        ("RoCE v2", _) => Some(GidType::RoceV2),
        _ => None,
    }
}

fn listed(gid: &RdmaGid, link_layer: Option<LinkLayer>) -> Gid {
    let name = kind(gid, link_layer).map(|kind| kind.to_string());
    Gid {
        index: gid.index,
        gid: gid.address.to_string(),
        address: gid.address.to_canonical().to_string(),
        kind: name.or_else(|| gid.version.clone()),
        netdev: gid.netdev.clone(),
    }
}

/// Returns the GID that gdr would use; `None` if that depends on a type that is not recorded.
fn choose(link_layer: LinkLayer, gids: &[RdmaGid]) -> Option<Result<ChosenGid, NoGid>> {
    let entry = |gid: &RdmaGid, kind| GidEntry {
        index: gid.index,
        gid: gid.address,
        kind,
    };
    let entries: Vec<GidEntry> = if link_layer == LinkLayer::Ethernet {
        if gids.iter().any(|gid| gid.version.is_none()) {
            return None;
        }
        let typed = |gid: &RdmaGid| Some(entry(gid, kind(gid, Some(link_layer))?));
        gids.iter().filter_map(typed).collect()
    } else {
        // There, all have the same type.
        let all = gids.iter().map(|gid| entry(gid, GidType::InfiniBand));
        all.collect()
    };
    Some(choose_gid(link_layer, &entries))
}

/// Returns the GPU by what CUDA reported; where that is not recorded, by the driver and the kernel.
fn gpu(node: &Node, peer: &PeerMemory) -> Exporter {
    let inventory = &node.inventory;
    match Probe::<GpuFacts>::read(node.source.as_ref(), virtual_path::CUDA_DEVICES) {
        Ok(probe) => match (probe.error, probe.devices.first()) {
            (Some(error), _) => Exporter::absent(&error),
            (None, None) => Exporter::absent("the NVIDIA driver shows none"),
            (None, Some(first)) => {
                let exports = match first.dma_buf_supported {
                    Some(true) => Exports::Yes,
                    Some(false) => Exports::No,
                    None => Exports::Unknown,
                };
                Exporter::named(first.name.as_deref().unwrap_or(&first.pci), exports)
            }
        },
        Err(Absence::Missing) => Exporter::absent("the CUDA driver is not installed on the node"),
        Err(_) if inventory.tree.is_ok() && inventory.gpus.is_empty() => {
            Exporter::absent("none of the PCI functions is an NVIDIA GPU")
        }
        Err(_) => {
            let because = &peer.dma_buf_because;
            let (exports, what) = match peer.dma_buf {
                DmaBuf::Ready => (Exports::Yes, "the GPU's driver exports dma-bufs"),
                DmaBuf::No => (Exports::No, "the GPU exports no dma-buf"),
                DmaBuf::Unknown => (
                    Exports::Unknown,
                    "whether the GPU exports dma-bufs is not recorded",
                ),
            };
            Exporter {
                exports,
                because: format!("{what}: {because}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource, example, virtual_path};
    use snapshot::assert_contains;

    use super::*;

    const PORT: &str = "/sys/class/infiniband/mlx5_0/ports/1";

    fn first(source: MemorySource) -> Kernel {
        let node = Node {
            inventory: Inventory::read(&source),
            source: Box::new(source),
            collected: None,
        };
        let facts = Facts::read(&node);
        facts.kernel(&node.inventory.rdma.as_ref().unwrap()[0])
    }

    #[test]
    fn no_gid_is_chosen_where_the_choice_depends_on_a_type_that_is_not_recorded() {
        let device = first(example::healthy().without(&format!("{PORT}/gid_attrs/types/3")));
        let port = &device.ports[0];
        assert_eq!((port.gid, &port.gid_because), (None, &None));
        assert_eq!((port.gids.len(), &port.gids[3].kind), (4, &None));
        assert_eq!(device.not_recorded, ["type of GID 3 of port 1"]);
    }

    #[test]
    fn a_type_of_a_newer_kernel_is_shown_and_not_chosen() {
        let types = format!("{PORT}/gid_attrs/types/3");
        let device = first(example::healthy().file(&types, "RoCE v3\n"));
        let port = &device.ports[0];
        assert_eq!(port.gids[3].kind.as_deref(), Some("RoCE v3"));
        assert_eq!(port.gid, Some(2), "{:?}", port.gid_because);
    }

    #[test]
    fn a_fact_that_was_denied_is_not_recorded_and_one_that_is_missing_is() {
        let device = first(
            example::healthy()
                .denied(&format!("{PORT}/gids/3"))
                .without(&format!("{PORT}/rate")),
        );
        assert_eq!(device.not_recorded, ["GIDs of port 1 (denied)"]);
        assert_eq!(device.ports[0].gigabits_per_second, None);
    }

    #[test]
    fn an_archive_of_an_older_version_has_no_mtu() {
        let text = r#"{"devices":[{"name":"mlx5_0","firmware":"22","on_demand_paging":true,
                       "dma_buf":"supported"}]}"#;
        let device = first(example::healthy().file(virtual_path::VERBS_DEVICES, text));
        assert_eq!(device.not_recorded, ["MTU of port 1"]);
        assert_eq!(device.error, None);
    }

    #[test]
    fn without_cuda_the_driver_and_the_kernel_say_whether_the_gpu_exports_dma_bufs() {
        let route = |node: MemorySource| {
            let expected = first(node).gpu_memory.unwrap();
            (expected.route.to_string(), expected.because)
        };
        let unasked = MemorySource::partial();
        let node = Node::of_devices(Inventory::read(&unasked));
        assert_eq!(
            gpu(&node, &PeerMemory::read(&unasked)).exports,
            Exports::Unknown
        );
        let (method, because) = route(example::healthy().denied(virtual_path::CUDA_DEVICES));
        assert_eq!(method, "dma-buf");
        assert_contains!(because, "open modules 580.95.05");
        let (method, because) = route(example::healthy().without(virtual_path::CUDA_DEVICES));
        assert_eq!(method, "peer-memory module");
        assert_contains!(because, "no usable GPU");
    }
}
