//! The running machine, or a directory laid out like one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::source::{
    Absence, Datum, DatumExt, Errno, MAX_ENTRIES, MAX_FILE, Source, path, virtual_path,
};

/// `EINVAL` of Linux: `readlink` of a file that is not a link.
const NOT_A_LINK: i32 = 22;

/// The files of the running machine, or a directory laid out like its root.
///
/// Below a prefix, links are resolved textually, so that neither absolute links nor excess `..` escape the directory.
///
/// A path of [`virtual_path`] is [`Absence::NotCollected`], except in a directory with an unpacked archive;
/// [`ThisNode`](crate::ThisNode) provides this machine's virtual files.
///
/// A directory counts as a copy unless sysfs is mounted in it. Files missing from a copy are [`Absence::NotCollected`],
/// because the node may have them.
#[derive(Clone, Debug)]
pub struct LiveRoot {
    prefix: Option<PathBuf>,
    extent: Extent,
}

/// What a missing file means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The node lacks it.
    Whole,
    /// The copy may lack it.
    Copy,
}

/// `SYSFS_MAGIC` of Linux `include/uapi/linux/magic.h`.
const SYSFS: i128 = 0x6265_6572;

impl LiveRoot {
    /// Returns the machine this process runs on.
    #[must_use]
    pub fn new() -> Self {
        Self {
            prefix: None,
            extent: Extent::Whole,
        }
    }

    /// Returns a directory that holds `sys`, `proc` and so on.
    pub fn at(prefix: impl Into<PathBuf>) -> Self {
        let prefix = prefix.into();
        let mounted = rustix::fs::statfs(prefix.join("sys"))
            .is_ok_and(|filesystem| i128::from(filesystem.f_type) == SYSFS);
        Self {
            prefix: Some(prefix),
            extent: if mounted { Extent::Whole } else { Extent::Copy },
        }
    }

    /// For a copy that lacks the path, turns "missing" into "not collected".
    fn unless_left_out<T>(&self, datum: Datum<T>, place: &Datum<PathBuf>) -> Datum<T> {
        let is_there = || {
            let place = place.as_ref().ok();
            place.is_some_and(|place| fs::symlink_metadata(place).is_ok())
        };
        match datum {
            Err(Absence::Missing) if self.extent == Extent::Copy && !is_there() => {
                Err(Absence::NotCollected)
            }
            datum => datum,
        }
    }

    fn raw_link(place: &Path) -> Datum<String> {
        match fs::read_link(place) {
            Ok(target) => Ok(target.to_string_lossy().into_owned()),
            Err(error) if error.raw_os_error() == Some(NOT_A_LINK) => Err(Absence::Missing),
            Err(error) => absence(&error),
        }
    }

    fn link_below(prefix: &Path, at: &str) -> Datum<String> {
        Self::raw_link(&prefix.join(at.trim_start_matches('/')))
    }

    fn place(&self, at: &str) -> Datum<PathBuf> {
        match &self.prefix {
            None if virtual_path::is_virtual(at) => Err(Absence::NotCollected),
            None => Ok(Path::new("/").join(at)),
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
        let place = self.place(path);
        let file = place.by_ref().and_then(|place| match read_file(place) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(Absence::Missing),
            Err(error) => absence(&error),
        });
        unless_virtual(path, self.unless_left_out(file, &place))
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        let place = self.place(path);
        let list = place.by_ref().and_then(|place| match fs::read_dir(place) {
            Ok(entries) => {
                let mut names: Vec<String> = entries
                    .take(MAX_ENTRIES)
                    .flatten()
                    .map(|entry| entry.file_name().to_string_lossy().into_owned())
                    .collect();
                names.sort();
                Ok(names)
            }
            Err(error) => absence(&error),
        });
        unless_virtual(path, self.unless_left_out(list, &place))
    }

