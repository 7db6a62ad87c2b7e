//! Runs the command that the command line names.

use std::path::Path;

use anyhow::Context;

use crate::args::{Args, Command};
use crate::commands::{
    apiperf, chaos, check, collect, compare, copybw, copylat, devices, diff, doctor, env, explain,
    fix, fleet, generate, get, help, info, loopback, ls, mesh, net, nics, peermem, perf, plan,
    pplat, put, run_program, sanity, serve, topo, trace, tune, version, watch,
};
use crate::exit::Exit;
use crate::multicall::Tool;
use crate::output::Output;
use crate::{cli, manual};

/// Runs the command.
pub(crate) fn run(args: &Args, output: &mut Output) -> anyhow::Result<Exit> {
    let global = &args.global;
    match &args.command {
        Command::Loopback(options) => loopback::run(global, options, output),
        Command::Perf(options) => perf::run(global, options, output),
        Command::Sanity(options) => sanity::run(global, options, output),
        Command::Compare(options) => compare::run(global, options, output),
        Command::Mesh(options) => mesh::run(global, options, output),
        Command::Copybw(options) => copybw::run(global, options, output),
        Command::Copylat(options) => copylat::run(global, options, output),
        Command::Plan(options) => plan::run(global, options, output),
        Command::Tune(options) => tune::run(global, options, output),
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
        Command::Serve(options) => serve::run(global, options, output),
        Command::Ls(options) => ls::run(global, options, output),
        Command::Get(options) => get::run(global, options, output),
        Command::Put(options) => put::run(global, options, output),
        Command::Watch(options) => watch::run(global, options, output),
        Command::Run(options) => run_program::run(global, options, output),
        Command::Net(options) => net::run(global, options, output),
        Command::Chaos(options) => chaos::run(global, options, output),
        Command::Check(options) => check::run(global, options, output),
        Command::Trace(options) => trace::run(global, options, output),
        Command::Env(options) => env::run(global, options, output),
        Command::Info(options) => info::run(global, options, output),
        Command::Completions(options) => generate::completions(options, programs(), output),
        Command::Man(options) => man(&options.directory),
        Command::Help(options) => help::run(options, cli::command(), output),
        Command::Version(_) => version::run(global, output),
    }
}

/// gdr and GDRCopy's tools, with their names.
fn programs() -> Vec<(clap::Command, &'static str)> {
    let gdr = (cli::command(), "gdr");
    let tools = Tool::all().map(|tool| (tool.command(), tool.name));
    std::iter::once(gdr).chain(tools).collect()
}

/// Writes the manual pages into `directory`.
fn man(directory: &Path) -> anyhow::Result<Exit> {
    std::fs::create_dir_all(directory)
        .and_then(|()| manual::write_to(directory))
        .with_context(|| format!("manual pages cannot be written to {}", directory.display()))?;
    Ok(Exit::Fine)
}
