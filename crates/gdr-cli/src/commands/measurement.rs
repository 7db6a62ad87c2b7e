//! A running measurement: its progress bar, Ctrl-C, and its results so far.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::global::Global;
use crate::interrupt::{self, FirstSignal, Interrupted};
use crate::progress::Progress;

/// A running measurement.
pub(super) struct Measurement {
    stop: Arc<AtomicBool>,
    progress: Progress,
    done: usize,
    total: usize,
    /// Results for the document of a stopped run; empty without `--json`.
    measured: Vec<Value>,
    has_document: bool,
}

impl Measurement {
    /// Starts a measurement of `total` parts with a progress bar.
    pub(super) fn start(global: &Global, total: usize) -> Result<Self> {
        Self::with(global, total, Progress::on_stderr())
    }

    /// Starts a measurement with the given progress bar.
    pub(super) fn with(global: &Global, total: usize, progress: Progress) -> Result<Self> {
        Ok(Self {
            stop: interrupt::flag(FirstSignal::RequestsStop)?,
            progress,
            done: 0,
            total,
            measured: Vec::new(),
            has_document: global.json,
        })
    }

    /// A part begins.
    pub(super) fn begin(&self, what: impl Display) {
        self.progress.at(self.done, self.total, &what.to_string());
    }

    /// A part has ended.
    pub(super) fn end(&mut self, row: &impl Serialize) {
        self.done += 1;
        if self.has_document {
            // A value that cannot be serialized fails in the whole document too.
            self.measured.extend(serde_json::to_value(row));
        }
    }

    /// `done` parts have ended, whose results are not kept.
    pub(super) fn reached(&mut self, done: usize, total: usize, what: &str) {
        (self.done, self.total) = (done, total);
        self.progress.at(done, total, what);
    }

    /// Goes on unless a write failed or a signal arrived.
    pub(super) fn flow(&self, written: gdr_perf::Result<()>) -> ControlFlow<()> {
        match written {
            Ok(()) if !self.is_stopped() => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    /// Returns the result, or [`Interrupted`] with the results so far after a signal.
    pub(super) fn finish<T>(self, result: Result<T, impl Into<anyhow::Error>>) -> Result<T> {
        let error = match result {
            Ok(value) => return Ok(value),
            Err(error) => error.into(),
        };
        let cause = error.downcast_ref();
        if matches!(cause, Some(gdr_perf::Error::Stopped)) && self.is_stopped() {
            return Err(Interrupted {
                done: self.done,
                total: self.total,
                measured: self.measured,
            }
            .into());
        }
        Err(error)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
