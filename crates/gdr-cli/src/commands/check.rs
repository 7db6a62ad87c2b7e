//! `gdr check`: runs a verbs program, and reports which rules of verbs it did not keep.

mod sarif;
mod source_lines;
mod suppressions;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use gdr_check::{Found, FoundFrame, Rule, Severity};
use gdr_perf::report::Schema;
use gdr_trace::Ended;
use serde::Serialize;

use self::source_lines::SourceLines;
use self::suppressions::Suppressions;
use super::run::{DeviceOptions, environment};
use super::trace::{TraceError, with_pid, write_file};
use crate::child_program;
use crate::command::{CommandSpec, Group, Run};
use crate::document;
use crate::exit::{CANNOT_RUN, Exit, NO_LIBRARY_OR_REPORT, NO_PROGRAM, Statuses};
use crate::global::Global;
use crate::launch::{PreloadLibrary, examine, found, in_front};
use crate::output::Output;

/// Run a verbs program, and report where it breaks the rules of RDMA
///
/// A library in front of gdr's devices shadows the program's memory regions, queues and requests, and
/// examines each post and completion. It finds send buffers that change before their completion, memory
/// that is unmapped or deregistered while a request uses it, queues that are bound to overflow, and more.
/// Each finding names the rule, its source, the remedy and the place of the post. docs/check.md lists the
/// rules.
///
/// A rule fires on what the program did, even if nothing went wrong this time; a correct program has no
/// findings. Requests that a program posts directly to hardware (mlx5dv, DEVX) are not seen.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: DeviceOptions,

    /// Also report notes: things worth a look that correct programs may also do
    #[arg(long)]
    notes: bool,

    /// Suppress the findings listed in this file: each line has a rule, or *, and part of the name of a
    /// function, source file or program file in the stack
    #[arg(long, value_name = "FILE")]
    suppress: Vec<PathBuf>,

    /// Also write the findings to this file as SARIF 2.1.0; %p stands for gdr's process, as
    /// PID-NAMESPACE-HOST
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,

    /// Write the report to this file instead of standard output; %p as in --sarif
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true
    )]
    program: Vec<OsString>,
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    schema: Schema,
    findings: Vec<Entry<'a>>,
    suppressed: usize,
    program: Vec<String>,
    ended: Ended,
}

/// A finding with its rule.
#[derive(Serialize)]
struct Entry<'a> {
    severity: Severity,
    title: &'static str,
    why: &'static str,
    source: &'static str,
    remedy: &'static str,
    #[serde(flatten)]
    found: &'a Found,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::RunPrograms;
    const STATUSES: Statuses = &[
        (
            Exit::Fine,
            "no errors found; otherwise the program's own status (128 + N for a signal N)",
        ),
        (
            Exit::NotMet,
            "a rule was broken, whatever the program's status",
        ),
        (Exit::Launcher, NO_LIBRARY_OR_REPORT),
        (Exit::NotStarted, CANNOT_RUN),
        (Exit::NotFound, NO_PROGRAM),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr check -- ./app                              use gdr's devices at all addresses of this host
  gdr check --nic 127.0.0.1 -- ib_write_bw        check a server (and likewise its client)
  gdr check --notes -- ./app                      include notes
  gdr check --suppress known.txt --sarif out.sarif -- ./app
  gdr check --json -o 'check.%p' -- ./app         write a JSON report for each run";
    const STATUS_OF: fn(&anyhow::Error) -> Option<Exit> =
        |error| error.is::<TraceError>().then_some(Exit::Launcher);
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let suppressions = Suppressions::read(&options.suppress)?;
    let library = PreloadLibrary::Trace.find()?;
    let mut environment = environment(&options.devices)?;
    for (name, value) in &mut environment {
        if *name == "LD_PRELOAD" {
            *value = in_front(name, &library, value)?;
        }
    }
    let Some((program, arguments)) = options.program.split_first() else {
        return Ok(Exit::Usage);
    };
    let path = found(program)?;
    examine(&path)?;
    let folder = folder("gdr-check-")?;
    let counts = self::folder("gdr-trace-")?;
    environment.push(("GDR_CHECK_FOLDER", folder.path().into()));
    environment.push(("GDR_TRACE_FOLDER", counts.path().into()));
    let ended = child_program::run(&path, program, arguments, environment)?;

    let mut findings = read(folder.path())?;
    if !options.notes {
        findings.retain(|it| it.rule.severity() > Severity::Note);
    }
    let before = findings.len();
    findings.retain(|it| !suppressions.cover(it));
    let suppressed = before - findings.len();
    findings.sort_by_key(|it| (it.rule, it.pid));
    if let Some(path) = &options.sarif {
        write_file(&with_pid(path), &sarif::document(&findings)?)?;
    }
    let is_broken = findings
        .iter()
        .any(|it| it.rule.severity() > Severity::Note);
    let text = if global.json {
        let document = Document {
            schema: Schema::first("gdr.check"),
            findings: findings.iter().map(Entry::of).collect(),
            suppressed,
            program: options
                .program
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            ended,
        };
        document::complete(&serde_json::to_string_pretty(&document)?)? + "\n"
    } else {
        text(&findings, suppressed, output.width())
    };
    match &options.output {
        Some(path) => write_file(&with_pid(path), &text)?,
        None => output.bytes(text.as_bytes())?,
    }
    Ok(match is_broken {
        true => Exit::NotMet,
        false => Exit::of_program(ended),
    })
}

