//! `gdr devices`: the RDMA devices of this machine, and how each would register GPU memory.

use std::fmt;

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use gdr_cuda::{Cuda, DeviceInfo, Driver};
use gdr_doctor::peermem::{PeerMemory, Standing};
use gdr_perf::report::Schema;
use gdr_rdma::{
    Device, DeviceAttributes, DmaBufSupport, LinkLayer, LoadError, NoDevice, RegistrationMethod,
    SoftAddress, VerbsDevice, VerbsOptions, VerbsPort,
};
use owo_colors::OwoColorize;
use serde::{Serialize, Serializer};

use crate::exit::{EXIT_STATUS, Exit};
use crate::global::Global;
use crate::host_source;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr devices            the names for `gdr loopback --from` and `--to`
  gdr devices --json     for a program";

/// List the RDMA devices: ports, links, GIDs, and how each would register GPU memory
///
/// Kernel devices come from libibverbs, with the GID that gdr uses and why, and whether GPU memory
/// would be registered by dma-buf, by a peer-memory module, or not at all. The soft provider has a
/// device at every address of this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    verbs: Verbs,
    soft: Vec<SoftDevice>,
}

/// The kernel devices.
#[derive(Serialize)]
struct Verbs {
    /// `ok`, `no_library`, `no_symbol`, `no_device`.
    status: &'static str,
    /// Why there is no device, and what to do.
    error: Option<String>,
    devices: Vec<Kernel>,
}

/// A kernel device.
#[derive(Serialize)]
struct Kernel {
    name: String,
    /// Why it cannot be queried.
    error: Option<String>,
    firmware: Option<String>,
    on_demand_paging: Option<bool>,
    ports: Vec<Port>,
    gpu_memory: Option<GpuMemory>,
}

#[derive(Serialize)]
struct Port {
    port: u8,
    state: String,
    active: bool,
    link_layer: String,
    gigabits_per_second: Option<f64>,
    active_mtu: Option<u32>,
    lid: Option<u16>,
    gids: Vec<Gid>,
    /// The index of the GID that is used.
    gid: Option<u32>,
    /// Why that GID is used, or why no GID can be.
    gid_because: String,
}

#[derive(Serialize)]
struct Gid {
    index: u32,
    gid: String,
    address: String,
    #[serde(rename = "type")]
    kind: String,
    netdev: Option<String>,
}

/// The expected registration of GPU memory.
#[derive(Serialize)]
struct GpuMemory {
    route: Expected,
    because: String,
}

/// How a device is expected to reach GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It accesses GPU memory itself, which is registered by this method.
    Registered(RegistrationMethod),
    /// Through host memory.
    Staged,
    /// The machine does not say.
    Unknown,
}

impl Expected {
    /// The value in JSON.
    const fn name(self) -> &'static str {
        match self {
            Self::Registered(RegistrationMethod::DmaBuf) => "dma-buf",
            Self::Registered(RegistrationMethod::PeerMemory) => "peer-memory",
            Self::Staged => "staged",
            Self::Registered(_) | Self::Unknown => "unknown",
        }
    }
}

impl Serialize for Expected {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered(method) => method.fmt(f),
            Self::Staged => f.pad("staged through host memory"),
            Self::Unknown => f.pad("not known"),
        }
    }
}

#[derive(Serialize)]
struct SoftDevice {
    name: String,
    address: String,
    netdev: String,
    link_mtu: Option<u32>,
    path_mtu: Option<usize>,
}

pub(crate) fn run(global: &Global, _: &Options, output: &mut Output) -> Result<Exit> {
    let gpu = Gpu::of_this_machine();
    let peer = PeerMemory::read(&host_source::this_node());
    let (verbs, exit) = match Device::list_verbs(&VerbsOptions::new()) {
        Ok(devices) => of_kernel(&devices, &gpu, &peer),
        Err(error) => absent(error)?,
    };
    let report = Report {
        schema: Schema::first("gdr.devices"),
        verbs,
        soft: Device::list_soft()?.iter().map(SoftDevice::of).collect(),
    };
    if global.json {
        output.json(&report)?;
    } else {
        show(&report, output)?;
    }
    Ok(exit)
}

