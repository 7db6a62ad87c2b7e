//! Archives: files with everything that was read from a node, and the reasons why the rest could not be.
//!
//! An archive answers each recorded read as the node did, with the same bytes or the same absence. Any other read is
//! [`Absence::NotCollected`], unless recorded answers imply its answer.
//!
//! The file is a gzip-compressed tar. Its first entry, `gdr-archive.json`, contains the origin, the listed directories
//! and the failed reads. Below `root/` are files and links under their paths on the node, so `tar xzf` creates a
//! directory that [`LiveRoot::at`] reads. Names of [`virtual_path`](crate::virtual_path) are files like any other.
//!
//! Archives are untrusted: reading one never writes to disk, takes a bounded amount of memory, and
//! rejects damaged files and any that [`Archive::write`] would not produce.
//!
//! ```
//! use gdr_node::{Source, archive::{Archive, Origin}, collect, example};
//!
//! let node = example::node();
//! let archive = collect::collect(&node, Origin::default(), |_| {});
//! let mut file = Vec::new();
//! archive.write(&mut file)?;
//!
//! let again = Archive::read(file.as_slice())?;
//! let cmdline = again.text("/proc/cmdline");
//! assert_eq!(cmdline, node.text("/proc/cmdline"));
//! # Ok::<(), gdr_node::archive::ArchiveError>(())
//! ```
//!
//! [`LiveRoot::at`]: crate::LiveRoot::at

mod content;
mod error;
mod limits;
mod manifest;
mod read;
mod redact;
#[cfg(test)]
mod tests;
mod write;

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

pub use error::ArchiveError;
pub use limits::Limit;
pub use manifest::Origin;

pub(crate) use content::{Content, PathRecord};

use crate::source::{Absence, Datum, Source};

/// The directory of the node's files.
const ROOT: &str = "root";

/// A node as it was when collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    origin: Origin,
    content: Content,
}

impl Archive {
    pub(crate) fn new(origin: Origin, content: Content) -> Self {
        Self { origin, content }
    }

    /// Returns whether a file that starts with these bytes is an archive. One KiB suffices. The rest may still be
    /// damaged.
    pub fn is_archive(head: &[u8]) -> bool {
        read::is_archive(head)
    }

    /// Reads an archive, compressed by gzip or uncompressed.
    ///
    /// # Errors
    ///
    /// The [`ArchiveError`] that applies. No fact of a damaged archive is returned.
    pub fn read(reader: impl Read) -> Result<Self, ArchiveError> {
        let (origin, content) = read::read(reader)?;
        Ok(Self { origin, content })
    }

    /// Reads the archive in a file.
    ///
    /// # Errors
    ///
    /// Like [`Archive::read`], and [`ArchiveError::File`] if the file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArchiveError> {
        let path = path.as_ref();
        match File::open(path) {
            Ok(file) => Self::read(file),
            Err(source) => Err(ArchiveError::File {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Writes the archive, gzip-compressed. The same archive gives the same bytes.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Write`]; [`ArchiveError::TooLarge`] if the archive would exceed a reader's limits.
    pub fn write(&self, out: impl Write) -> Result<(), ArchiveError> {
        write::write(&self.origin, &self.content, BufWriter::new(out))
    }

    /// Returns the node, the time and the collector.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the paths whose reading was denied, in order.
    pub fn denied(&self) -> Vec<&str> {
        let denied = |record: &PathRecord| {
            matches!(record.file, Some(Err(Absence::Denied)))
                || matches!(record.list, Some(Err(Absence::Denied)))
                || matches!(record.link, Some(Err(Absence::Denied)))
        };
        let paths = self.content.iter().filter(|(_, record)| denied(record));
        paths.map(|(at, _)| at).collect()
    }

    /// Returns the number of files and their total size in bytes.
    pub fn files(&self) -> (usize, u64) {
        let sizes = self.content.iter().filter_map(|(_, record)| {
            let file = record.file.as_ref()?.as_ref().ok()?;
            Some(file.len() as u64)
        });
        sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size))
    }
}

impl Source for Archive {
    fn read(&self, path: &str) -> Datum<Vec<u8>> {
        self.content.read(path)
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        self.content.list(path)
    }

    fn link(&self, path: &str) -> Datum<String> {
        self.content.link(path)
    }

    fn resolve(&self, path: &str) -> Datum<String> {
        self.content.resolve(path)
    }
}
