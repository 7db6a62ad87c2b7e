//! Archives by `hwloc-gather-topology`, or any other tar of sysfs.

use std::io::{self, Read};

use tar::EntryType;

use super::ImportError;
use crate::source::{MAX_FILE, MemorySource};

/// The most entries. Captures of large servers have some ten thousand.
const MOST_ENTRIES: usize = 250_000;
/// The most bytes kept of all files together.
const MOST_CONTENT: usize = 64 << 20;
/// The most bytes to unpack, headers and padding included.
const MOST_UNPACKED: u64 = 256 << 20;
/// The most files other than the node's, and the most bytes of each.
const MOST_OTHERS: usize = 1024;
const MOST_OTHER: u64 = 16 << 20;
/// The longest path and link target, `PATH_MAX` of Linux.
const MOST_PATH: usize = 4096;

/// The contents of a tar.
#[derive(Debug)]
pub(super) struct Unpacked {
    /// The files below its `sys` and `proc`, if it has these.
    pub(super) node: Option<MemorySource>,
    /// Its other files, by their paths in it.
    pub(super) others: Vec<(String, Vec<u8>)>,
    /// The number of further files.
    pub(super) left_out: usize,
}

/// Reads an uncompressed tar as the files below its `sys` and `proc`, wherever those are in it. Everything else is "not
/// collected". Writes no file; links resolve only to other entries.
///
/// # Errors
///
/// [`ImportError::Damaged`], [`ImportError::TooLarge`], [`ImportError::Path`], and
/// [`ImportError::Unknown`] if there is neither a `sys` nor a `proc`.
pub fn read(tar: impl Read) -> Result<MemorySource, ImportError> {
    unpack(tar)?.node.ok_or(ImportError::Unknown)
}

/// Reads all of a tar.
pub(super) fn unpack(tar: impl Read) -> Result<Unpacked, ImportError> {
    let mut tar = tar::Archive::new(Bounded {
        inner: tar,
        left: MOST_UNPACKED,
    });
    let mut node = MemorySource::partial();
    let (mut kept, mut content) = (0, 0);
    let (mut others, mut left_out) = (Vec::new(), 0);
    for (number, entry) in tar.entries().map_err(failure)?.enumerate() {
        let mut entry = entry.map_err(failure)?;
        if number == MOST_ENTRIES {
            return Err(ImportError::TooLarge("250000 entries"));
        }
        let path = entry_path(&entry.path_bytes())?;
        match (entry.header().entry_type(), path) {
            (
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse,
                EntryPath::Node(path),
            ) => {
                let bytes = contents(&mut entry, MAX_FILE, &mut content)?;
                node = node.file(&path, bytes);
                kept += 1;
            }
            (EntryType::Regular | EntryType::Continuous, EntryPath::Other(path)) => {
                if others.len() == MOST_OTHERS || entry.size() > MOST_OTHER {
                    left_out += 1;
                    continue;
                }
                let bytes = contents(&mut entry, MOST_OTHER as usize, &mut content)?;
                others.push((path, bytes));
            }
            (EntryType::Symlink, EntryPath::Node(path)) => {
                let target = entry.link_name_bytes().unwrap_or_default();
                if target.len() > MOST_PATH {
                    return Err(ImportError::TooLarge("4096 bytes in a path"));
                }
                node = node.link_to(&path, &String::from_utf8_lossy(&target));
                kept += 1;
            }
            (EntryType::Directory, EntryPath::Node(path)) => {
                node = node.directory(&path);
                kept += 1;
            }
            // sysfs contains no devices, pipes or hard links.
            _ => {}
        }
    }
    Ok(Unpacked {
        node: (kept > 0).then_some(node),
        others,
        left_out,
    })
}

/// Returns the first bytes of an entry; they count toward the limit for all entries.
fn contents(
    entry: &mut impl Read,
    most: usize,
    content: &mut usize,
) -> Result<Vec<u8>, ImportError> {
    let mut bytes = Vec::new();
    (entry.take(most as u64))
        .read_to_end(&mut bytes)
        .map_err(failure)?;
    *content += bytes.len();
    if *content > MOST_CONTENT {
        return Err(ImportError::TooLarge("64 MiB of files"));
    }
    Ok(bytes)
}

/// The path of an entry.
enum EntryPath {
    /// On the node.
    Node(String),
    /// Not on the node.
    Other(String),
}

/// Returns an entry's path on the node: `name/sys/bus` and `./sys/bus` are `/sys/bus`.
fn entry_path(path: &[u8]) -> Result<EntryPath, ImportError> {
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
    Ok(match start {
        Some(start) => EntryPath::Node(format!("/{}", names[start..].join("/"))),
        None => EntryPath::Other(names.join("/").escape_debug().take(200).collect()),
    })
}

/// The unpacked stream, which fails above a limit on its size.
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
    use crate::source::{Absence, Source};

    fn packed(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            // What a malicious tool would write, and the builder would refuse.
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
        assert_eq!(node.text("/sys/bus/x/class"), Ok("0x030200".to_owned()));
        assert_eq!(node.read("/output"), Err(Absence::NotCollected));
        let cut = read(&tar[..700]).unwrap_err();
        assert!(matches!(cut, ImportError::Damaged(_)), "{cut}");
    }

    #[test]
    fn entries_outside_are_refused_and_links_resolve_inside() {
        let tar = packed(&[("node/sys/../../etc/passwd", EntryType::Regular, b"x")]);
        assert!(matches!(read(tar.as_slice()), Err(ImportError::Path(_))));
        let tar = packed(&[
            ("sys/up", EntryType::Symlink, b"../../../../etc"),
            ("sys/round", EntryType::Symlink, b"round"),
            ("sys/up/passwd", EntryType::Regular, b"x"),
        ]);
        let node = read(tar.as_slice()).unwrap();
        assert_eq!(node.text("/sys/up/passwd"), Ok("x".to_owned()));
        assert!(node.read("/sys/round/x").is_err());
    }

    #[test]
    fn other_archives_and_endless_ones_are_refused() {
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
