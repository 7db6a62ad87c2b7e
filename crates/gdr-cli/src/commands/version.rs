//! `gdr version`.

use anyhow::Result;
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, PRINTING, Statuses};
use crate::global::Global;
use crate::output::Output;

/// The commit that this was built from, if known.
pub(crate) const COMMIT: Option<&str> = option_env!("GDR_COMMIT_OF_BUILD");

/// The release, with the commit if known: `0.1.0 (1bdbda1c2d3e)`.
pub(crate) const VERSION: &str = env!("GDR_VERSION_OF_BUILD");

/// Show the version of gdr
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    /// Absent if unknown at build time.
    commit: Option<&'static str>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::About;
    const STATUSES: Statuses = PRINTING;
    const RUN: Run<Self> = run;
}

fn run(global: &Global, _: &Options, output: &mut Output) -> Result<Exit> {
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.version"),
            commit: COMMIT,
        })?;
    } else {
        output.line(format_args!("gdr {VERSION}"))?;
    }
    Ok(Exit::Fine)
}
