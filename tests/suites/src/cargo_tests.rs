//! The tests that `cargo test` runs.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use xtask_build::results::{Outcome, Outcomes, Results};
use xtask_build::workspace::{BUILT, built, cargo, is_built};

/// How long cargo's tests may print nothing. The longest build or test takes a third of this.
const MOST_SILENCE: Duration = Duration::from_secs(15 * 60);

/// If more tests than this fail, none is repeated: the tree is broken.
const MOST_REPEATED: usize = 12;

/// Which tests of the workspace to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Every test, including documentation tests.
    All,
    /// Tests inside libraries and programs.
    InCrates,
}

/// Runs the tests of the workspace. They share two cores, the loopback interface and the process's limits, so one may
/// fail merely for lack of time. A test that fails runs once more, alone; if it then passes, it counts as passed and is
/// named at the end.
pub fn workspace(results: &mut Results, targets: Targets) -> anyhow::Result<()> {
    let mut arguments = vec!["test", "--workspace", "--no-fail-fast"];
    if targets == Targets::InCrates {
        // Packages without tests are built nevertheless. The Python module can only be linked by Python.
        arguments.extend(["--lib", "--bins", "--exclude", "gdr-python"]);
    }
    let mut run = Run::of(&arguments, &[], results)?;
    let failed = run.outcomes.failed();
    if run.ended && !failed.is_empty() && failed.len() <= MOST_REPEATED {
        let mut repeated = Repeated::default();
        for target in &run.failed_targets {
            println!(
                "\nonce more, alone: the failed tests of {}",
                target.join(" ")
            );
            let mut arguments = vec!["test", "--no-fail-fast"];
            arguments.extend(target.iter().map(String::as_str));
            arguments.extend(["--", "--exact", "--test-threads=1"]);
            arguments.extend(failed.iter().map(String::as_str));
            repeated.add(Run::of(&arguments, &[], results)?);
        }
        run.replace(&repeated, results);
    }
    run.record(results);
    Ok(())
}

/// Runs the test programs with these names once more, with devices that send only over UDP.
pub fn over_udp(results: &mut Results, programs: &[&str]) -> anyhow::Result<()> {
    // Naming packages would make a different build (`is_built`).
    let mut arguments = vec!["test", "--workspace", "--no-fail-fast"];
    arguments.extend(programs.iter().flat_map(|name| ["--test", name]));
    Run::of(&arguments, &[("GDR_WIRE", "udp")], results)?.record(results);
    Ok(())
}

/// One run of `cargo test`.
#[derive(Default)]
struct Run {
    outcomes: Outcomes,
    /// Arguments that cargo suggests to rerun the programs with a failed test.
    failed_targets: Vec<Vec<String>>,
    /// Cargo ended by itself.
    ended: bool,
    /// Cargo ended with 0.
    succeeded: bool,
}

impl Run {
    /// Runs tests and prints their output. Records how long each test program takes.
    fn of(
        arguments: &[&str],
        variables: &[(&str, &str)],
        results: &mut Results,
    ) -> anyhow::Result<Self> {
        let mut command = cargo(arguments);
        command.envs(variables.iter().copied());
        // The tests do not expect what this machine's user has measured with gdr.
        command.env("XDG_STATE_HOME", "/nonexistent");
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
        // A process that a test left behind may hold the messages open, so do not wait for their end.
        send_lines(messages, sender.clone(), Line::Message, None);
        send_lines(output, sender, Line::Output, Some(Line::End));
        let mut programs = Programs::default();
        let mut run = Self::default();
        loop {
            match lines.recv_timeout(MOST_SILENCE) {
                Ok(Line::Output(line)) => {
                    println!("{line}");
                    run.outcomes.read(&line);
                }
                Ok(Line::Message(line)) => {
                    eprintln!("{line}");
                    programs.message(&line, results);
                    run.failed_targets.extend(failed_target(&line));
                    run.outcomes.read(&line);
                }
                Ok(Line::End) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // A test that hangs in the kernel does not end, so do not wait for it.
                    let _ = child.kill();
                    return Ok(run);
                }
            }
        }
        programs.end(results);
        run.ended = true;
        run.succeeded = child.wait()?.success();
        Ok(run)
    }

    /// Counts tests as passed if they passed when repeated.
    fn replace(&mut self, repeated: &Repeated, results: &mut Results) {
        for (name, outcome) in &mut self.outcomes.ended {
            if *outcome == Outcome::Failed && repeated.has_passed(name) {
                *outcome = Outcome::Passed;
                results.passed_again(name);
            }
        }
        self.succeeded = repeated.succeeded && !self.outcomes.has_failed();
    }

    /// Records each test once.
    fn record(self, results: &mut Results) {
        let failed = self.outcomes.has_failed();
        self.outcomes.record(results);
        if !self.ended {
            let minutes = MOST_SILENCE.as_secs() / 60;
            let name = format!("cargo test (no output for {minutes} minutes: a test hangs)");
            results.record(&name, Outcome::Failed);
        } else if !self.succeeded && !failed {
            results.record(
                "cargo test (see above: it failed outside of any test)",
                Outcome::Failed,
            );
        }
    }
}

