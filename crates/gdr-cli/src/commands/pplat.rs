//! `gdr pplat`: GDRCopy's `gdrcopy_pplat`.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use gdr_cuda::Direction;
use gdr_perf::MemoryLocation;
use gdr_perf::pplat::{self, Event, Report, Settings};
use gdr_perf::timer::Batches;

use super::gdrcopy_common::{MemoryOptions, Text, introduce};
use super::measurement::Measurement;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, MEASUREMENT, Statuses};
use crate::figures::{Cell, Column, DURATION, FigureOptions, Figures, SIMULATED, duration};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use crate::progress::print_to_stderr;
use crate::units::{count, six_digits, size};

/// Measure round trips between the CPU and a running kernel (gdrcopy_pplat)
///
/// In both modes a round trip is timed on the CPU, from just before it writes until it has read the
/// answer. Filling and checking the data is not included.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of round trips
    #[arg(short = 't', long, value_name = "N", value_parser = count, default_value = "1000")]
    iterations: u32,

    /// Seconds to wait for each answer; 0 waits forever
    #[arg(short = 'u', long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,

    #[command(flatten)]
    memory: MemoryOptions,

    /// Bytes of data per round trip, a multiple of 4; 0 exchanges only the flags
    #[arg(short = 's', long = "size", value_name = "SIZE", value_parser = size, default_value = "0")]
    payload: u64,

    /// Number of thread blocks in the kernel; always 1 without data
    #[arg(short = 'B', long, value_name = "N", value_parser = count, default_value = "8")]
    blocks: u32,

    /// Threads per block; always 1 without data
    #[arg(short = 'T', long, value_name = "N", value_parser = count, default_value = "1024")]
    threads: u32,

    /// Who produces the data: 0 for the CPU, 1 for the GPU
    #[arg(short, long, value_enum, value_name = "MODE", default_value_t = Mode::CpuProduces)]
    mode: Mode,

    /// Memory for the flag that the CPU writes
    #[arg(short = 'G', long, value_enum, value_name = "PLACE", default_value_t = Location::Gpumem)]
    gpu_flag: Location,

    /// Memory for the flag that the GPU writes
    #[arg(short = 'C', long, value_enum, value_name = "PLACE", default_value_t = Location::Hostmem)]
    cpu_flag: Location,

    /// Memory for the data
    #[arg(short = 'D', long, value_enum, value_name = "PLACE", default_value_t = Location::Gpumem)]
    data: Location,

    #[command(flatten)]
    figures: FigureOptions,

    #[command(flatten)]
    gpu: GpuOptions,
}

/// Who fills the data.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// The CPU produces and the GPU consumes
    #[value(name = "0")]
    CpuProduces,
    /// The GPU produces and the CPU consumes
    #[value(name = "1")]
    GpuProduces,
}

/// GPU or host memory.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Location {
    Gpumem,
    Hostmem,
}

impl From<Location> for MemoryLocation {
    fn from(location: Location) -> Self {
        match location {
            Location::Gpumem => Self::Gpu,
            Location::Hostmem => Self::Host,
        }
    }
}

impl Options {
    fn settings(&self) -> Settings {
        Settings {
            iterations: self.iterations,
            timeout: (self.timeout > 0).then(|| Duration::from_secs(self.timeout)),
            memory: self.memory.memory(),
            payload: self.payload,
            direction: match self.mode {
                Mode::CpuProduces => Direction::CpuToGpu,
                Mode::GpuProduces => Direction::GpuToCpu,
            },
            blocks: self.blocks,
            threads: self.threads,
            gpu_flag: self.gpu_flag.into(),
            cpu_flag: self.cpu_flag.into(),
            data: self.data.into(),
        }
    }
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = MEASUREMENT;
    const EXAMPLES: &'static str = "\
Examples:
  gdr pplat                    the CPU writes a flag in GPU memory, and a kernel answers
  gdr pplat -s 4K              the same, with 4 KiB of data before the flag
  gdr pplat -m 1 -s 4K         the GPU fills the data, and the CPU reads it
  gdr pplat -C gpumem --json   keep both flags in GPU memory, and print JSON";
    const TOOL: Option<&'static str> = Some("gdrcopy_pplat");
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let settings = options.settings();
    let used = Batches::of(settings.iterations).iterations();
    if used != settings.iterations {
        print_to_stderr(format_args!(
            "WARNING: num_iters is not a multiple of 100. Increasing num_iters from {} to {used}.",
            settings.iterations
        ));
    }
    let gpu = GpuContext::open(&options.gpu, WithoutGpu::Exit)?;
    let lines = Text::of(global, options.figures);
    introduce(&gpu, lines, output)?;
    if lines.has_lines() {
        describe(options, &settings, used, lines, output)?;
    }
    let mut measurement = Measurement::start(global, used as usize)?;
    let result = pplat::run(&gpu.target, &settings, &mut |event| {
        match event {
            // Rarely, so that terminal output does not disturb the round trips.
            Event::Answered { round, rounds } if round.is_multiple_of(1000) => {
                measurement.reached(round as usize, rounds as usize, "round trips");
            }
            _ => {}
        }
        measurement.flow(Ok(()))
    });
    let report = measurement.finish(result)?;
    if global.json {
        output.json(&report)?;
        return Ok(Exit::Fine);
    }
    let figures = Figures::new(options.figures, &[&ROW, &DURATION, &[SIMULATED]]);
    if lines == Text::Csv {
        figures.write([cells(&report)], output)?;
        return Ok(Exit::Fine);
    }
    output.line(format_args!(
        "Round-trip latency per iteration is (min) {}, (median) {} us",
        six_digits(report.batch.min_us()),
        six_digits(report.batch.median_us())
    ))?;
    output.line("closing gdrdrv")?;
    if lines != Text::Tool {
        let single = &report.round;
        output.line(format_args!(
            "Single round trips: min {}, median {}, 99 of 100 within {}, max {} us",
            six_digits(single.min_us()),
            six_digits(single.median_us()),
            six_digits(single.p99_ns / 1000.0),
            six_digits(single.max_ns / 1000.0)
        ))?;
    }
    if options.figures.is_given() {
        figures.write([cells(&report)], output)?;
    }
    Ok(Exit::Fine)
}

