//! `gdr explain`: finds the likely cause of an error text.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context as _, Result};
use gdr_doctor::{CheckId, Context, Selection, diagnose};
use gdr_explain::{
    Answer, Cause, Confirmation, Connection, Direction, Explanation, GpuDirect, InUse, Kind,
    Strength, Transport, causes,
};
use gdr_node::Bdf;
use gdr_perf::report::Schema;
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::command::{CommandSpec, Group, Run};
use crate::counted::Counted;
use crate::exit::{Exit, INPUT, Statuses, UsageError};
use crate::global::Global;
use crate::node_args::{Node, Which};
use crate::output::{Output, WIDTH};

/// Maximum number of causes to show for one log.
const SHOWN: usize = 5;
/// Maximum number of connections without GPUDirect RDMA to show.
const CONNECTIONS: usize = 8;

/// Explain what an error text or a log most likely means for GPUDirect RDMA
///
/// Ranks the likely root causes, says what to do about each, and checks whether this node confirms
/// it. For a log of NCCL, UCX, NVSHMEM or perftest, also reports whether GPUDirect RDMA is in use, and
/// which ranks do not use it. Exits with 3 if no known cause matches.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The text, or a file that contains it; `-` or nothing reads standard input
    #[arg(value_name = "TEXT")]
    text: Vec<String>,

    /// Do not check this node
    #[arg(long)]
    offline: bool,

    /// List every known cause
    #[arg(long, conflicts_with_all = ["text", "offline"])]
    list: bool,

    #[command(flatten)]
    which: Which,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    schema: Schema,
    gpudirect: &'a GpuDirect,
    causes: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Item<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    strength: Strength,
    /// Absent if the node was not checked.
    confirmation: Option<Confirmation>,
}

#[derive(Serialize)]
struct Known {
    #[serde(flatten)]
    schema: Schema,
    causes: Vec<&'static Cause>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Diagnose;
    const STATUSES: Statuses = &[
        (
            Exit::Fine,
            "a known cause matches, or the log shows whether GPUDirect RDMA is in use",
        ),
        (Exit::Failure, "the text cannot be read"),
        (
            Exit::Undecided,
            "no known cause matches, or standard output was closed",
        ),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr explain \"could not insert 'nvidia_peermem': Invalid argument\"
  gdr explain nccl.log             explain a whole log, of any length
  kubectl logs trainer-0 | gdr explain -
  dmesg | gdr explain
  gdr explain --list               list every known cause";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.list {
        return list(global, output);
    }
    let mut names = Names::default();
    let answer = answer(options, &mut names)?;
    let found = &answer.causes;
    let is_wanted = !options.offline && !found.is_empty();
    // Always read a node that was named: a wrong name must not pass as a healthy node.
    let node = if is_wanted || options.which.is_elsewhere() {
        Some(options.which.open()?)
    } else {
        None
    };
    if options.which.is_elsewhere() {
        // A capture may cover only a part of a node.
        names.addresses.clear();
    }
    let text_is_of = node
        .as_ref()
        .map_or(TextIsOf::Unknown, |node| TextIsOf::names(names, node));
    let is_checked =
        is_wanted && !matches!(text_is_of, TextIsOf::Another(_) | TextIsOf::Elsewhere(_));
    let diagnosis = node.as_ref().filter(|_| is_checked).map(|node| {
        let context = Context::new(node.source.as_ref(), &node.inventory);
        let checks = found
            .iter()
            .flat_map(|it| it.cause.checks)
            .map(|id| CheckId(id));
        diagnose(&context, &Selection::all().only(checks))
    });
    let items: Vec<Item<'_>> = found
        .iter()
        .map(|explanation| Item {
            explanation,
            strength: explanation.strength(),
            confirmation: diagnosis
                .as_ref()
                .map(|diagnosis| explanation.confirm(diagnosis)),
        })
        .collect();
    let gpudirect = &answer.gpudirect;
    let exit = if items.is_empty() && gpudirect.in_use == InUse::Unknown {
        Exit::Undecided
    } else {
        Exit::Fine
    };
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.explain"),
            gpudirect,
            causes: items,
        })?;
        return Ok(exit);
    }
    show_use(gpudirect, output)?;
    if exit == Exit::Undecided {
        output.line(
            "This text matches no known cause of a GPUDirect RDMA fault.\n\
             `gdr doctor` checks the node itself; `gdr explain --list` lists the known causes.",
        )?;
    }
    for (place, item) in items.iter().take(SHOWN).enumerate() {
        show(place + 1, item, &text_is_of, output)?;
    }
    if items.len() > SHOWN {
        let more: Vec<&str> = items[SHOWN..]
            .iter()
            .map(|item| item.explanation.cause.id)
            .collect();
        wrapped(
            "",
            &format!("{} more: {}", more.len(), more.join(", ")),
            output,
        )?;
    }
    let of_another = match &text_is_of {
        TextIsOf::Another(host) => format!(
            "The text comes from {host}, not from this node, which was not checked: run `gdr doctor` there."
        ),
        TextIsOf::Elsewhere(address) => format!(
            "This node has no PCI function at {address}, which the text names, and was not checked: \
             run `gdr doctor` where the text is from."
        ),
        TextIsOf::ThisNode | TextIsOf::Unknown => return Ok(exit),
    };
    wrapped("", &of_another, output)?;
    Ok(exit)
}

