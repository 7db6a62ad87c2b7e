//! `gdr sanity`: GDRCopy's `gdrcopy_sanity`.

use std::ops::ControlFlow;

use anyhow::Result;
use gdr_perf::sanity::{self, Check, Event, Report, Verdict};
use owo_colors::OwoColorize;
use serde::Serialize;

use super::{describe, say_simulated};
use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit};
use crate::machine::Machine;
use crate::output::Output;
use crate::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  gdr sanity                            check everything
  gdr sanity -v -t data_small_sizes     one check, telling how it goes
  gdr sanity -e --gpu 1                 the long checks too, on the second GPU
  gdr sanity --backend sim --json       without a GPU, for a program";

/// Check that mapped GPU memory is what it claims to be (gdrcopy_sanity)
///
/// Each check passes, fails with what was wrong, or is waived with the reason that it cannot say
/// anything on this machine. A waived check is no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// Print no summary
    #[arg(short = 's', long)]
    no_summary: bool,

    /// List all checks; with -v, what each of them proves
    #[arg(short, long)]
    list: bool,

    /// Run this check only; may be repeated
    #[arg(short, long = "test", value_name = "TEST")]
    tests: Vec<String>,

    /// Run the extended checks too
    #[arg(short, long)]
    extended: bool,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.list {
        list(global, output)?;
        return Ok(Exit::Fine);
    }
    let checks = if options.tests.is_empty() {
        let wanted = |check: &Check| options.extended || !check.is_extended();
        sanity::all().into_iter().filter(wanted).collect()
    } else {
        sanity::named(&options.tests)?
    };
    let machine = Machine::open(global)?;
    if !global.json {
        say_simulated(&machine, output)?;
    }
    let verbose = global.verbose > 0;
    let progress = if verbose {
        Progress::hidden()
    } else {
        Progress::on_stderr()
    };
    let report = sanity::run(&machine.site, &checks, &mut |event| {
        match event {
            Event::Running {
                index,
                total,
                check,
            } => {
                progress.at(index, total, check.name());
                if verbose {
                    anstream::eprintln!("&&&& RUNNING {}", check.name());
                }
            }
            Event::Ended { check, verdict } if verbose => tell(check, verdict),
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    drop(progress);

    if global.json {
        output.json(&report)?;
    } else if !options.no_summary {
        summarize(&report, output)?;
    }
    if report.failed == 0 {
        return Ok(Exit::Fine);
    }
    // Scripts of GDRCopy's users look for this line; the status is our own exit status.
    anstream::eprintln!("Error: Encountered an error or a test failure with status=2");
    Ok(Exit::Failure)
}

/// In the words of NVIDIA's test logs.
fn tell(check: &Check, verdict: &Verdict) {
    let name = check.name();
    match verdict {
        Verdict::Passed => anstream::eprintln!("&&&& {} {name}", "PASSED".green()),
        Verdict::Failed(reason) => {
            anstream::eprintln!("{name}: {reason}\n&&&& {} {name}", "FAILED".red().bold());
        }
        Verdict::Waived(reason) => {
            anstream::eprintln!("{name}: {reason}\n&&&& {} {name}", "WAIVED".yellow());
        }
    }
}

/// What GDRCopy prints, and then the reasons and what was checked.
fn summarize(report: &Report, output: &mut Output) -> gdr_perf::Result<()> {
    let Report {
        total,
        passed,
        failed,
        waived,
        ..
    } = report;
    output.line(format_args!(
        "Total: {total}, Passed: {passed}, Failed: {failed}, Waived: {waived}"
    ))?;
    let of = |wanted: fn(&Verdict) -> bool| {
        report
            .checks
            .iter()
            .filter(move |check| wanted(&check.verdict))
    };
    let failed: Vec<_> = of(|verdict| matches!(verdict, Verdict::Failed(_))).collect();
    let waived: Vec<_> = of(|verdict| matches!(verdict, Verdict::Waived(_))).collect();
    for (title, checks) in [("failed", &failed), ("waived", &waived)] {
        if !checks.is_empty() {
            output.line(format_args!("\nList of {title} tests:"))?;
            for check in checks {
                output.line(format_args!("    {}", check.name))?;
            }
        }
    }
    if !failed.is_empty() || !waived.is_empty() {
        output.line("\nReasons:")?;
    }
    for check in failed.iter().chain(&waived) {
        match &check.verdict {
            Verdict::Passed => {}
            Verdict::Failed(reason) => {
                output.line(format_args!("    {}: {}", check.name, reason.red()))?;
            }
            Verdict::Waived(reason) => output.line(format_args!("    {}: {reason}", check.name))?,
        }
    }
    output.line(format_args!("\n{}", describe(&report.subject)))
}

/// A check, for those who list them by a program.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    proves: &'a str,
    extended: bool,
}

fn list(global: &Global, output: &mut Output) -> gdr_perf::Result<()> {
    let checks = sanity::all();
    if global.json {
        let listed = checks.iter().map(|check| Listed {
            name: check.name(),
            proves: check.proves(),
            extended: check.is_extended(),
        });
        return output.json(&listed.collect::<Vec<_>>());
    }
    let mut section = |title: &str, extended: bool| {
        output.line(format_args!("List of all available {title}:"))?;
        for check in checks
            .iter()
            .filter(|check| check.is_extended() == extended)
        {
            output.line(format_args!("    {}", check.name()))?;
            if global.verbose > 0 {
                output.line(format_args!("        {}", check.proves()))?;
            }
        }
        if extended { Ok(()) } else { output.line("") }
    };
    section("tests", false)?;
    section("extended tests", true)
}
