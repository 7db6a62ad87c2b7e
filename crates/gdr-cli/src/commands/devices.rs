//! `gdr devices`: the RDMA devices of this machine, and how each would reach GPU memory.

use std::fmt;

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use gdr_cuda::{Cuda, DeviceInfo, Driver};
use gdr_doctor::peermem::{PeerMemory, Standing};
use gdr_perf::report::Schema;
use gdr_rdma::{
    Device, DmaBufSupport, LinkLayer, SoftAddress, Told, VerbsDevice, VerbsOptions, VerbsPort,
};
use gdr_verbs_sys::{LoadError, NoDevice};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit};
use crate::live;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr devices            what `gdr loopback --from` and `--to` can name
  gdr devices --json     for a program";

/// List the RDMA devices: ports, links, GIDs, and how each would reach GPU memory
///
/// Devices of the kernel come from libibverbs, with the GID that gdr takes and why, and whether
/// GPU memory would be registered by dma-buf, by a peer-memory module, or not at all. The soft
/// provider has a device at every address of this machine.
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

/// What libibverbs shows.
#[derive(Serialize)]
struct Verbs {
    /// `ok`, `no_library`, `no_symbol`, `no_device`.
    status: &'static str,
    /// Why there is none, and what to do.
    error: Option<String>,
    devices: Vec<Kernel>,
}

/// A device of the kernel.
#[derive(Serialize)]
struct Kernel {
    name: String,
    /// Why it cannot be asked.
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
    /// The index of the GID that is taken.
    gid: Option<u32>,
    /// Why that one, or why none.
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

/// How GPU memory would be registered.
#[derive(Serialize)]
struct GpuMemory {
    route: Route,
    because: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Route {
    DmaBuf,
    PeerMemory,
    Staged,
    Unknown,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::DmaBuf => "dma-buf",
            Self::PeerMemory => "peer memory",
            Self::Staged => "staged through host memory",
            Self::Unknown => "not known",
        })
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
    let peer = PeerMemory::read(&live::this_node());
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

/// That there is none is no fault: the soft provider works without. A library that is not
/// libibverbs is one.
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
        match &device.told {
            Ok(told) => Self {
                name,
                error: None,
                firmware: Some(told.firmware.clone()).filter(|firmware| !firmware.is_empty()),
                on_demand_paging: Some(told.on_demand_paging),
                ports: told.ports.iter().map(Port::of).collect(),
                gpu_memory: Some(registration(told, gpu, peer)),
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

/// The GPUs' side.
enum Gpu {
    /// The first one stands for all.
    There(Box<DeviceInfo>),
    /// Why not.
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

/// What registering GPU memory with a device would use. Nothing is registered to find out: the
/// way between the two may still not allow it.
fn registration(told: &Told, gpu: &Gpu, peer: &PeerMemory) -> GpuMemory {
    let (exports, gpu) = match gpu {
        Gpu::There(info) if info.dma_buf => (true, format!("{} exports dma-bufs", info.name)),
        Gpu::There(info) => (false, format!("{} exports no dma-buf", info.name)),
        Gpu::Absent(why) => (false, format!("there is no GPU here: {why}")),
    };
    let nic = match &told.dma_buf {
        DmaBufSupport::Supported => "the device imports dma-bufs".to_owned(),
        DmaBufSupport::Unsupported(why) => format!("the device imports no dma-buf: {why}"),
        DmaBufSupport::Unknown(why) => {
            format!("whether the device imports dma-bufs is not known: {why}")
        }
        other => format!("{other:?}"),
    };
    let imports = told.dma_buf == DmaBufSupport::Supported;
    if exports && imports {
        return GpuMemory {
            route: Route::DmaBuf,
            because: format!("{gpu}, {nic}"),
        };
    }
    let route = match peer.standing {
        Standing::Active | Standing::Loaded => Route::PeerMemory,
        Standing::Unknown => Route::Unknown,
        _ if matches!(told.dma_buf, DmaBufSupport::Unknown(_)) && exports => Route::Unknown,
        _ => Route::Staged,
    };
    GpuMemory {
        route,
        because: format!("{gpu}; {nic}; peer memory: {}", peer.because),
    }
}

fn show(report: &Report, output: &mut Output) -> Result<()> {
    if let Some(error) = &report.verbs.error {
        output.line(format_args!(
            "{} {error}",
            "No RDMA device of the kernel:".bold()
        ))?;
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
        output.line(format_args!("  cannot be asked: {error}"))?;
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
        output.line(match port.gid {
            Some(_) => format!("  takes {}", port.gid_because),
            None => format!("  takes none: {}", port.gid_because),
        })?;
    }
    if let Some(gpu) = &device.gpu_memory {
        output.line(format_args!(
            "  GPU memory: {} ({})",
            gpu.route, gpu.because
        ))?;
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