fn of_kernel(devices: &[VerbsDevice], gpu: &Gpu, peer: &PeerMemory) -> (Verbs, Exit) {
    let devices: Vec<Kernel> = devices
        .iter()
        .map(|device| Kernel::of(device, gpu, peer))
        .collect();
    let exit = if devices.iter().all(|device| device.error.is_none()) {
        Exit::Fine
    } else {
        Exit::Warning
    };
    let verbs = Verbs {
        status: "ok",
        error: None,
        devices,
    };
    (verbs, exit)
}

/// A missing libibverbs is not an error: the soft provider does not need it. Another library in its
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
    let verbs = Verbs {
        status,
        error: Some(load.to_string()),
        devices: Vec::new(),
    };
    Ok((verbs, exit))
}

impl Kernel {
    fn of(device: &VerbsDevice, gpu: &Gpu, peer: &PeerMemory) -> Self {
        let name = device.name.clone();
        match &device.attributes {
            Ok(attributes) => Self {
                name,
                error: None,
                firmware: Some(attributes.firmware.clone()).filter(|firmware| !firmware.is_empty()),
                on_demand_paging: Some(attributes.on_demand_paging),
                ports: attributes.ports.iter().map(Port::of).collect(),
                gpu_memory: Some(registration(attributes, gpu, peer)),
            },
            Err(error) => Self {
                name,
                error: Some(error.clone()),
                firmware: None,
                on_demand_paging: None,
                ports: Vec::new(),
                gpu_memory: None,
            },
        }
    }
}

impl Port {
    fn of(port: &VerbsPort) -> Self {
        let gids = port.gids.iter().map(|gid| Gid {
            index: gid.entry.index,
            gid: gid.entry.gid.to_string(),
            address: gid.entry.address().to_string(),
            kind: gid.entry.kind.to_string(),
            netdev: gid.interface.clone(),
        });
        let (gid, gid_because) = match &port.chosen {
            Ok(chosen) => (Some(chosen.entry.index), chosen.why.clone()),
            Err(why) => (None, why.clone()),
        };
        Self {
            port: port.number,
            state: port.state.clone(),
            active: port.active,
            link_layer: port.link_layer.to_string(),
            gigabits_per_second: port.gigabits,
            active_mtu: port.active_mtu,
            lid: (port.link_layer == LinkLayer::InfiniBand).then_some(port.lid),
            gids: gids.collect(),
            gid,
            gid_because,
        }
    }
}

impl SoftDevice {
    fn of(soft: &SoftAddress) -> Self {
        Self {
            name: format!("soft-{}", soft.address),
            address: soft.address.to_string(),
            netdev: soft.interface.clone(),
            link_mtu: soft.link_mtu,
            path_mtu: soft.path_mtu.map(|mtu| mtu.bytes()),
        }
    }
}

/// The GPU that would be registered.
enum Gpu {
    /// The first GPU; the others are taken to be alike.
    There(Box<DeviceInfo>),
    /// Why no GPU is known.
    Absent(String),
}

impl Gpu {
    fn of_this_machine() -> Self {
        match Cuda::load().and_then(|cuda| cuda.devices()) {
            Ok(devices) => match devices.into_iter().next() {
                Some(first) => Self::There(Box::new(first)),
                None => Self::Absent("the NVIDIA driver shows no GPU".to_owned()),
            },
            Err(error) => Self::Absent(error.to_string()),
        }
    }
}

