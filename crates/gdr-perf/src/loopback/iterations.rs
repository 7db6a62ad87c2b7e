//! Iterations of a run, up to the first failure.

use super::diagnose::{diagnose, diagnose_error};
use super::event::{Event, Observer};
use super::report::{Cause, Ended, Iteration, Path, Report, Throughput, Verdict};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::memory_facts::{Memory, MemoryFacts};
use crate::report::Schema;
use crate::wire::Wire;

/// Runs all iterations, up to the first that fails.
pub(super) fn run_all(
    settings: &Settings,
    tally: &mut Tally,
    observer: &mut Observer<'_>,
    mut round: impl FnMut(&mut Iteration, &mut Observer<'_>) -> Result<()>,
) -> Result<Option<Cause>> {
    for number in 1..=settings.iterations {
        let mut iteration = Iteration::begun(number, settings.seeds(number));
        match round(&mut iteration, observer) {
            Ok(()) => {
                if let Some(cause) = conclude(tally, iteration, observer)? {
                    return Ok(Some(cause));
                }
            }
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(error) => {
                // The run has failed even if the observer stops it here.
                let _ = observer.notify(Event::Ended(&iteration));
                return Ok(Some(tally.break_off(iteration, &error)));
            }
        }
    }
    Ok(None)
}

/// Counts an iteration and reports it to the observer. Returns why it failed, if it did.
fn conclude(
    tally: &mut Tally,
    iteration: Iteration,
    observer: &mut Observer<'_>,
) -> Result<Option<Cause>> {
    let notified = observer.notify(Event::Ended(&iteration));
    let cause = tally.add(iteration);
    // Report a failure even if the observer stops here.
    if cause.is_none() {
        notified?;
    }
    Ok(cause)
}

/// The finished iterations.
#[derive(Debug, Default)]
pub(super) struct Tally {
    passed: u32,
    last: Option<Iteration>,
    writes: Vec<u64>,
    reads: Vec<u64>,
}

impl Tally {
    /// Adds an iteration. Returns why it failed.
    pub(super) fn add(&mut self, iteration: Iteration) -> Option<Cause> {
        let cause = diagnose(&iteration);
        if cause.is_none() {
            self.passed += 1;
            if let Ended::Done { ns } = iteration.sent {
                self.writes.push(ns);
            }
            if let Ended::Done { ns } = iteration.read {
                self.reads.push(ns);
            }
        }
        self.last = Some(iteration);
        cause
    }

    /// Adds an iteration that an error ended. Returns why the run failed.
    pub(super) fn break_off(&mut self, iteration: Iteration, error: &Error) -> Cause {
        let cause = diagnose_error(&iteration, error);
        self.last = Some(iteration);
        cause
    }

    /// Returns the report of a run with this end.
    pub(super) fn report(
        self,
        settings: &Settings,
        memory: Memory,
        source: MemoryFacts,
        path: Path,
        end: Result<Option<Cause>>,
    ) -> Report {
        let (verdict, cause) = match end {
            Ok(None) if self.passed == settings.iterations => (Verdict::Pass, None),
            // No failure was found, but not every iteration was verified.
            Ok(None) | Err(Error::Stopped) => (Verdict::Undecided, None),
            Ok(Some(cause)) => (Verdict::Fail, Some(cause)),
            Err(error) => (
                Verdict::Fail,
                Some(Cause::of_error(self.passed + 1, &error)),
            ),
        };
        let sent = self.last.as_ref().and_then(|last| last.packets.sender);
        let (size, simulated) = (settings.size, memory.subject.simulated);
        Report {
            schema: Schema::first("gdr.loopback"),
            verdict,
            injected: settings.injected,
            cause,
            memory,
            source,
            path,
            size,
            iterations: settings.iterations,
            passed: self.passed,
            wire: sent.and_then(|sent| Wire::of(sent.sent, sent.sent_by_memory)),
            last: self.last,
            write: Throughput::new(size, simulated, self.writes),
            read: Throughput::new(size, simulated, self.reads),
        }
    }
}
