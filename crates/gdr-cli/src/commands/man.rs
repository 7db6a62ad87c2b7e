//! `gdr man`: writes the manual pages.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueHint;

use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, PRINTING, Statuses};
use crate::global::Global;
use crate::manual;
use crate::output::Output;

/// Write the manual pages into a directory
///
/// To read one: gdr man /tmp/gdr && man -l /tmp/gdr/gdr-doctor.1
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory to write the pages to
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::About;
    const STATUSES: Statuses = PRINTING;
    const RUN: Run<Self> = run;
}

fn run(_: &Global, options: &Options, _: &mut Output) -> Result<Exit> {
    let directory = &options.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| manual::write_to(directory))
        .with_context(|| format!("manual pages cannot be written to {}", directory.display()))?;
    Ok(Exit::Fine)
}
