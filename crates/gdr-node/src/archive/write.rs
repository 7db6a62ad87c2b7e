//! Writing an archive.

use std::collections::BTreeMap;
use std::io::{self, Write};

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use super::content::{Content, PathRecord};
use super::limits::{self, Limit};
use super::manifest::{self, Absent, Manifest, Origin};
use super::{ArchiveError, ROOT};
use crate::source::{Absence, Datum};

/// Writes an archive, a gzip-compressed tar. The same content gives the same bytes.
pub(super) fn write(
    origin: &Origin,
    content: &Content,
    out: impl Write,
) -> Result<(), ArchiveError> {
    let manifest = manifest(origin, content);
    let text = serde_json::to_vec(&manifest).map_err(|error| ArchiveError::Write(error.into()))?;
    // Refuses to write what could not be read again.
    let limits = [
        (text.len() as u64 > limits::MANIFEST, Limit::Manifest),
        (manifest.entries > limits::ENTRIES, Limit::Entries),
        (size(content) > limits::CONTENT, Limit::Content),
    ];
    if let Some((_, limit)) = limits.into_iter().find(|(over, _)| *over) {
        return Err(ArchiveError::TooLarge(limit));
    }
    let gzip: GzEncoder<_> = GzBuilder::new().mtime(0).write(out, Compression::default());
    let mut tar = Builder::new(gzip);
    let written = entries(&mut tar, origin, &text, content);
    written
        .and_then(|()| tar.into_inner()?.finish()?.flush())
        .map_err(ArchiveError::Write)
}

/// Returns the total size of all files.
fn size(content: &Content) -> u64 {
    let files = content.iter().map(|(_, record)| match &record.file {
        Some(Ok(bytes)) => bytes.len() as u64,
        _ => 0,
    });
    files.sum()
}

fn entries(
    tar: &mut Builder<impl Write>,
    origin: &Origin,
    manifest: &[u8],
    content: &Content,
) -> io::Result<()> {
    let header = |kind: EntryType, size: usize| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_mtime(origin.collected);
        header
    };
    let mut head = header(EntryType::Regular, manifest.len());
    tar.append_data(&mut head, manifest::NAME, manifest)?;
    for (at, record) in content.iter() {
        let name = format!("{ROOT}{at}");
        if let Some(Ok(bytes)) = &record.file {
            let mut head = header(EntryType::Regular, bytes.len());
            tar.append_data(&mut head, name, bytes.as_slice())?;
        } else if let Some(Ok(target)) = &record.link {
            let mut head = header(EntryType::Symlink, 0);
            tar.append_link(&mut head, name, target)?;
        }
    }
    Ok(())
}

fn manifest(origin: &Origin, content: &Content) -> Manifest {
    let mut manifest = Manifest {
        schema: manifest::SCHEMA.to_owned(),
        version: manifest::VERSION,
        origin: origin.clone(),
        entries: 0,
        lists: BTreeMap::new(),
        absent: BTreeMap::new(),
    };
    for (at, record) in content.iter() {
        let is_entry = matches!(record.file, Some(Ok(_))) || matches!(record.link, Some(Ok(_)));
        manifest.entries += usize::from(is_entry);
        if let Some(Ok(names)) = &record.list {
            manifest.lists.insert(at.to_owned(), names.clone());
        }
        let absent = absent(at, record, content);
        if absent.file.is_some() || absent.list.is_some() || absent.link.is_some() {
            manifest.absent.insert(at.to_owned(), absent);
        }
    }
    manifest
}

/// Returns the absences at a path that the rest does not imply.
fn absent(at: &str, record: &PathRecord, content: &Content) -> Absent {
    fn news<T: PartialEq>(known: &Option<Datum<T>>, implied: Datum<T>) -> Option<Absence> {
        known
            .as_ref()
            .filter(|datum| **datum != implied)
            .and_then(|datum| datum.as_ref().err().copied())
    }
    Absent {
        file: news(&record.file, content.implied_file(at)),
        list: news(&record.list, content.implied_list(at)),
        link: news(&record.link, content.implied_link(at)),
    }
}
