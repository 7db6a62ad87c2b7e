//! `gdr devices`: RDMA devices of a node, and how each would register GPU memory.

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
/// Lists the kernel devices that libibverbs reports, with the GID that gdr uses and why, and whether
/// GPU memory can be registered by dma-buf, by a peer-memory module, or not at all. The soft provider
/// has a device at every address of this machine. For another node (--from), lists what was recorded,
/// and says which facts were not.
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
        (Exit::Failure, "the devices could not be read"),
        (Exit::Undecided, CLOSED),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr devices                      list the names for `gdr loopback --from` and `--to`
  gdr devices --json               print JSON, for a program
  gdr devices --from node.tar.gz   list the devices that `gdr collect` recorded on another node
  gdr devices --example            see the list for a node with ten NICs";
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
        output.line("This is the example node: it does not exist.\n")?;
    }
    listing.show(output)?;
    Ok(exit)
}
