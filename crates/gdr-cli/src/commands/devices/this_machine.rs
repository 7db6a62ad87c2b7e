//! Devices of this machine, from libibverbs and from the soft provider.

use anyhow::Result;
use gdr_cuda::{Cuda, Driver};
use gdr_doctor::peermem::PeerMemory;
use gdr_rdma::{
    Device, LinkLayer, LoadError, NoDevice, SoftAddress, VerbsDevice, VerbsOptions, VerbsPort,
};

use super::gpu_memory::{Exporter, Exports, GpuMemory};
use super::listing::{Gid, Kernel, Listing, Port, SoftDevice, Verbs};
use crate::exit::Exit;
use crate::host_source;

pub(super) fn list() -> Result<(Listing, Exit)> {
    let gpu = gpu();
    let peer = PeerMemory::read(&host_source::this_node());
    let (verbs, exit) = match Device::list_verbs(&VerbsOptions::new()) {
        Ok(devices) => {
            let devices = devices.iter().map(|device| kernel(device, &gpu, &peer));
            Verbs::of_devices(devices.collect())
        }
        Err(error) => absent(error)?,
    };
    let soft = Device::list_soft()?.iter().map(soft_device).collect();
    Ok((Listing::of_this_machine(verbs, soft), exit))
}

/// Reports a missing libibverbs, which is not an error: the soft provider does not need it. Another library in its
/// place is a warning.
fn absent(error: gdr_rdma::Error) -> Result<(Verbs, Exit)> {
    let gdr_rdma::Error::Verbs(gdr_rdma::VerbsError::Load(load)) = &error else {
        return Err(error.into());
    };
    let (status, exit) = match load {
        LoadError::Library { .. } => ("no_library", Exit::Fine),
        LoadError::Symbol { .. } => ("no_symbol", Exit::Warning),
        LoadError::NoDevice(NoDevice::List(_)) => ("no_device", Exit::Warning),
        _ => ("no_device", Exit::Fine),
    };
    Ok((Verbs::absent(status, load.to_string()), exit))
}

fn gpu() -> Exporter {
    match Cuda::load().and_then(|cuda| cuda.devices()) {
        Ok(devices) => match devices.first() {
            Some(first) if first.dma_buf => Exporter::named(&first.name, Exports::Yes),
            Some(first) => Exporter::named(&first.name, Exports::No),
            None => Exporter::absent("the NVIDIA driver shows none"),
        },
        Err(error) => Exporter::absent(&error.to_string()),
    }
}

fn kernel(device: &VerbsDevice, gpu: &Exporter, peer: &PeerMemory) -> Kernel {
    let name = device.name.clone();
    match &device.attributes {
        Ok(attributes) => Kernel {
            name,
            error: None,
            firmware: Some(attributes.firmware.clone()).filter(|firmware| !firmware.is_empty()),
            on_demand_paging: Some(attributes.on_demand_paging),
            ports: attributes.ports.iter().map(port).collect(),
            gpu_memory: Some(GpuMemory::expect(&attributes.dma_buf, gpu, peer)),
            not_recorded: Vec::new(),
        },
        Err(error) => Kernel {
            name,
            error: Some(error.clone()),
            firmware: None,
            on_demand_paging: None,
            ports: Vec::new(),
            gpu_memory: None,
            not_recorded: Vec::new(),
        },
    }
}

fn port(port: &VerbsPort) -> Port {
    let gids = port.gids.iter().map(|gid| Gid {
        index: gid.entry.index,
        gid: gid.entry.gid.to_string(),
        address: gid.entry.address().to_string(),
        kind: Some(gid.entry.kind.to_string()),
        netdev: gid.interface.clone(),
    });
    let (gid, gid_because) = match &port.chosen {
        Ok(chosen) => (Some(chosen.entry.index), chosen.why.clone()),
        Err(why) => (None, why.clone()),
    };
    Port {
        port: port.number.into(),
        state: Some(port.state.clone()),
        active: Some(port.active),
        link_layer: Some(port.link_layer.to_string()),
        gigabits_per_second: port.gigabits,
        active_mtu: port.active_mtu,
        lid: (port.link_layer == LinkLayer::InfiniBand).then_some(port.lid),
        gids: gids.collect(),
        gid,
        gid_because: Some(gid_because),
    }
}

fn soft_device(soft: &SoftAddress) -> SoftDevice {
    SoftDevice {
        name: format!("soft-{}", soft.address),
        address: soft.address.to_string(),
        netdev: soft.interface.clone(),
        link_mtu: soft.link_mtu,
        path_mtu: soft.path_mtu.map(|mtu| mtu.bytes()),
    }
}
