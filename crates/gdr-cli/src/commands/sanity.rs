//! `gdr sanity`: GDRCopy's `gdrcopy_sanity`.

use anyhow::Result;
use gdr_perf::report::Schema;
use gdr_perf::sanity::{self, Check, CheckResult, Event, Report};
use owo_colors::OwoColorize;
use serde::Serialize;

use super::measurement::Measurement;
use super::{describe, say_simulated};
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, NO_GPU_OR_STOPPED, Statuses};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use crate::progress::{Progress, print_to_stderr};

/// Check that mappings of GPU memory are correct (gdrcopy_sanity)
///
/// Each check passes, fails with a reason, or is waived if it cannot run on this machine. A waived
/// check is not a failure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Do not print a summary
    #[arg(short = 's', long)]
    no_summary: bool,

    /// List all checks; with -v, also what each one proves
    #[arg(short, long)]
    list: bool,

    /// Run only this check; can be repeated
    #[arg(short, long = "test", value_name = "TEST")]
    tests: Vec<String>,

    /// Run the extended checks too
    #[arg(short, long)]
    extended: bool,

    #[command(flatten)]
    gpu: GpuOptions,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Prove;
    const STATUSES: Statuses = &[
        (Exit::Fine, "no check failed"),
        (Exit::Failure, "a check failed, or the GPU cannot be used"),
        (Exit::Undecided, NO_GPU_OR_STOPPED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr sanity                            run all checks
  gdr sanity -v -t data_small_sizes     run one check, step by step
  gdr sanity -e --gpu 1                 run the long checks too, on the second GPU
  gdr sanity --simulate --json          run without a GPU, and print JSON";
    const TOOL: Option<&'static str> = Some("gdrcopy_sanity");
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
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
    let gpu = GpuContext::open(&options.gpu, WithoutGpu::Exit)?;
    if !global.json {
        say_simulated(&gpu, output)?;
    }
    let verbose = global.verbose > 0;
    let progress = if verbose {
        Progress::hidden()
    } else {
        Progress::on_stderr()
    };
    let mut measurement = Measurement::with(global, checks.len(), progress)?;
    let result = sanity::run(&gpu.target, &checks, &mut |event| {
        match event {
            Event::Running { check, .. } => {
                measurement.begin(check.name());
                if verbose {
                    print_to_stderr(format_args!("&&&& RUNNING {}", check.name()));
                }
            }
            Event::FinishedCheck { check, verdict } => {
                let (check, proves) = (check.name(), check.proves());
                measurement.end(&Checked {
                    check,
                    proves,
                    verdict,
                });
                if verbose {
                    tell(check, verdict);
                }
            }
            _ => {}
        }
        measurement.flow(Ok(()))
    });
    let report = measurement.finish(result)?;

    if global.json {
        output.json(&report)?;
    } else if !options.no_summary {
        summarize(&report, output)?;
    }
    if report.failed == 0 {
        return Ok(Exit::Fine);
    }
    // Scripts search for GDRCopy's line; the status is gdr's.
    print_to_stderr(format_args!(
        "Error: Encountered an error or a test failure with status=2"
    ));
    Ok(Exit::Failure)
}

/// A check that ran before the run was stopped, in the layout of a whole run.
#[derive(Serialize)]
struct Checked<'a> {
    #[serde(rename = "name")]
    check: &'a str,
    proves: &'a str,
    #[serde(flatten)]
    verdict: &'a CheckResult,
}

/// Prints a result in the format of NVIDIA's test logs.
fn tell(name: &str, verdict: &CheckResult) {
    match verdict {
        CheckResult::Passed => print_to_stderr(format_args!("&&&& {} {name}", "PASSED".green())),
        CheckResult::Failed(reason) => {
            print_to_stderr(format_args!(
                "{name}: {reason}\n&&&& {} {name}",
                "FAILED".red().bold()
            ));
        }
        CheckResult::Waived(reason) => {
            print_to_stderr(format_args!(
                "{name}: {reason}\n&&&& {} {name}",
                "WAIVED".yellow()
            ));
        }
    }
}

/// Prints GDRCopy's summary, then the reasons and the GPU.
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
    let of = |wanted: fn(&CheckResult) -> bool| {
        report
            .checks
            .iter()
            .filter(move |check| wanted(&check.verdict))
    };
    let failed: Vec<_> = of(|verdict| matches!(verdict, CheckResult::Failed(_))).collect();
    let waived: Vec<_> = of(|verdict| matches!(verdict, CheckResult::Waived(_))).collect();
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
            CheckResult::Passed => {}
            CheckResult::Failed(reason) => {
                output.paragraph(
                    "    ",
                    "      ",
                    &format!("{}: {}", check.name, reason.red()),
                )?;
            }
            CheckResult::Waived(reason) => {
                output.paragraph("    ", "      ", &format!("{}: {reason}", check.name))?
            }
        }
    }
    output.line(format_args!("\n{}", describe(&report.subject)))
}

/// The list of checks as JSON.
#[derive(Serialize)]
struct List<'a> {
    #[serde(flatten)]
    schema: Schema,
    checks: Vec<Listed<'a>>,
}

/// A check in the list.
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
        return output.json(&List {
            schema: Schema::first("gdr.sanity.list"),
            checks: listed.collect(),
        });
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
