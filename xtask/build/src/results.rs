//! The results of a run: what passed, what failed, what was skipped and why.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::param::clock_ticks_per_second;

/// How many of the lines that a failed test printed are repeated at the end.
const LINES_OF_FAILURE: usize = 6;

/// How many of the test programs are listed, the slowest first.
const LISTED: usize = 12;

/// The results of a run.
#[derive(Debug, Default)]
pub struct Results {
    passed: usize,
    failed: Vec<String>,
    /// What failed tests printed first.
    printed: BTreeMap<String, Vec<String>>,
    /// Tests that failed and passed when they ran again. They are among those that passed.
    passed_again: Vec<String>,
    skipped: Vec<Skip>,
    sections: Vec<Section>,
    programs: Vec<Program>,
}

/// How long a section took.
#[derive(Debug)]
struct Section {
    name: String,
    time: Duration,
    /// What the processes that ended in it, and were not left to an earlier one, have used of all CPUs; `None` if
    /// the kernel does not say.
    cpu: Option<Duration>,
}

/// How long a test program took.
#[derive(Debug)]
struct Program {
    name: String,
    time: Duration,
}

#[derive(Debug)]
struct Skip {
    name: String,
    reason: String,
}

/// How a check ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    Skipped { reason: String },
}

/// Why a check cannot run on this machine. It is skipped, not failed.
#[derive(Debug)]
pub struct Unavailable(String);

impl Results {
    pub fn record(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed => self.failed.push(name.to_owned()),
            Outcome::Skipped { reason } => {
                self.skipped.push(Skip {
                    name: name.to_owned(),
                    reason,
                });
            }
        }
    }

    /// Notes that a test, recorded as passed, did so at the second try only.
    pub fn passed_again(&mut self, name: &str) {
        self.passed_again.push(name.to_owned());
    }

    /// Runs one check under a heading.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> anyhow::Result<Outcome>) {
        self.section(name, |results| {
            let outcome = check().unwrap_or_else(|error| {
                eprintln!("{error:#}");
                Outcome::Failed
            });
            results.record(name, outcome);
        });
    }

    /// Runs checks under a heading and notes how long they take.
    pub fn section<T>(&mut self, name: &str, run: impl FnOnce(&mut Self) -> T) -> T {
        heading(name);
        let (start, used) = (Instant::now(), cpu_of_children());
        let result = run(self);
        self.sections.push(Section {
            name: name.to_owned(),
            time: start.elapsed(),
            cpu: cpu_of_children()
                .zip(used)
                .map(|(now, before)| now.saturating_sub(before)),
        });
        result
    }

    /// Adds the results of checks that ran beside these.
    pub fn add(&mut self, beside: Self) {
        self.passed += beside.passed;
        self.failed.extend(beside.failed);
        self.printed.extend(beside.printed);
        self.passed_again.extend(beside.passed_again);
        self.skipped.extend(beside.skipped);
        self.sections.extend(beside.sections);
        self.programs.extend(beside.programs);
    }

    /// Notes how long a test program took that began at `start` and ended now.
    pub fn program(&mut self, name: &str, start: Instant) {
        self.programs.push(Program {
            name: name.to_owned(),
            time: start.elapsed(),
        });
    }

    /// Prints the times and the lists, and the totals alone on the last line.
    pub fn close(mut self) -> ExitCode {
        if self.sections.len() > 1 {
            heading("seconds of each section, and of the processes that ended in it, on all CPUs");
            for section in &self.sections {
                println!("{section}");
            }
            heading("seconds of the slowest test programs");
            self.programs.sort_by_key(|program| Reverse(program.time));
            for Program { name, time } in self.programs.iter().take(LISTED) {
                println!("{:7.1}  {name}", time.as_secs_f32());
            }
        }
        heading("result");
        for Skip { name, reason } in &self.skipped {
            println!("SKIPPED ({reason}): {name}");
        }
        for name in &self.passed_again {
            println!("PASSED AT THE SECOND TRY: {name}");
        }
        for name in &self.failed {
            println!("FAILED: {name}");
            for line in self.printed.get(name).into_iter().flatten() {
                println!("    {line}");
            }
        }
        println!("{}", self.totals());
        if self.failed.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    pub fn totals(&self) -> String {
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        let again = match self.passed_again.len() {
            0 => String::new(),
            tests => format!(" ({tests} of them at the second try)"),
        };
        format!(
            "{} passed{again}, {failed} failed, {skipped} skipped",
            self.passed
        )
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:7.1}", self.time.as_secs_f32())?;
        match self.cpu {
            Some(cpu) => write!(f, " {:7.1}", cpu.as_secs_f32())?,
            None => write!(f, " {:>7}", "-")?,
        }
        write!(f, "  {}", self.name)
    }
}

/// Returns the CPU time of the processes of this one that have ended and been waited for, and of theirs.
fn cpu_of_children() -> Option<Duration> {
    let ticks = cpu_ticks_of_children(&fs::read_to_string("/proc/self/stat").ok()?)?;
    Some(Duration::from_millis(
        ticks * 1000 / clock_ticks_per_second(),
    ))
}

