//! A running measurement: its progress bar, Ctrl-C handling, and results so far.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::document;
use crate::exit::Exit;
use crate::global::Global;
use crate::interrupt::{self, Interrupted};
use crate::json_error::JsonError;
use crate::progress::{Progress, last_words};

/// A running measurement.
pub(super) struct Measurement {
    stop: Arc<AtomicBool>,
    progress: Progress,
    /// What has been measured. Without `--json`, results are not kept.
    so_far: Arc<Mutex<SoFar>>,
    has_document: bool,
}

struct SoFar {
    interrupted: Interrupted,
    /// Records that the measurement has ended by itself, not by a signal.
    is_over: bool,
}

impl Measurement {
    /// Starts a measurement of `total` parts with a progress bar.
    pub(super) fn start(global: &Global, total: usize) -> Result<Self> {
        Self::with(global, total, Progress::on_stderr())
    }

    /// Starts a measurement with the given progress bar. After a signal, a part that takes long is not waited for.
    pub(super) fn with(global: &Global, total: usize, progress: Progress) -> Result<Self> {
        let so_far = Arc::new(Mutex::new(SoFar {
            interrupted: Interrupted {
                done: 0,
                total,
                measured: Vec::new(),
            },
            is_over: false,
        }));
        let (at_signal, has_document) = (Arc::clone(&so_far), global.json);
        let stop = interrupt::flag_or(move || {
            // Keep this locked to the end, so that the measuring thread does not report the same.
            let so_far = lock(&at_signal);
            if so_far.is_over {
                return;
            }
            let interrupted = &so_far.interrupted;
            last_words(format_args!("{} {interrupted}", "error:".red().bold()));
            if has_document {
                print_document(interrupted.clone());
            }
            interrupt::end();
        })?;
        Ok(Self {
            stop,
            progress,
            so_far,
            has_document,
        })
    }

    /// A part begins.
    pub(super) fn begin(&self, what: impl Display) {
        let (done, total) = self.reached_so_far();
        self.progress.at(done, total, &what.to_string());
    }

    /// A part has ended.
    pub(super) fn end(&mut self, row: &impl Serialize) {
        let mut so_far = lock(&self.so_far);
        so_far.interrupted.done += 1;
        if self.has_document {
            // A value that cannot be serialized also fails in the whole document.
            so_far
                .interrupted
                .measured
                .extend(serde_json::to_value(row));
        }
    }

    /// Records that `done` parts have ended, without keeping their results.
    pub(super) fn reached(&mut self, done: usize, total: usize, what: &str) {
        {
            let mut so_far = lock(&self.so_far);
            (so_far.interrupted.done, so_far.interrupted.total) = (done, total);
        }
        self.progress.at(done, total, what);
    }

    /// Continues unless a write failed or a signal arrived.
    pub(super) fn flow(&self, written: gdr_perf::Result<()>) -> ControlFlow<()> {
        match written {
            Ok(()) if !self.is_stopped() => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    /// Returns the result, or [`Interrupted`] with the results so far after a signal.
    pub(super) fn finish<T>(self, result: Result<T, impl Into<anyhow::Error>>) -> Result<T> {
        let mut so_far = lock(&self.so_far);
        so_far.is_over = true;
        let error = match result {
            Ok(value) => return Ok(value),
            Err(error) => error.into(),
        };
        let cause = error.downcast_ref();
        if matches!(cause, Some(gdr_perf::Error::Stopped)) && self.is_stopped() {
            return Err(so_far.interrupted.clone().into());
        }
        Err(error)
    }

    fn reached_so_far(&self) -> (usize, usize) {
        let so_far = lock(&self.so_far);
        (so_far.interrupted.done, so_far.interrupted.total)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Locks what was measured so far. A panic in a thread that was adding to it leaves it intact.
fn lock(so_far: &Mutex<SoFar>) -> MutexGuard<'_, SoFar> {
    so_far.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the document of a stopped run, bypassing the lock that the measuring thread holds on standard output.
fn print_document(interrupted: Interrupted) {
    let message = interrupted.to_string();
    let fault = JsonError::new(&interrupted.into(), message, Exit::Undecided);
    let text = serde_json::to_string_pretty(&fault).and_then(|text| document::complete(&text));
    let text = text.unwrap_or_default() + "\n";
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(rustix::stdio::stdout(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(rustix::io::Errno::INTR) => {}
            // A reader that is gone reads nothing.
            Err(_) => return,
        }
    }
}
