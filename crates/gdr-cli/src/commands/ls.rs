//! `gdr ls`: the objects of an owner.

use anyhow::Result;
use gdr_perf::loopback::HostPort;
use gdr_perf::report::Schema;
use serde::Serialize;

use super::sheet::Layout;
use crate::exit::{EXIT_STATUS, Exit};
use crate::global::Global;
use crate::interrupt::{self, FirstSignal};
use crate::object_link::LinkArguments;
use crate::object_report::{ObjectRow, sheet};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr ls 127.0.0.1                      the objects of an owner on this machine
  gdr ls node1:7000 --key-file key      of another host
  gdr ls node1 --key-file key --json | jq -r '.objects[].name'";

/// List the objects that a process offers
///
/// The owner is `gdr serve`, or a program that uses the gdr-object library. Objects that this host may
/// not read are not listed.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// The owner: name or address, and TCP port [default port: 4791]
    #[arg(value_name = "HOST[:PORT]")]
    owner: HostPort,

    #[command(flatten)]
    layout: Layout,

    #[command(flatten)]
    link: LinkArguments,
}

/// `gdr.ls`.
#[derive(Serialize)]
struct Listing {
    #[serde(flatten)]
    schema: Schema,
    owner: String,
    /// The run of the owner.
    generation: String,
    simulated: bool,
    objects: Vec<ObjectRow>,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    options.layout.check(global)?;
    options.link.prepare();
    interrupt::flag(FirstSignal::Terminates)?;
    let link = options.link.connect(&options.owner)?;
    let objects = link.list(options.link.deadline(0))?;
    if global.json {
        let rows: Vec<_> = objects.iter().map(ObjectRow::from).collect();
        output.json(&Listing {
            schema: Schema::first("gdr.ls"),
            owner: link.owner().to_string(),
            generation: link.generation(options.link.deadline(0))?.to_string(),
            simulated: rows.iter().any(ObjectRow::is_simulated),
            objects: rows,
        })?;
    } else {
        sheet(&objects).show(options.layout, output)?;
    }
    Ok(Exit::Fine)
}
