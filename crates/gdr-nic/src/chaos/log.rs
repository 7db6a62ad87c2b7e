//! The log of injected faults.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use gdr_chaos::Record;

/// The log of injected faults. Each line is written by one system call, so that processes can share a file.
#[derive(Debug)]
pub(crate) enum Log {
    File(File),
    StandardError,
}

impl Log {
    /// Opens the file at `path` for appending; without a path, uses standard error.
    pub(super) fn open(path: Option<&OsStr>) -> io::Result<Self> {
        match path {
            Some(path) => {
                let file = OpenOptions::new().append(true).create(true).open(path)?;
                Ok(Self::File(file))
            }
            None => Ok(Self::StandardError),
        }
    }

    pub(super) fn write(&self, record: &Record) {
        let line = format!("{record}\n");
        // There is nowhere to report a failure of the log itself.
        let _ = match self {
            Self::File(file) => (&*file).write_all(line.as_bytes()),
            Self::StandardError => io::stderr().write_all(line.as_bytes()),
        };
    }
}
