//! Reading an untrusted archive.

use std::io::{self, BufReader, Read};

use flate2::bufread::GzDecoder;
use tar::{Entry, EntryType};

use super::content::Content;
use super::limits::{self, Bounded, Counted, Exceeded, Limit};
use super::manifest::{self, Manifest, Origin, Version};
use super::{ArchiveError, ROOT};
use crate::source::MAX_FILE;

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Magic numbers of unsupported compression formats.
const FOREIGN: [(&[u8], &str); 3] = [
    (
        &[0x28, 0xb5, 0x2f, 0xfd],
        "it is compressed by zstd, not gzip",
    ),
    (b"BZh", "it is compressed by bzip2, not gzip"),
    (
        &[0xfd, b'7', b'z', b'X', b'Z'],
        "it is compressed by xz, not gzip",
    ),
];

/// Returns whether a file that starts with these bytes is an archive; a few hundred bytes suffice.
pub(super) fn is_archive(head: &[u8]) -> bool {
    let mut name = [0; manifest::NAME.len()];
    let read = if head.starts_with(&GZIP) {
        GzDecoder::new(head).read_exact(&mut name)
    } else {
        (&mut &*head).read_exact(&mut name)
    };
    read.is_ok() && name == manifest::NAME.as_bytes()
}

/// Reads an archive, compressed or not. Writes nothing to disk.
pub(super) fn read(reader: impl Read) -> Result<(Origin, Content), ArchiveError> {
    let mut reader = BufReader::new(Counted::new(reader));
    let head = io::BufRead::fill_buf(&mut reader).map_err(|error| failure(&error))?;
    if let Some((_, what)) = FOREIGN.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(ArchiveError::Other(what));
    }
    if head.starts_with(&GZIP) {
        let unpacked = GzDecoder::new(reader);
        read_tar(Bounded::new(unpacked, |unpacked| {
            Some(unpacked.get_ref().get_ref().bytes)
        }))
    } else {
        read_tar(Bounded::new(reader, |_| None))
    }
}

fn read_tar(stream: impl Read) -> Result<(Origin, Content), ArchiveError> {
    let mut tar = tar::Archive::new(stream);
    let mut entries = tar.entries().map_err(|error| failure(&error))?;
    let manifest = match entries.next() {
        Some(Ok(entry)) => manifest(entry)?,
        Some(Err(error)) if is_foreign(&error) => {
            return Err(ArchiveError::Other("it is not a tar file"));
        }
        Some(Err(error)) => return Err(failure(&error)),
        None => return Err(ArchiveError::Other("it is empty")),
    };
    let mut builder = Builder::new(&manifest)?;
    for entry in entries {
        builder.take(entry.map_err(|error| failure(&error))?)?;
    }
    if builder.entries != manifest.entries {
        return Err(ArchiveError::Truncated(format!(
            "it has {} of its {} entries",
            builder.entries, manifest.entries
        )));
    }
    let content = builder.content;
    // Reads to the end, where gzip has its checksum.
    io::copy(&mut tar.into_inner(), &mut io::sink()).map_err(|error| failure(&error))?;
    Ok((manifest.origin, content))
}

fn manifest(entry: Entry<'_, impl Read>) -> Result<Manifest, ArchiveError> {
    if entry.path_bytes().as_ref() != manifest::NAME.as_bytes() {
        return Err(ArchiveError::Other("its first entry is not a manifest"));
    }
    if entry.size() > limits::MANIFEST {
        return Err(ArchiveError::TooLarge(Limit::Manifest));
    }
    let text = contents(entry)?;
    let damaged = |error: serde_json::Error| ArchiveError::Damaged(format!("manifest: {error}"));
    let version: Version = serde_json::from_slice(&text).map_err(damaged)?;
    if version.schema != manifest::SCHEMA {
        return Err(ArchiveError::Other("its manifest is another format's"));
    }
    if version.version != manifest::VERSION {
        return Err(ArchiveError::Version {
            found: version.version,
            known: manifest::VERSION,
            writer: shown(&version.gdr),
        });
    }
    serde_json::from_slice(&text).map_err(damaged)
}

/// Builds a [`Content`] entry by entry.
struct Builder {
    content: Content,
    entries: usize,
    bytes: u64,
}

