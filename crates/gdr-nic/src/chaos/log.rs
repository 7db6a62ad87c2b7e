//! Where faults are reported.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use gdr_chaos::Record;

/// Where faults are reported. Each line is one system call, so that processes may share a file.
#[derive(Debug)]
pub(crate) enum Log {
    File(File),
    StandardError,
}

impl Log {
    /// Appends to the file at `path`, or to the standard error.
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
        // A failure cannot be reported anywhere.
        let _ = match self {
            Self::File(file) => (&*file).write_all(line.as_bytes()),
            Self::StandardError => io::stderr().write_all(line.as_bytes()),
        };
    }
}
