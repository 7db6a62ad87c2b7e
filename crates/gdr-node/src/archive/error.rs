//! Why an archive cannot be read or written.

use std::io;
use std::path::PathBuf;

use super::limits::Limit;

/// Why an archive cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The file cannot be opened.
    #[error("{path}: {source}", path = path.display())]
    #[allow(missing_docs, reason = "the names say it")]
    File { path: PathBuf, source: io::Error },
    /// It is not an archive.
    #[error(
        "this is not an archive of a node: {0}; create one with `gdr collect`, or pass other captures \
         to `gdr topo --from`"
    )]
    Other(&'static str),
    /// It ends before its last entry.
    #[error("the archive is cut off: {0}; copy it again")]
    Truncated(String),
    /// Its compressed stream or headers are invalid.
    #[error("the archive is damaged: {0}; copy it again")]
    Damaged(String),
    /// Its format version is not one that this crate reads.
    #[error(
        "the archive has format version {found}, but this program reads version {known}; use the \
         version of gdr that wrote it ({writer})"
    )]
    #[allow(missing_docs, reason = "the names say it")]
    Version {
        found: u32,
        known: u32,
        writer: String,
    },
    /// An entry has a path outside the archive.
    #[error(
        "the archive contains the path `{0}`, which lies outside its root: it was tampered with"
    )]
    Path(String),
    /// An entry is neither a file nor a link.
    #[error("the archive's entry `{path}` is {kind}, but archives contain only files and links")]
    #[allow(missing_docs, reason = "the names say it")]
    Kind { path: String, kind: &'static str },
    /// Two entries have the same path.
    #[error("the archive contains `{0}` twice: the entries contradict each other")]
    Duplicate(String),
    /// It exceeds a limit.
    #[error("the archive is too large for a node: it has more than {0}")]
    TooLarge(Limit),
    /// A name cannot be searched for.
    #[error("the archive cannot be redacted: {0}")]
    Redaction(String),
    /// Writing it failed.
    #[error("the archive cannot be written: {0}")]
    Write(#[source] io::Error),
}
