//! `gdr plan`: explains which path copies take.

use std::num::NonZeroU16;

use anyhow::Result;
use gdr_copy::plan::{
    CopyEngineUse, CopyPath, Estimate, HostMemory, PathLimits, Planner, ResidentUse,
};
use gdr_copy::{calibration_for, default_threads, profile_key};
use gdr_cuda::MemoryKind;
use gdr_perf::mapped_buffer::{CopyDirection, GPU_PAGE};
use gdr_perf::report::{Schema, Subject};
use gdr_render::Table;
use serde::Serialize;

use super::tune::{StepRow, show_steps, step_rows};
use super::{describe, say_simulated};
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, NO_GPU_OR_CLOSED, Statuses};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use crate::units::{binary, figure, size};

/// Sizes to explain if none is given.
const SIZES: [u64; 5] = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20];

/// Explain which path a copy between host and GPU takes
///
/// The choice is based on the profile that `gdr tune` measured on this machine, or on built-in costs if
/// there is none. Nothing is measured or copied.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Copy sizes in bytes [default: 64, 4K, 64K, 1M and 16M]
    #[arg(value_name = "SIZE", value_parser = size)]
    sizes: Vec<u64>,

    /// Maximum number of threads per copy [default: one per CPU on the GPU's NUMA node, up to 4]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroU16>,

    /// Do not consider the copy engine
    #[arg(long)]
    no_engine: bool,

    /// Consider a resident kernel for short reads
    #[arg(long)]
    resident: bool,

    #[command(flatten)]
    gpu: GpuOptions,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    schema: Schema,
    #[serde(flatten)]
    subject: Subject,
    cpu: String,
    costs: String,
    max_threads: NonZeroU16,
    steps: Vec<StepRow>,
    estimates: Vec<EstimateRow>,
}

#[derive(Serialize)]
struct EstimateRow {
    way: &'static str,
    host: String,
    size: u64,
    path: String,
    ns: f64,
    allowed: bool,
    chosen: bool,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = &[
        (Exit::Fine, "the choice was printed"),
        (Exit::Failure, "the GPU or its profile cannot be used"),
        (Exit::Undecided, NO_GPU_OR_CLOSED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr plan                            show which path copies of each size take
  gdr plan 256K 3M                    show what these sizes cost on every path
  gdr plan --threads 1 --no-engine    allow only the calling thread to copy
  gdr plan 4K --resident              allow reads by a resident kernel (programs have to ask for it)
  gdr plan --json                     print JSON, for a program";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let context = GpuContext::open(&options.gpu, WithoutGpu::Exit)?;
    let (target, gpu) = (&context.target, context.target.gpu());
    // The kind of mapping determines the profile.
    let buffer = gpu.allocate(MemoryKind::Plain, GPU_PAGE)?;
    let pinned = target.pin(buffer.ptr(), buffer.len())?;
    let mapping = pinned.map()?;
    let (calibration, costs) = calibration_for(gpu, &mapping)?;
    let threads = options.threads;
    let limits = PathLimits {
        max_threads: threads.unwrap_or_else(|| default_threads(gpu)),
        copy_engine: match options.no_engine {
            true => CopyEngineUse::Forbidden,
            false => CopyEngineUse::Allowed,
        },
        resident: match options.resident {
            true => ResidentUse::Allowed,
            false => ResidentUse::Forbidden,
        },
    };
    let planner = Planner::new(&calibration, limits);
    let sizes = match options.sizes.is_empty() {
        true => SIZES.to_vec(),
        false => options.sizes.clone(),
    };
    let document = Document {
        schema: Schema::first("gdr.plan"),
        subject: Subject::new(target, Some(&pinned)),
        cpu: profile_key(gpu, &mapping).cpu,
        costs: costs.to_string(),
        max_threads: limits.max_threads,
        steps: step_rows(&planner),
        estimates: estimates(&planner, &sizes),
    };
    if global.json {
        output.json(&document)?;
        return Ok(Exit::Fine);
    }
    say_simulated(&context, output)?;
    output.line(describe(&document.subject))?;
    output.paragraph(
        "",
        "  ",
        &format!("{}, by {}", document.cpu, document.costs),
    )?;
    show_steps(&planner, output)?;
    show(&planner, &sizes, output)?;
    Ok(Exit::Fine)
}

fn estimates(planner: &Planner, sizes: &[u64]) -> Vec<EstimateRow> {
    let mut rows = Vec::new();
    for direction in CopyDirection::ALL {
        for host in HostMemory::ALL {
            for &size in sizes {
                let chosen = planner.path(direction, host, size);
                let estimates = planner.estimates(direction, host, size);
                rows.extend(estimates.map(|of| EstimateRow {
                    way: direction.name(),
                    host: host.to_string(),
                    size,
                    path: of.path.to_string(),
                    ns: of.ns,
                    allowed: of.is_allowed,
                    chosen: of.path == chosen,
                }));
            }
        }
    }
    rows
}

/// Prints a table of the costs in microseconds, with a column for each path.
fn show(planner: &Planner, sizes: &[u64], output: &mut Output) -> gdr_perf::Result<()> {
    let mut paths: Vec<CopyPath> = Vec::new();
    for direction in CopyDirection::ALL {
        for host in HostMemory::ALL {
            paths.extend(planner.estimates(direction, host, 1).map(|of| of.path));
        }
    }
    paths.sort_unstable();
    paths.dedup();
    output.line("\nestimates in us; * the choice, - not allowed")?;
    let names: Vec<String> = paths.iter().map(ToString::to_string).collect();
    let names = names.iter().map(String::as_str);
    let heads: Vec<&str> = ["size", "way", "host memory"]
        .into_iter()
        .chain(names)
        .collect();
    let numbers = [0].into_iter().chain(3..heads.len());
    let mut table = Table::new(&heads).align_right(numbers);
    for &size in sizes {
        for direction in CopyDirection::ALL {
            for host in HostMemory::ALL {
                let chosen = planner.path(direction, host, size);
                let estimates: Vec<_> = planner.estimates(direction, host, size).collect();
                let cells = paths.iter().map(|path| {
                    let estimate = estimates.iter().find(|of| of.path == *path);
                    shown(estimate, chosen)
                });
                let head = [binary(size), direction.to_string(), host.to_string()];
                table.row(head.into_iter().chain(cells).collect());
            }
        }
    }
    output.table(&table)
}

fn shown(estimate: Option<&Estimate>, chosen: CopyPath) -> String {
    let Some(Estimate {
        path,
        ns,
        is_allowed,
    }) = estimate
    else {
        return String::new();
    };
    let mark = match (*path == chosen, is_allowed) {
        (true, _) => "*",
        (false, true) => "",
        (false, false) => "-",
    };
    format!("{mark}{}", figure(ns / 1000.0))
}
