//! `gdr explain`: what an error text most likely means.

use std::io::{self, IsTerminal, Read};

use anyhow::{Context as _, Result};
use gdr_doctor::explain::{Confirmation, Explanation, Strength, causes, explain};
use gdr_doctor::{Context, Selection, diagnose};
use gdr_perf::report::Schema;
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit, UsageError};
use crate::node::Which;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr explain \"could not insert 'nvidia_peermem': Invalid argument\"
  gdr explain < nccl.log           a whole log
  dmesg | gdr explain
  gdr explain --list               every cause that is known";

/// The longest text that is read, in bytes.
const MAX_TEXT: u64 = 256 << 20;

/// Causes shown of a log that speaks of many.
const SHOWN: usize = 5;

/// Say what an error text, or a whole log, most likely means for GPUDirect RDMA
///
/// Ranks the root causes that the text speaks of, with what to do about each, and says of each
/// whether this node confirms it. Ends with 3 where it knows none.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// The text; without one, standard input
    #[arg(value_name = "TEXT")]
    text: Vec<String>,

    /// Do not look at this node
    #[arg(long)]
    offline: bool,

    /// List every cause that is known
    #[arg(long, conflicts_with_all = ["text", "offline"])]
    list: bool,

    #[command(flatten)]
    which: Which,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    schema: Schema,
    causes: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Item<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    strength: Strength,
    /// Absent where the node was not looked at.
    confirmation: Option<Confirmation>,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.list {
        return list(output);
    }
    let text = text(options)?;
    let found = explain(&text);
    let node = if options.offline || found.is_empty() {
        None
    } else {
        Some(options.which.open()?)
    };
    let diagnosis = node.as_ref().map(|node| {
        let context = Context::new(node.source.as_ref(), &node.inventory);
        let checks = found.iter().flat_map(|it| it.cause.checks).copied();
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
    let exit = if items.is_empty() {
        Exit::Undecided
    } else {
        Exit::Fine
    };
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.explain"),
            causes: items,
        })?;
        return Ok(exit);
    }
    if items.is_empty() {
        output.line(
            "Nothing here is known to stand for a fault of GPUDirect RDMA.\n\
             `gdr doctor` judges the node itself; `gdr explain --list` names what is known.",
        )?;
    }
    for (place, item) in items.iter().take(SHOWN).enumerate() {
        show(place + 1, item, output)?;
    }
    if items.len() > SHOWN {
        output.line(format_args!(
            "{} more: {}",
            items.len() - SHOWN,
            items[SHOWN..]
                .iter()
                .map(|item| item.explanation.cause.id)
                .collect::<Vec<_>>()
                .join(", ")
        ))?;
    }
    Ok(exit)
}

fn text(options: &Options) -> Result<String> {
    if !options.text.is_empty() {
        return Ok(options.text.join(" "));
    }
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(UsageError(
            "no text: give it as an argument, or a log on standard input".to_owned(),
        )
        .into());
    }
    let mut bytes = Vec::new();
    stdin
        .lock()
        .take(MAX_TEXT)
        .read_to_end(&mut bytes)
        .context("standard input cannot be read")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn show(place: usize, item: &Item<'_>, output: &mut Output) -> Result<()> {
    let explanation = item.explanation;
    let cause = explanation.cause;
    let sure = match item.strength {
        Strength::Sure => "fits nothing else",
        Strength::Likely => "likely",
        Strength::Weak => "possible",
    };
    output.line(format_args!(
        "{place}. {}  ({}, {sure})",
        cause.title.bold(),
        cause.id
    ))?;
    for it in &explanation.matches {
        output.line(format_args!("   line {}: {}", it.line, it.text.dimmed()))?;
    }
    if explanation.lines > explanation.matches.len() {
        output.line(format_args!(
            "   and {} lines more",
            explanation.lines - explanation.matches.len()
        ))?;
    }
    output.line(format_args!("   {}", cause.why))?;
    match &item.confirmation {
        Some(Confirmation::Confirmed { check, summary }) => output.line(format_args!(
            "   {} {check}: {summary}",
            "this node confirms it:".red().bold()
        ))?,
        Some(Confirmation::Refuted) => output.line(format_args!(
            "   {} {} found nothing wrong here; look at the other end, or at another cause",
            "this node does not confirm it:".green(),
            named(cause.checks)
        ))?,
        Some(Confirmation::Open) if !cause.checks.is_empty() => output.line(format_args!(
            "   this node cannot tell; where the error came up, run gdr doctor --only {}",
            named(cause.checks)
        ))?,
        _ => {}
    }
    for remedy in cause.remedies {
        output.line(format_args!("   - {}", remedy.what))?;
        if let Some(command) = remedy.command {
            output.line(format_args!("       {command}"))?;
        }
    }
    output.line("")?;
    Ok(())
}

fn named(checks: &[gdr_doctor::CheckId]) -> String {
    let names: Vec<&str> = checks.iter().map(|check| check.0).collect();
    names.join(",")
}

fn list(output: &mut Output) -> Result<Exit> {
    for cause in causes() {
        output.line(format_args!("{:<26} {}", cause.id, cause.title))?;
    }
    Ok(Exit::Fine)
}
