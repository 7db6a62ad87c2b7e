//! `gdr fix`: repairs what `gdr doctor` found.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Result, bail};
use gdr_doctor::fix::{Done, Journal, LiveSystem, Plan, Step, Undone, apply, script, undo};
use gdr_doctor::{CheckId, Context, Selection, Verdict, diagnose};
use gdr_perf::report::Schema;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::doctor::checks;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{CLOSED, Exit, INPUT, Statuses, UsageError};
use crate::global::Global;
use crate::node_args::Which;
use crate::output::Output;

/// The default of `--journal`.
pub(super) const JOURNAL: &str = "/var/lib/gdr/fix.journal";

/// Repair what the doctor found, either with a script to review or directly, with a journal
///
/// Without `--apply`, changes nothing and prints a commented shell script that includes the commands to
/// undo each step. The possible repairs are: clear ACS redirect bits on the path, set the Maximum Read
/// Request Size, load modules now and at boot, install drop-ins for limits, rescan a NIC without a
/// driver, and set MTUs. Firmware is never changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Repair only what these checks found
    #[arg(value_name = "ID", conflicts_with = "undo")]
    ids: Vec<String>,

    #[command(flatten)]
    which: Which,

    /// Apply the repairs, after asking for confirmation
    #[arg(long, conflicts_with = "undo")]
    apply: bool,

    /// Undo everything in the journal
    #[arg(long)]
    undo: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    /// Journal file; only root may have write access to it and its directory
    #[arg(long, value_name = "FILE", default_value = JOURNAL)]
    journal: PathBuf,
}

/// Result of one step: one of the two texts is set.
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
    /// Script of a dry run.
    script: Option<String>,
    /// Changes that were made or undone.
    outcomes: Vec<Outcome>,
    /// Findings that need manual action.
    left: Vec<Left>,
}

/// A finding that gdr cannot repair.
#[derive(Serialize)]
struct Left {
    check: CheckId,
    verdict: Verdict,
    subject: String,
    summary: String,
    /// What the user can do, best advice first.
    advice: Vec<String>,
}

impl Left {
    fn new(step: &Step) -> Self {
        let advice = step.others.iter().map(|fix| {
            let actions: Vec<String> = fix.actions.iter().map(ToString::to_string).collect();
            format!("{}: {}", fix.title, actions.join("; "))
        });
        Self {
            check: step.check,
            verdict: step.verdict,
            subject: step.subject.to_string(),
            summary: step.summary.clone(),
            advice: advice.collect(),
        }
    }
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Manage;
    const STATUSES: Statuses = &[
        (Exit::Fine, "the script was printed, or every step was done"),
        (Exit::Failure, "a step failed or was not done"),
        (Exit::Undecided, CLOSED),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr fix                   print a script with the repairs, and change nothing
  gdr fix acs.path          repair only what this check found
  gdr fix --example         see what such a script looks like
  sudo gdr fix --apply      apply the repairs, after confirmation
  sudo gdr fix --undo       undo everything that was applied";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.undo {
        return take_back(global, options, output);
    }
    if options.ids.iter().any(|id| id == "undo" || id == "apply") {
        let what = "use `gdr fix --apply` to apply the repairs, and `gdr fix --undo` to undo them";
        return Err(UsageError(what.to_owned()).into());
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
                left: plan.left().map(Left::new).collect(),
            })?;
        } else {
            for line in script.lines() {
                // A comment may be wrapped on a terminal, but a command may not.
                match line.starts_with('#') {
                    true => output.line(line)?,
                    false => output.bytes(format!("{line}\n").as_bytes())?,
                }
            }
        }
        return Ok(Exit::Fine);
    }
    if options.which.is_elsewhere() {
        return Err(UsageError(
            "--apply repairs this node: leave out the options that select another node".to_owned(),
        )
        .into());
    }
    let actions: Vec<_> = plan.actions().collect();
    let left: Vec<Left> = plan.left().map(Left::new).collect();
    if actions.is_empty() {
        let last = if left.is_empty() {
            "There is nothing to do."
        } else {
            "There is nothing that gdr can repair."
        };
        return finish(global, Vec::new(), left, last, output);
    }
    root()?;
    let shown: Vec<String> = actions.iter().map(|action| action.to_string()).collect();
    consent(options, "This will be done:", &shown)?;
    let mut journal = Journal::open(&options.journal)?;
    let mut system = LiveSystem::new();
    let outcomes = actions
        .into_iter()
        .map(|action| match apply(action, &mut system, &mut journal) {
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
    let last = "`gdr fix --undo` reverts it; run `gdr doctor` to check the node again.";
    finish(global, outcomes, left, last, output)
}

fn plan(options: &Options, ids: &[CheckId]) -> Result<Plan> {
    let node = options.which.open()?;
    let context = Context::new(node.source.as_ref(), &node.inventory);
    // Run all checks, so that the cause is repaired and not just a symptom.
    Ok(Plan::new(&diagnose(&context, &Selection::all()), ids))
}

fn take_back(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if !options.journal.exists() {
        return finish(
            global,
            Vec::new(),
            Vec::new(),
            "There is nothing to undo.",
            output,
        );
    }
    root()?;
    let mut journal = Journal::open(&options.journal)?;
    let standing = journal.standing();
    if standing.is_empty() {
        return finish(
            global,
            Vec::new(),
            Vec::new(),
            "There is nothing to undo.",
            output,
        );
    }
    let shown: Vec<String> = standing
        .iter()
        .map(|(_, change)| change.to_string())
        .collect();
    consent(options, "This will be undone:", &shown)?;
    let outcomes = undo(&mut LiveSystem::new(), &mut journal)
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
    finish(global, outcomes, Vec::new(), "", output)
}

fn finish(
    global: &Global,
    outcomes: Vec<Outcome>,
    left: Vec<Left>,
    last: &str,
    output: &mut Output,
) -> Result<Exit> {
    let failed = outcomes.iter().any(|outcome| outcome.error.is_some());
    let exit = match left.iter().map(|left| left.verdict).max() {
        _ if failed => Exit::Failure,
        Some(Verdict::Fail) => Exit::Failure,
        Some(_) => Exit::Warning,
        None => Exit::Fine,
    };
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.fix"),
            script: None,
            outcomes,
            left,
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
        if !left.is_empty() {
            output.line(
                "\nTo be done by hand, because gdr fix does not change firmware, hardware or boot settings:",
            )?;
        }
        for left in &left {
            output.line(format_args!(
                "{} {}: {} ({})",
                left.verdict, left.subject, left.summary, left.check
            ))?;
            for advice in &left.advice {
                output.line(format_args!("  {advice}"))?;
            }
        }
    }
    Ok(exit)
}

/// Fails unless the user is root.
pub(super) fn root() -> Result<()> {
    // The second number of the line is the effective user ID.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .and_then(|ids| ids.split_whitespace().nth(1));
    if effective == Some("0") {
        return Ok(());
    }
    bail!("only root can change the node: use sudo, or leave out --apply to get a script")
}

fn consent(options: &Options, title: &str, what: &[String]) -> Result<()> {
    if options.yes {
        return Ok(());
    }
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(UsageError(
            "standard input is not a terminal, so confirmation is not possible: use --yes"
                .to_owned(),
        )
        .into());
    }
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "{title}")?;
    for line in what {
        writeln!(stderr, "  {line}")?;
    }
    write!(stderr, "Continue? Type yes: ")?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.read_line(&mut answer)?;
    if answer.trim() == "yes" {
        Ok(())
    } else {
        bail!("nothing was changed: the answer was not yes")
    }
}