const ROW: [Column; 2] = [
    Column::new("bytes", "payload", 10),
    Column::new("direction", "direction", 10),
];

/// Of single round trips.
fn cells(report: &Report) -> Vec<Cell> {
    let mut cells = vec![Cell::Count(report.payload), Cell::text(report.direction)];
    cells.extend(duration(&report.round));
    cells.push(Cell::text(report.subject.simulated));
    cells
}

/// Prints what will be measured, including the lines of GDRCopy's tool that scripts may know.
fn describe(
    options: &Options,
    settings: &Settings,
    iterations: u32,
    lines: Text,
    output: &mut Output,
) -> gdr_perf::Result<()> {
    let payload = settings.payload;
    if payload == 0 {
        output.line(
            "We will measure the visibility of the flag value only. Setting nblocks and nthreads \
             to 1.",
        )?;
    }
    output.line(match settings.direction {
        Direction::CpuToGpu => "Benchmark mode: CPU produces and GPU consumes",
        Direction::GpuToCpu => "Benchmark mode: GPU produces and CPU consumes",
    })?;
    output.line(options.memory.alloc_line())?;
    if payload == 0 {
        output.line("Measuring the visibility latency of the flag value.")?;
        output.line(format_args!(
            "Running {iterations} iterations with flag size 4 bytes."
        ))?;
    } else {
        output.line("Measuring the latency of data + flag model.")?;
        output.line(format_args!(
            "Running {iterations} iterations with data size {payload} bytes and flag size 4 bytes."
        ))?;
    }
    if lines == Text::Tool && payload == 0 {
        output.line("")?;
    }
    if lines != Text::Tool {
        output.line(format_args!(
            "GPU flag in {}, CPU flag in {}, data in {}",
            settings.gpu_flag.name(),
            settings.cpu_flag.name(),
            settings.data.name()
        ))?;
    }
    // GDRCopy's exact words, for scripts that compare lines. If the GPU produces the data, GDRCopy measures with the
    // GPU's clock, and gdr with the CPU's.
    let words = match (settings.direction, payload) {
        (_, 0) => {
            "CPU writes to gpu_flag. GPU polls on the expected gpu_flag value. GPU writes back via \
             cpu_flag. CPU polls on the expected cpu_flag value. We report the round-trip time from \
             when CPU writes to gpu_flag until it observes the update in cpu_flag."
        }
        (Direction::CpuToGpu, _) => {
            "CPU writes data followed by incrementing gpu_flag. GPU polls on the gpu_flag. Upon \
             observing the upate, it consumes the data. When everything is done, GPU updates \
             cpu_flag. CPU polls on that cpu_flag.\nWe report the round-trip time from when CPU \
             starts writing the data until it observes the update in cpu_flag."
        }
        (Direction::GpuToCpu, _) => {
            "CPU writes to gpu_flag. GPU writes data followed by incrementing cpu_flag. CPU polls on \
             the cpu_flag. Upon observing the update, it consumes the data.\nWe report the \
             round-trip time from when CPU writes to gpu_flag until it has consumed the data."
        }
    };
    lines.say(words, output)?;
    output.line("CPU does the time measurement.\n")
}
