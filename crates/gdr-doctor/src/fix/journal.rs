//! The journal of changes, from which they are undone.
//!
//! The undo writes to the files and registers that the journal names, with the privileges of the
//! user who runs it. The journal and its directory must therefore belong to that user or to root,
//! and no other user may write to them.

use std::fmt;
use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the journal's format.
const VERSION: u32 = 1;

/// The longest journal that is read, in bytes.
const MAX_JOURNAL: u64 = 16 << 20;

/// The modes of a new folder and a new journal, which the umask may reduce.
const FOLDER_MODE: u32 = 0o755;
const JOURNAL_MODE: u32 = 0o600;
/// Write permission of users other than the owner.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// One change, with the value before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Change {
    /// A register of 16 bits.
    Register {
        /// The function's address.
        bdf: String,
        /// The offset in its config space.
        offset: u16,
        /// The value before.
        before: u16,
        /// What was written.
        after: u16,
        /// The boot in which it was written: a reboot resets the register.
        boot: Option<String>,
    },
    /// A file.
    File {
        /// Its path.
        path: String,
        /// Its content before; `None` if it did not exist.
        before: Option<Vec<u8>>,
        /// Its new content.
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
        /// The value before.
        before: u32,
        /// The new value.
        after: u32,
        /// The boot in which it was set.
        boot: Option<String>,
    },
    /// A function was removed and rescanned.
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
        /// The version of the format.
        version: u32,
    },
    /// A change is about to be made.
    Begin {
        /// Its number, from 0.
        number: usize,
        /// The change.
        change: Change,
    },
    /// A change was undone, or did not need to be.
    Undone {
        /// Its number.
        number: usize,
    },
}

/// The reason why a journal cannot be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A file operation failed.
    #[error("the journal {} cannot be {what}: {source}", path.display())]
    Io {
        /// The journal.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The journal or its folder belongs to another user.
    #[error(
        "{} belongs to user {owner}, who could change what gets undone: review it, then move it away \
         or `chown {user} {}`",
        path.display(),
        path.display()
    )]
    Owner {
        /// The journal or its folder.
        path: PathBuf,
        /// The user it belongs to.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// Users other than the owner may write to the journal or its folder.
    #[error(
        "{} has mode {mode:04o}, so other users could change what gets undone: review it, then move it \
         away or `chmod go-w {}`",
        path.display(),
        path.display()
    )]
    Mode {
        /// The journal or its folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The path is a symbolic link, or anything else than a regular file.
    #[error(
        "{} is not a regular file, so it cannot be a journal; move it away",
        path.display()
    )]
    NotAFile {
        /// The path of the journal.
        path: PathBuf,
    },
    /// The file is not a journal.
    #[error("{} line {line} is not a journal entry: {why}; repair or move the file", path.display())]
    Garbage {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault.
        why: String,
    },
}

/// A journal: a file with one record per line, each on disk before its change is made.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
}

impl Journal {
    /// Opens a journal, or begins one. A folder that does not exist is created with mode 755, the
    /// file with mode 600.
    ///
    /// # Errors
    ///
    /// [`JournalError`]: the file cannot be written, another user can write it, or it is not a
    /// journal. The file is then unchanged.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let failed = |what: &'static str| {
            let path = path.to_owned();
            move |source: io::Error| JournalError::Io { path, what, source }
        };
        let file = open_file(path)?;
        let mut text = String::new();
        (&file)
            .take(MAX_JOURNAL + 1)
            .read_to_string(&mut text)
            .map_err(failed("read"))?;
        if text.len() as u64 > MAX_JOURNAL {
            return Err(JournalError::Garbage {
                path: path.to_owned(),
                line: 1,
                why: "it is too long".to_owned(),
            });
        }
        let records = parse(path, &text)?;
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

    /// Records that a change is about to be made.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`]: then the change must not be made.
    pub fn begin(&mut self, change: Change) -> Result<(), JournalError> {
        let number = self.changes().count();
        self.write(Record::Begin { number, change })
    }

    /// Records that a change was undone.
    ///
    /// # Errors
    ///
    /// [`JournalError::Io`].
    pub fn undone(&mut self, number: usize) -> Result<(), JournalError> {
        self.write(Record::Undone { number })
    }

    /// Returns the changes that were made and not undone, the last one first.
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

/// Opens or creates the file of a journal, for reading and appending.
///
/// The folder is opened first and the file in it, so that what was checked is what is used.
fn open_file(path: &Path) -> Result<File, JournalError> {
    let failed = |what: &'static str| {
        let path = path.to_owned();
        move |source: Errno| JournalError::Io {
            path,
            what,
            source: source.into(),
        }
    };
    let not_a_file = || JournalError::NotAFile {
        path: path.to_owned(),
    };
    let name = path.file_name().ok_or_else(not_a_file)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(folder)
        .map_err(|source| JournalError::Io {
            path: folder.to_owned(),
            what: "created",
            source,
        })?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened: File = openat(CWD, folder, flags, Mode::empty())
        .map_err(failed("opened"))?
        .into();
    check_access(folder, &opened)?;
    // Opening a pipe must not block.
    let flags = OFlags::RDWR
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let file = match openat(&opened, name, flags, Mode::from(JOURNAL_MODE)) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(not_a_file()),
        Err(errno) => return Err(failed("opened")(errno)),
    };
    if !check_access(path, &file)?.is_file() {
        return Err(not_a_file());
    }
    Ok(file)
}

