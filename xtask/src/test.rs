//! `cargo xtask test`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::gpu_steps::STEPS;
use crate::results::{Outcome, Results, test_line};
use crate::workspace::{BUILT, built, cargo, has_subcommand, is_built, root, set_built, target};
use crate::{
    api, documentation, examples, fleet_files, fuzz, gpu_bundle, house, models, msrv, mutants,
    verbs_programs, vm, wheel,
};

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    results.check("formatting", || {
        component("fmt", "rustfmt", cargo(&["fmt", "--all", "--check"]))
    });
    results.check("lints", || {
        let arguments = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        component("clippy", "clippy", cargo(&arguments))
    });
    results.check("build", || {
        let outcome = Outcome::of(cargo(&["build", "--workspace", "--all-targets"]))?;
        if outcome == Outcome::Passed {
            set_built();
        }
        Ok(outcome)
    });
    results.section("tests", |results| {
        tests(results, &["test", "--workspace", "--no-fail-fast"])
    })?;
    results.section("tests that need optimization", |results| {
        tests(results, &OPTIMIZED)
    })?;
    results.check("examples", examples::all);
    results.check("documentation", documentation::rustdoc);
    results.check("links in the documentation", documentation::links);
    results.check("models of the hazard pointers", models::loom);
    results.check("tests under Miri", models::miri);
    results.check("oldest supported Rust", msrv::check);
    results.check("fuzz targets", fuzz::smoke);
    results.check("rules of the house", house::check);
    results.check("lists of mutations", mutants::check);
    results.check("public API", api::check);
    results.check("licences of dependencies", licences);
    results.check("Python package", wheel::check);
    fleet_files::record(&mut results);
    verbs_programs::record(&mut results, &verbs_programs::Options::all());
    vm::record(&mut results, &vm::Options::all());
    results.section("GPU", gpu)?;
    Ok(results.close())
}

fn component(subcommand: &str, component: &str, command: Command) -> anyhow::Result<Outcome> {
    if has_subcommand(subcommand) {
        return Outcome::of(command);
    }
    let reason = format!("{component} is not installed: rustup component add {component}");
    Ok(Outcome::Skipped { reason })
}

/// Tests that take too long in a debug build, where they are ignored with "runs optimized".
const OPTIMIZED: [&str; 8] = [
    "test",
    "--release",
    "-p",
    "gdr-copy",
    "--test",
    "copy_routines",
    "--",
    "every_size_at_every_pair",
];

/// How long cargo's tests may print nothing. The longest build or test takes a third of it.
const MOST_SILENCE: Duration = Duration::from_secs(15 * 60);

/// Runs cargo's tests; records the outcome of each, and how long each program of tests takes.
fn tests(results: &mut Results, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = cargo(arguments);
    if is_built() {
        command.env(BUILT, built("dev").join("xtask"));
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cargo cannot be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let messages = child.stderr.take().context("cargo has no messages")?;
    let (sender, lines) = mpsc::channel();
    // A process that a test left behind may hold the messages open, so their end is not waited for.
    send_lines(messages, sender.clone(), Line::Message, None);
    send_lines(output, sender, Line::Output, Some(Line::End));
    let mut programs = Programs::default();
    let mut outcomes = Outcomes::default();
    loop {
        match lines.recv_timeout(MOST_SILENCE) {
            Ok(Line::Output(line)) => {
                println!("{line}");
                if let Some((name, outcome)) = test_line(&line) {
                    outcomes.ended.push((name.to_owned(), outcome));
                }
            }
            Ok(Line::Message(line)) => {
                eprintln!("{line}");
                programs.message(&line, results);
                if let Some((name, reason)) = skip::parse(&line) {
                    outcomes.skipped.push((name.to_owned(), reason.to_owned()));
                }
            }
            Ok(Line::End) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // A test that hangs in the kernel does not end, so nothing waits for it.
                let _ = child.kill();
                let minutes = MOST_SILENCE.as_secs() / 60;
                let name = format!("cargo test (no output for {minutes} minutes: a test hangs)");
                outcomes.record(results);
                results.record(&name, Outcome::Failed);
                return Ok(());
            }
        }
    }
    programs.end(results);
    let failed = outcomes.record(results);
    if !child.wait()?.success() && !failed {
        results.record(
            "cargo test (see above: it failed outside of any test)",
            Outcome::Failed,
        );
    }
    Ok(())
}

