//! `gdr fix`: mends what `gdr doctor` found.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Result, bail};
use gdr_doctor::remedy::{Done, Journal, LiveHands, Plan, Undone, apply, script, undo};
use gdr_doctor::{CheckId, Context, Selection, diagnose};
use gdr_perf::report::Schema;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::doctor::checks;
use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit, UsageError};
use crate::node::Which;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr fix                   print a script of what would be done; change nothing
  gdr fix acs.path          only what this check found
  gdr fix --example         what such a script looks like
  sudo gdr fix --apply      do it, after a yes
  sudo gdr fix --undo       take back what was done";

/// Where the journal is, unless `--journal` says otherwise.
pub(super) const JOURNAL: &str = "/var/lib/gdr/fix.journal";

/// Mend what the doctor found: as a script to read, or at once with a journal
///
/// Without `--apply` nothing is changed: the output is a commented shell script with its undo
/// lines. What may be done is little: ACS redirect bits on the path, the Maximum Read Request
/// Size, loading modules now and at boot, drop-ins for limits, the rescan of a NIC that no driver
/// holds, MTUs. Never firmware.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// Mend only what these checks found
    #[arg(value_name = "ID", conflicts_with = "undo")]
    ids: Vec<String>,

    #[command(flatten)]
    which: Which,

    /// Do it; asks first
    #[arg(long, conflicts_with = "undo")]
    apply: bool,

    /// Take back everything that the journal says was done
    #[arg(long)]
    undo: bool,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    /// Where the journal is
    #[arg(long, value_name = "FILE", default_value = JOURNAL)]
    journal: PathBuf,
}

/// What came of one step: of the two texts one is absent.
#[derive(Serialize)]
struct Outcome {
    action: String,
    done: Option<String>,
    error: Option<String>,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    /// The script of a dry run.
    script: Option<String>,
    /// What was done or undone.
    outcomes: Vec<Outcome>,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.undo {
        return take_back(global, options, output);
    }
    let ids = checks(&options.ids)?;
    let plan = plan(options, &ids)?;
    if !options.apply {
        let script = script(&plan);
        if global.json {
            output.json(&Report {
                schema: Schema::first("gdr.fix"),
                script: Some(script),
                outcomes: Vec::new(),
            })?;
        } else {
            output.bytes(script.as_bytes())?;
        }
        return Ok(Exit::Fine);
    }
    if options.which.is_elsewhere() {
        return Err(UsageError(
            "--apply mends the node it runs on: leave out what names another".to_owned(),
        )
        .into());
    }
    let actions: Vec<_> = plan.actions().collect();
    if actions.is_empty() {
        return finish(global, Vec::new(), "There is nothing to do.", output);
    }
    root()?;
    let shown: Vec<String> = actions.iter().map(|action| action.to_string()).collect();
    consent(options, "This will be done:", &shown)?;
    let mut journal = Journal::open(&options.journal)?;
    let mut hands = LiveHands::new();
    let outcomes = actions
        .into_iter()
        .map(|action| match apply(action, &mut hands, &mut journal) {
            Ok(Done::Changed(what) | Done::Already(what)) => Outcome {
                action: action.to_string(),
                done: Some(what),
                error: None,
            },
            Err(error) => Outcome {
                action: action.to_string(),
                done: None,
                error: Some(error.to_string()),
            },
        })
        .collect();
    finish(
        global,
        outcomes,
        "`gdr fix --undo` takes it back; `gdr doctor` judges anew.",
        output,
    )
}

fn plan(options: &Options, ids: &[CheckId]) -> Result<Plan> {
    let node = options.which.open()?;
    let context = Context::new(node.source.as_ref(), &node.inventory);
    // All checks run, so that a symptom is not mended in place of its cause.
    Ok(Plan::new(&diagnose(&context, &Selection::all()), ids))
}

fn take_back(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if !options.journal.exists() {
        return finish(global, Vec::new(), "There is nothing to take back.", output);
    }
    root()?;
    let mut journal = Journal::open(&options.journal)?;
    let standing = journal.standing();
    if standing.is_empty() {
        return finish(global, Vec::new(), "There is nothing to take back.", output);
    }
    let shown: Vec<String> = standing
        .iter()
        .map(|(_, change)| change.to_string())
        .collect();
    consent(options, "This will be taken back:", &shown)?;
    let outcomes = undo(&mut LiveHands::new(), &mut journal)
        .into_iter()
        .zip(shown)
        .map(|(outcome, action)| match outcome {
            Ok(Undone::Restored(what) | Undone::Nothing(what) | Undone::Changed(what)) => Outcome {
                action,
                done: Some(what),
                error: None,
            },
            Err(error) => Outcome {
                action,
                done: None,
                error: Some(error.to_string()),
            },
        })
        .collect();
    finish(global, outcomes, "", output)
}

fn finish(
    global: &Global,
    outcomes: Vec<Outcome>,
    last: &str,
    output: &mut Output,
) -> Result<Exit> {
    let failed = outcomes.iter().any(|outcome| outcome.error.is_some());
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.fix"),
            script: None,
            outcomes,
        })?;
    } else {
        for outcome in &outcomes {
            output.line(outcome.action.bold())?;
            if let Some(done) = &outcome.done {
                output.line(format_args!("  {} {done}", "ok".green()))?;
            }
            if let Some(error) = &outcome.error {
                output.line(format_args!("  {} {error}", "failed:".red().bold()))?;
            }
        }
        if !last.is_empty() {
            output.line(last)?;
        }
    }
    Ok(if failed { Exit::Failure } else { Exit::Fine })
}

/// Refuses all but root.
pub(super) fn root() -> Result<()> {
    // The effective user's number is the second word of the line.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .and_then(|ids| ids.split_whitespace().nth(1));
    if effective == Some("0") {
        return Ok(());
    }
    bail!("only root may change the node: run it with sudo, or run the script without --apply")
}

fn consent(options: &Options, title: &str, what: &[String]) -> Result<()> {
    if options.yes {
        return Ok(());
    }
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(UsageError("nobody is there to say yes: say it with --yes".to_owned()).into());
    }
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "{title}")?;
    for line in what {
        writeln!(stderr, "  {line}")?;
    }
    write!(stderr, "Go on? Type yes: ")?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.read_line(&mut answer)?;
    if answer.trim() == "yes" {
        Ok(())
    } else {
        bail!("nothing was changed: the answer was not yes")
    }
}