fn folder(prefix: &str) -> Result<tempfile::TempDir, TraceError> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir();
    made.map_err(|source| TraceError::Folder {
        folder: std::env::temp_dir(),
        source,
    })
}

/// Returns what the processes have found, with the lines of their sources.
fn read(folder: &Path) -> Result<Vec<Found>, TraceError> {
    let unreadable = |source| TraceError::Counts {
        folder: folder.to_owned(),
        source,
    };
    let mut lines = SourceLines::default();
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let text = fs::read_to_string(entry.map_err(unreadable)?.path()).map_err(unreadable)?;
        // The last line of a killed process may be incomplete.
        for line in text.lines() {
            if let Ok(mut found) = serde_json::from_str::<Found>(line) {
                for place in &mut found.places {
                    place.frames.iter_mut().for_each(|it| lines.find(it));
                    place.frames.retain(|it| !is_of_header(it));
                }
                all.push(found);
            }
        }
    }
    Ok(all)
}

/// Returns whether a frame is in an inline function of libibverbs, which every program calls.
fn is_of_header(frame: &FoundFrame) -> bool {
    let file = frame.source.as_deref().and_then(|it| it.rsplit_once(':'));
    file.is_some_and(|(file, _)| file.ends_with("infiniband/verbs.h"))
}

impl<'a> Entry<'a> {
    fn of(found: &'a Found) -> Self {
        Self {
            severity: found.rule.severity(),
            title: found.rule.title(),
            why: found.rule.why(),
            source: found.rule.source(),
            remedy: found.rule.remedy(),
            found,
        }
    }
}

/// Returns how a frame is shown.
fn shown(frame: &FoundFrame) -> String {
    let symbol = frame.symbol.as_deref().unwrap_or("?");
    match &frame.source {
        Some(source) => format!("{symbol} at {source}"),
        None => format!("{symbol} in {}+{:#x}", frame.object, frame.offset),
    }
}

/// Returns the findings for people.
fn text(findings: &[Found], suppressed: usize, width: usize) -> String {
    let count = |severity| {
        let all = findings.iter().filter(|it| it.rule.severity() == severity);
        all.count()
    };
    let processes: BTreeSet<u32> = findings.iter().map(|it| it.pid).collect();
    let mut lines = Vec::new();
    let mut head = match findings.is_empty() {
        true => "gdr check: nothing found".to_owned(),
        false => format!(
            "gdr check: {} and {} in {}",
            plural(count(Severity::Error), "error"),
            plural(count(Severity::Note), "note"),
            plural_of(processes.len(), "process", "processes"),
        ),
    };
    if suppressed != 0 {
        head.push_str(&format!(", {suppressed} suppressed"));
    }
    lines.push(head);
    let mut explained = BTreeSet::new();
    let paragraph = |lines: &mut Vec<String>, first: &str, text: &str| {
        let rest = " ".repeat(first.len());
        let filled = gdr_render::wrap::filled(text, width.saturating_sub(first.len()).max(20));
        for (number, line) in filled.iter().enumerate() {
            let before = if number == 0 { first } else { &rest };
            lines.push(format!("{before}{line}"));
        }
    };
    for found in findings {
        let rule: Rule = found.rule;
        lines.push(String::new());
        paragraph(
            &mut lines,
            &format!("{} {}: ", rule.severity(), rule.id()),
            rule.title(),
        );
        let detail = format!("process {}, {}: {}", found.pid, found.object, found.detail);
        paragraph(&mut lines, "  ", &detail);
        for place in &found.places {
            lines.push(format!("  {}", place.what));
            for frame in &place.frames {
                lines.push(format!("    {}", shown(frame)));
            }
        }
        // Once for each rule.
        if explained.insert(rule) {
            paragraph(&mut lines, "  why     ", rule.why());
            paragraph(&mut lines, "  source  ", rule.source());
            paragraph(&mut lines, "  remedy  ", rule.remedy());
        }
    }
    lines.join("\n") + "\n"
}

fn plural(count: usize, what: &str) -> String {
    plural_of(count, what, &format!("{what}s"))
}

fn plural_of(count: usize, one: &str, more: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {more}"),
    }
}

#[cfg(test)]
mod tests {
    use gdr_check::FoundPlace;

    use super::*;

    fn found(rule: Rule) -> Found {
        Found {
            rule,
            pid: 7,
            object: "queue pair 3".to_owned(),
            detail: "4 bytes".to_owned(),
            places: vec![FoundPlace {
                what: "posted".to_owned(),
                frames: vec![FoundFrame {
                    object: "/bin/app".to_owned(),
                    offset: 16,
                    symbol: Some("send_all".to_owned()),
                    source: Some("app.c:9".to_owned()),
                }],
            }],
        }
    }

    #[test]
    fn a_rule_is_explained_once_and_lines_keep_the_width() {
        let all = [
            found(Rule::SendBufferChanged),
            found(Rule::SendBufferChanged),
        ];
        let text = text(&all, 1, 60);
        assert!(text.starts_with("gdr check: 2 errors and 0 notes in 1 process, 1 suppressed\n"));
        assert_eq!(text.matches("remedy").count(), 1);
        assert_eq!(text.matches("    send_all at app.c:9\n").count(), 2);
        assert!(text.lines().all(|line| line.len() <= 62), "{text}");
    }
}