/// What cargo and its tests print.
enum Line {
    /// A line of the test harness.
    Output(String),
    /// A line of cargo itself, or what a test prints beside the harness.
    Message(String),
    /// The tests ended.
    End,
}

/// Sends each line of a stream, and then `end`.
fn send_lines(
    stream: impl Read + Send + 'static,
    sender: Sender<Line>,
    kind: fn(String) -> Line,
    end: Option<Line>,
) {
    thread::spawn(move || {
        for bytes in BufReader::new(stream).split(b'\n') {
            // A stream that cannot be read has ended.
            let Ok(bytes) = bytes else { break };
            if sender
                .send(kind(String::from_utf8_lossy(&bytes).into_owned()))
                .is_err()
            {
                break;
            }
        }
        // Without a receiver nothing waits for the end.
        let _ = end.map(|end| sender.send(end));
    });
}

/// How tests ended.
#[derive(Default)]
struct Outcomes {
    /// By the test harness.
    ended: Vec<(String, Outcome)>,
    /// Tests that say themselves that they did not run, and why. The harness takes them for passed.
    skipped: Vec<(String, String)>,
}

impl Outcomes {
    /// Records each test once; returns whether one failed.
    fn record(self, results: &mut Results) -> bool {
        let mut failed = false;
        let mut skipped: BTreeMap<_, _> = self.skipped.into_iter().collect();
        for (name, outcome) in self.ended {
            failed |= outcome == Outcome::Failed;
            let reason = (outcome == Outcome::Passed).then(|| skipped.remove(&name));
            let outcome = match reason.flatten() {
                Some(reason) => Outcome::Skipped { reason },
                None => outcome,
            };
            results.record(&name, outcome);
        }
        // Parts of tests that the harness named otherwise.
        for (name, reason) in skipped {
            results.record(&name, Outcome::Skipped { reason });
        }
        failed
    }
}

/// The programs of tests, which cargo runs one after the other.
#[derive(Default)]
struct Programs {
    running: Option<(String, Instant)>,
    /// The crate whose tests run.
    package: String,
}

impl Programs {
    /// Notes that cargo begins a program, if the line says so.
    fn message(&mut self, line: &str, results: &mut Results) {
        if let Some(name) = self.begun(line) {
            self.end(results);
            self.running = Some((name, Instant::now()));
        }
    }

    /// Notes that the program has ended.
    fn end(&mut self, results: &mut Results) {
        if let Some((name, start)) = self.running.take() {
            results.program(&name, start);
        }
    }

    /// Reads `Running unittests src/lib.rs (target/debug/deps/NAME-HASH)`, `Running tests/NAME.rs
    /// (...)` and `Doc-tests NAME`. The tests of a crate follow its unit tests.
    fn begun(&mut self, line: &str) -> Option<String> {
        let line = line.trim_start();
        if let Some(package) = line.strip_prefix("Doc-tests ") {
            return Some(format!("{package}: examples in the documentation"));
        }
        let (source, program) = line.strip_prefix("Running ")?.split_once(" (")?;
        if !source.starts_with("unittests ") {
            return Some(format!("{}: {source}", self.package));
        }
        let file = program.rsplit('/').next()?;
        let (package, _) = file.rsplit_once('-')?;
        self.package = package.to_owned();
        Some(format!("{package}: unit tests"))
    }
}

fn licences() -> anyhow::Result<Outcome> {
    if !has_subcommand("deny") {
        let reason = "cargo-deny is not installed: cargo install cargo-deny".to_owned();
        return Ok(Outcome::Skipped { reason });
    }
    Outcome::of(cargo(&["deny", "check", "licenses"]))
}