/// Returns the fields `cutime` and `cstime` of `/proc/PID/stat`, proc_pid_stat(5).
fn cpu_ticks_of_children(stat: &str) -> Option<u64> {
    // The name of the program, which may contain anything, is in parentheses; the state follows, field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(16 - 3);
    let [user, system] = [fields.next()?, fields.next()?].map(str::parse::<u64>);
    Some(user.ok()? + system.ok()?)
}

impl Outcome {
    /// Runs a command and waits for it: passed if it exits with 0.
    pub fn of(mut command: Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let status = command
            .status()
            .with_context(|| format!("{name} cannot be started"))?;
        Ok(if status.success() {
            Self::Passed
        } else {
            Self::Failed
        })
    }

    /// Skipped where the error is [`Unavailable`].
    pub fn of_error(error: anyhow::Error) -> anyhow::Result<Self> {
        let reason = error.downcast::<Unavailable>()?.to_string();
        Ok(Self::Skipped { reason })
    }
}

impl Unavailable {
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Returns whether a program could not be started because there is none of its name.
pub fn is_missing(error: &anyhow::Error) -> bool {
    let source = error.downcast_ref::<std::io::Error>();
    source.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn heading(name: &str) {
    println!("\n== {name}");
}

/// How tests ended.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// By the test harness.
    pub ended: Vec<(String, Outcome)>,
    /// Tests that say themselves that they did not run, and why. The harness takes them for passed.
    skipped: Vec<(String, String)>,
    /// The first lines that failed tests printed.
    printed: BTreeMap<String, Vec<String>>,
    /// The test whose lines follow.
    printing: Option<String>,
}

impl Outcomes {
    /// Notes what a line says: that a test ended, or that it did not run.
    pub fn read(&mut self, line: &str) {
        if let Some((name, outcome)) = test_line(line) {
            self.ended.push((name.to_owned(), outcome));
        } else if let Some((name, reason)) = skip::parse(line) {
            self.skipped.push((name.to_owned(), reason.to_owned()));
        } else if let Some(name) = printed_by(line) {
            self.printing = Some(name.to_owned());
        } else if line == "failures:" {
            self.printing = None;
        } else if let Some(name) = &self.printing
            && !line.trim().is_empty()
        {
            let lines = self.printed.entry(name.clone()).or_default();
            if lines.len() < LINES_OF_FAILURE {
                lines.push(line.to_owned());
            }
        }
    }

    pub fn has_failed(&self) -> bool {
        !self.failed().is_empty()
    }

    /// Returns whether the test of this name has ended.
    pub fn has_ended(&self, name: &str) -> bool {
        self.ended.iter().any(|(ended, _)| ended == name)
    }

    /// Returns the names of the tests that failed.
    pub fn failed(&self) -> BTreeSet<String> {
        let failed = |(name, outcome): &(String, Outcome)| {
            (*outcome == Outcome::Failed).then(|| name.clone())
        };
        self.ended.iter().filter_map(failed).collect()
    }

    /// Takes the failed tests for passed that passed in a second run, and adds those that ran in it only; returns the
    /// names of the former.
    pub fn replace(&mut self, again: Self) -> Vec<String> {
        let mut names = Vec::new();
        for (name, outcome) in again.ended {
            match self.ended.iter_mut().find(|(other, _)| *other == name) {
                None => self.ended.push((name, outcome)),
                Some((_, first)) => {
                    if *first == Outcome::Failed && outcome == Outcome::Passed {
                        *first = Outcome::Passed;
                        names.push(name);
                    }
                }
            }
        }
        self.skipped.extend(again.skipped);
        names
    }

