//! A progress bar on standard error, if that is a terminal.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// No bar is shown before this time.
const DELAY: Duration = Duration::from_secs(1);
/// Short enough for a narrow terminal; a longer message is cut.
const TEMPLATE: &str = "{bar:20} {pos}/{len} {wide_msg}";

/// The bars of this process, which are hidden while a line is printed.
static BARS: LazyLock<MultiProgress> =
    LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));

/// Runs `print` while no bar is on the terminal. Every line to standard output or standard error is
/// written through this, because both may be the same terminal.
pub(crate) fn suspend<R>(print: impl FnOnce() -> R) -> R {
    BARS.suspend(print)
}

/// Writes a line to standard error, past any progress bar.
pub(crate) fn print_to_stderr(line: impl fmt::Display) {
    let line = format!("{line}\n");
    // A closed standard error cannot be reported anywhere.
    let _ = suspend(|| anstream::stderr().write_all(line.as_bytes()));
}

/// Standard error, with bars hidden during writes.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A bar that appears on a terminal after [`DELAY`]. Dropping it removes it.
pub(crate) struct Progress {
    started: Instant,
    bar: OnceLock<ProgressBar>,
    is_hidden: bool,
}

impl Progress {
    /// A bar that never shows.
    pub(crate) fn hidden() -> Self {
        Self::new(true)
    }

    /// A bar on standard error, if that is a terminal.
    pub(crate) fn on_stderr() -> Self {
        Self::new(!io::stderr().is_terminal())
    }

    fn new(is_hidden: bool) -> Self {
        Self {
            started: Instant::now(),
            bar: OnceLock::new(),
            is_hidden,
        }
    }

    /// Shows `what` as the current part, after `done` of `total` parts.
    pub(crate) fn at(&self, done: usize, total: usize, what: &str) {
        if self.is_hidden || self.started.elapsed() < DELAY {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = BARS.add(ProgressBar::no_length());
            // The template is constant; a wrong one only changes the look.
            if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                bar.set_style(style);
            }
            bar
        });
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
            BARS.remove(bar);
        }
    }
}