    fn link(&self, path: &str) -> Datum<String> {
        match &self.prefix {
            None if virtual_path::is_virtual(path) => Err(Absence::NotCollected),
            None => Self::raw_link(&Path::new("/").join(path)),
            Some(prefix) => {
                let place = path::resolve_parent(path, |at| Self::link_below(prefix, at))
                    .map(|at| prefix.join(at.trim_start_matches('/')));
                let link = place.by_ref().and_then(|place| Self::raw_link(place));
                self.unless_left_out(link, &place)
            }
        }
    }
}

/// For virtual files, turns "missing" into "not collected".
fn unless_virtual<T>(path: &str, datum: Datum<T>) -> Datum<T> {
    match datum {
        Err(Absence::Missing) if virtual_path::is_virtual(path) => Err(Absence::NotCollected),
        datum => datum,
    }
}

/// Returns the first bytes of a regular file. Does not open devices and pipes, which may block.
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
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Err(Absence::Missing),
        io::ErrorKind::PermissionDenied => Err(Absence::Denied),
        _ => Err(Absence::Failed(Errno(error.raw_os_error().unwrap_or(0)))),
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
        assert_eq!(class, Ok("0x060400".to_owned()));
        assert_eq!(
            root.resolve("/sys/bus/pci/devices/0000:00:01.0"),
            Ok("/sys/devices/pci0000:00/0000:00:01.0".to_owned())
        );
    }

    #[test]
    fn a_file_that_a_copy_lacks_is_not_collected() {
        let (_dir, root) = node();
        assert_eq!(root.read("/sys/nothing"), Err(Absence::NotCollected));
        assert_eq!(root.list("/proc/driver"), Err(Absence::NotCollected));
        assert_eq!(root.link("/sys/nothing"), Err(Absence::NotCollected));
        assert_eq!(LiveRoot::new().read("/sys/nothing"), Err(Absence::Missing));
        assert_eq!(root.read("/sys/bus"), Err(Absence::Missing));
        assert_eq!(
            root.list("/sys/devices/pci0000:00/0000:00:01.0/class"),
            Err(Absence::Missing)
        );
        assert_eq!(root.link("/sys/bus"), Err(Absence::Missing));
        assert_eq!(root.list("/sys/bus/pci"), Ok(vec!["devices".to_owned()]));
    }

    #[test]
    fn a_root_with_sysfs_in_it_is_whole() {
        // This machine's root under another name, like a container that mounts its host's root.
        let root = LiveRoot::at("/proc/self/root/");
        let mounted = rustix::fs::statfs("/sys").is_ok_and(|it| i128::from(it.f_type) == SYSFS);
        if !mounted {
            eprintln!("skipped: a_root_with_sysfs_in_it_is_whole: no sysfs is mounted here");
            return;
        }
        assert_eq!(root.read("/sys/nothing"), Err(Absence::Missing));
    }

    #[test]
    fn links_do_not_leave_the_prefix() {
        let (dir, root) = node();
        let secret = dir.path().parent().unwrap().join("outside-the-capture");
        symlink(&secret, dir.path().join("absolute")).unwrap();
        symlink("../../../../../../etc/passwd", dir.path().join("relative")).unwrap();
        assert_eq!(root.read("/absolute"), Err(Absence::NotCollected));
        assert_eq!(root.read("/relative"), Err(Absence::NotCollected));
        assert_eq!(root.resolve("/relative"), Ok("/etc/passwd".to_owned()));
    }

    #[test]
    fn virtual_files_are_read_from_an_unpacked_archive_only() {
        let (dir, root) = node();
        fs::write(dir.path().join("@kmsg"), "words\n").unwrap();
        assert_eq!(root.text("@kmsg"), Ok("words".to_owned()));
        assert_eq!(root.read("@uname"), Err(Absence::NotCollected));
        assert_eq!(root.list("/@systemd"), Err(Absence::NotCollected));
        for path in ["@kmsg", "/@kmsg"] {
            assert_eq!(LiveRoot::new().read(path), Err(Absence::NotCollected));
            assert_eq!(LiveRoot::new().link(path), Err(Absence::NotCollected));
        }
    }

    #[test]
    fn links_in_a_circle_end_in_an_error() {
        let (dir, root) = node();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        assert_eq!(root.read("/a"), Err(Absence::Failed(Errno(40))));
    }
}
