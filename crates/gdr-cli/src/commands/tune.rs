//! `gdr tune`: measures the cost of copies on this machine.

use std::num::NonZeroU16;
use std::path::PathBuf;

use anyhow::Result;
use gdr_copy::plan::{Calibration, HostMemory, PathLimits, Planner};
use gdr_copy::{ProfileStore, default_threads};
use gdr_perf::copysweep::{Costs, Extent, Report, ResidentPath, Settings};
use gdr_perf::mapped_buffer::{BufferOptions, CopyDirection};
use gdr_perf::report::Schema;
use gdr_perf::sizes::powers_of_two;
use serde::Serialize;

use super::copysweep::{TIME, measure};
use super::{describe, say_simulated};
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, MEASUREMENT, Statuses};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use crate::units::{binary, size};

/// Measure what copies cost on this machine, so that each copy takes the fastest path
///
/// Measures copies by one and by several CPU threads and by the GPU's copy engine, in both directions,
/// to and from pageable and page-locked memory, and reads by a resident kernel. The result is a profile
/// for this GPU, driver, CPU and kind of mapping, stored for the current user in
/// $XDG_STATE_HOME/gdr/copy (default: ~/.local/state/gdr/copy). Without a profile gdr uses built-in
/// costs; only this command measures them.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Size of the largest copy
    #[arg(short = 's', long = "size", value_name = "SIZE", value_parser = size, default_value = "64M")]
    largest: u64,

    /// Maximum number of threads per copy [default: one per CPU on the GPU's NUMA node, up to 4]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroU16>,

    /// Write no profile
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    gpu: GpuOptions,
}

/// The path of copies from a certain size on.
#[derive(Serialize)]
pub(super) struct StepRow {
    way: &'static str,
    host: String,
    from: u64,
    path: String,
}

/// Returns the steps of a planner, of every direction and kind of memory.
pub(super) fn step_rows(planner: &Planner) -> Vec<StepRow> {
    let mut rows = Vec::new();
    for direction in CopyDirection::ALL {
        for host in HostMemory::ALL {
            let steps = planner.steps(direction, host).iter();
            rows.extend(steps.map(|step| StepRow {
                way: direction.name(),
                host: host.to_string(),
                from: step.from,
                path: step.path.to_string(),
            }));
        }
    }
    rows
}

/// Writes the steps of a planner, a line for each direction and kind of memory.
pub(super) fn show_steps(planner: &Planner, output: &mut Output) -> gdr_perf::Result<()> {
    for direction in CopyDirection::ALL {
        for host in HostMemory::ALL {
            let steps = planner.steps(direction, host).iter();
            let steps: Vec<_> = steps
                .map(|step| match step.from {
                    0 => step.path.to_string(),
                    from => format!("{} from {} on", step.path, binary(from)),
                })
                .collect();
            let (direction, host) = (direction.to_string(), host.to_string());
            output.line(format_args!(
                "{direction:<8} {host:<11}  {}",
                steps.join(", ")
            ))?;
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    schema: Schema,
    /// Path of the written profile; absent with `--dry-run`.
    profile: Option<PathBuf>,
    steps: Vec<StepRow>,
    measured: &'a Report,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = MEASUREMENT;
    const EXAMPLES: &'static str = "\
Examples:
  gdr tune                            measure, and write this machine's profile
  gdr tune -s 256M --threads 8        include larger copies and more threads
  gdr tune --dry-run                  measure, but write nothing";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let gpu = GpuContext::open(&options.gpu, WithoutGpu::Exit)?;
    let threads = options.threads;
    let max_threads = threads.unwrap_or_else(|| default_threads(gpu.target.gpu()));
    let settings = Settings {
        memory: BufferOptions::default(),
        sizes: powers_of_two(1, options.largest),
        offset: 0,
        max_threads,
        resident: ResidentPath::WhereSupported,
        extent: Extent::Paths,
        library: None,
        costs: Costs::BuiltIn,
        time: TIME,
    };
    if !global.json {
        say_simulated(&gpu, output)?;
    }
    // Check this before measuring, so that a run of half a minute does not end without a place for its result.
    let store = match options.dry_run {
        true => None,
        false => Some(ProfileStore::of_user()?),
    };
    let report = measure(global, &gpu, &settings)?;
    let profile = report.profile();
    let path = store.map(|store| store.save(&profile)).transpose()?;
    let planner = planner(&profile.calibration, max_threads);
    if global.json {
        output.json(&Document {
            schema: Schema::first("gdr.tune"),
            profile: path,
            steps: step_rows(&planner),
            measured: &report,
        })?;
        return Ok(Exit::Fine);
    }
    output.line(describe(&report.subject))?;
    show_steps(&planner, output)?;
    match path {
        Some(path) => output.line(format_args!("profile: {}", path.display()))?,
        None => output.line("no profile was written")?,
    }
    Ok(Exit::Fine)
}

/// Returns a planner that may use every path.
fn planner(calibration: &Calibration, max_threads: NonZeroU16) -> Planner {
    Planner::new(calibration, PathLimits::all(max_threads))
}
