//! `gdr apiperf`: GDRCopy's `gdrcopy_apiperf`.

use std::ops::ControlFlow;

use anyhow::Result;
use gdr_perf::apiperf::{self, Event, Row, Settings};

use super::memory::{MemoryOptions, introduce};
use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit};
use crate::machine::Machine;
use crate::numbers::{count, size};
use crate::output::{Output, flow};
use crate::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  gdr apiperf                         from 64 KiB to 16 MiB
  gdr apiperf -s 1G -n 20             up to 1 GiB, 20 rounds each
  gdr apiperf -a cuMemCreate --json   on VMM memory, for a program";

/// Measure what pinning, mapping, unmapping and unpinning cost (gdrcopy_apiperf)
///
/// Times are means; --json has medians and percentiles too. get_info is timed 100 calls at a
/// time, because one is shorter than a look at the clock.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// The largest size; sizes are the powers of two from 64 KiB on
    #[arg(short = 's', long = "size", value_name = "SIZE", value_parser = size, default_value = "16777216")]
    largest: u64,

    /// Rounds of each size
    #[arg(short = 'n', long, value_name = "N", value_parser = count, default_value = "100")]
    iterations: u32,

    /// Rounds before those, not measured
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    warm_up: u32,

    #[command(flatten)]
    memory: MemoryOptions,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let settings = Settings {
        largest: options.largest,
        memory: options.memory.memory(),
        iterations: options.iterations,
        warm_up: options.warm_up,
    };
    let machine = Machine::open(global)?;
    if global.json {
        let progress = Progress::on_stderr();
        let mut done = 0;
        let report = apiperf::run(&machine.site, &settings, &mut |event| {
            if let Event::Measured(row) = event {
                done += 1;
                progress.at(done, done, &format!("{} bytes", row.size));
            }
            ControlFlow::Continue(())
        })?;
        drop(progress);
        output.json(&report)?;
        return Ok(Exit::Fine);
    }
    introduce(&machine, global, output)?;
    apiperf::run(&machine.site, &settings, &mut |event| {
        flow(show(&event, output))
    })?;
    output.line("closing gdrdrv")?;
    Ok(Exit::Fine)
}

/// The lines of GDRCopy's tool, in its order.
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
