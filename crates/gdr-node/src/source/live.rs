//! The running machine, or a directory laid out like one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Datum, Errno, MAX_ENTRIES, MAX_FILE, Source, path, virtual_path};

/// `EINVAL` of Linux: `readlink` on what is no link.
const NOT_A_LINK: i32 = 22;

/// The running machine, or a directory laid out like one.
///
/// Below a prefix every link is followed by its text, so that neither an absolute link nor one
/// with too many `..` leads out of the directory.
///
/// It knows files only: what has a name of [`virtual_path`] is [`Datum::NotCollected`], but for
/// directories that an archive was unpacked into. [`ThisNode`](crate::ThisNode) knows those too.
#[derive(Clone, Debug)]
pub struct LiveRoot {
    prefix: Option<PathBuf>,
}

impl LiveRoot {
    /// The machine this process runs on.
    #[must_use]
    pub fn new() -> Self {
        Self { prefix: None }
    }

    /// A directory that holds `sys`, `proc` and so on.
    pub fn at(prefix: impl Into<PathBuf>) -> Self {
        Self {
            prefix: Some(prefix.into()),
        }
    }

    fn raw_link(place: &Path) -> Datum<String> {
        match fs::read_link(place) {
            Ok(target) => Datum::Present(target.to_string_lossy().into_owned()),
            Err(error) if error.raw_os_error() == Some(NOT_A_LINK) => Datum::Missing,
            Err(error) => absence(&error),
        }
    }

    fn link_below(prefix: &Path, at: &str) -> Datum<String> {
        Self::raw_link(&prefix.join(at.trim_start_matches('/')))
    }

    fn place(&self, at: &str) -> Datum<PathBuf> {
        match &self.prefix {
            None if virtual_path::is_virtual(at) => Datum::NotCollected,
            None => Datum::Present(Path::new("/").join(at)),
            Some(prefix) => path::resolve(at, |at| Self::link_below(prefix, at))
                .map(|at| prefix.join(at.trim_start_matches('/'))),
        }
    }
}

impl Default for LiveRoot {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for LiveRoot {
    fn read(&self, path: &str) -> Datum<Vec<u8>> {
        let file = self.place(path).and_then(|place| match read_file(&place) {
            Ok(Some(bytes)) => Datum::Present(bytes),
            Ok(None) => Datum::Missing,
            Err(error) => absence(&error),
        });
        unless_virtual(path, file)
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        let list = self
            .place(path)
            .and_then(|place| match fs::read_dir(&place) {
                Ok(entries) => {
                    let mut names: Vec<String> = entries
                        .take(MAX_ENTRIES)
                        .flatten()
                        .map(|entry| entry.file_name().to_string_lossy().into_owned())
                        .collect();
                    names.sort();
                    Datum::Present(names)
                }
                Err(error) => absence(&error),
            });
        unless_virtual(path, list)
    }

    fn link(&self, path: &str) -> Datum<String> {
        match &self.prefix {
            None if virtual_path::is_virtual(path) => Datum::NotCollected,
            None => Self::raw_link(&Path::new("/").join(path)),
            Some(prefix) => path::resolve_parent(path, |at| Self::link_below(prefix, at))
                .and_then(|at| Self::link_below(prefix, &at)),
        }
    }
}

/// What is not among the files of a directory may still be, where it is no file of a node.
fn unless_virtual<T>(path: &str, datum: Datum<T>) -> Datum<T> {
    match datum {
        Datum::Missing if virtual_path::is_virtual(path) => Datum::NotCollected,
        datum => datum,
    }
}

/// The first bytes of a regular file. Devices and pipes, which may block, are not opened.
fn read_file(place: &Path) -> io::Result<Option<Vec<u8>>> {
    if !fs::metadata(place)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    File::open(place)?
        .take(MAX_FILE as u64)
        .read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn absence<T>(error: &io::Error) -> Datum<T> {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Datum::Missing,
        io::ErrorKind::PermissionDenied => Datum::Denied,
        _ => Datum::Failed(Errno(error.raw_os_error().unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn node() -> (tempfile::TempDir, LiveRoot) {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("sys/devices/pci0000:00/0000:00:01.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("class"), "0x060400\n").unwrap();
        fs::create_dir_all(dir.path().join("sys/bus/pci/devices")).unwrap();
        symlink(
            "../../../devices/pci0000:00/0000:00:01.0",
            dir.path().join("sys/bus/pci/devices/0000:00:01.0"),
        )
        .unwrap();
        let root = LiveRoot::at(dir.path());
        (dir, root)
    }

    #[test]
    fn a_file_behind_a_link_is_read() {
        let (_dir, root) = node();
        let class = root.text("/sys/bus/pci/devices/0000:00:01.0/class");
        assert_eq!(class, Datum::Present("0x060400".to_owned()));
        assert_eq!(
            root.resolve("/sys/bus/pci/devices/0000:00:01.0"),
            Datum::Present("/sys/devices/pci0000:00/0000:00:01.0".to_owned())
        );
    }

    #[test]
    fn what_is_not_there_is_missing_and_a_directory_is_no_file() {
        let (_dir, root) = node();
        assert_eq!(root.read("/sys/nothing"), Datum::Missing);
        assert_eq!(root.read("/sys/bus"), Datum::Missing);
        assert_eq!(
            root.list("/sys/devices/pci0000:00/0000:00:01.0/class"),
            Datum::Missing
        );
        assert_eq!(root.link("/sys/bus"), Datum::Missing);
        assert_eq!(
            root.list("/sys/bus/pci"),
            Datum::Present(vec!["devices".to_owned()])
        );
    }

    #[test]
    fn no_link_leads_out_of_the_prefix() {
        let (dir, root) = node();
        let secret = dir.path().parent().unwrap().join("outside-the-capture");
        symlink(&secret, dir.path().join("absolute")).unwrap();
        symlink("../../../../../../etc/passwd", dir.path().join("relative")).unwrap();
        assert_eq!(root.read("/absolute"), Datum::Missing);
        assert_eq!(root.read("/relative"), Datum::Missing);
        assert_eq!(
            root.resolve("/relative"),
            Datum::Present("/etc/passwd".to_owned())
        );
    }

    #[test]
    fn what_is_no_file_is_known_only_of_an_unpacked_archive() {
        let (dir, root) = node();
        fs::write(dir.path().join("@kmsg"), "words\n").unwrap();
        assert_eq!(root.text("@kmsg"), Datum::Present("words".to_owned()));
        assert_eq!(root.read("@uname"), Datum::NotCollected);
        assert_eq!(root.list("/@systemd"), Datum::NotCollected);
        for path in ["@kmsg", "/@kmsg"] {
            assert_eq!(LiveRoot::new().read(path), Datum::NotCollected);
            assert_eq!(LiveRoot::new().link(path), Datum::NotCollected);
        }
    }

    #[test]
    fn links_in_a_circle_end_in_an_error() {
        let (dir, root) = node();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        assert_eq!(root.read("/a"), Datum::Failed(Errno(40)));
    }
}
