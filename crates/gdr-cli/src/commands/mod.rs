//! The subcommands, one module each: its options, and how it presents what it found.

pub(crate) mod apiperf;
pub(crate) mod collect;
pub(crate) mod copybw;
pub(crate) mod copylat;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod fix;
pub(crate) mod fleet;
pub(crate) mod generate;
pub(crate) mod info;
pub(crate) mod loopback;
mod memory;
pub(crate) mod nics;
pub(crate) mod peermem;
pub(crate) mod pplat;
pub(crate) mod sanity;
pub(crate) mod topo;

use gdr_perf::report::Subject;

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::machine::Machine;
use crate::output::Output;

/// Does what the command line says.
pub(crate) fn run(args: &Args, output: &mut Output) -> anyhow::Result<Exit> {
    let global = &args.global;
    match &args.command {
        Command::Loopback(options) => loopback::run(global, options, output),
        Command::Sanity(options) => sanity::run(global, options, output),
        Command::Copybw(options) => copybw::run(global, options, output),
        Command::Copylat(options) => copylat::run(global, options, output),
        Command::Apiperf(options) => apiperf::run(global, options, output),
        Command::Pplat(options) => pplat::run(global, options, output),
        Command::Doctor(options) => doctor::run(global, options, output),
        Command::Explain(options) => explain::run(global, options, output),
        Command::Collect(options) => collect::run(global, options, output),
        Command::Diff(options) => diff::run(global, options, output),
        Command::Fleet(options) => fleet::run(global, options, output),
        Command::Fix(options) => fix::run(global, options, output),
        Command::Peermem(options) => peermem::run(global, options, output),
        Command::Topo(options) => topo::run(global, options, output),
        Command::Devices(options) => devices::run(global, options, output),
        Command::Nics(options) => nics::run(global, options, output),
        Command::Info(options) => info::run(global, options, output),
        Command::Completions(options) => generate::completions(options, output),
        Command::Man(options) => generate::man(options),
    }
}

/// Says that no hardware is involved, where that is so.
fn say_simulated(machine: &Machine, output: &mut Output) -> gdr_perf::Result<()> {
    match &machine.simulated {
        Some(reason) => output.line(format_args!("simulated: {reason}")),
        None => Ok(()),
    }
}

/// What a report is about, in one line.
fn describe(subject: &Subject) -> String {
    let mut line = format!(
        "{} ({}), backend {}",
        subject.gpu, subject.pci, subject.backend
    );
    if let Some(route) = &subject.route {
        line += &format!(" by {route}");
    }
    if let Some(driver) = &subject.driver {
        line += &format!(", NVIDIA driver {driver}, CUDA {}", subject.cuda);
    }
    if subject.simulated {
        format!("simulated: {line}")
    } else {
        line
    }
}