/// Tests that ran again.
struct Repeated {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    /// Every program ran a test and ended with 0.
    succeeded: bool,
}

impl Default for Repeated {
    fn default() -> Self {
        Self {
            passed: BTreeSet::new(),
            failed: BTreeSet::new(),
            succeeded: true,
        }
    }
}

impl Repeated {
    /// Adds the tests of one program. A program that ran none of them failed for a different reason.
    fn add(&mut self, run: Run) {
        self.succeeded &= run.succeeded && !run.outcomes.ended.is_empty();
        self.failed.extend(run.outcomes.failed());
        for (name, outcome) in run.outcomes.ended {
            if outcome == Outcome::Passed {
                self.passed.insert(name);
            }
        }
    }

    /// Returns whether each test of this name passed; two programs may have tests of one name.
    fn has_passed(&self, name: &str) -> bool {
        self.passed.contains(name) && !self.failed.contains(name)
    }
}

/// Reads "error: test failed, to rerun pass `-p PACKAGE --test NAME`".
fn failed_target(line: &str) -> Option<Vec<String>> {
    let (_, rest) = line.split_once("to rerun pass `")?;
    let (target, _) = rest.split_once('`')?;
    Some(target.split_whitespace().map(str::to_owned).collect())
}

/// A line that cargo or its tests print.
enum Line {
    /// A line of the test harness.
    Output(String),
    /// A line of cargo itself, or one that a test prints past the harness.
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
        // Without a receiver, nothing waits for the end.
        let _ = end.map(|end| sender.send(end));
    });
}

/// Test programs, which cargo runs one after the other.
#[derive(Default)]
struct Programs {
    running: Option<(String, Instant)>,
    /// The crate whose tests run.
    package: String,
}

impl Programs {
    /// Records the start of a program, if the line announces one.
    fn message(&mut self, line: &str, results: &mut Results) {
        if let Some(name) = self.begun(line) {
            self.end(results);
            self.running = Some((name, Instant::now()));
        }
    }

    /// Records that the program has ended.
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
    fn the_targets_of_failed_tests_are_found_in_the_messages_of_cargo() {
        let line = "error: test failed, to rerun pass `-p gdr-rdma --test hostile`";
        let words = ["-p", "gdr-rdma", "--test", "hostile"].map(str::to_owned);
        assert_eq!(failed_target(line), Some(words.to_vec()));
        assert_eq!(failed_target("error: 1 target failed:"), None);
    }

    /// Returns a run in which `failed` and another test ended, the other well.
    fn run_with(failed: &[&str]) -> Run {
        let mut run = Run {
            ended: true,
            ..Run::default()
        };
        run.outcomes.ended = failed
            .iter()
            .map(|name| ((*name).to_owned(), Outcome::Failed))
            .chain([("sound".to_owned(), Outcome::Passed)])
            .collect();
        run
    }

    /// Returns a run in which tests passed.
    fn passed(names: &[&str]) -> Run {
        let ended = |name: &&str| ((*name).to_owned(), Outcome::Passed);
        let mut run = Run {
            ended: true,
            succeeded: true,
            ..Run::default()
        };
        run.outcomes.ended = names.iter().map(ended).collect();
        run
    }

    #[test]
    fn a_test_that_passes_when_it_runs_again_counts_as_passed_and_is_named() {
        let mut results = Results::default();
        let mut run = run_with(&["late"]);
        let mut repeated = Repeated::default();
        repeated.add(passed(&["late"]));
        run.replace(&repeated, &mut results);
        run.record(&mut results);
        assert_eq!(
            results.totals(),
            "2 passed (1 of them at the second try), 0 failed, 0 skipped"
        );
    }

    #[test]
    fn a_test_that_fails_again_has_failed() {
        let mut results = Results::default();
        let mut run = run_with(&["late", "wrong"]);
        let mut repeated = Repeated::default();
        repeated.add(passed(&["late"]));
        repeated.add(run_with(&["wrong"]));
        run.replace(&repeated, &mut results);
        run.record(&mut results);
        assert_eq!(
            results.totals(),
            "2 passed (1 of them at the second try), 1 failed, 0 skipped"
        );
    }

    #[test]
    fn a_program_that_failed_outside_of_its_tests_has_failed() {
        let mut results = Results::default();
        let mut run = run_with(&["late"]);
        let mut repeated = Repeated::default();
        repeated.add(passed(&["late"]));
        repeated.add(passed(&[]));
        run.replace(&repeated, &mut results);
        run.record(&mut results);
        assert_eq!(
            results.totals(),
            "2 passed (1 of them at the second try), 1 failed, 0 skipped"
        );
    }
}
