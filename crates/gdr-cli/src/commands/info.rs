//! `gdr info`: shows which kinds of GPU memory can be mapped here, and how.

mod machine;

use std::fs;

use anyhow::Result;
use gdr_copy::cpu::{self, Routine};
use gdr_cuda::{Bdf, Gpu, MemoryKind};
use gdr_perf::report::{Schema, driver_version};
use gdr_render::Table;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::say_simulated;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, NO_GPU_OR_CLOSED, Statuses};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use machine::Machine;

/// Size in bytes of the buffers that are mapped to try a route.
const SCRATCH: u64 = 64 << 10;

/// Show which GPU memory can be mapped on this machine, and how
///
/// Allocates, pins and maps a small buffer of every kind of GPU memory, so each route shown was really
/// tried. Exits with 1 if some kind cannot be mapped. The lines about the machine have the columns of
/// the tables in docs/machines.md.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    gpu: GpuOptions,
}

#[derive(Serialize)]
struct Info {
    #[serde(flatten)]
    schema: Schema,
    simulated: bool,
    /// Why the GPU is simulated.
    simulated_because: Option<String>,
    backend: &'static str,
    backend_because: String,
    rejected: Vec<Rejected>,
    persistent: bool,
    cuda: String,
    /// Version of the NVIDIA kernel driver.
    driver: Option<String>,
    machine: Machine,
    gpus: Vec<Card>,
    copy_routine: &'static str,
    copy_routine_because: String,
    copy_routines: Vec<&'static str>,
    routes: Vec<Kind>,
}

#[derive(Serialize)]
struct Rejected {
    backend: &'static str,
    reason: String,
}

#[derive(Serialize)]
struct Card {
    ordinal: u32,
    name: String,
    pci: String,
    memory_bytes: u64,
    /// From the backend or sysfs.
    bar1_bytes: Option<u64>,
    /// From the backend.
    bar1_free_bytes: Option<u64>,
    compute_capability: String,
    /// GPU generation; absent if newer than this release.
    generation: Option<&'static str>,
    gpudirect_rdma: bool,
    dma_buf: bool,
    /// The scope in which other devices' writes are ordered.
    rdma_writes_in_order: String,
    /// Whether the driver flushes such writes.
    rdma_writes_flushed_by_driver: bool,
}

/// A kind of memory, with either its route or the reason for its refusal.
#[derive(Serialize)]
struct Kind {
    memory: &'static str,
    route: Option<String>,
    refused: Option<String>,
    /// Every route that the backend has for this kind of memory.
    routes: Vec<RouteState>,
}

