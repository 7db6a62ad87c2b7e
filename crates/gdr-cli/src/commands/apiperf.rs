//! `gdr apiperf`: GDRCopy's `gdrcopy_apiperf`.

use anyhow::Result;
use gdr_perf::apiperf::{self, Event, Report, Row, Settings};
use gdr_perf::mapped_buffer::GPU_PAGE;
use gdr_perf::sizes::powers_of_two;

use super::gdrcopy_common::{MemoryOptions, Text, introduce};
use super::measurement::Measurement;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, MEASUREMENT, Statuses};
use crate::figures::{Cell, Column, FigureOptions, Figures, SIMULATED};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use crate::units::{count, size};

/// Measure what pinning, mapping, unmapping and unpinning cost (gdrcopy_apiperf)
///
/// Times are means; --json also has medians and percentiles. get_info is timed over 100 calls, because
/// a single call takes less time than reading the clock.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Largest size; all powers of two from 64 KiB up to it are measured
    #[arg(short = 's', long = "size", value_name = "SIZE", value_parser = size, default_value = "16777216")]
    largest: u64,

    /// Rounds per size
    #[arg(short = 'n', long, value_name = "N", value_parser = count, default_value = "100")]
    iterations: u32,

    /// Warm-up rounds per size
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    warm_up: u32,

    #[command(flatten)]
    memory: MemoryOptions,

    #[command(flatten)]
    figures: FigureOptions,

    #[command(flatten)]
    gpu: GpuOptions,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = MEASUREMENT;
    const EXAMPLES: &'static str = "\
Examples:
  gdr apiperf                         measure 64 KiB to 16 MiB
  gdr apiperf -s 1G -n 20             measure up to 1 GiB, 20 rounds per size
  gdr apiperf -a cuMemCreate --json   use VMM memory, and print JSON";
    const TOOL: Option<&'static str> = Some("gdrcopy_apiperf");
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let settings = Settings {
        largest: options.largest,
        memory: options.memory.memory(),
        iterations: options.iterations,
        warm_up: options.warm_up,
    };
    let gpu = GpuContext::open(&options.gpu, WithoutGpu::Exit)?;
    let lines = Text::of(global, options.figures);
    introduce(&gpu, lines, output)?;
    let sizes = powers_of_two(GPU_PAGE, settings.largest.max(GPU_PAGE));
    let mut measurement = Measurement::start(global, sizes.len())?;
    let result = apiperf::run(&gpu.target, &settings, &mut |event| {
        if let Event::Measured(row) = &event {
            measurement.end(row);
            measurement.begin(format_args!("{} bytes", row.size));
        }
        measurement.flow(match lines.has_lines() {
            false => Ok(()),
            true => show(&event, output),
        })
    });
    let report = measurement.finish(result)?;
    if global.json {
        output.json(&report)?;
        return Ok(Exit::Fine);
    }
    if lines.has_lines() {
        output.line("closing gdrdrv")?;
    }
    if lines.has_figures() {
        let figures = Figures::new(options.figures, &[&COLUMNS]);
        figures.write(report.rows.iter().map(|row| cells(row, &report)), output)?;
    }
    Ok(Exit::Fine)
}

/// Medians and 99th percentiles, in microseconds.
const COLUMNS: [Column; 12] = [
    Column::new("bytes", "size", 10),
    Column::new("pin us", "pin_median_us", 10),
    Column::new("map us", "map_median_us", 10),
    Column::new("get_info us", "get_info_median_us", 12),
    Column::new("unmap us", "unmap_median_us", 10),
    Column::new("unpin us", "unpin_median_us", 10),
    Column::wide("pin p99", "pin_p99_us", 10),
    Column::wide("map p99", "map_p99_us", 10),
    Column::wide("get_info p99", "get_info_p99_us", 12),
    Column::wide("unmap p99", "unmap_p99_us", 10),
    Column::wide("unpin p99", "unpin_p99_us", 10),
    SIMULATED,
];

fn cells(row: &Row, report: &Report) -> Vec<Cell> {
    let parts = [&row.pin, &row.map, &row.get_info, &row.unmap, &row.unpin];
    let us = |ns: f64| Cell::Figure(ns / 1000.0);
    let mut cells = vec![Cell::Count(row.size)];
    cells.extend(parts.map(|part| us(part.median_ns)));
    cells.extend(parts.map(|part| us(part.p99_ns)));
    cells.push(Cell::text(report.subject.simulated));
    cells
}

/// Prints the lines of GDRCopy's tool, in its order.
fn show(event: &Event<'_>, output: &mut Output) -> gdr_perf::Result<()> {
    match event {
        Event::Allocated { device_ptr, bytes } => {
            output.line(format_args!("device ptr: {device_ptr:#x}"))?;
            output.line(format_args!("allocated size: {bytes}"))
        }
        Event::Measured(row) => show_row(row, output),
        _ => Ok(()),
    }
}

fn show_row(row: &Row, output: &mut Output) -> gdr_perf::Result<()> {
    output.line(
        "Size(B)\tpin.Time(us)\tmap.Time(us)\tget_info.Time(us)\tunmap.Time(us)\tunpin.Time(us)",
    )?;
    let means = [&row.pin, &row.map, &row.get_info, &row.unmap, &row.unpin]
        .map(|summary| format!("{:.6}", summary.mean_us()));
    output.line(format_args!("{}\t{}", row.size, means.join("\t")))?;
    output.line(format_args!(
        "Histogram of gdr_pin_buffer latency for {} bytes",
        row.size
    ))?;
    for bin in &row.pin_histogram {
        let (from, to) = (bin.from_ns / 1000.0, bin.to_ns / 1000.0);
        output.line(format_args!("[{from:.6}\t-\t{to:.6}]\t{}", bin.count))?;
    }
    output.line("")
}