    /// Records each test once.
    pub fn record(mut self, results: &mut Results) {
        let mut skipped: BTreeMap<_, _> = self.skipped.into_iter().collect();
        for (name, outcome) in self.ended {
            let reason = (outcome == Outcome::Passed).then(|| skipped.remove(&name));
            let outcome = match reason.flatten() {
                Some(reason) => Outcome::Skipped { reason },
                None => outcome,
            };
            if outcome == Outcome::Failed
                && let Some(lines) = self.printed.remove(&name)
            {
                results.printed.insert(name.clone(), lines);
            }
            results.record(&name, outcome);
        }
        // Parts of tests that the harness named otherwise.
        for (name, reason) in skipped {
            results.record(&name, Outcome::Skipped { reason });
        }
    }
}

/// Returns the test whose output follows a line of the test harness.
fn printed_by(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Why a test is ignored that runs later in the same `cargo xtask test`, in the guest.
const RUNS_LATER: &str = "runs in the VM";

/// Reads `test NAME ... OUTCOME` as the test harness prints it.
fn test_line(line: &str) -> Option<(&str, Outcome)> {
    let (name, word) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match word.split_once(", ") {
        None if word == "ok" => Outcome::Passed,
        None if word == "FAILED" => Outcome::Failed,
        None if word == "ignored" => Outcome::Skipped {
            reason: "ignored".to_owned(),
        },
        Some(("ignored", reason)) if reason == RUNS_LATER => return None,
        Some(("ignored", reason)) => Outcome::Skipped {
            reason: reason.to_owned(),
        },
        _ => return None,
    };
    Some((name, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_counted_once() {
        let mut results = Results::default();
        results.check("good", || Ok(Outcome::Passed));
        results.check("bad", || Ok(Outcome::Failed));
        results.check("broken", || anyhow::bail!("no such program"));
        results.check("absent", || {
            Ok(Outcome::Skipped {
                reason: "no GPU".into(),
            })
        });
        assert_eq!(results.totals(), "1 passed, 2 failed, 1 skipped");
        assert_eq!(results.failed, ["bad", "broken"]);
    }

    #[test]
    fn results_of_checks_beside_others_are_counted_with_them() {
        let mut results = Results::default();
        results.check("good", || Ok(Outcome::Passed));
        let mut beside = Results::default();
        beside.check("bad", || Ok(Outcome::Failed));
        beside.check("good, too", || Ok(Outcome::Passed));
        beside.passed_again("good, too");
        results.add(beside);
        assert_eq!(
            results.totals(),
            "2 passed (1 of them at the second try), 1 failed, 0 skipped"
        );
        assert_eq!(results.sections.len(), 3);
    }

    #[test]
    fn the_cpu_time_of_children_is_read_whatever_the_name_of_the_program() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 300 9000 0 2 11 12 1300 37 20 0 1 0 99";
        assert_eq!(cpu_ticks_of_children(stat), Some(1337));
        assert_eq!(cpu_ticks_of_children("7 (a) S 1"), None);
    }

    #[test]
    fn lines_of_the_test_harness_are_parsed() {
        let skipped = |reason: &str| Outcome::Skipped {
            reason: reason.to_owned(),
        };
        for (line, expected) in [
            (
                "test bdf::tests::reads ... ok",
                Some(("bdf::tests::reads", Outcome::Passed)),
            ),
            ("test a ... FAILED", Some(("a", Outcome::Failed))),
            ("test a ... ignored", Some(("a", skipped("ignored")))),
            (
                "test a ... ignored, no such CPU",
                Some(("a", skipped("no such CPU"))),
            ),
            (
                "test src/lib.rs - (line 3) ... ok",
                Some(("src/lib.rs - (line 3)", Outcome::Passed)),
            ),
            ("test a ... ignored, runs in the VM", None),
            ("test result: ok. 3 passed; 0 failed; 0 ignored", None),
            ("running 3 tests", None),
        ] {
            assert_eq!(test_line(line), expected, "{line}");
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
            ..Outcomes::default()
        };
        let mut results = Results::default();
        assert!(!outcomes.has_failed());
        outcomes.record(&mut results);
        assert_eq!(results.totals(), "2 passed, 0 failed, 2 skipped");
        let outcomes = Outcomes {
            ended: vec![ended("four", Outcome::Failed)],
            skipped: vec![skip("four")],
            ..Outcomes::default()
        };
        assert!(outcomes.has_failed());
        outcomes.record(&mut results);
        assert_eq!(results.totals(), "2 passed, 1 failed, 3 skipped");
    }

    #[test]
    fn the_first_lines_of_a_failed_test_are_kept() {
        let mut outcomes = Outcomes::default();
        for line in [
            "test a::b ... FAILED",
            "test a::c ... ok",
            "failures:",
            "---- a::b stdout ----",
            "",
            "thread 'a::b' panicked at src/a.rs:7:5:",
            "the queue is empty",
            "left: 1",
            "failures:",
            "    a::b",
        ] {
            outcomes.read(line);
        }
        let mut results = Results::default();
        outcomes.record(&mut results);
        let lines = &results.printed["a::b"];
        assert_eq!(
            lines[..2],
            [
                "thread 'a::b' panicked at src/a.rs:7:5:",
                "the queue is empty"
            ]
        );
        assert_eq!(lines.len(), 3);
        assert_eq!(results.printed.len(), 1);
    }

    #[test]
    fn only_tests_that_pass_when_they_run_again_count_as_passed() {
        let ended = |name: &str, outcome| (name.to_owned(), outcome);
        let mut tests = Outcomes {
            ended: vec![
                ended("late", Outcome::Failed),
                ended("wrong", Outcome::Failed),
                ended("sound", Outcome::Passed),
            ],
            ..Outcomes::default()
        };
        let again = Outcomes {
            ended: vec![
                ended("late", Outcome::Passed),
                ended("wrong", Outcome::Failed),
                ended("not reached", Outcome::Passed),
                ended("broken", Outcome::Failed),
            ],
            ..Outcomes::default()
        };
        assert_eq!(tests.replace(again), ["late"]);
        assert_eq!(Vec::from_iter(tests.failed()), ["broken", "wrong"]);
        let mut results = Results::default();
        tests.record(&mut results);
        assert_eq!(results.totals(), "3 passed, 2 failed, 0 skipped");
    }
}
