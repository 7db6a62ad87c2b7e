//! A node in a file: everything that was read of it, and everything that could not be.
//!
//! An archive answers every question that was asked when it was made as the node did: with the
//! same bytes, or with the same reason for having none. What was not asked is
//! [`Datum::NotCollected`], unless it follows from the rest.
//!
//! The file is a tar, compressed by gzip. Its first entry, `gdr-archive.json`, says what it is,
//! which directories were listed and what could not be read; below `root/` are files and links by
//! their paths on the node, so that `tar xzf` makes something that [`LiveRoot::at`] reads too.
//! Names of [`virtual_path`](crate::virtual_path) are files like any other.
//!
//! An archive may come from anybody: reading one never writes to disk, takes a bounded amount of
//! memory, and refuses what is damaged or is not what `gdr collect` writes.
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

pub(crate) use content::{Content, Place};

use crate::source::{Datum, Source};

/// Below what the files of the node are.
const ROOT: &str = "root";

/// A node as it was when somebody collected it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    origin: Origin,
    content: Content,
}

impl Archive {
    pub(crate) fn new(origin: Origin, content: Content) -> Self {
        Self { origin, content }
    }

    /// Whether a file that begins with these bytes is an archive of this kind. A kibibyte is
    /// enough; whether the rest can be read is another question.
    pub fn is_archive(head: &[u8]) -> bool {
        read::is_archive(head)
    }

    /// Reads an archive, compressed by gzip or not at all.
    ///
    /// # Errors
    ///
    /// [`ArchiveError`] by its cause; nothing of a damaged archive is given out.
    pub fn read(reader: impl Read) -> Result<Self, ArchiveError> {
        let (origin, content) = read::read(reader)?;
        Ok(Self { origin, content })
    }

    /// Reads the archive in a file.
    ///
    /// # Errors
    ///
    /// As [`Archive::read`], and [`ArchiveError::File`] where the file cannot be opened.
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

    /// Writes the archive, compressed by gzip. The same archive makes the same bytes.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Write`]; [`ArchiveError::TooLarge`] where it could not be read again.
    pub fn write(&self, out: impl Write) -> Result<(), ArchiveError> {
        write::write(&self.origin, &self.content, BufWriter::new(out))
    }

    /// Whose it is and how it came to be.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The paths whose reading was denied, in order.
    pub fn denied(&self) -> Vec<&str> {
        let denied = |place: &Place| {
            matches!(place.file, Some(Datum::Denied))
                || matches!(place.list, Some(Datum::Denied))
                || matches!(place.link, Some(Datum::Denied))
        };
        let places = self.content.iter().filter(|(_, place)| denied(place));
        places.map(|(at, _)| at).collect()
    }

    /// How many files there are, and how many bytes they hold.
    pub fn files(&self) -> (usize, u64) {
        let sizes = self.content.iter().filter_map(|(_, place)| {
            let file = place.file.as_ref()?.present()?;
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
