//! `gdr copybw`: GDRCopy's `gdrcopy_copybw`.

use std::ops::ControlFlow;

use anyhow::Result;
use gdr_perf::against::Way;
use gdr_perf::copybw::{self, Event, Settings};
use gdr_perf::sizes::below_power_of_two;

use super::memory::{MemoryOptions, Rival, introduce, show_comparison, show_mapping};
use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit};
use crate::machine::Machine;
use crate::numbers::{count, six_digits, size};
use crate::output::{Output, flow};
use crate::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  gdr copybw                          128 KiB copies both ways
  gdr copybw -l -s 16M                sizes from 1 byte to 8 MiB
  gdr copybw -l --against cuda        the same by cuMemcpy, and the ratio
  gdr copybw -a cuMemCreate --json    on VMM memory, for a program";

/// Measure the bandwidth of copies through a mapping (gdrcopy_copybw)
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// Bytes to allocate
    #[arg(short = 's', long = "size", value_name = "SIZE", value_parser = size, default_value = "131072")]
    buffer: u64,

    /// Bytes of each copy; with -l the bound of the sizes [default: that of -s]
    #[arg(short = 'c', long = "copy-size", value_name = "SIZE", value_parser = size)]
    copy: Option<u64>,

    /// Where in the buffer copies start
    #[arg(short, long, value_name = "SIZE", value_parser = size, default_value = "0")]
    offset: u64,

    /// Measure every power of two from 1 byte to below the bound
    #[arg(short = 'l', long)]
    sweep: bool,

    /// Copies to the GPU of each size
    #[arg(short, long, value_name = "N", value_parser = count, default_value = "10000")]
    writes: u32,

    /// Copies from the GPU of each size
    #[arg(short, long, value_name = "N", value_parser = count, default_value = "100")]
    reads: u32,

    #[command(flatten)]
    memory: MemoryOptions,

    /// Compare with another way to copy, in the same run: up to 1 GiB or 100 copies of each size
    #[arg(long, value_enum, value_name = "WHAT")]
    against: Option<Rival>,
}

impl Options {
    fn settings(&self) -> Settings {
        let sizes = if self.sweep {
            // The bound is no more than the buffer, as in GDRCopy's tool.
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
            against: Rival::against(self.against),
        }
    }
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let settings = options.settings();
    let machine = Machine::open(global)?;
    if global.json {
        let progress = Progress::on_stderr();
        let (mut done, total) = (0, 2 * settings.sizes.len());
        let report = copybw::run(&machine.site, &settings, &mut |event| {
            if let Event::Begin { size, way, .. } = event {
                progress.at(done, total, &format!("{size} bytes {way}"));
                done += 1;
            }
            ControlFlow::Continue(())
        })?;
        drop(progress);
        output.json(&report)?;
        return Ok(Exit::Fine);
    }
    introduce(&machine, global, output)?;
    let report = copybw::run(&machine.site, &settings, &mut |event| {
        flow(show(options, &event, output))
    })?;
    output.line("closing gdrdrv")?;
    show_comparison(&report.against_cuda, output)?;
    Ok(Exit::Fine)
}

/// The lines of GDRCopy's tool, in its order.
fn show(options: &Options, event: &Event<'_>, output: &mut Output) -> gdr_perf::Result<()> {
    let name = |way: &Way| match way {
        Way::ToGpu => ("writing", "write"),
        Way::FromGpu => ("reading", "read"),
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
            way,
            iterations,
        } => output.line(format_args!(
            "{} test, size={size} offset={} num_iters={iterations}",
            name(way).0,
            options.offset
        )),
        Event::Measured(rate) => output.line(format_args!(
            "{} BW: {}MB/s",
            name(&rate.way).1,
            six_digits(rate.mib_per_s)
        )),
        Event::Unmapping => output.line("unmapping buffer"),
        Event::Unpinning => output.line("unpinning buffer"),
        _ => Ok(()),
    }
}