#[derive(Serialize)]
struct RouteState {
    route: String,
    /// Why it cannot be used; `null` for a usable route.
    closed: Option<String>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Diagnose;
    const STATUSES: Statuses = &[
        (Exit::Fine, "every kind of GPU memory can be mapped"),
        (Exit::Warning, "some kind of GPU memory cannot be mapped"),
        (Exit::Failure, "the GPU cannot be used"),
        (Exit::Undecided, NO_GPU_OR_CLOSED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr info                  show the backend, the routes and the GPUs
  gdr info --backend rm     show what the backend `rm` can do
  gdr info --json           print JSON, for a program";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let gpu = GpuContext::open(&options.gpu, WithoutGpu::Exit)?;
    let info = gather(&gpu)?;
    if global.json {
        output.json(&info)?;
    } else {
        say_simulated(&gpu, output)?;
        show(&info, output)?;
    }
    let refused = info.routes.iter().any(|kind| kind.route.is_none());
    Ok(if refused { Exit::Warning } else { Exit::Fine })
}

fn gather(gpu: &GpuContext) -> Result<Info> {
    let context = gpu.target.context()?;
    let choice = context.choice();
    let routine = cpu::choice();
    Ok(Info {
        schema: Schema::first("gdr.info"),
        simulated: gpu.simulated.is_some(),
        simulated_because: gpu.simulated.clone(),
        backend: choice.backend.name(),
        backend_because: choice.reason.clone(),
        rejected: choice
            .rejected
            .iter()
            .map(|r| Rejected {
                backend: r.backend.name(),
                reason: r.reason.clone(),
            })
            .collect(),
        persistent: context.attributes().persistent,
        cuda: gpu.target.gpu().driver().cuda_version().to_string(),
        driver: driver_version(),
        machine: Machine::here(),
        gpus: gpu
            .gpus
            .iter()
            .map(|card| describe_card(card, gpu))
            .collect(),
        copy_routine: routine.routine.name(),
        copy_routine_because: routine.reason.to_string(),
        copy_routines: Routine::supported()
            .iter()
            .map(|routine| routine.name())
            .collect(),
        routes: MemoryKind::DEVICE.map(|kind| route(gpu, kind)).into(),
    })
}

fn describe_card(card: &Gpu, gpu: &GpuContext) -> Card {
    let info = card.info();
    let bar1 = gpu.target.context().ok();
    let bar1 = bar1.and_then(|context| context.bar1(info.ordinal).ok().flatten());
    // A simulated GPU's address may belong to another device of this machine.
    let in_sysfs = || {
        gpu.simulated
            .is_none()
            .then(|| bar1_size(info.bdf))
            .flatten()
    };
    Card {
        ordinal: info.ordinal.0,
        name: info.name.clone(),
        pci: info.bdf.to_string(),
        memory_bytes: info.total_memory,
        bar1_bytes: bar1.map(|bar1| bar1.total).or_else(in_sysfs),
        bar1_free_bytes: bar1.map(|bar1| bar1.free),
        compute_capability: format!(
            "{}.{}",
            info.compute_capability.0, info.compute_capability.1
        ),
        generation: generation(info.compute_capability),
        gpudirect_rdma: info.gpudirect_rdma,
        dma_buf: info.dma_buf,
        rdma_writes_in_order: info.remote_writes.ordering.to_string(),
        rdma_writes_flushed_by_driver: info.remote_writes.host_flush,
    }
}

/// Returns the generation of GPUs of a compute capability.
const fn generation((major, minor): (u32, u32)) -> Option<&'static str> {
    Some(match (major, minor) {
        (3, _) => "Kepler",
        (5, _) => "Maxwell",
        (6, _) => "Pascal",
        (7, 5) => "Turing",
        (7, _) => "Volta",
        (8, 9) => "Ada",
        (8, _) => "Ampere",
        (9, _) => "Hopper",
        (10..=12, _) => "Blackwell",
        _ => return None,
    })
}

fn bar1_size(bdf: Bdf) -> Option<u64> {
    second_bar(&fs::read_to_string(format!("/sys/bus/pci/devices/{bdf}/resource")).ok()?)
}

/// Returns the size of the second BAR from the text of a `resource` file, which has a line with start, end and flags
/// for each BAR, and an empty line after a 64-bit BAR.
fn second_bar(text: &str) -> Option<u64> {
    let size = |line: &str| {
        let mut fields = line.split_whitespace();
        let mut hex = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
        let (start, end) = (hex()?, hex()?);
        (end > start).then(|| end - start + 1)
    };
    text.lines().filter_map(size).nth(1)
}

/// Allocates, pins and maps a buffer of this kind.
fn route(gpu: &GpuContext, kind: MemoryKind) -> Kind {
    let mut routes = Vec::new();
    let mut reach = || -> Result<String> {
        let buffer = gpu.target.gpu().allocate(kind, SCRATCH)?;
        let routes_found = gpu.target.context()?.routes(buffer.ptr(), buffer.len())?;
        routes.extend(routes_found.into_iter().map(|report| RouteState {
            route: report.route.to_string(),
            closed: report.refusal,
        }));
        let pinned = gpu.target.pin(buffer.ptr(), buffer.len())?;
        let mapping = pinned.map()?;
        Ok(format!("{}, {} mapping", pinned.route(), mapping.caching()))
    };
    let (route, refused) = match reach() {
        Ok(route) => (Some(route), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    Kind {
        memory: kind.function(),
        route,
        refused,
        routes,
    }
}

fn show(info: &Info, output: &mut Output) -> gdr_perf::Result<()> {
    output.line(format_args!(
        "backend: {} ({})",
        info.backend.bold(),
        info.backend_because
    ))?;
    for rejected in &info.rejected {
        let rejected = format!("not {}: {}", rejected.backend, rejected.reason);
        output.paragraph("    ", "      ", &rejected)?;
    }
    let ends = if info.persistent {
        "when unmapped"
    } else {
        "when the memory is freed"
    };
    output.line(format_args!("mappings end: {ends}"))?;
    let routines = format!(
        "{} ({}); supported: {}",
        info.copy_routine,
        info.copy_routine_because,
        info.copy_routines.join(", ")
    );
    output.paragraph("copy routine: ", "    ", &routines)?;
    output.line(format_args!("CUDA: {}", info.cuda))?;
    info.machine.show(info.driver.as_deref(), output)?;

    let mut gpus = Table::new(&[
        "GPU",
        "name",
        "PCI",
        "memory",
        "BAR1",
        "compute",
        "generation",
    ]);
    for card in &info.gpus {
        gpus.row(vec![
            card.ordinal.to_string(),
            card.name.clone(),
            card.pci.clone(),
            bytes(Some(card.memory_bytes)),
            match card.bar1_free_bytes {
                Some(free) => format!("{}, {} free", bytes(card.bar1_bytes), bytes(Some(free))),
                None => bytes(card.bar1_bytes),
            },
            card.compute_capability.clone(),
            card.generation.unwrap_or("unknown").to_owned(),
        ]);
    }
    output.line("")?;
    output.table(&gpus)?;

    let mut routes = Table::new(&["GPU memory", "route", "other routes"]);
    for kind in &info.routes {
        let route = kind
            .route
            .clone()
            .or_else(|| Some(format!("refused: {}", kind.refused.as_ref()?)))
            .unwrap_or_default();
        let others = kind
            .routes
            .iter()
            .filter(|other| !route.starts_with(&other.route));
        let others: Vec<_> = others
            .map(|other| match &other.closed {
                None => format!("{}: open", other.route),
                Some(reason) => format!("{}: {reason}", other.route),
            })
            .collect();
        routes.row(vec![kind.memory.to_owned(), route, others.join("\n")]);
    }
    output.line("")?;
    output.table(&routes)
}

/// Returns a size with its unit; a dash if it is unknown.
fn bytes(size: Option<u64>) -> String {
    match size {
        None => "unknown".to_owned(),
        Some(size) if size >= 1 << 30 => format!("{:.1} GiB", size as f64 / (1u64 << 30) as f64),
        Some(size) => format!("{} MiB", size >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_bar_is_found_behind_one_of_32_and_of_64_bits() {
        let empty = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        let first = "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n";
        let second = "0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n";
        assert_eq!(
            second_bar(&format!("{first}{second}{empty}")),
            Some(256 << 30)
        );
        assert_eq!(
            second_bar(&format!("{first}{empty}{second}{empty}")),
            Some(256 << 30)
        );
        assert_eq!(second_bar(first), None);
        assert_eq!(second_bar("nonsense"), None);
    }

    #[test]
    fn sizes_are_said_in_the_unit_that_fits() {
        assert_eq!(bytes(None), "unknown");
        assert_eq!(bytes(Some(256 << 20)), "256 MiB");
        assert_eq!(bytes(Some(141 << 30)), "141.0 GiB");
    }
}
