//! Standard output, which remembers its first error.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;

use gdr_perf::{Error, Result};
use gdr_render::Table;
use gdr_render::wrap::{self, width};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::document;
use crate::progress::{self, print_to_stderr};

/// Standard output. [`Output::finish`] returns the first error, after which every write fails with [`Error::Stopped`].
pub(crate) struct Output {
    stream: anstream::AutoStream<io::StdoutLock<'static>>,
    error: Option<io::Error>,
    /// Whether the last line must say that no GPU was used.
    is_simulated: bool,
    /// Whether each JSON document is printed on one line.
    is_in_lines: bool,
    /// Number of columns of the terminal that it goes to.
    columns: Option<usize>,
}

impl Output {
    pub(crate) fn stdout() -> Self {
        Self {
            stream: anstream::AutoStream::auto(io::stdout().lock()),
            error: None,
            is_simulated: false,
            is_in_lines: false,
            columns: terminal_columns(io::stdout()),
        }
    }

    /// Prints each JSON document on one line from now on. For commands that print one per event.
    pub(crate) fn documents_in_lines(&mut self) {
        self.is_in_lines = true;
    }

    /// Writes a line of text, wrapped to the width of a terminal.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        self.text(&format!("{line}\n"))
    }

    /// Writes lines of text, on a terminal none longer than that.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        match self.columns {
            Some(columns) => self.bytes(wrap::text_folded(text, columns).as_bytes()),
            None => self.bytes(text.as_bytes()),
        }
    }

    /// Returns the maximum number of characters per line of running text: [`WIDTH`], or the columns of a narrower
    /// terminal.
    pub(crate) fn width(&self) -> usize {
        self.columns.map_or(WIDTH, |columns| columns.min(WIDTH))
    }

    /// Writes `text` in lines of at most [`Output::width`] characters: the first line after `first`, the others after
    /// `rest`. A longer word is not split.
    pub(crate) fn paragraph(&mut self, first: &str, rest: &str, text: &str) -> Result<()> {
        let most = self.width();
        let mut line = first.to_owned();
        let mut is_empty = true;
        for word in text.split(' ') {
            if !is_empty && width(&line) + 1 + width(word) > most {
                self.line(&line)?;
                rest.clone_into(&mut line);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.line(&line)
    }

    /// Writes a table, no wider than running text.
    pub(crate) fn table(&mut self, table: &Table) -> Result<()> {
        let lines = table.lines(self.width());
        self.bytes(format!("{}\n", lines.join("\n")).as_bytes())
    }

    /// Writes that the GPU is simulated and why: here and, through [`Output::finish`], in the last line.
    pub(crate) fn simulated(&mut self, why: impl fmt::Display) -> Result<()> {
        self.is_simulated = true;
        self.line(format_args!("{} {why}", SIMULATED.yellow().bold()))
    }

    /// Writes the same to standard error, where standard output has only figures.
    pub(crate) fn simulated_aside(why: impl fmt::Display) {
        print_to_stderr(format_args!("{} {why}", SIMULATED.yellow().bold()));
    }

    /// Writes a value as a JSON document and ends the line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = match self.is_in_lines {
            true => serde_json::to_string(value),
            false => serde_json::to_string_pretty(value),
        };
        match text.map_err(io::Error::from) {
            Ok(text) => self.document(&text),
            Err(error) => self.keep(Err(error)),
        }
    }

    /// Writes the text of a JSON object as a document and ends the line.
    pub(crate) fn document(&mut self, text: &str) -> Result<()> {
        let completed = match self.is_in_lines {
            true => document::complete_line(text),
            false => document::complete(text),
        };
        match completed {
            Ok(text) => self.bytes(format!("{text}\n").as_bytes()),
            Err(error) => self.keep(Err(error.into())),
        }
    }

    /// Writes bytes as they are, past any progress bar.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let stream = &mut self.stream;
        let written = progress::suspend(|| stream.write_all(bytes));
        self.keep(written)
    }

    /// Flushes the output and returns its first error.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if self.is_simulated && self.error.is_none() {
            // `line` keeps the error.
            let _ = self.line(format_args!(
                "{} no GPU was used: this result describes no hardware",
                SIMULATED.yellow().bold()
            ));
        }
        match self.error {
            Some(error) => Err(error),
            None => progress::suspend(|| self.stream.flush()),
        }
    }

    /// Writes bytes that are not text, unchanged.
    pub(crate) fn content(&mut self, bytes: &[u8]) -> Result<()> {
        // The stream holds this thread's lock, and removes color codes.
        let written = progress::suspend(|| io::stdout().write_all(bytes));
        self.keep(written)
    }

    /// Flushes what [`Output::content`] wrote, for a reader that waits for it.
    pub(crate) fn flush_content(&mut self) -> Result<()> {
        let flushed = progress::suspend(|| io::stdout().flush());
        self.keep(flushed)
    }

    fn keep(&mut self, written: io::Result<()>) -> Result<()> {
        written.map_err(|error| {
            self.error.get_or_insert(error);
            Error::Stopped
        })
    }
}

/// First word of the lines about a simulated GPU.
const SIMULATED: &str = "SIMULATED:";

/// Returns an observer's answer after a write.
pub(crate) fn flow(written: Result<()>) -> ControlFlow<()> {
    match written {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// Columns of a terminal that does not report its width.
const USUAL_COLUMNS: usize = 80;

/// Returns the columns of a stream that is a terminal.
pub(crate) fn terminal_columns(stream: impl AsFd + IsTerminal) -> Option<usize> {
    stream.is_terminal().then(|| {
        let size = rustix::termios::tcgetwinsize(stream).ok();
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        if columns == 0 { USUAL_COLUMNS } else { columns }
    })
}

/// Maximum number of characters per line of running text.
pub(crate) const WIDTH: usize = 100;
