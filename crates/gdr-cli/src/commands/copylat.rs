//! `gdr copylat`: GDRCopy's `gdrcopy_copylat`.

use anyhow::Result;
use gdr_perf::copylat::{self, Cache, Event, Report, Row, Series, Settings};
use gdr_perf::mapped_buffer::{GPU_PAGE, Setup};
use gdr_perf::sizes::powers_of_two;
use gdr_perf::timer::Batches;

use super::copysweep::{self, Quantity, Sweep, SweepOptions};
use super::gdrcopy_common::{MemoryOptions, Rival, Text, introduce, show_comparison, show_mapping};
use super::measurement::Measurement;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, MEASUREMENT, Statuses, UsageError};
use crate::figures::{
    Cell, Column, DURATION, FigureOptions, Figures, RATE, SIMULATED, duration, rate,
};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use crate::progress::print_to_stderr;
use crate::units::{count, size};

/// Measure the latency of copies through a mapping (gdrcopy_copylat)
///
/// Each sample is the mean over a batch of copies; a size has at most 100 samples.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure cuMemcpy too
    #[arg(short = 'c', long)]
    cumemcpy: bool,

    /// Bytes to allocate, which is also the largest size
    #[arg(short = 's', long = "size", value_name = "SIZE", value_parser = size, default_value = "16777216")]
    buffer: u64,

    /// Number of copies to the GPU for each size
    #[arg(short, long, value_name = "N", value_parser = count, default_value = "10000")]
    writes: u32,

    /// Number of copies from the GPU for each size
    #[arg(short, long, value_name = "N", value_parser = count, default_value = "100")]
    reads: u32,

    #[command(flatten)]
    memory: MemoryOptions,

    /// Have the GPU invalidate the CPU's cache lines before each copy (cached mappings only)
    #[arg(short = 'C', long)]
    cold_cache: bool,

    /// Compare with another copy method, using up to 1 GiB or 100 copies for each size
    #[arg(long, value_enum, value_name = "WHAT")]
    against: Option<Rival>,

    #[command(flatten)]
    every_path: SweepOptions,

    #[command(flatten)]
    figures: FigureOptions,

    #[command(flatten)]
    gpu: GpuOptions,
}

impl Options {
    fn settings(&self) -> Result<Settings, UsageError> {
        let rounded = self.buffer.max(1).checked_next_multiple_of(GPU_PAGE);
        let rounded =
            rounded.ok_or_else(|| UsageError(format!("-s {} is too large", self.buffer)))?;
        let mut series = Series::MAPPING.to_vec();
        if self.cumemcpy {
            series.splice(..0, Series::CUDA);
        }
        Ok(Settings {
            buffer: self.buffer,
            memory: self.memory.memory(),
            sizes: powers_of_two(1, rounded),
            writes: self.writes,
            reads: self.reads,
            series,
            cache: if self.cold_cache {
                Cache::Cold
            } else {
                Cache::Warm
            },
            baseline: Rival::baseline(self.against),
        })
    }
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = MEASUREMENT;
    const EXAMPLES: &'static str = "\
Examples:
  gdr copylat                         measure 1 byte to 16 MiB in both directions
  gdr copylat -s 64K -c               measure small sizes, also with cuMemcpy
  gdr copylat -s 1M --against cuda    show the ratio to cuMemcpy
  gdr copylat --json                  print JSON, for a program
  gdr copylat --sweep --svg paths.svg compare all paths and the planner's choice, and plot them
  gdr copylat --sweep --resident      include reads by a kernel that stays on the GPU";
    const TOOL: Option<&'static str> = Some("gdrcopy_copylat");
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.every_path.is_given() {
        let sweep = Sweep {
            options: &options.every_path,
            memory: options.memory.memory(),
            sizes: powers_of_two(1, options.buffer),
            offset: 0,
            quantity: Quantity::Time,
            figures: options.figures,
            gpu: &options.gpu,
        };
        return copysweep::run(global, sweep, output);
    }
    let settings = options.settings()?;
    for (name, asked) in [
        ("num_write_iters", options.writes),
        ("num_read_iters", options.reads),
    ] {
        let used = Batches::of(asked).iterations();
        if used != asked {
            print_to_stderr(format_args!(
                "WARNING: {name} is not a multiple of 100. Increasing {name} from {asked} to {used}."
            ));
        }
    }
    let gpu = GpuContext::open(&options.gpu, WithoutGpu::Exit)?;
    let lines = Text::of(global, options.figures);
    introduce(&gpu, lines, output)?;
    let total = settings.series.len() * settings.sizes.len();
    let mut measurement = Measurement::start(global, total)?;
    let mut text = ToolText {
        options,
        lines,
        setup: None,
    };
    let result = copylat::run(&gpu.target, &settings, &mut |event| {
        if let Event::Measured(row) = &event {
            measurement.end(row);
            measurement.begin(row.series.name());
        }
        measurement.flow(match lines.has_lines() {
            false => Ok(()),
            true => text.show(&event, output),
        })
    });
    let report = measurement.finish(result)?;
    if global.json {
        output.json(&report)?;
        return Ok(Exit::Fine);
    }
    if lines.has_lines() {
        output.line("closing gdrdrv")?;
        show_comparison(&report.against_cuda, output)?;
    }
    if lines.has_figures() {
        let figures = Figures::new(options.figures, &[&ROW, &DURATION, &RATE, &[SIMULATED]]);
        figures.write(report.rows.iter().map(|row| cells(row, &report)), output)?;
    }
    Ok(Exit::Fine)
}

