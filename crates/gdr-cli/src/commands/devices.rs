//! `gdr devices`: the RDMA devices of a node, and how each would register GPU memory.

mod gpu_memory;
mod listing;
mod recorded;
mod this_machine;

use anyhow::Result;

use crate::command::{CommandSpec, Group, Run};
use crate::exit::{CLOSED, Exit, INPUT, Statuses};
use crate::global::Global;
use crate::node_args::Which;
use crate::output::Output;

/// List the RDMA devices: ports, links, GIDs, and how each would register GPU memory
///
/// Kernel devices come from libibverbs, with the GID that gdr uses and why, and whether GPU memory
/// would be registered by dma-buf, by a peer-memory module, or not at all. The soft provider has a
/// device at every address of this machine. Of another node, lists what was recorded, and names the
/// facts that were not.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Diagnose;
    const STATUSES: Statuses = &[
        (Exit::Fine, "listed"),
        (Exit::Warning, "a device or the library cannot be used"),
        (Exit::Failure, "it failed"),
        (Exit::Undecided, CLOSED),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr devices                      the names for `gdr loopback --from` and `--to`
  gdr devices --json               for a program
  gdr devices --from node.tar.gz   of another node, as `gdr collect` recorded it
  gdr devices --example            see what it looks like on a node with ten NICs";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let (listing, exit) = if options.which.is_elsewhere() {
        recorded::list(&options.which)?
    } else {
        this_machine::list()?
    };
    if global.json {
        output.json(&listing)?;
        return Ok(exit);
    }
    if options.which.is_example() {
        output.line("This is the example node; nothing of it is real.\n")?;
    }
    listing.show(output)?;
    Ok(exit)
}