/// The registration method that is expected to work. Nothing is registered: the PCI path between the
/// two may still prevent it.
fn registration(attributes: &DeviceAttributes, gpu: &Gpu, peer: &PeerMemory) -> GpuMemory {
    let (exports, gpu) = match gpu {
        Gpu::There(info) if info.dma_buf => (true, format!("{} exports dma-bufs", info.name)),
        Gpu::There(info) => (false, format!("{} exports no dma-buf", info.name)),
        Gpu::Absent(why) => (false, format!("there is no GPU here: {why}")),
    };
    let nic = match &attributes.dma_buf {
        DmaBufSupport::Supported => "the device imports dma-bufs".to_owned(),
        DmaBufSupport::Unsupported(why) => format!("the device imports no dma-buf: {why}"),
        DmaBufSupport::Unknown(why) => {
            format!("whether the device imports dma-bufs is not known: {why}")
        }
        other => format!("{other:?}"),
    };
    let imports = attributes.dma_buf == DmaBufSupport::Supported;
    if exports && imports {
        return GpuMemory {
            route: Expected::Registered(RegistrationMethod::DmaBuf),
            because: format!("{gpu}, {nic}"),
        };
    }
    let route = match peer.standing {
        Standing::Active | Standing::Loaded => Expected::Registered(RegistrationMethod::PeerMemory),
        Standing::Unknown => Expected::Unknown,
        _ if matches!(attributes.dma_buf, DmaBufSupport::Unknown(_)) && exports => {
            Expected::Unknown
        }
        _ => Expected::Staged,
    };
    GpuMemory {
        route,
        because: format!("{gpu}; {nic}; peer memory: {}", peer.because),
    }
}

fn show(report: &Report, output: &mut Output) -> Result<()> {
    if let Some(error) = &report.verbs.error {
        let heading = "No kernel RDMA device:".bold();
        output.paragraph("", "  ", &format!("{heading} {error}"))?;
    }
    for device in &report.verbs.devices {
        show_kernel(device, output)?;
    }
    output.line("")?;
    output.line(format_args!(
        "{} RoCEv2 over UDP in this process, needs no hardware:",
        "Soft devices:".bold()
    ))?;
    let mut table = table(["device", "netdev", "link MTU", "path MTU"]);
    for soft in &report.soft {
        table.add_row([
            soft.name.clone(),
            soft.netdev.clone(),
            or_dash(soft.link_mtu),
            or_dash(soft.path_mtu),
        ]);
    }
    output.line(&table)?;
    Ok(())
}

fn show_kernel(device: &Kernel, output: &mut Output) -> Result<()> {
    let firmware = match &device.firmware {
        Some(firmware) => format!(", firmware {firmware}"),
        None => String::new(),
    };
    let name = device.name.as_str();
    output.line(format_args!("{}{firmware}", name.bold()))?;
    if let Some(error) = &device.error {
        output.paragraph("  ", "    ", &format!("cannot be queried: {error}"))?;
    }
    for port in &device.ports {
        let lid = port
            .lid
            .map_or_else(String::new, |lid| format!(", LID {lid}"));
        let rate = match port.gigabits_per_second {
            Some(rate) => format!("{rate} Gbit/s"),
            None => "rate not known".to_owned(),
        };
        output.line(format_args!(
            "  port {}: {}, {}, {rate}, MTU {}{lid}",
            port.port,
            port.state,
            port.link_layer,
            or_dash(port.active_mtu),
        ))?;
        if !port.gids.is_empty() {
            let mut table = table(["", "GID", "type", "address", "netdev"]);
            for gid in &port.gids {
                let taken = port.gid == Some(gid.index);
                table.add_row([
                    format!("{}{}", if taken { "* " } else { "" }, gid.index),
                    gid.gid.clone(),
                    gid.kind.clone(),
                    gid.address.clone(),
                    gid.netdev.clone().unwrap_or_else(|| "-".to_owned()),
                ]);
            }
            output.line(&table)?;
        }
        let choice = match port.gid {
            Some(_) => format!("uses {}", port.gid_because),
            None => format!("uses no GID: {}", port.gid_because),
        };
        output.paragraph("  ", "    ", &choice)?;
    }
    if let Some(gpu) = &device.gpu_memory {
        let text = format!("GPU memory: {} ({})", gpu.route, gpu.because);
        output.paragraph("  ", "    ", &text)?;
    }
    Ok(())
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header);
    table
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