/// What a text reveals about the machine that wrote it.
#[derive(Default)]
struct Names {
    hosts: BTreeSet<String>,
    addresses: BTreeSet<Bdf>,
}

/// Which machine wrote a text.
enum TextIsOf {
    /// The node that was checked.
    ThisNode,
    /// The text does not say.
    Unknown,
    /// Another machine, of this name.
    Another(String),
    /// Another machine: the node has no function at any address in the text. This is one of them.
    Elsewhere(Bdf),
}

impl TextIsOf {
    /// Decides by the host names in the text, otherwise by its PCI addresses.
    fn names(names: Names, node: &Node) -> Self {
        let inventory = &node.inventory;
        let foreign = (names.addresses.first())
            .filter(|_| inventory.tree.is_ok())
            .filter(|_| (names.addresses.iter()).all(|bdf| inventory.function(*bdf).is_none()));
        match (Self::hosts(names.hosts, node), foreign) {
            (Self::Unknown, Some(address)) => Self::Elsewhere(*address),
            (by_hosts, _) => by_hosts,
        }
    }

    fn hosts(hosts: BTreeSet<String>, node: &Node) -> Self {
        let short = |name: &str| name.split('.').next().unwrap_or(name).to_ascii_lowercase();
        let own = node.source.text("/proc/sys/kernel/hostname").ok();
        let Some(own) = own.map(|name| short(&name)) else {
            return Self::Unknown;
        };
        match hosts
            .into_iter()
            .map(|host| (short(&host) == own, host))
            .max()
        {
            None => Self::Unknown,
            Some((true, _)) => Self::ThisNode,
            Some((false, host)) => Self::Another(host),
        }
    }
}

/// A reader that keeps the beginning of what it has read.
struct Beginning<R> {
    inner: R,
    kept: Vec<u8>,
}

impl<R: Read> Read for Beginning<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        /// Enough for lines of every host of a job.
        const MOST: usize = 1 << 18;
        let length = self.inner.read(buffer)?;
        let room = MOST.saturating_sub(self.kept.len()).min(length);
        self.kept.extend_from_slice(&buffer[..room]);
        Ok(length)
    }
}

/// Explains a text, and notes what it reveals about its machine.
fn answer(options: &Options, names: &mut Names) -> Result<Answer> {
    let mut read = |input: &mut dyn Read| {
        let mut input = Beginning {
            inner: input,
            kept: Vec::new(),
        };
        let answer = gdr_explain::read(&mut input)?;
        let beginning = String::from_utf8_lossy(&input.kept);
        names.hosts.extend(gdr_explain::hosts(&beginning));
        names.addresses.extend(gdr_explain::addresses(&beginning));
        io::Result::Ok(answer)
    };
    if let [name] = options.text.as_slice() {
        if name == "-" {
            return read(&mut io::stdin().lock()).context("standard input cannot be read");
        }
        if Path::new(name).is_file() || is_file_name(name) {
            let mut file = File::open(name).with_context(|| format!("{name} cannot be read"))?;
            return read(&mut file).with_context(|| format!("{name} cannot be read"));
        }
    }
    if !options.text.is_empty() {
        let text = options.text.join(" ");
        return Ok(read(&mut text.as_bytes())?);
    }
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(UsageError(
            "no text: pass it as an argument, or pipe a log to standard input".to_owned(),
        )
        .into());
    }
    read(&mut stdin.lock()).context("standard input cannot be read")
}