/// Checks that only this user or root can change an open file or folder.
fn check_access(path: &Path, file: &File) -> Result<Metadata, JournalError> {
    let metadata = file.metadata().map_err(|source| JournalError::Io {
        path: path.to_owned(),
        what: "read",
        source,
    })?;
    permits(path, metadata.uid(), metadata.mode(), geteuid())?;
    Ok(metadata)
}

/// Checks that `user` may rely on something that belongs to `owner` and has `mode`.
fn permits(path: &Path, owner: u32, mode: u32, user: Uid) -> Result<(), JournalError> {
    let path = || path.to_owned();
    if owner != user.as_raw() && owner != Uid::ROOT.as_raw() {
        return Err(JournalError::Owner {
            path: path(),
            owner,
            user: user.as_raw(),
        });
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(JournalError::Mode {
            path: path(),
            mode: mode & 0o7777,
        });
    }
    Ok(())
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
                return Err(garbage(format!("it has version {version}")));
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
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use snapshot::assert_contains;

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

    /// Returns a journal with one change, in a folder of its own.
    fn begun() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gdr/journal");
        Journal::open(&path).unwrap().begin(module("a")).unwrap();
        (dir, path)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_owner_can_write_to_a_new_journal() {
        let (_dir, path) = begun();
        assert_eq!(mode(&path) & 0o077, 0);
        assert_eq!(mode(path.parent().unwrap()) & 0o022, 0);
    }

    #[test]
    fn a_journal_that_others_can_write_to_is_refused_until_it_is_closed_to_them() {
        let (_dir, path) = begun();
        let folder = path.parent().unwrap();
        for (refused, open, closed) in [
            (&*path, 0o620, 0o644),
            (&*path, 0o602, 0o600),
            (folder, 0o775, 0o755),
            (folder, 0o1777, 0o700),
        ] {
            fs::set_permissions(refused, Permissions::from_mode(open)).unwrap();
            let error = Journal::open(&path).unwrap_err();
            let text = error.to_string();
            let remedy = format!("chmod go-w {}", refused.display());
            assert!(text.contains(&remedy), "{text}");
            assert!(
                matches!(&error, JournalError::Mode { path, mode } if path == refused && *mode == open),
                "{error:?}"
            );
            fs::set_permissions(refused, Permissions::from_mode(closed)).unwrap();
            assert_eq!(Journal::open(&path).unwrap().standing().len(), 1);
        }
    }

    #[test]
    fn a_journal_belongs_to_the_effective_user_or_root() {
        let (user, other) = (Uid::from_raw(1000), 1001);
        let path = Path::new("/var/lib/gdr/fix.journal");
        permits(path, 1000, 0o100_644, user).unwrap();
        permits(path, 0, 0o100_600, user).unwrap();
        let error = permits(path, other, 0o100_600, user).unwrap_err();
        assert!(
            matches!(
                error,
                JournalError::Owner {
                    owner: 1001,
                    user: 1000,
                    ..
                }
            ),
            "{error:?}"
        );
        let text = error.to_string();
        assert_contains!(text, "chown 1000 /var/lib/gdr/fix.journal");
    }

    #[test]
    fn a_journal_or_folder_of_another_user_is_refused() {
        if geteuid() != Uid::ROOT {
            skip::skip("only root can give a file to another user");
            return;
        }
        let (_dir, path) = begun();
        for refused in [&*path, path.parent().unwrap()] {
            chown(refused, Some(65_534), None).unwrap();
            let error = Journal::open(&path).unwrap_err();
            assert!(
                matches!(&error, JournalError::Owner { path, owner: 65_534, user: 0 } if path == refused),
                "{error:?}"
            );
            chown(refused, Some(0), None).unwrap();
        }
        assert_eq!(Journal::open(&path).unwrap().standing().len(), 1);
    }

    #[test]
    fn a_symbolic_link_or_a_pipe_is_not_a_journal() {
        let (dir, path) = begun();
        let before = fs::read_to_string(&path).unwrap();
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        let nowhere = dir.path().join("nowhere");
        symlink(dir.path().join("made"), &nowhere).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(CWD, &pipe, Mode::from(0o600)).unwrap();
        for other in [&*link, &nowhere, &pipe, path.parent().unwrap()] {
            let error = Journal::open(other).unwrap_err();
            assert!(matches!(error, JournalError::NotAFile { .. }), "{error:?}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
        assert!(!dir.path().join("made").exists());
    }
}