impl Builder {
    fn new(manifest: &Manifest) -> Result<Self, ArchiveError> {
        let mut content = Content::default();
        for (at, names) in &manifest.lists {
            let mut names = names.clone();
            names.sort();
            names.dedup();
            content.record(checked(at)?).list = Some(Ok(names));
        }
        for (at, absent) in &manifest.absent {
            let record = content.record(checked(at)?);
            record.file = absent.file.map(Err);
            record.link = absent.link.map(Err);
            if let Some(absence) = absent.list {
                if record.list.is_some() {
                    return Err(ArchiveError::Duplicate(shown(at)));
                }
                record.list = Some(Err(absence));
            }
        }
        Ok(Self {
            content,
            entries: 0,
            bytes: 0,
        })
    }

    fn take(&mut self, entry: Entry<'_, impl Read>) -> Result<(), ArchiveError> {
        self.entries += 1;
        if self.entries > limits::ENTRIES {
            return Err(ArchiveError::TooLarge(Limit::Entries));
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let at = match name.strip_prefix(ROOT) {
            Some(at) => checked(at)?.to_owned(),
            None => return Err(ArchiveError::Path(shown(&name))),
        };
        match entry.header().entry_type() {
            EntryType::Regular => {
                if entry.size() > MAX_FILE as u64 {
                    return Err(ArchiveError::TooLarge(Limit::File));
                }
                self.bytes += entry.size();
                if self.bytes > limits::CONTENT {
                    return Err(ArchiveError::TooLarge(Limit::Content));
                }
                let bytes = contents(entry)?;
                let record = self.content.record(&at);
                if record.file.is_some() || matches!(record.link, Some(Ok(_))) {
                    return Err(ArchiveError::Duplicate(shown(&at)));
                }
                record.file = Some(Ok(bytes));
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                if target.len() > limits::PATH {
                    return Err(ArchiveError::TooLarge(Limit::Path));
                }
                let target = String::from_utf8_lossy(&target).into_owned();
                let record = self.content.record(&at);
                if record.link.is_some() || matches!(record.file, Some(Ok(_))) {
                    return Err(ArchiveError::Duplicate(shown(&at)));
                }
                record.link = Some(Ok(target));
            }
            other => {
                return Err(ArchiveError::Kind {
                    path: shown(&name),
                    kind: kind(other),
                });
            }
        }
        Ok(())
    }
}

/// Validates an archive path: absolute, and made of names only.
fn checked(at: &str) -> Result<&str, ArchiveError> {
    if at.len() > limits::PATH {
        return Err(ArchiveError::TooLarge(Limit::Path));
    }
    let names = at.strip_prefix('/').filter(|names| {
        // The root itself can be listed.
        names.is_empty()
            || names
                .split('/')
                .all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'))
    });
    match names {
        Some(_) => Ok(at),
        None => Err(ArchiveError::Path(shown(at))),
    }
}

/// Shortens an untrusted name, and removes what would control a terminal.
fn shown(name: &str) -> String {
    let shown: String = name.chars().take(200).collect();
    shown.escape_debug().to_string()
}

fn contents(mut entry: Entry<'_, impl Read>) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    let size = entry.size();
    entry
        .read_to_end(&mut bytes)
        .map_err(|error| failure(&error))?;
    if (bytes.len() as u64) < size {
        return Err(ArchiveError::Truncated("its last file ends early".into()));
    }
    Ok(bytes)
}

fn kind(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Link => "a hard link",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a pipe",
        EntryType::Directory => "a directory",
        EntryType::GNUSparse => "a sparse file",
        _ => "of a kind of its own",
    }
}

/// Returns whether the first header is invalid, which indicates a file that is not a tar rather than a damaged one.
fn is_foreign(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Other && exceeded(error).is_none()
}

/// Returns the limit that caused an error, from its chain of sources.
fn exceeded(error: &io::Error) -> Option<Limit> {
    let mut source: Option<&(dyn std::error::Error + 'static)> =
        error.get_ref().map(|inner| inner as _);
    while let Some(error) = source {
        if let Some(Exceeded(limit)) = error.downcast_ref() {
            return Some(*limit);
        }
        source = match error.downcast_ref::<io::Error>() {
            Some(error) => error.get_ref().map(|inner| inner as _),
            None => error.source(),
        };
    }
    None
}

fn failure(error: &io::Error) -> ArchiveError {
    match exceeded(error) {
        Some(limit) => ArchiveError::TooLarge(limit),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            ArchiveError::Truncated(error.to_string())
        }
        None => ArchiveError::Damaged(error.to_string()),
    }
}