/// Returns whether an argument can only be a file name: one word with a directory or the extension of
/// a log.
fn is_file_name(text: &str) -> bool {
    const EXTENSIONS: [&str; 7] = [".log", ".txt", ".out", ".err", ".json", ".gz", ".xml"];
    let is_word = !text.contains(char::is_whitespace);
    let is_path = ["/", "./", "../", "~/"]
        .iter()
        .any(|start| text.starts_with(start));
    is_word && (is_path || EXTENSIONS.iter().any(|end| text.ends_with(end)))
}

/// Shows whether GPUDirect RDMA is in use, and which connections do not use it.
fn show_use(gpudirect: &GpuDirect, output: &mut Output) -> Result<()> {
    let connections = &gpudirect.connections;
    let headline = match gpudirect.in_use {
        InUse::Unknown => return Ok(()),
        InUse::Yes => "GPUDirect RDMA is in use".green().bold().to_string(),
        InUse::Partly => "GPUDirect RDMA is in use in part"
            .yellow()
            .bold()
            .to_string(),
        InUse::No => "GPUDirect RDMA is not in use".red().bold().to_string(),
        InUse::Usable => "GPUDirect RDMA is usable".green().bold().to_string(),
        InUse::SameNode => "No data leaves the node".bold().to_string(),
    };
    let staged = connections.host_memory + connections.socket;
    let meaning = match gpudirect.in_use {
        InUse::Yes if connections.gpudirect == 1 => {
            "the one connection between nodes that the log shows uses it".to_owned()
        }
        InUse::Yes if connections.gpudirect > 0 => format!(
            "all {} connections between nodes that the log shows use it",
            connections.gpudirect
        ),
        InUse::Yes => "data went between NIC and GPU memory".to_owned(),
        InUse::Partly | InUse::No if connections.gpudirect + staged == 1 => {
            let way = match connections.socket {
                0 => "goes through host memory (NET without /GDRDMA)",
                _ => "is over TCP sockets",
            };
            format!("the one connection between nodes {way}")
        }
        InUse::Partly | InUse::No => format!(
            "of {} connections between nodes {} use it, {} go through host memory (NET without \
             /GDRDMA), {} over TCP sockets",
            connections.gpudirect + staged,
            connections.gpudirect,
            connections.host_memory,
            connections.socket
        ),
        InUse::Usable => {
            "the library found that the NIC and the GPU support it, but this log does not show \
                          which path the data takes"
                .to_owned()
        }
        InUse::SameNode | InUse::Unknown => format!(
            "{} by NVLink, PCIe or shared memory within one node (P2P, SHM); only a job across \
             several nodes shows whether GPUDirect RDMA works",
            Counted(connections.same_node, "connection")
        ),
    };
    wrapped("", &format!("{headline}: {meaning}."), output)?;
    if !gpudirect.ranks_without.is_empty() {
        wrapped(
            "   ",
            &format!("Ranks without it: {}", short(&gpudirect.ranks_without)),
            output,
        )?;
    }
    for connection in gpudirect.without.iter().take(CONNECTIONS) {
        output.line(format_args!("   {}", connection_text(connection)))?;
    }
    if gpudirect.without.len() > CONNECTIONS || gpudirect.more_without {
        let more = gpudirect.without.len().saturating_sub(CONNECTIONS);
        let least = if gpudirect.more_without {
            "at least "
        } else {
            ""
        };
        let more = Counted(more, "connection");
        output.line(format_args!("   and {least}{more} more"))?;
    }
    if gpudirect.receives_only {
        wrapped(
            "   ",
            "Receives use it and sends do not: NCCL does not read from GPU memory here (GPUs before \
             Ampere without NVLink, or NCCL_NET_GDR_READ=0).",
            output,
        )?;
    }
    for evidence in &gpudirect.evidence {
        quoted(evidence.line, &evidence.text, output)?;
    }
    output.line("")?;
    Ok(())
}

