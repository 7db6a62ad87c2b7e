//! `gdr help`.

use anyhow::Result;
use clap::Command;

use crate::cli;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, PRINTING, Statuses, UsageError};
use crate::global::Global;
use crate::output::Output;

/// Show the help of a command
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The command [default: gdr itself]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::About;
    const STATUSES: Statuses = PRINTING;
    const RUN: Run<Self> = run;
}

fn run(_: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let mut gdr = cli::command();
    // Sets the name with which each command's usage line begins.
    gdr.build();
    let mut command = &mut gdr;
    for name in &options.command {
        let names = names(command);
        command = command.find_subcommand_mut(name).ok_or_else(|| {
            UsageError(format!("`{name}` is not a command: choose one of {names}"))
        })?;
    }
    let help = command.render_long_help();
    output.text(&help.ansi().to_string())?;
    Ok(Exit::Fine)
}

fn names(command: &Command) -> String {
    let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
    names.join(", ")
}
