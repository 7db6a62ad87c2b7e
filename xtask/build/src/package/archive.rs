//! The archive: a .tar.gz whose bytes depend on nothing but its files and one time.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use super::layout::{Content, Item};

/// Writes the files to an archive, below a folder of this name, each with this time (in seconds
/// since 1970).
pub(crate) fn write(items: &[Item], folder: &str, time: u64, archive: &Path) -> anyhow::Result<()> {
    let file = File::create(archive).with_context(|| archive.display().to_string())?;
    // Neither name nor time: the header of gzip is then the same everywhere.
    let compressed = GzBuilder::new().write(file, Compression::best());
    let mut tar = Builder::new(compressed);
    for Item { path, content } in items {
        let path = Path::new(folder).join(path);
        let mut header = Header::new_gnu();
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        match content {
            Content::Link(target) => {
                header.set_entry_type(EntryType::Symlink);
                header.set_size(0);
                header.set_mode(0o777);
                tar.append_link(&mut header, &path, target)?;
            }
            Content::Bytes { bytes, mode } => {
                header.set_size(bytes.len() as u64);
                header.set_mode(*mode);
                tar.append_data(&mut header, &path, &**bytes)?;
            }
        }
    }
    tar.into_inner()?.finish()?.sync_all()?;
    Ok(())
}

/// Compresses bytes as gzip does with -9n.
pub(crate) fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut compressed = GzBuilder::new().write(Vec::new(), Compression::best());
    compressed.write_all(bytes)?;
    Ok(compressed.finish()?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_archive_is_the_same_when_it_is_made_again_and_keeps_modes_and_links() {
        let items = [
            Item {
                path: "bin/gdr".into(),
                content: Content::Bytes {
                    bytes: b"program".to_vec(),
                    mode: 0o755,
                },
            },
            Item {
                path: "bin/gdrcopy_sanity".into(),
                content: Content::Link("gdr".to_owned()),
            },
        ];
        let folder = tempfile::tempdir().unwrap();
        let made = ["one.tar.gz", "another.tar.gz"].map(|name| {
            let archive = folder.path().join(name);
            write(&items, "gdr-1", 1_700_000_000, &archive).unwrap();
            std::fs::read(archive).unwrap()
        });
        assert_eq!(made[0], made[1]);
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(&*made[0]));
        let mut found = Vec::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let (path, header) = (entry.path().unwrap().into_owned(), entry.header().clone());
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let link = header
                .link_name()
                .unwrap()
                .map(std::borrow::Cow::into_owned);
            found.push((
                path,
                header.mode().unwrap(),
                header.mtime().unwrap(),
                text,
                link,
            ));
        }
        let expected = [
            (
                "gdr-1/bin/gdr".into(),
                0o755,
                1_700_000_000,
                "program".to_owned(),
                None,
            ),
            (
                "gdr-1/bin/gdrcopy_sanity".into(),
                0o777,
                1_700_000_000,
                String::new(),
                Some("gdr".into()),
            ),
        ];
        assert_eq!(found, expected);
    }
}
