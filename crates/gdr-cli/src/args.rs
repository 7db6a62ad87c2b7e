//! The command line.

use clap::{Parser, Subcommand};

use crate::commands;
use crate::global::Global;

/// RDMA into GPU memory, and GPU memory as CPU memory: prove it, measure it, and find out why it
/// is off or slow
#[derive(Debug, Parser)]
#[command(
    name = "gdr",
    version = commands::version::VERSION,
    propagate_version = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Loopback(commands::loopback::Options),
    Doctor(commands::doctor::Options),
    Explain(commands::explain::Options),
    Collect(commands::collect::Options),
    Diff(commands::diff::Options),
    Fleet(commands::fleet::Options),
    Fix(commands::fix::Options),
    Peermem(commands::peermem::Options),
    Topo(commands::topo::Options),
    Devices(commands::devices::Options),
    Nics(commands::nics::Options),
    Perf(commands::perf::Options),
    Sanity(commands::sanity::Options),
    Compare(commands::compare::Options),
    Mesh(commands::mesh::Options),
    Copybw(commands::copybw::Options),
    Copylat(commands::copylat::Options),
    Plan(commands::plan::Options),
    Tune(commands::tune::Options),
    Apiperf(commands::apiperf::Options),
    Pplat(commands::pplat::Options),
    Info(commands::info::Options),
    Serve(commands::serve::Options),
    Ls(commands::ls::Options),
    Get(commands::get::Options),
    Put(commands::put::Options),
    Watch(commands::watch::Options),
    Run(commands::run_program::Options),
    Net(commands::net::Options),
    Chaos(commands::chaos::Options),
    Check(commands::check::Options),
    Trace(commands::trace::Options),
    Env(commands::env::Options),
    Completions(commands::generate::CompletionsOptions),
    Man(commands::generate::ManOptions),
    Help(commands::help::Options),
    Version(commands::version::Options),
}
