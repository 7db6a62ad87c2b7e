//! A command of gdr: what its file declares, and how the command line uses that.

use anyhow::Result;
use clap::ArgMatches;

use crate::exit::{Exit, Statuses};
use crate::global::Global;
use crate::output::Output;

/// Groups of commands in the help of gdr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Prove,
    Diagnose,
    Measure,
    ShareMemory,
    RunPrograms,
    Manage,
    About,
}

/// Runs a command whose options are `O`.
pub(crate) type Run<O> = fn(&Global, &O, &mut Output) -> Result<Exit>;

/// A command from the command line, with its options.
pub(crate) type Invocation = Box<dyn FnOnce(&Global, &mut Output) -> Result<Exit>>;

/// Declares a command beside its options.
pub(crate) trait CommandSpec: clap::Args + 'static {
    const GROUP: Group;
    /// Statuses that it ends with, besides the status of a usage error.
    const STATUSES: Statuses;
    /// Text of its help below the options.
    const EXAMPLES: &'static str = "";
    /// The GDRCopy tool with the same options.
    const TOOL: Option<&'static str> = None;
    /// Returns better words for a usage error, where there are any.
    const INSTEAD: fn(&clap::Error) -> Option<String> = |_| None;
    /// Statuses of errors that only this command has.
    const STATUS_OF: fn(&anyhow::Error) -> Option<Exit> = |_| None;
    const RUN: Run<Self>;
}

/// A command in the list of commands.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    pub(crate) statuses: Statuses,
    pub(crate) examples: &'static str,
    pub(crate) tool: Option<&'static str>,
    pub(crate) instead: fn(&clap::Error) -> Option<String>,
    pub(crate) status_of: fn(&anyhow::Error) -> Option<Exit>,
    /// Adds the options to a clap command.
    pub(crate) with_options: fn(clap::Command) -> clap::Command,
    pub(crate) parse: fn(&ArgMatches) -> Result<Invocation, clap::Error>,
}

impl Group {
    pub(crate) const ALL: [Self; 7] = [
        Self::Prove,
        Self::Diagnose,
        Self::Measure,
        Self::ShareMemory,
        Self::RunPrograms,
        Self::Manage,
        Self::About,
    ];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Prove => "Prove",
            Self::Diagnose => "Diagnose",
            Self::Measure => "Measure",
            Self::ShareMemory => "Share memory",
            Self::RunPrograms => "Run programs",
            Self::Manage => "Manage",
            Self::About => "About gdr",
        }
    }
}

impl Command {
    /// Returns the command that `S` declares.
    pub(crate) const fn of<S: CommandSpec>(name: &'static str) -> Self {
        Self {
            name,
            group: S::GROUP,
            statuses: S::STATUSES,
            examples: S::EXAMPLES,
            tool: S::TOOL,
            instead: S::INSTEAD,
            status_of: S::STATUS_OF,
            with_options: S::augment_args,
            parse: |matches| {
                let options = S::from_arg_matches(matches)?;
                Ok(Box::new(move |global, output| {
                    (S::RUN)(global, &options, output)
                }))
            },
        }
    }
}
