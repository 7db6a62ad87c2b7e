//! What was changed, so that it can be taken back.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of a journal's layout.
const VERSION: u32 = 1;

/// The longest journal that is read, in bytes.
const MAX_JOURNAL: u64 = 16 << 20;

/// One change, with what was there before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Change {
    /// A register of 16 bits.
    Register {
        /// The function's address.
        bdf: String,
        /// Where in its config space.
        offset: u16,
        /// What it held.
        before: u16,
        /// What was written.
        after: u16,
        /// The boot in which it was written: after the next, the register is what it was.
        boot: Option<String>,
    },
    /// A file.
    File {
        /// Its path.
        path: String,
        /// What it held; `None` where it was not there.
        before: Option<Vec<u8>>,
        /// What was put there.
        after: Vec<u8>,
    },
    /// A module that was loaded.
    Module {
        /// Its name.
        module: String,
        /// The boot in which it was loaded.
        boot: Option<String>,
    },
    /// An interface's MTU.
    Mtu {
        /// The interface.
        netdev: String,
        /// What it was.
        before: u32,
        /// What it was set to.
        after: u32,
        /// The boot in which it was set.
        boot: Option<String>,
    },
    /// A function was taken away and found again.
    Rescan {
        /// The function's address.
        bdf: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register {
                bdf,
                offset,
                before,
                after,
                ..
            } => write!(f, "{bdf} {offset:#x}: {before:#06x} -> {after:#06x}"),
            Self::File { path, before, .. } => match before {
                None => write!(f, "{path} was made"),
                Some(_) => write!(f, "{path} was changed"),
            },
            Self::Module { module, .. } => write!(f, "{module} was loaded"),
            Self::Mtu {
                netdev,
                before,
                after,
                ..
            } => write!(f, "{netdev}: MTU {before} -> {after}"),
            Self::Rescan { bdf } => write!(f, "{bdf} was found again"),
        }
    }
}

/// A line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line.
    Journal {
        /// Of the layout.
        version: u32,
    },
    /// A change is about to be made.
    Begin {
        /// Its number, from 0.
        number: usize,
        /// The change.
        change: Change,
    },
    /// A change was taken back, or turned out to need no undoing.
    Undone {
        /// Its number.
        number: usize,
    },
}

/// Why a journal cannot be kept or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system refuses.
    #[error("the journal {} cannot be {what}: {source}", path.display())]
    Io {
        /// The journal.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// It is no journal.
    #[error("{} line {line} is no journal's: {why}; mend or move the file", path.display())]
    Garbage {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// A journal: a file of a line a record, each on disk before what it says is done.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
}

impl Journal {
    /// Opens a journal, or begins one.
    ///
    /// # Errors
    ///
    /// [`JournalError`]: the file cannot be written, or is no journal.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let failed = |what: &'static str| {
            let path = path.to_owned();
            move |source: io::Error| JournalError::Io { path, what, source }
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed("created"))?;
        }
        let text = match fs::metadata(path) {
            Ok(data) if data.len() > MAX_JOURNAL => {
                return Err(JournalError::Garbage {
                    path: path.to_owned(),
                    line: 1,
                    why: "it is too long".to_owned(),
                });
            }
            Ok(_) => fs::read_to_string(path).map_err(failed("read"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed("read")(error)),
        };
        let records = parse(path, &text)?;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(failed("opened"))?;
        // A line that a crash cut short was never acted upon.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).map_err(failed("mended"))?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
            records,
        };
        if journal.records.is_empty() {
            journal.write(Record::Journal { version: VERSION })?;
        }
        Ok(journal)
    }

    /// Says that a change is about to be made.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`]: then the change must not be made.
    pub fn begin(&mut self, change: Change) -> Result<(), JournalError> {
        let number = self.changes().count();
        self.write(Record::Begin { number, change })
    }

    /// Says that a change was taken back.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`].
    pub fn undone(&mut self, number: usize) -> Result<(), JournalError> {
        self.write(Record::Undone { number })
    }

    /// The changes that were made and not taken back, the last one first.
    pub fn standing(&self) -> Vec<(usize, Change)> {
        let undone: Vec<usize> = (self.records.iter())
            .filter_map(|record| match record {
                Record::Undone { number } => Some(*number),
                _ => None,
            })
            .collect();
        let mut standing: Vec<(usize, Change)> = self
            .changes()
            .filter(|(number, _)| !undone.contains(number))
            .map(|(number, change)| (number, change.clone()))
            .collect();
        standing.reverse();
        standing
    }

    fn changes(&self) -> impl Iterator<Item = (usize, &Change)> {
        self.records.iter().filter_map(|record| match record {
            Record::Begin { number, change } => Some((*number, change)),
            _ => None,
        })
    }

    fn write(&mut self, record: Record) -> Result<(), JournalError> {
        serde_json::to_string(&record)
            .map_err(io::Error::from)
            .and_then(|line| self.file.write_all(format!("{line}\n").as_bytes()))
            .and_then(|()| self.file.sync_data())
            .map_err(|source| JournalError::Io {
                path: self.path.clone(),
                what: "written",
                source,
            })?;
        self.records.push(record);
        Ok(())
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Record>, JournalError> {
    let mut records = Vec::new();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for (number, line) in (1..).zip(whole.lines()) {
        if line.is_empty() {
            continue;
        }
        let garbage = |why: String| JournalError::Garbage {
            path: path.to_owned(),
            line: number,
            why,
        };
        let record: Record = match serde_json::from_str(line) {
            Ok(record) => record,
            Err(error) => return Err(garbage(error.to_string())),
        };
        match (&record, records.is_empty()) {
            (Record::Journal { version }, true) if *version == VERSION => {}
            (Record::Journal { version }, true) => {
                return Err(garbage(format!("it is of version {version}")));
            }
            (_, true) | (Record::Journal { .. }, false) => {
                return Err(garbage("it does not begin like a journal".to_owned()));
            }
            _ => {}
        }
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str) -> Change {
        Change::Module {
            module: name.into(),
            boot: None,
        }
    }

    #[test]
    fn what_was_changed_and_not_undone_is_known_after_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/journal");
        let mut journal = Journal::open(&path).unwrap();
        for name in ["a", "b", "c"] {
            journal.begin(module(name)).unwrap();
        }
        journal.undone(1).unwrap();
        drop(journal);
        // The crash cut a line short.
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"record\":\"beg");
        fs::write(&path, text).unwrap();
        let mut journal = Journal::open(&path).unwrap();
        assert_eq!(journal.standing(), [(2, module("c")), (0, module("a"))]);
        journal.begin(module("d")).unwrap();
        drop(journal);
        let journal = Journal::open(&path).unwrap();
        assert_eq!(journal.standing()[0], (3, module("d")));
    }

    #[test]
    fn what_is_no_journal_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        for text in [
            "{}\n",
            "\u{0}\n",
            "{\"record\":\"journal\",\"version\":9}\n",
        ] {
            fs::write(&path, text).unwrap();
            assert!(matches!(
                Journal::open(&path),
                Err(JournalError::Garbage { line: 1, .. })
            ));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