fn connection_text(connection: &Connection) -> String {
    let Connection { from, to, .. } = connection;
    let end = match connection.direction {
        Some(Direction::Send) => "sends",
        Some(Direction::Receive) => "receives",
        None => "transfers",
    };
    let path = match connection.transport {
        Transport::Socket => "over TCP sockets",
        Transport::HostMemory => "through host memory",
        Transport::GpuDirect => "by GPUDirect RDMA",
        Transport::SameNode => "within the node",
    };
    format!("rank {from} to rank {to}: {end} {path}")
}

/// Returns the beginning of a list.
fn short(list: &str) -> String {
    let mut shown: String = list.chars().take(3 * WIDTH).collect();
    if shown.len() < list.len() {
        shown.truncate(shown.rfind(',').unwrap_or(shown.len()));
        shown.push_str(", ... (all of them in --json)");
    }
    shown.replace(',', ", ").replace(",  ", ", ")
}

/// Writes a line of the text.
fn quoted(number: usize, text: &str, output: &mut Output) -> Result<()> {
    wrapped("   ", &format!("line {number}: {}", text.dimmed()), output)
}

/// Writes text in lines of at most [`WIDTH`] characters, each after `indent`.
fn wrapped(indent: &str, text: &str, output: &mut Output) -> Result<()> {
    Ok(output.paragraph(indent, indent, text)?)
}

fn show(place: usize, item: &Item<'_>, text_is_of: &TextIsOf, output: &mut Output) -> Result<()> {
    let explanation = item.explanation;
    let cause = explanation.cause;
    let sure = match (explanation.kind, item.strength) {
        (Kind::Harmless, _) => "harmless",
        (Kind::Consequence, _) => "follows from another error",
        (Kind::Fault, Strength::Sure) => "certain",
        (Kind::Fault, Strength::Likely) => "likely",
        (Kind::Fault, Strength::Weak) => "possible",
    };
    let title = cause.title.bold();
    wrapped(
        "",
        &format!("{place}. {title}  ({}, {sure})", cause.id),
        output,
    )?;
    for it in &explanation.matches {
        quoted(it.line, &it.text, output)?;
    }
    if explanation.lines > explanation.matches.len() {
        output.line(format_args!(
            "   and {} more",
            Counted(explanation.lines - explanation.matches.len(), "line")
        ))?;
    }
    if let Some(parts) = explanation.inferred() {
        let inferred = format!(
            "This exact message is not known; the cause is inferred from its parts ({parts})."
        );
        wrapped("   ", &inferred, output)?;
    }
    for detail in &explanation.details {
        wrapped("   ", detail, output)?;
    }
    for reason in &explanation.because {
        wrapped("   ", reason, output)?;
    }
    wrapped("   ", cause.why, output)?;
    match &item.confirmation {
        Some(Confirmation::Confirmed { check, summary }) => {
            let confirmed = match text_is_of {
                TextIsOf::ThisNode => "this node confirms it:",
                _ => "if the text comes from this node, it confirms it:",
            };
            let confirmed = confirmed.red().bold().to_string();
            wrapped("   ", &format!("{confirmed} {check}: {summary}"), output)?;
        }
        Some(Confirmation::Refuted) => {
            let refuted = "this node does not confirm it:".green().to_string();
            let text = format!(
                "{refuted} {} found nothing wrong here; check the other end, or consider another cause",
                cause.checks.join(",")
            );
            wrapped("   ", &text, output)?;
        }
        Some(Confirmation::Open) if !cause.checks.is_empty() => {
            let text = format!(
                "this node cannot tell; run gdr doctor --only {} on the node where the error occurred",
                cause.checks.join(",")
            );
            wrapped("   ", &text, output)?;
        }
        _ => {}
    }
    for remedy in &explanation.remedies {
        wrapped("   ", &format!("- {}", remedy.what), output)?;
        if let Some(command) = remedy.command {
            output.line(format_args!("       {command}"))?;
        }
    }
    output.line("")?;
    Ok(())
}

fn list(global: &Global, output: &mut Output) -> Result<Exit> {
    if global.json {
        output.json(&Known {
            schema: Schema::first("gdr.explain.causes"),
            causes: causes().collect(),
        })?;
        return Ok(Exit::Fine);
    }
    for cause in causes() {
        // One line per cause, so that the list can be searched.
        output.line(format_args!("{:<26} {}", cause.id, cause.title))?;
    }
    Ok(Exit::Fine)
}
