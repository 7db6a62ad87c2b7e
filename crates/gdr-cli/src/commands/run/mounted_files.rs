//! `--mount`: device files for programs that make system calls themselves.
//!
//! The library only intercepts functions of the C library. With `--mount`, the kernel shows the same files: in a mount
//! namespace of the program, folders of `/sys` are overlays of the kernel's files and a copy of the library's files. A
//! process of this command makes the copy with the library preloaded: files that it finds through the C library, but
//! not through the kernel, are the library's.

use std::env;
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use gdr_process::NewNamespaces;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, statat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tempfile::TempDir;

use crate::launch::LaunchError;

/// Folders of `/sys` with device files. Nothing is mounted below them, so they can be overlaid without privileges.
const FOLDERS: [&str; 3] = ["class", "bus/pci/devices", "devices"];
/// Folders whose entries are links to devices, or contain them.
const CLASSES: [&str; 6] = [
    "class/infiniband",
    "class/infiniband_verbs",
    "class/infiniband_mad",
    "class/misc",
    "class/pci_bus",
    "bus/pci/devices",
];
/// Folders that are left out, because their files change and a copy would not.
const CHANGING: [&str; 2] = ["counters", "hw_counters"];
/// How long copying a few hundred small files may take.
const COPYING: Duration = Duration::from_secs(60);
/// Variable with the number of the first character device, because the library can no longer count the kernel's
/// devices.
const FIRST_NODE: &str = "GDR_VERBS_FIRST_NODE";

/// Why the files cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    /// The namespaces are refused.
    #[error(
        "--mount needs a mount namespace, or a user namespace to create one in, but the kernel or container permits \
         neither: {0}; leave --mount out for programs that use the C library"
    )]
    NotPermitted(#[source] io::Error),
    /// Files cannot be copied or mounted.
    #[error("--mount: {what}: {source}")]
    Failed { what: String, source: io::Error },
    /// The process with the library could not copy.
    #[error("--mount: the devices' files could not be copied")]
    NotCopied,
}

impl MountError {
    fn of<E: Into<io::Error>>(what: impl ToString) -> impl FnOnce(E) -> Self {
        let what = what.to_string();
        |source| Self::Failed {
            what,
            source: source.into(),
        }
    }
}

/// Mounts the device files for this environment, for this process and the processes that it starts; returns what to add
/// to the environment.
pub(super) fn show(
    environment: &[(&'static str, OsString)],
) -> Result<(&'static str, OsString), LaunchError> {
    enter().map_err(MountError::NotPermitted)?;
    let private = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", private).map_err(MountError::of("/"))?;
    // The files disappear with the namespace.
    let folder = TempDir::new().map_err(MountError::of("a temporary folder"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", folder.path(), "tmpfs", flags, Some(c"mode=755"))
        .map_err(MountError::of("tmpfs"))?;
    let gdr = env::current_exe().map_err(MountError::of("gdr"))?;
    let mut copying = Command::new(gdr)
        .args(["run", "--copy-files"])
        .arg(folder.path())
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .spawn()
        .map_err(MountError::of("gdr"))?;
    let copied = wait(&mut copying, COPYING).map_err(MountError::of("copying files"))?;
    if !copied.success() {
        return Err(MountError::NotCopied.into());
    }
    let first_node = first_node(folder.path()).map_err(MountError::of("copied files"))?;
    for name in FOLDERS {
        let own = folder.path().join(name);
        if own.exists() {
            overlay(&own, &Path::new("/sys").join(name))?;
        }
    }
    // The overlays keep it.
    unmount(folder.path(), UnmountFlags::DETACH).map_err(MountError::of("tmpfs"))?;
    Ok((FIRST_NODE, first_node.to_string().into()))
}

/// Makes a mount namespace, where necessary in a user namespace.
fn enter() -> io::Result<()> {
    NewNamespaces::Mounts.enter().or_else(|_| {
        NewNamespaces::User.enter()?;
        NewNamespaces::Mounts.enter()
    })
}

fn overlay(own: &Path, place: &Path) -> Result<(), MountError> {
    let options = [
        b"lowerdir=",
        own.as_os_str().as_bytes(),
        b":",
        place.as_os_str().as_bytes(),
    ];
    let failed = MountError::of(place.display());
    let options = CString::new(options.concat()).map_err(|_| io::ErrorKind::InvalidInput);
    let mounted = options.map_err(io::Error::from).and_then(|options| {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
        Ok(mount("overlay", place, "overlay", flags, Some(&*options))?)
    });
    mounted.map_err(failed)
}

/// Waits for a process that this one has started, and kills it after `limit`.
fn wait(process: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let until = Instant::now() + limit;
    let ended = pidfd_open(Pid::from_child(process), PidfdFlags::empty())?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&left)) {
            Ok(0) => {
                process.kill()?;
                process.wait()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok(_) => return process.wait(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the number of the first character device, as the library counted when its files were copied to this folder.
fn first_node(copy: &Path) -> io::Result<u32> {
    let nodes = match fs::read_dir(copy.join("class/infiniband_verbs")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        nodes => nodes?,
    };
    let numbers = nodes.filter_map(|node| {
        let name = node.ok()?.file_name();
        name.to_str()?.strip_prefix("uverbs")?.parse().ok()
    });
    Ok(numbers.min().unwrap_or(0))
}

/// Copies the library's files to a folder that stands for `/sys`. The library must be preloaded into this process.
pub(super) fn copy(to: &Path) -> io::Result<()> {
    for class in CLASSES {
        let folder = Path::new("/sys").join(class);
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            if is_kernels(&path) {
                continue;
            }
            copy_one(&path, to)?;
            if path.is_symlink() {
                let target = fs::canonicalize(&path)?;
                let first = target
                    .ancestors()
                    .take_while(|path| !is_kernels(path))
                    .last();
                first.map_or(Ok(()), |first| copy_one(first, to))?;
            }
        }
    }
    Ok(())
}

/// Returns whether the kernel has a file: rustix calls it without the C library.
fn is_kernels(path: &Path) -> bool {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

fn copy_one(path: &Path, to: &Path) -> io::Result<()> {
    let Ok(below) = path.strip_prefix("/sys") else {
        return Ok(());
    };
    let copy: PathBuf = to.join(below);
    if let Some(folder) = copy.parent() {
        fs::create_dir_all(folder)?;
    }
    if path.is_symlink() {
        return match symlink(fs::read_link(path)?, copy) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        };
    }
    if !path.is_dir() {
        return fs::write(copy, fs::read(path)?);
    }
    fs::create_dir_all(copy)?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !CHANGING.iter().any(|name| entry.file_name() == *name) {
            copy_one(&entry.path(), to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::Signal;

    use super::*;

    #[test]
    fn a_process_that_does_not_end_in_time_is_ended() {
        let mut process = Command::new("sleep").arg("20").spawn().unwrap();
        let error = wait(&mut process, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let ended = process.try_wait().unwrap().unwrap();
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()));
        let mut short = Command::new("true").spawn().unwrap();
        assert!(wait(&mut short, COPYING).unwrap().success());
    }

    #[test]
    fn the_first_node_is_the_lowest_one_that_was_copied() {
        let copy = tempfile::tempdir().unwrap();
        assert_eq!(first_node(copy.path()).unwrap(), 0, "no device");
        let class = copy.path().join("class/infiniband_verbs");
        fs::create_dir_all(&class).unwrap();
        for name in ["abi_version", "uverbs10", "uverbs9", "uverbs11", "uverbsx"] {
            fs::write(class.join(name), "").unwrap();
        }
        assert_eq!(first_node(copy.path()).unwrap(), 9);
    }
}
