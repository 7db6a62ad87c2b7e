//! The archives of `hwloc-gather-topology`, or of any other copy of sysfs.

use std::io::{self, Read};

use tar::EntryType;

use super::ImportError;
use crate::source::{MAX_FILE, MemorySource};

/// The most entries. Captures of large servers have some ten thousand.
const MOST_ENTRIES: usize = 250_000;
/// The most bytes of all files together that are kept.
const MOST_CONTENT: usize = 64 << 20;
/// The most bytes that are unpacked, headers and padding included.
const MOST_UNPACKED: u64 = 256 << 20;
/// The longest path and the longest target of a link, `PATH_MAX` of Linux.
const MOST_PATH: usize = 4096;

/// Reads an unpacked tar as the files below its `sys` and `proc`, wherever these are in it. All
/// else is not collected. Nothing is written anywhere, and links lead no farther than to other
/// entries.
///
/// # Errors
///
/// [`ImportError::Damaged`], [`ImportError::TooLarge`], [`ImportError::Path`], and
/// [`ImportError::Unknown`] where there is neither a `sys` nor a `proc`.
pub fn read(tar: impl Read) -> Result<MemorySource, ImportError> {
    let mut tar = tar::Archive::new(Bounded {
        inner: tar,
        left: MOST_UNPACKED,
    });
    let mut node = MemorySource::partial();
    let (mut kept, mut content) = (0, 0);
    for (number, entry) in tar.entries().map_err(failure)?.enumerate() {
        let mut entry = entry.map_err(failure)?;
        if number == MOST_ENTRIES {
            return Err(ImportError::TooLarge("250000 entries"));
        }
        let Some(path) = place(&entry.path_bytes())? else {
            continue;
        };
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mut bytes = Vec::new();
                (&mut entry)
                    .take(MAX_FILE as u64)
                    .read_to_end(&mut bytes)
                    .map_err(failure)?;
                content += bytes.len();
                if content > MOST_CONTENT {
                    return Err(ImportError::TooLarge("64 MiB of files"));
                }
                node = node.file(&path, bytes);
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                if target.len() > MOST_PATH {
                    return Err(ImportError::TooLarge("4096 bytes in a path"));
                }
                node = node.link_to(&path, &String::from_utf8_lossy(&target));
            }
            EntryType::Directory => node = node.directory(&path),
            // Devices, pipes and second names of a file are nothing that sysfs has.
            _ => continue,
        }
        kept += 1;
    }
    if kept == 0 {
        return Err(ImportError::Unknown);
    }
    Ok(node)
}

/// Where an entry belongs on the node: `name/sys/bus` and `./sys/bus` are `/sys/bus`; `None` for
/// what is about something else.
fn place(path: &[u8]) -> Result<Option<String>, ImportError> {
    let path = String::from_utf8_lossy(path);
    if path.len() > MOST_PATH {
        return Err(ImportError::TooLarge("4096 bytes in a path"));
    }
    let names: Vec<&str> = (path.split('/'))
        .filter(|name| !matches!(*name, "" | "."))
        .collect();
    if names.contains(&"..") {
        return Err(ImportError::Path(path.escape_debug().take(200).collect()));
    }
    let start = (names.iter().take(3)).position(|name| matches!(*name, "sys" | "proc"));
    Ok(start.map(|start| format!("/{}", names[start..].join("/"))))
}

/// The unpacked stream, which fails where it grows beyond all sense.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = (self.left)
            .checked_sub(read as u64)
            .ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "256 MiB"))?;
        Ok(read)
    }
}

fn failure(error: io::Error) -> ImportError {
    if error.kind() == io::ErrorKind::FileTooLarge {
        ImportError::TooLarge("256 MiB")
    } else {
        ImportError::Damaged(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use tar::{Builder, Header};

    use super::*;
    use crate::source::{Datum, Source};

    fn packed(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            // What a tool that means harm writes, which the builder would not.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            let body: &[u8] = if *kind == EntryType::Symlink {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content);
                &[]
            } else {
                content
            };
            header.set_size(body.len() as u64);
            header.set_cksum();
            tar.append(&header, body).unwrap();
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn files_and_links_answer_as_on_the_node() {
        let tar = packed(&[
            (
                "node/sys/devices/x/class",
                EntryType::Regular,
                b"0x030200\n",
            ),
            ("node/sys/bus/x", EntryType::Symlink, b"../devices/x"),
            ("node/output", EntryType::Regular, b"words"),
            ("node/sys/dev/null", EntryType::Char, b""),
        ]);
        let node = read(tar.as_slice()).unwrap();
        assert_eq!(
            node.text("/sys/bus/x/class"),
            Datum::Present("0x030200".to_owned())
        );
        assert_eq!(node.read("/output"), Datum::NotCollected);
        let cut = read(&tar[..700]).unwrap_err();
        assert!(matches!(cut, ImportError::Damaged(_)), "{cut}");
    }

    #[test]
    fn entries_that_lead_out_are_refused_and_links_stay_inside() {
        let tar = packed(&[("node/sys/../../etc/passwd", EntryType::Regular, b"x")]);
        assert!(matches!(read(tar.as_slice()), Err(ImportError::Path(_))));
        let tar = packed(&[
            ("sys/up", EntryType::Symlink, b"../../../../etc"),
            ("sys/round", EntryType::Symlink, b"round"),
            ("sys/up/passwd", EntryType::Regular, b"x"),
        ]);
        let node = read(tar.as_slice()).unwrap();
        assert_eq!(node.text("/sys/up/passwd"), Datum::Present("x".to_owned()));
        assert!(!node.read("/sys/round/x").is_present());
    }

    #[test]
    fn what_is_no_sysfs_and_what_has_no_end_is_refused() {
        let tar = packed(&[("readme", EntryType::Regular, b"x")]);
        assert_eq!(read(tar.as_slice()).unwrap_err(), ImportError::Unknown);
        let mut header = Header::new_gnu();
        header.set_path("sys/big").unwrap();
        header.set_entry_type(EntryType::Regular);
        header.set_size(1 << 40);
        header.set_cksum();
        let endless = header.as_bytes().chain(io::repeat(0));
        assert_eq!(read(endless).unwrap_err(), ImportError::TooLarge("256 MiB"));
    }
}
