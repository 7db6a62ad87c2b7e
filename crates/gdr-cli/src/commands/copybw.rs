//! `gdr copybw`: GDRCopy's `gdrcopy_copybw`.

use anyhow::Result;
use gdr_perf::copybw::{self, Event, Rate, Report, Settings};
use gdr_perf::mapped_buffer::CopyDirection;
use gdr_perf::sizes::{below_power_of_two, powers_of_two};

use super::copysweep::{self, Quantity, Sweep, SweepOptions};
use super::gdrcopy_common::{MemoryOptions, Rival, Text, introduce, show_comparison, show_mapping};
use super::measurement::Measurement;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, MEASUREMENT, Statuses};
use crate::figures::{
    Cell, Column, DURATION, FigureOptions, Figures, RATE, SIMULATED, duration, rate,
};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use crate::units::{count, six_digits, size};

/// Measure the bandwidth of copies through a mapping (gdrcopy_copybw)
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Bytes to allocate
    #[arg(short = 's', long = "size", value_name = "SIZE", value_parser = size, default_value = "131072")]
    buffer: u64,

    /// Bytes per copy; with -l, the upper bound of the sizes [default: the value of -s]
    #[arg(short = 'c', long = "copy-size", value_name = "SIZE", value_parser = size)]
    copy: Option<u64>,

    /// Offset in the buffer at which copies start
    #[arg(short, long, value_name = "SIZE", value_parser = size, default_value = "0")]
    offset: u64,

    /// Measure every power of two from 1 byte up to, but not including, the bound
    #[arg(short = 'l', conflicts_with = "sweep")]
    below_bound: bool,

    /// Number of copies to the GPU for each size
    #[arg(short, long, value_name = "N", value_parser = count, default_value = "10000")]
    writes: u32,

    /// Number of copies from the GPU for each size
    #[arg(short, long, value_name = "N", value_parser = count, default_value = "100")]
    reads: u32,

    #[command(flatten)]
    memory: MemoryOptions,

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
    fn settings(&self) -> Settings {
        let sizes = if self.below_bound {
            // The bound does not exceed the buffer, as in GDRCopy's tool.
            below_power_of_two(self.copy.unwrap_or(self.buffer).min(self.buffer))
        } else {
            vec![self.copy.unwrap_or(self.buffer)]
        };
        Settings {
            buffer: self.buffer,
            memory: self.memory.memory(),
            sizes,
            offset: self.offset,
            writes: self.writes,
            reads: self.reads,
            baseline: Rival::baseline(self.against),
        }
    }
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = MEASUREMENT;
    const EXAMPLES: &'static str = "\
Examples:
  gdr copybw                          measure 128 KiB copies in both directions
  gdr copybw -l -s 16M                measure sizes from 1 byte to 8 MiB
  gdr copybw -l --against cuda        compare with cuMemcpy, and show the ratio
  gdr copybw -a cuMemCreate --json    use VMM memory, and print JSON
  gdr copybw --sweep -s 16M           compare all paths and the planner's choice";
    const TOOL: Option<&'static str> = Some("gdrcopy_copybw");
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.every_path.is_given() {
        let sweep = Sweep {
            options: &options.every_path,
            memory: options.memory.memory(),
            sizes: powers_of_two(1, options.buffer),
            offset: options.offset,
            quantity: Quantity::Rate,
            figures: options.figures,
            gpu: &options.gpu,
        };
        return copysweep::run(global, sweep, output);
    }
    let settings = options.settings();
    let gpu = GpuContext::open(&options.gpu, WithoutGpu::Exit)?;
    let lines = Text::of(global, options.figures);
    introduce(&gpu, lines, output)?;
    let mut measurement = Measurement::start(global, 2 * settings.sizes.len())?;
    let result = copybw::run(&gpu.target, &settings, &mut |event| {
        match &event {
            Event::Begin {
                size, direction, ..
            } => {
                measurement.begin(format_args!("{size} bytes {direction}"));
            }
            Event::Measured(rate) => measurement.end(rate),
            _ => {}
        }
        measurement.flow(match lines.has_lines() {
            false => Ok(()),
            true => show(options, &event, output),
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
        figures.write(report.rates.iter().map(|row| cells(row, &report)), output)?;
    }
    Ok(Exit::Fine)
}

const ROW: [Column; 2] = [
    Column::new("bytes", "size", 10),
    Column::new("way", "way", 8),
];

fn cells(row: &Rate, report: &Report) -> Vec<Cell> {
    let mut cells = vec![Cell::Count(row.size), Cell::text(row.direction)];
    cells.extend(duration(&row.copy));
    // GDRCopy uses units of 2^20 bytes.
    cells.extend(rate(row.size, row.mib_per_s * f64::from(1 << 20) / 1e9));
    cells.push(Cell::text(report.subject.simulated));
    cells
}

/// Prints the lines of GDRCopy's tool, in its order.
fn show(options: &Options, event: &Event<'_>, output: &mut Output) -> gdr_perf::Result<()> {
    let name = |direction: &CopyDirection| match direction {
        CopyDirection::ToGpu => ("writing", "write"),
        CopyDirection::FromGpu => ("reading", "read"),
    };
    match event {
        Event::Mapped(setup) => {
            output.line(format_args!("testing size: {}", setup.requested_bytes))?;
            output.line(format_args!("rounded size: {}", setup.allocated_bytes))?;
            output.line(options.memory.alloc_line())?;
            output.line(format_args!("device ptr: {:x}", setup.device_ptr))?;
            show_mapping(setup, output)?;
            output.line(format_args!("user-space pointer:{:#x}", setup.user_ptr))
        }
        Event::Begin {
            size,
            direction,
            iterations,
        } => output.line(format_args!(
            "{} test, size={size} offset={} num_iters={iterations}",
            name(direction).0,
            options.offset
        )),
        Event::Measured(rate) => output.line(format_args!(
            "{} BW: {}MB/s",
            name(&rate.direction).1,
            six_digits(rate.mib_per_s)
        )),
        Event::Unmapping => output.line("unmapping buffer"),
        Event::Unpinning => output.line("unpinning buffer"),
        _ => Ok(()),
    }
}
