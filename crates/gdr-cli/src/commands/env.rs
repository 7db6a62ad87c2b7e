//! `gdr env`: environment variables that fit this node's topology.

use std::env;
use std::ffi::{OsStr, OsString};

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use gdr_doctor::Context;
use gdr_doctor::environment::{CommunicationLibrary, Environment, GpuRails, NoRail, Rails};
use gdr_node::{Device, DeviceKind};
use gdr_perf::report::Schema;
use serde::Serialize;

use super::diff::printable;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, INPUT, NO_PROGRAM, Statuses, UsageError};
use crate::global::Global;
use crate::launch::{become_program, found, quoted};
use crate::node_args::{Node, Which};
use crate::output::Output;

/// Print the environment variables of NCCL, UCX, NIXL, NVSHMEM and Mooncake that fit this node
///
/// gdr derives the NIC for each GPU, the GID index, the greatest distance for GPUDirect RDMA and the
/// number of NICs per transfer from the PCI tree and the state of the ports. A comment before each
/// variable gives the reason. If a program is given, gdr executes it with the variables; those already
/// set keep their values. In a container that hides devices, use an archive of the host (--from).
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Print variables only for these libraries
    #[arg(long = "for", value_name = "LIBRARY", value_delimiter = ',')]
    libraries: Vec<LibraryName>,

    /// Choose NICs only for this GPU, given by number, name or PCI address
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,

    #[command(flatten)]
    which: Which,

    /// The program to run with the variables, and its arguments
    #[arg(value_name = "PROGRAM", last = true)]
    program: Vec<OsString>,
}

/// A library named on the command line.
#[derive(Clone, Copy, Debug)]
struct LibraryName(CommunicationLibrary);

impl ValueEnum for LibraryName {
    fn value_variants<'a>() -> &'a [Self] {
        const { &names() }
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

const fn names() -> [LibraryName; CommunicationLibrary::ALL.len()] {
    let mut names = [LibraryName(CommunicationLibrary::Nccl); CommunicationLibrary::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = LibraryName(CommunicationLibrary::ALL[at]);
        at += 1;
    }
    names
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    schema: Schema,
    gpus: &'a [GpuRails],
    libraries: &'a [Environment],
}

impl CommandSpec for Options {
    const GROUP: Group = Group::RunPrograms;
    const STATUSES: Statuses = &[
        (
            Exit::Fine,
            "printed; a program that is run determines the status",
        ),
        (Exit::Failure, "no port of an RDMA NIC is active"),
        (
            Exit::Undecided,
            "no GPU or no RDMA NIC was found, or not enough is known",
        ),
        (Exit::Input, INPUT),
        (Exit::NotStarted, "the program cannot be run"),
        (Exit::NotFound, NO_PROGRAM),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr env --for nccl                    print the variables, and the reason for each
  eval \"$(gdr env --for nccl,ucx)\"     set them in this shell
  gdr env --for nccl -- ./all_reduce    run a program with them
  gdr env --for ucx --gpu 3 -- ./rank   run a process that uses one GPU
  gdr env --for nvshmem --from node.tar.gz";
    const STATUS_OF: fn(&anyhow::Error) -> Option<Exit> = |error| {
        error.downcast_ref().map(|none| match none {
            NoRail::NoActivePort(_) => Exit::Failure,
            _ => Exit::Undecided,
        })
    };
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if !options.program.is_empty() && global.json {
        let message = "gdr env prints nothing itself if it runs a program: leave out --json";
        return Err(UsageError(message.to_owned()).into());
    }
    let node = options.which.open()?;
    let context = Context::new(node.source.as_ref(), &node.inventory);
    let mut rails = Rails::of(&context)?;
    if let Some(name) = &options.gpu {
        rails = of_gpu(&node, rails, name)?;
    }
    let mut libraries: Vec<CommunicationLibrary> =
        options.libraries.iter().map(|name| name.0).collect();
    if libraries.is_empty() {
        libraries = CommunicationLibrary::ALL.to_vec();
    }
    let mut all: Vec<Environment> = Vec::new();
    for library in libraries {
        if !all.iter().any(|environment| environment.library == library) {
            all.push(Environment::of(&context, &rails, library));
        }
    }
    if let Some((program, arguments)) = options.program.split_first() {
        let path = found(program)?;
        return Err(become_program(path, program, arguments, unset(&all)).into());
    }
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.env"),
            gpus: &rails.gpus,
            libraries: &all,
        })?;
    } else {
        print(&all, output)?;
    }
    Ok(Exit::Fine)
}

/// Returns the rails of the GPU named as `3`, `GPU3` or by its address.
fn of_gpu(node: &Node, rails: Rails, name: &str) -> Result<Rails> {
    let number = name.chars().all(|digit| digit.is_ascii_digit());
    let full = if number {
        format!("GPU{name}")
    } else {
        name.to_owned()
    };
    let device = node.inventory.device(&full);
    let usage = |why: String| UsageError(format!("--gpu {name}: {why}; `gdr topo` lists the GPUs"));
    let Device { bdf, kind, .. } = device.map_err(|error| usage(error.to_string()))?;
    let gpu = rails.gpus.iter().find(|gpu| gpu.pci == bdf);
    match gpu.map(|gpu| gpu.gpu).filter(|_| kind == DeviceKind::Gpu) {
        Some(gpu) => Ok(rails.only(gpu)),
        None => Err(usage(format!("{bdf} is not a GPU of this node")).into()),
    }
}

/// Returns the variables that this process does not have yet, each once. The others keep their values.
fn unset(all: &[Environment]) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&'static str, OsString)> = Vec::new();
    for variable in all.iter().flat_map(|environment| &environment.variables) {
        if let Some(value) = env::var_os(variable.name) {
            if value != OsStr::new(&variable.value) {
                tracing::warn!(
                    "{} stays {}; this node suggests {}",
                    variable.name,
                    printable(&value.to_string_lossy()),
                    variable.value
                );
            }
        } else if !variables.iter().any(|(name, _)| *name == variable.name) {
            variables.push((variable.name, OsString::from(&variable.value)));
        }
    }
    variables
}

fn print(all: &[Environment], output: &mut Output) -> Result<()> {
    for (at, environment) in all.iter().enumerate() {
        if at > 0 {
            output.line("")?;
        }
        output.line(format_args!("# {}", title(environment.library)))?;
        for remark in &environment.remarks {
            output.paragraph("# note: ", "#   ", &printable(remark))?;
        }
        for variable in &environment.variables {
            output.line("")?;
            output.paragraph("# ", "# ", &printable(&variable.reason))?;
            let value = match variable.value.as_str() {
                plain if is_plain(plain) => plain.as_bytes().to_vec(),
                other => quoted(OsStr::new(other)),
            };
            output.bytes(&[b"export ", variable.name.as_bytes(), b"=", &value, b"\n"].concat())?;
        }
    }
    Ok(())
}

/// Returns whether every shell takes a value literally. zsh looks for a command after `=`.
fn is_plain(value: &str) -> bool {
    let plain = |it: char| it.is_ascii_alphanumeric() || "_-.,:/".contains(it);
    !value.is_empty() && value.chars().all(plain)
}

fn title(library: CommunicationLibrary) -> &'static str {
    match library {
        CommunicationLibrary::Nccl => "NCCL",
        CommunicationLibrary::Ucx => "UCX",
        CommunicationLibrary::Nixl => "NIXL",
        CommunicationLibrary::Nvshmem => "NVSHMEM",
        CommunicationLibrary::Mooncake => "Mooncake",
    }
}
