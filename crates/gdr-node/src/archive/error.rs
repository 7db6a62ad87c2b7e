//! Why an archive cannot be read or written.

use std::io;
use std::path::PathBuf;

use super::limits::Limit;

/// Why an archive cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The file itself.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "this is no archive of a node: {0}; `gdr collect` makes one, and other captures are read \
         by `gdr topo --from`"
    )]
    Other(&'static str),
    /// It ends too early.
    #[error("the archive is cut off: {0}; copy it again")]
    Truncated(String),
    /// Its compressed stream or its headers are wrong.
    #[error("the archive is damaged: {0}; copy it again")]
    Damaged(String),
    /// It was written by a version that this one does not know.
    #[error(
        "the archive has version {found} of its format, this program reads version {known}; use \
         the version of gdr that wrote it ({writer})"
    )]
    Version {
        /// The version found.
        found: u32,
        /// The version known here.
        known: u32,
        /// Who says to have written it.
        writer: String,
    },
    /// An entry would lead out of the archive.
    #[error("the archive has an entry at `{0}`, which is no place in it: it was tampered with")]
    Path(String),
    /// An entry is neither a file nor a link.
    #[error("the archive's entry `{path}` is {kind}: archives hold files and links only")]
    Kind {
        /// The entry.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// A place is there twice.
    #[error("the archive has `{0}` twice: which of them holds cannot be told")]
    Duplicate(String),
    /// It is larger than any node is.
    #[error("the archive is larger than any node's: more than {0}")]
    TooLarge(Limit),
    /// A name cannot be looked for.
    #[error("the archive cannot be redacted: {0}")]
    Redaction(String),
    /// Writing it failed.
    #[error("the archive cannot be written: {0}")]
    Write(#[source] io::Error),
}
