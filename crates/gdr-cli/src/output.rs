//! Standard output, and what happens when nobody reads it any more.

use std::fmt;
use std::io::{self, Write};
use std::ops::ControlFlow;

use gdr_perf::{Error, Result};
use serde::Serialize;

/// Standard output. The first error is kept for [`Output::finish`], and everything after it is
/// told to stop.
pub(crate) struct Output {
    stream: anstream::AutoStream<io::StdoutLock<'static>>,
    error: Option<io::Error>,
}

impl Output {
    pub(crate) fn stdout() -> Self {
        Self {
            stream: anstream::AutoStream::auto(io::stdout().lock()),
            error: None,
        }
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        let written = writeln!(self.stream, "{line}");
        self.keep(written)
    }

    /// Writes a value as JSON and ends the line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let written = serde_json::to_string_pretty(value).map_err(io::Error::from);
        let written = written.and_then(|text| writeln!(self.stream, "{text}"));
        self.keep(written)
    }

    /// The stream itself, for generators that write bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.stream.write_all(bytes);
        self.keep(written)
    }

    /// Pushes out what was written: the first error, if there was one.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        match self.error {
            Some(error) => Err(error),
            None => self.stream.flush(),
        }
    }

    fn keep(&mut self, written: io::Result<()>) -> Result<()> {
        written.map_err(|error| {
            self.error.get_or_insert(error);
            Error::Stopped
        })
    }
}

/// What an observer answers after it wrote.
pub(crate) fn flow(written: Result<()>) -> ControlFlow<()> {
    match written {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}
