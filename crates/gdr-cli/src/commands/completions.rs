//! `gdr completions`: completion scripts for shells.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::{Command, ValueHint};
use clap_complete::Shell;
use gdr_perf::sanity;

use crate::cli;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, PRINTING, Statuses};
use crate::global::Global;
use crate::multicall::Tool;
use crate::output::Output;

/// Print a completion script for a shell
///
/// The script completes gdr, and GDRCopy's tools under their own names. To install it for bash: gdr
/// completions bash > ~/.local/share/bash-completion/completions/gdr
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::About;
    const STATUSES: Statuses = PRINTING;
    const RUN: Run<Self> = run;
}

fn run(_: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let mut names = Vec::new();
    let tools = Tool::all().map(|tool| (tool.command(), tool.name));
    for (command, name) in std::iter::once((cli::command(), "gdr")).chain(tools) {
        let mut script = Vec::new();
        clap_complete::generate(options.shell, &mut with_values(command), name, &mut script);
        names.push(String::from_utf8(script)?);
    }
    // PowerShell accepts these lines only at the top of a script.
    for script in names.iter_mut().skip(1) {
        let lines = script.lines();
        let kept = lines.filter(|line| !line.starts_with("using namespace"));
        *script = kept.flat_map(|line| [line, "\n"]).collect();
    }
    output.bytes(names.concat().as_bytes())?;
    Ok(Exit::Fine)
}

/// Returns the command with possible values for arguments that are names. Parsing does not use them, because the
/// commands reject unknown names with better errors.
fn with_values(command: Command) -> Command {
    let checks: Vec<_> = gdr_doctor::all()
        .map(|check| check.id.to_string())
        .collect();
    let tests: Vec<_> = sanity::all()
        .iter()
        .map(|check| check.name().to_owned())
        .collect();
    let devices = devices();
    let ends: Vec<_> = (0..8)
        .map(|gpu| format!("GPU{gpu}"))
        .chain(devices.clone())
        .collect();
    let values = [
        ("backend", BACKENDS.map(str::to_owned).to_vec()),
        ("tests", tests),
        ("only", checks.clone()),
        ("skip", checks.clone()),
        ("ids", checks),
        ("to", devices.clone()),
        ("from", devices.clone()),
        ("device", devices.clone()),
        ("command", names_below(&command)),
        ("a", ends),
    ];
    complete(command, &values)
}

/// Returns the names of the commands below this one, at any depth.
fn names_below(command: &Command) -> Vec<String> {
    let below = command.get_subcommands().flat_map(|command| {
        let name = command.get_name().to_owned();
        std::iter::once(name).chain(names_below(command))
    });
    let mut names: Vec<_> = below.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What `--backend` takes.
const BACKENDS: [&str; 5] = ["auto", "gdrdrv", "dmabuf", "rm", "sim"];

/// Returns the RDMA devices of this machine, and the addresses that every machine has.
fn devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband");
    let names = entries.into_iter().flatten().flatten();
    let mut names: Vec<_> = names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names.extend(["127.0.0.1", "127.0.0.2"].map(str::to_owned));
    names
}

/// Sets these values for the arguments with these names, in a command and its subcommands. Arguments that are files
/// stay unchanged.
fn complete(mut command: Command, values: &[(&str, Vec<String>)]) -> Command {
    for (name, values) in values {
        // Commands use one name for different things: a file in one, a device in another.
        let known = command.get_arguments().any(|argument| {
            argument.get_id() == name && argument.get_value_hint() == ValueHint::Unknown
        });
        if known {
            command = command.mut_arg(name, |argument| {
                argument.value_parser(PossibleValuesParser::new(values.clone()))
            });
        }
    }
    let below = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned());
    for name in below.collect::<Vec<_>>() {
        command = command.mut_subcommand(name, |sub| complete(sub, values));
    }
    command
}