/// Runs what needs a GPU, or names it.
fn gpu(results: &mut Results) -> anyhow::Result<()> {
    if let Some(reason) = no_gpu() {
        for step in STEPS {
            results.record(
                step.name,
                Outcome::Skipped {
                    reason: reason.to_owned(),
                },
            );
        }
        return Ok(());
    }
    let bundle = target().join("gpu-bundle");
    let folder = target().join("gpu-results");
    gpu_bundle::make(&bundle)?;
    let mut command = Command::new("bash");
    command
        .arg(bundle.join("run.sh"))
        .env("OUT", &folder)
        .current_dir(root());
    // The outcome of each step is in the summary; the exit status is that of the whole run.
    Outcome::of(command)?;
    let summary = std::fs::read_to_string(folder.join("summary.tsv"))
        .context("the GPU run wrote no summary")?;
    for line in summary.lines() {
        if let Some((name, outcome)) = summary_line(line) {
            results.record(name, outcome);
        }
    }
    Ok(())
}

/// Reads `NAME <tab> OUTCOME <tab> SECONDS <tab> REASON` as `run.sh` writes it.
fn summary_line(line: &str) -> Option<(&str, Outcome)> {
    let mut fields = line.split('\t');
    let (name, word) = (fields.next()?, fields.next()?);
    let outcome = match word {
        "passed" => Outcome::Passed,
        "failed" => Outcome::Failed,
        "skipped" => Outcome::Skipped {
            reason: fields.nth(1)?.to_owned(),
        },
        _ => return None,
    };
    Some((name, outcome))
}

/// Returns why the GPU steps cannot run here; `None` if they can.
fn no_gpu() -> Option<&'static str> {
    // It exists where NVIDIA's driver is loaded and, in a container, passed in.
    if !Path::new("/dev/nvidiactl").exists() {
        return Some("no NVIDIA GPU");
    }
    (!has_libcuda()).then_some("no libcuda.so.1")
}

fn has_libcuda() -> bool {
    let listed = Command::new("ldconfig")
        .arg("-p")
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libcuda.so.1"));
    let on_path = std::env::var_os("LD_LIBRARY_PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join("libcuda.so.1").exists())
    });
    listed || on_path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_of_tests_are_found_in_the_messages_of_cargo() {
        let mut programs = Programs::default();
        for (line, expected) in [
            (
                "     Running unittests src/lib.rs (target/debug/deps/gdr_copy-0a1b)",
                Some("gdr_copy: unit tests"),
            ),
            ("   Compiling gdr-copy v0.1.0 (/gdr)", None),
            (
                "     Running tests/fork.rs (target/debug/deps/fork-2c3d)",
                Some("gdr_copy: tests/fork.rs"),
            ),
            (
                "   Doc-tests gdr_copy",
                Some("gdr_copy: examples in the documentation"),
            ),
            ("SKIPPED: no raw socket", None),
        ] {
            assert_eq!(programs.begun(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_test_that_says_that_it_did_not_run_is_skipped_and_one_that_failed_is_not() {
        let skip = |name: &str| (name.to_owned(), "no namespace".to_owned());
        let ended = |name: &str, outcome| (name.to_owned(), outcome);
        let outcomes = Outcomes {
            ended: vec![
                ended("one", Outcome::Passed),
                ended("two", Outcome::Passed),
                ended("three", Outcome::Passed),
            ],
            skipped: vec![skip("two"), skip("tests/icrc.rs:7:5")],
        };
        let mut results = Results::default();
        assert!(!outcomes.record(&mut results));
        assert_eq!(results.totals(), "2 passed, 0 failed, 2 skipped");
        let outcomes = Outcomes {
            ended: vec![ended("four", Outcome::Failed)],
            skipped: vec![skip("four")],
        };
        assert!(outcomes.record(&mut results));
        assert_eq!(results.totals(), "2 passed, 1 failed, 3 skipped");
    }

    #[test]
    fn lines_of_the_gpu_summary_are_parsed() {
        assert_eq!(
            summary_line("info\tpassed\t2\t"),
            Some(("info", Outcome::Passed))
        );
        assert_eq!(
            summary_line("copybw\tfailed\t9\tsee"),
            Some(("copybw", Outcome::Failed))
        );
        let reason = "not root".to_owned();
        assert_eq!(
            summary_line("as nobody\tskipped\t0\tnot root"),
            Some(("as nobody", Outcome::Skipped { reason }))
        );
        assert_eq!(summary_line("noise"), None);
    }
}
