//! Named checks that mappings of GPU memory are what they claim to be.
//!
//! Each check stands alone, allocates its own memory, gives every wait a deadline, and passes,
//! fails with what was wrong, or is waived with the reason it cannot say anything here. The names
//! follow GDRCopy's `gdrcopy_sanity`; the suffix tells how the memory was allocated.

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

use crate::error::{Error, Result};
use crate::report::{Schema, Subject};
use crate::site::Site;
use outcome::{Outcome, Stop};

pub use list::{all, named};

/// How long any one wait of a check may take: generous, because it is only ever reached by
/// something that hangs.
const WAIT: Duration = Duration::from_secs(20);
/// How long a whole check may take before it is given up.
const CHECK_LIMIT: Duration = Duration::from_secs(300);

/// How thorough the checks are to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// What every run can afford.
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

/// What a check runs on.
#[derive(Clone, Copy, Debug)]
enum Run {
    Site(fn(&Site) -> Outcome),
    Memory(fn(&Site, MemoryKind) -> Outcome, MemoryKind),
}

impl Check {
    /// Its name, as `-t` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it proves, in one sentence.
    pub fn proves(&self) -> &'static str {
        self.proves
    }

    /// Whether it belongs to the checks that only an extended run makes.
    pub fn is_extended(&self) -> bool {
        self.effort == Effort::Extended
    }

    /// Runs it on a thread of its own, which has no CUDA context and whose panic is a failure.
    fn run(&self, site: &Site) -> Verdict {
        let (tell, told) = mpsc::channel();
        let (site, run) = (site.clone(), self.run);
        let thread = thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                let outcome = match run {
                    Run::Site(check) => check(&site),
                    Run::Memory(check, kind) => {
                        known_limit(&site, kind).and_then(|()| check(&site, kind))
                    }
                };
                // Nobody listens any more once the limit is over.
                let _ = tell.send(outcome);
            });
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => return Verdict::Failed(format!("no thread could be started: {error}")),
        };
        match told.recv_timeout(CHECK_LIMIT) {
            Ok(outcome) => {
                // The thread is at its end; joined so that its stack is gone before the next
                // check counts what is left.
                let _ = thread.join();
                outcome.into()
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Verdict::Failed(format!("did not end within {CHECK_LIMIT:?}"))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Verdict::Failed(panic_text(thread.join())),
        }
    }
}

/// Waives what a backend is known not to do: NVIDIA's module pins no memory of stream-ordered
/// pools (NVIDIA/gdrcopy#257).
fn known_limit(site: &Site, kind: MemoryKind) -> Outcome {
    if (site.context().backend(), kind) != (BackendKind::Gdrdrv, MemoryKind::Pool) {
        return Ok(());
    }
    let buffer = outcome::allocate(site, kind, 64 << 10)?;
    match site.pin(buffer.ptr(), buffer.len()) {
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
pub enum Verdict {
    /// What it proves is so.
    Passed,
    /// It is not so: what was wrong.
    Failed(String),
    /// It could not be told here: why.
    Waived(String),
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Passed,
            Err(Stop::Failed(reason)) => Self::Failed(reason),
            Err(Stop::Waived(reason)) => Self::Waived(reason),
        }
    }
}

/// What happens during a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A check begins.
    Running {
        /// Its place in the run, from 0.
        index: usize,
        /// Checks in the run.
        total: usize,
        /// The check.
        check: &'a Check,
    },
    /// A check has ended.
    Ended {
        /// The check.
        check: &'a Check,
        /// How.
        verdict: &'a Verdict,
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
    /// Of these, how many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many were waived.
    pub waived: usize,
    /// Each one, in the order they ran.
    pub checks: Vec<Ended>,
}

/// One check of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    /// The check's name.
    pub name: String,
    /// What it proves.
    pub proves: &'static str,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: f64,
}

/// Runs `checks` one after the other.
///
/// # Errors
/// [`Error::Stopped`] when `observe` breaks. A failed check is no error but a verdict.
pub fn run(
    site: &Site,
    checks: &[Check],
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    let mut tell = |event: Event<'_>| match observe(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Stopped),
    };
    let scratch = site.gpu().allocate(MemoryKind::Plain, 4096).ok();
    let pinned = scratch
        .as_ref()
        .and_then(|b| site.context().pin(b.ptr(), b.len()).ok());
    let subject = Subject::new(site, pinned.as_ref());
    drop(pinned);
    drop(scratch);

    let mut ended = Vec::with_capacity(checks.len());
    for (index, check) in checks.iter().enumerate() {
        tell(Event::Running {
            index,
            total: checks.len(),
            check,
        })?;
        let start = Instant::now();
        let verdict = check.run(site);
        let seconds = start.elapsed().as_secs_f64();
        tell(Event::Ended {
            check,
            verdict: &verdict,
        })?;
        ended.push(Ended {
            name: check.name.clone(),
            proves: check.proves,
            verdict,
            seconds,
        });
    }
    let count = |wanted: fn(&Verdict) -> bool| ended.iter().filter(|e| wanted(&e.verdict)).count();
    Ok(Report {
        schema: Schema::first("gdr.sanity"),
        subject,
        total: ended.len(),
        passed: count(|v| matches!(v, Verdict::Passed)),
        failed: count(|v| matches!(v, Verdict::Failed(_))),
        waived: count(|v| matches!(v, Verdict::Waived(_))),
        checks: ended,
    })
}
