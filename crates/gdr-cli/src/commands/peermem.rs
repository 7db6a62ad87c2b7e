//! `gdr peermem`: manages the peer-memory kernel module.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use gdr_doctor::Action;
use gdr_doctor::fix::{Done, Journal, LiveSystem, System, apply};
use gdr_doctor::peermem::{DROP_IN, DmaBuf, MODULE, OLD_MODULE, PeerMemory, Standing};
use gdr_node::{Absence, DatumExt};
use gdr_perf::report::Schema;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::fix::{JOURNAL, root};
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, INPUT, Statuses};
use crate::global::Global;
use crate::host_source;
use crate::node_args::Which;
use crate::output::Output;

/// Show and manage the kernel module that lets RDMA NICs register GPU memory
///
/// The module is nvidia_peermem, formerly nv_peer_mem. If it cannot work, `status` shows why, and
/// whether dma-buf can be used instead.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the state; exits with 0 if the module works, 1 if dma-buf can replace it, 2 if neither works
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// Load the module now
    Load,
    /// Unload the module now
    Unload,
    /// Load the module now and at every boot
    Enable,
    /// Stop loading the module at boot
    Disable,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    #[serde(flatten)]
    peer: PeerMemory,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Manage;
    const STATUSES: Statuses = &[
        (Exit::Fine, "the module is loaded"),
        (
            Exit::Warning,
            "the module is not loaded, and dma-buf can be used instead",
        ),
        (
            Exit::Failure,
            "neither the module nor dma-buf can be used, or the command failed",
        ),
        (
            Exit::Undecided,
            "not enough is known, or standard output was closed",
        ),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr peermem status         show whether the module works, and the alternative if not
  sudo gdr peermem load      load it now
  sudo gdr peermem enable    load it now and at every boot
  sudo gdr peermem disable   stop loading it at boot";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    match &options.what {
        What::Status { which } => {
            let node = which.open()?;
            return status(global, PeerMemory::read(node.source.as_ref()), output);
        }
        What::Load => act(&[PeerMemory::load()], output)?,
        What::Enable => act(&[PeerMemory::enable(), PeerMemory::load()], output)?,
        What::Unload => {
            root()?;
            let mut system = LiveSystem::new();
            for module in [MODULE, OLD_MODULE] {
                if system.exists(&format!("/sys/module/{module}")) {
                    system.unload_module(module).map_err(|error| {
                        anyhow::anyhow!(
                            "{module} cannot be unloaded: {error}; stop the jobs that have GPU \
                             memory registered"
                        )
                    })?;
                    output.line(format_args!("{module} is unloaded"))?;
                }
            }
        }
        What::Disable => {
            root()?;
            let mut system = LiveSystem::new();
            if system.exists(DROP_IN) {
                system.remove(DROP_IN)?;
                output.line(format_args!("{DROP_IN} is removed"))?;
            }
        }
    }
    status(global, PeerMemory::read(&host_source::this_node()), output)
}

fn act(actions: &[Action], output: &mut Output) -> Result<()> {
    root()?;
    let peer = PeerMemory::read(&host_source::this_node());
    if matches!(peer.standing, Standing::Impossible | Standing::Conflict) {
        anyhow::bail!("{MODULE} cannot be loaded: {}", peer.because);
    }
    let mut journal = Journal::open(&PathBuf::from(JOURNAL))?;
    let mut system = LiveSystem::new();
    for action in actions {
        match apply(action, &mut system, &mut journal)? {
            Done::Changed(what) | Done::Already(what) => output.line(what)?,
        }
    }
    Ok(())
}

fn status(global: &Global, peer: PeerMemory, output: &mut Output) -> Result<Exit> {
    let works = matches!(peer.standing, Standing::Active | Standing::Loaded);
    let exit = match (works, peer.dma_buf, peer.standing) {
        (true, ..) => Exit::Fine,
        (false, DmaBuf::Ready, _) => Exit::Warning,
        (false, DmaBuf::Unknown, _) | (false, _, Standing::Unknown) => Exit::Undecided,
        (false, DmaBuf::No, _) => Exit::Failure,
    };
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.peermem"),
            peer,
        })?;
        return Ok(exit);
    }
    output.line(format_args!(
        "peer memory: {}",
        peer.standing.to_string().bold()
    ))?;
    output.line(format_args!("    {}", peer.because))?;
    if let Some(version) = &peer.version {
        output.line(format_args!("version: {version}"))?;
    }
    output.line(format_args!("NVIDIA driver: {}", peer.driver.shown()))?;
    output.line(match &peer.at_boot {
        Ok(path) => format!("at boot: loaded by {path}"),
        Err(Absence::Missing) => {
            "at boot: not loaded; `gdr peermem enable` changes that".to_owned()
        }
        Err(absence) => format!("at boot: {absence}"),
    })?;
    let dma_buf = match peer.dma_buf {
        DmaBuf::Ready => "the GPU supports it; `gdr devices` shows whether a NIC does",
        DmaBuf::No => "no",
        DmaBuf::Unknown => "not known",
    };
    let text = format!("{dma_buf} ({})", peer.dma_buf_because);
    output.paragraph("dma-buf instead: ", "    ", &text)?;
    Ok(exit)
}
