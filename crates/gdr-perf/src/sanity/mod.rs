//! Named checks of mappings of GPU memory.
//!
//! Checks are independent: each allocates its own memory and has a deadline for every wait. A check passes, fails with
//! a reason, or is waived with the reason why it cannot run here. The names follow GDRCopy's `gdrcopy_sanity`; the
//! suffix names the allocation.

mod basic;
mod data;
mod fork;
mod leakage;
mod lifetime;
mod list;
mod outcome;
mod pattern;
mod refusal;
mod threads;
mod visibility;

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use gdr_copy::BackendKind;
use gdr_cuda::MemoryKind;
use serde::Serialize;

use crate::bench_target::BenchTarget;
use crate::error::{Result, proceed};
use crate::report::{Schema, Subject};
use outcome::{Outcome, Stop};

pub use list::{all, named};

/// Deadline of each wait in a check. It is generous, because only a hang reaches it.
const WAIT: Duration = Duration::from_secs(20);
/// Deadline of a whole check.
const CHECK_LIMIT: Duration = Duration::from_secs(300);

/// How thorough the checks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Checks that take seconds.
    #[default]
    Normal,
    /// More rounds, and sizes of several GiB.
    Extended,
}

/// One check.
#[derive(Clone, Debug)]
pub struct Check {
    name: String,
    proves: &'static str,
    effort: Effort,
    run: Run,
}

/// How a check runs.
#[derive(Clone, Copy, Debug)]
enum Run {
    Target(fn(&BenchTarget) -> Outcome),
    Memory(fn(&BenchTarget, MemoryKind) -> Outcome, MemoryKind),
}

impl Check {
    /// Returns its name, as `-t` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what it proves, in one sentence.
    pub fn proves(&self) -> &'static str {
        self.proves
    }

    /// Returns whether it belongs to the checks that only an extended run makes.
    pub fn is_extended(&self) -> bool {
        self.effort == Effort::Extended
    }

    /// Runs the check on a thread of its own, which has no CUDA context and whose panic counts as a failure.
    fn run(&self, target: &BenchTarget) -> CheckResult {
        let (sender, receiver) = mpsc::channel();
        let (target, run) = (target.clone(), self.run);
        let thread = thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                let outcome = match run {
                    Run::Target(check) => check(&target),
                    Run::Memory(check, kind) => {
                        known_limit(&target, kind).and_then(|()| check(&target, kind))
                    }
                };
                // After the deadline, the receiver is gone.
                let _ = sender.send(outcome);
            });
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => {
                return CheckResult::Failed(format!("no thread could be started: {error}"));
            }
        };
        match receiver.recv_timeout(CHECK_LIMIT) {
            Ok(outcome) => {
                // Join, so that the thread's stack is unmapped before the next check counts mappings.
                let _ = thread.join();
                outcome.into()
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                CheckResult::Failed(format!("did not end within {CHECK_LIMIT:?}"))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                CheckResult::Failed(panic_text(thread.join()))
            }
        }
    }
}

/// Waives what a backend is known not to support: NVIDIA's module cannot pin memory of stream-ordered pools
/// (NVIDIA/gdrcopy#257).
fn known_limit(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    if (target.context()?.backend(), kind) != (BackendKind::Gdrdrv, MemoryKind::Pool) {
        return Ok(());
    }
    let buffer = outcome::allocate(target, kind, 64 << 10)?;
    match target.pin(buffer.ptr(), buffer.len()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Stop::waived(format!(
            "gdrdrv does not pin pool memory: {error}"
        ))),
    }
}

fn panic_text(joined: thread::Result<()>) -> String {
    let payload = match joined {
        Ok(()) => return "ended without an answer".to_owned(),
        Err(payload) => payload,
    };
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a message"))
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "reason", rename_all = "lowercase")]
pub enum CheckResult {
    /// The property holds.
    Passed,
    /// The property does not hold, for this reason.
    Failed(String),
    /// The check cannot run here, for this reason.
    Waived(String),
}

impl From<Outcome> for CheckResult {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Passed,
            Err(Stop::Failed(reason)) => Self::Failed(reason),
            Err(Stop::Waived(reason)) => Self::Waived(reason),
        }
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A check begins.
    Running {
        /// Position in the run, from 0.
        index: usize,
        /// Checks in the run.
        total: usize,
        /// The check.
        check: &'a Check,
    },
    /// A check has ended.
    FinishedCheck {
        /// The check.
        check: &'a Check,
        /// How.
        verdict: &'a CheckResult,
    },
}

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.sanity`.
    #[serde(flatten)]
    pub schema: Schema,
    /// What was checked.
    #[serde(flatten)]
    pub subject: Subject,
    /// Checks that were run.
    pub total: usize,
    /// How many of these passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many were waived.
    pub waived: usize,
    /// All checks, in the order in which they ran.
    pub checks: Vec<FinishedCheck>,
}

/// One check of a run.
#[derive(Clone, Debug, Serialize)]
pub struct FinishedCheck {
    /// The check's name.
    pub name: String,
    /// What it proves.
    pub proves: &'static str,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: CheckResult,
    /// How long it took.
    pub seconds: f64,
}

/// Runs `checks` one after the other.
///
/// # Errors
/// [`crate::Error::Stopped`] if `observe` breaks. A failed check is a verdict, not an error.
pub fn run(
    target: &BenchTarget,
    checks: &[Check],
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let scratch = target.gpu().allocate(MemoryKind::Plain, 4096).ok();
    let pinned = scratch
        .as_ref()
        .zip(target.context().ok())
        .and_then(|(buffer, context)| context.pin(buffer.ptr(), buffer.len()).ok());
    let subject = Subject::new(target, pinned.as_ref());
    drop(pinned);
    drop(scratch);

    let mut ended = Vec::with_capacity(checks.len());
    for (index, check) in checks.iter().enumerate() {
        proceed(observe(Event::Running {
            index,
            total: checks.len(),
            check,
        }))?;
        let start = Instant::now();
        let verdict = check.run(target);
        let seconds = start.elapsed().as_secs_f64();
        proceed(observe(Event::FinishedCheck {
            check,
            verdict: &verdict,
        }))?;
        ended.push(FinishedCheck {
            name: check.name.clone(),
            proves: check.proves,
            verdict,
            seconds,
        });
    }
    let count =
        |wanted: fn(&CheckResult) -> bool| ended.iter().filter(|e| wanted(&e.verdict)).count();
    Ok(Report {
        schema: Schema::first("gdr.sanity"),
        subject,
        total: ended.len(),
        passed: count(|v| matches!(v, CheckResult::Passed)),
        failed: count(|v| matches!(v, CheckResult::Failed(_))),
        waived: count(|v| matches!(v, CheckResult::Waived(_))),
        checks: ended,
    })
}
