//! A progress bar on standard error, if that is a terminal.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gdr_render::wrap;

use crate::output::terminal_columns;

/// No bar is shown earlier than this.
const DELAY: Duration = Duration::from_secs(1);
/// Minimum time between two updates of a bar.
const PAUSE: Duration = Duration::from_millis(50);
/// Length of a bar in characters, short enough for a narrow terminal. A longer message is cut.
const LENGTH: usize = 20;
/// Moves to the first column and erases the line.
const CLEAR: &str = "\r\x1b[2K";

/// The bar on the terminal, which is hidden while a line is printed.
static SHOWN: Mutex<Option<String>> = Mutex::new(None);

/// Locks the terminal. A thread that panicked while printing left nothing half done.
fn shown() -> MutexGuard<'static, Option<String>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to the terminal; one that is gone shows no bar.
fn draw(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Runs `print` while no bar is on the terminal. All output to standard output and standard error goes through this,
/// because both may be the same terminal.
pub(crate) fn suspend<R>(print: impl FnOnce() -> R) -> R {
    let bar = shown();
    if bar.is_some() {
        draw(CLEAR);
    }
    let printed = print();
    if let Some(bar) = &*bar {
        draw(bar);
    }
    printed
}

/// Writes a line to standard error without disturbing a progress bar, wrapped to the width of a terminal.
pub(crate) fn print_to_stderr(line: impl fmt::Display) {
    let mut line = format!("{line}\n");
    if let Some(columns) = terminal_columns(io::stderr()) {
        line = wrap::text_folded(&line, columns);
    }
    // A closed standard error cannot be reported anywhere.
    let _ = suspend(|| anstream::stderr().write_all(line.as_bytes()));
}

/// Writes a line to standard error of a process that is ending, regardless of what its other threads are writing.
pub(crate) fn last_words(line: impl fmt::Display) {
    let bar = SHOWN.try_lock();
    if bar.is_ok_and(|bar| bar.is_some()) {
        draw(CLEAR);
    }
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Standard error, with the bar hidden during writes.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (terminal_columns(io::stderr()), std::str::from_utf8(bytes)) {
            (Some(columns), Ok(text)) => {
                let text = wrap::text_folded(text, columns);
                suspend(|| io::stderr().write_all(text.as_bytes()))?;
                Ok(bytes.len())
            }
            _ => suspend(|| io::stderr().write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A bar that appears on a terminal after [`DELAY`]. Dropping it removes it.
pub(crate) struct Progress {
    started: Instant,
    /// When it was last drawn.
    drawn: Mutex<Option<Instant>>,
    is_hidden: bool,
}

impl Progress {
    /// Returns a bar that never shows.
    pub(crate) fn hidden() -> Self {
        Self::new(true)
    }

    /// Returns a bar on standard error, if that is a terminal.
    pub(crate) fn on_stderr() -> Self {
        Self::new(!io::stderr().is_terminal())
    }

    fn new(is_hidden: bool) -> Self {
        Self {
            started: Instant::now(),
            drawn: Mutex::new(None),
            is_hidden,
        }
    }

    /// Shows `what` as the current part, after `done` of `total` parts.
    pub(crate) fn at(&self, done: usize, total: usize, what: &str) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let is_early = match *drawn {
            Some(drawn) => drawn.elapsed() < PAUSE,
            None => self.started.elapsed() < DELAY,
        };
        if self.is_hidden || is_early {
            return;
        }
        // Writing to the last column would move the cursor to the next line.
        let columns = terminal_columns(io::stderr()).unwrap_or_default();
        let bar = bar(done, total, what, columns.saturating_sub(1));
        let mut shown = shown();
        draw(&format!("{CLEAR}{bar}"));
        *shown = Some(bar);
        *drawn = Some(Instant::now());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let drawn = self.drawn.get_mut().unwrap_or_else(PoisonError::into_inner);
        if drawn.is_some() {
            let mut shown = shown();
            *shown = None;
            draw(CLEAR);
        }
    }
}

/// Returns the characters of a bar.
fn bar(done: usize, total: usize, what: &str, columns: usize) -> String {
    let full = LENGTH * done.min(total) / total.max(1);
    let (full, rest) = ("█".repeat(full), "░".repeat(LENGTH - full));
    let bar = format!("{full}{rest} {done}/{total} {what}");
    bar.chars().take(columns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_its_share_and_is_cut_to_the_terminal() {
        let half = bar(5, 10, "sizes", 80);
        assert_eq!(half, "██████████░░░░░░░░░░ 5/10 sizes");
        assert_eq!(bar(5, 10, "sizes", 12), "██████████░░");
        assert!(bar(0, 0, "", 80).starts_with('░'));
    }
}
