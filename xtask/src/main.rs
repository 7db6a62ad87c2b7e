//! Everything that a script would do in this workspace.
//!
//! `cargo xtask test` runs every check that this machine can run and names those it cannot;
//! `cargo xtask gpu-bundle` makes a folder that does the rest on a machine with a GPU.

mod bindings;
mod docs;
mod gpu_bundle;
mod gpu_steps;
mod ledger;
mod links;
mod test;
mod vm;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Everything that a script would do in this workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Formatting, lints, tests, documentation and licences; the GPU tests where there is a GPU.
    Test,
    /// The documentation: every page and every link in it.
    Docs,
    /// The declarations of gdr-verbs-sys, made again from libibverbs' header.
    Bindings(bindings::Source),
    /// The tests that need the kernel's RDMA stack, in a virtual machine.
    Vm(vm::Options),
    /// One folder that proves and measures everything on a machine with a GPU, without cargo.
    GpuBundle {
        /// Where to put it. What is there already is replaced.
        #[arg(long, value_name = "FOLDER", default_value = "dist/gpu-bundle")]
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Test => test::run(),
        Task::Docs => docs::run(),
        Task::Bindings(source) => bindings::run(&source),
        Task::Vm(options) => vm::run(&options),
        Task::GpuBundle { out } => gpu_bundle::run(&out),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