const ROW: [Column; 2] = [
    Column::new("copy", "series", 21),
    Column::new("bytes", "size", 10),
];

fn cells(row: &Row, report: &Report) -> Vec<Cell> {
    let mut cells = vec![Cell::text(row.series.name()), Cell::Count(row.size)];
    cells.extend(duration(&row.copy));
    // Bytes a nanosecond.
    cells.extend(rate(
        row.size,
        row.size as f64 / row.copy.mean_ns.max(0.001),
    ));
    cells.push(Cell::text(report.subject.simulated));
    cells
}

/// Prints the lines of GDRCopy's tool in its order: the mapping is described after cuMemcpy's tables.
struct ToolText<'a> {
    options: &'a Options,
    lines: Text,
    /// The mapping, until it is printed.
    setup: Option<Setup>,
}

impl ToolText<'_> {
    fn show(&mut self, event: &Event<'_>, output: &mut Output) -> gdr_perf::Result<()> {
        match event {
            Event::Mapped(setup) => {
                self.setup = Some(**setup);
                output.line(format_args!("device ptr: {:#x}", setup.device_ptr))?;
                output.line(format_args!("allocated size: {}", setup.allocated_bytes))?;
                output.line(self.options.memory.alloc_line())
            }
            Event::Begin { series, iterations } => self.begin(*series, *iterations, output),
            Event::Measured(row) => output.line(format_args!(
                "{} \t {:>8} \t {:>11.4} \t {:>11.4}",
                row.series.name(),
                row.size,
                row.copy.median_us(),
                row.copy.min_us()
            )),
            Event::Unmapping => output.line("unmapping buffer"),
            Event::Unpinning => output.line("unpinning buffer"),
            _ => Ok(()),
        }
    }

    fn begin(
        &mut self,
        series: Series,
        iterations: u32,
        output: &mut Output,
    ) -> gdr_perf::Result<()> {
        let through_mapping = Series::MAPPING.contains(&series);
        if through_mapping && let Some(setup) = self.setup.take() {
            output.line("")?;
            show_mapping(&setup, output)?;
            output.line(format_args!("user-space pointer: {:#x}", setup.user_ptr))?;
            let cold = if self.options.cold_cache { "yes" } else { "no" };
            output.line(format_args!("use cold cache: {cold}"))?;
        }
        output.line(format_args!(
            "\n{} num iters for each size: {iterations}",
            series.name()
        ))?;
        if series == Series::ToMapping {
            self.lines.say(
                "WARNING: Measuring the API invocation overhead as observed by the CPU. Data might \
                 not be ordered all the way to the GPU internal visibility.",
                output,
            )?;
        }
        let tabs = if through_mapping { "\t\t\t" } else { "\t\t" };
        output.line(format_args!(
            "Test {tabs} Size(B) \t Median Time(us) \t Min. Time(us)"
        ))
    }
}
