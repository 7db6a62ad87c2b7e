//! `--require-rdma`: whether the processes of a program used their RDMA devices, and why not.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::exit::Exit;

/// The variable that names the folder of the library's files.
const FOLDER: &str = "GDR_VERBS_USE";

/// What a program must move by gdr's devices.
#[derive(Debug)]
pub(super) struct Requirement {
    /// Each process that listed the devices moves so many bytes.
    bytes: u64,
    folder: TempDir,
}

/// The program succeeded, and the requirement is not met.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequirementError {
    /// No place for what processes write.
    #[error("no folder can be made in {}: {source}; name another one in TMPDIR", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    /// What they wrote is gone.
    #[error("what the processes wrote in {} cannot be read: {source}", .folder.display())]
    Unreadable { folder: PathBuf, source: io::Error },
    /// No process asked for devices.
    #[error("--require-rdma is not met: {0}")]
    NoneListed(&'static str),
    /// Processes that asked for devices did not use them.
    #[error("--require-rdma is not met: {}", .0.join("; "))]
    Unused(Vec<String>),
}

impl RequirementError {
    /// The status of `gdr run`.
    pub(super) const fn exit(&self) -> Exit {
        match self {
            Self::Folder { .. } | Self::Unreadable { .. } => Exit::Launcher,
            Self::NoneListed(_) | Self::Unused(_) => Exit::NotMet,
        }
    }
}

/// What a process did with the devices.
#[derive(Debug, Default, PartialEq, Eq)]
struct Use {
    is_seen: bool,
    is_listed: bool,
    is_node_opened: bool,
    is_opened: bool,
    has_queue_pair: bool,
    is_ready: bool,
    /// The bytes of packets, where the process lived to say so.
    bytes: Option<u64>,
}

impl Requirement {
    pub(super) fn new(bytes: u64) -> Result<Self, RequirementError> {
        let made = tempfile::Builder::new().prefix("gdr-run-").tempdir();
        let folder = made.map_err(|source| RequirementError::Folder {
            folder: std::env::temp_dir(),
            source,
        })?;
        Ok(Self { bytes, folder })
    }

    /// What the library has to know.
    pub(super) fn variable(&self) -> (&'static str, &OsStr) {
        (FOLDER, self.folder.path().as_os_str())
    }

    /// Decides after all processes have ended.
    pub(super) fn check(&self) -> Result<(), RequirementError> {
        let folder = self.folder.path();
        let processes = read(folder).map_err(|source| RequirementError::Unreadable {
            folder: folder.to_owned(),
            source,
        })?;
        self.judge(&processes)
    }

    fn judge(&self, processes: &BTreeMap<u32, Use>) -> Result<(), RequirementError> {
        let asked = || {
            processes
                .iter()
                .filter(|(_, it)| it.is_listed || it.is_node_opened)
        };
        if asked().next().is_none() {
            let why = match processes.values().any(|process| process.is_seen) {
                true => {
                    "a process found the devices in /sys, and none called ibv_get_device_list of a libibverbs \
                     that gdr can replace: its own copy of rdma-core, linked statically, would have none of \
                     gdr's devices"
                }
                false => {
                    "no process asked for RDMA devices: the program uses none, or it is statically linked or \
                     cleared LD_PRELOAD"
                }
            };
            return Err(RequirementError::NoneListed(why));
        }
        let unused: Vec<_> = asked()
            .filter_map(|(pid, process)| {
                Some(format!("process {pid} {}", process.reason(self.bytes)?))
            })
            .collect();
        if unused.is_empty() {
            Ok(())
        } else {
            Err(RequirementError::Unused(unused))
        }
    }
}

impl Use {
    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            match line {
                "seen" => found.is_seen = true,
                "listed" => found.is_listed = true,
                "node-opened" => found.is_node_opened = true,
                "opened" => found.is_opened = true,
                "queue-pair" => found.has_queue_pair = true,
                "ready" => found.is_ready = true,
                other => {
                    let bytes = other.strip_prefix("bytes ").and_then(|it| it.parse().ok());
                    found.bytes = bytes.or(found.bytes);
                }
            }
        }
        found
    }

    /// What two files of one process say.
    fn with(self, other: Self) -> Self {
        let bytes = self.bytes.map_or(other.bytes, |bytes| {
            Some(bytes.saturating_add(other.bytes.unwrap_or(0)))
        });
        Self {
            is_seen: self.is_seen || other.is_seen,
            is_listed: self.is_listed || other.is_listed,
            is_node_opened: self.is_node_opened || other.is_node_opened,
            is_opened: self.is_opened || other.is_opened,
            has_queue_pair: self.has_queue_pair || other.has_queue_pair,
            is_ready: self.is_ready || other.is_ready,
            bytes,
        }
    }

    /// Why it did not move these bytes; `None` if it did. One that was killed while its queue pairs worked
    /// counts as if it had moved a byte.
    fn reason(&self, wanted: u64) -> Option<String> {
        let moved = self.bytes.unwrap_or(u64::from(self.is_ready));
        if moved >= wanted {
            return None;
        }
        Some(if !self.is_opened && self.is_node_opened {
            "opened /dev/infiniband/uverbsN itself, as a copy of rdma-core of its own does: that cannot use gdr's \
             devices"
                .to_owned()
        } else if !self.is_opened {
            "listed the devices and opened none: it chose another transport, or names a device that is not \
             there"
                .to_owned()
        } else if !self.has_queue_pair {
            "opened a device and made no queue pair: it wants something that the device lacks, or chose \
             another transport"
                .to_owned()
        } else if !self.is_ready {
            "made queue pairs and connected none: no peer came, or the two did not agree".to_owned()
        } else if self.bytes.is_none() {
            format!(
                "ended by _exit or a signal before its bytes were counted, and {wanted} are required"
            )
        } else {
            format!("moved {moved} bytes, and {wanted} are required")
        })
    }
}

/// What each process wrote.
fn read(folder: &Path) -> io::Result<BTreeMap<u32, Use>> {
    let mut processes = BTreeMap::<u32, Use>::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name
            .strip_suffix(".use")
            .and_then(|name| name.split('-').next()?.parse().ok());
        // A file that is not whole has another name.
        let Some(pid) = pid else {
            continue;
        };
        let process = processes.entry(pid).or_default();
        let of_file = Use::parse(&fs::read_to_string(&path)?);
        *process = std::mem::take(process).with(of_file);
    }
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    fn verdict(bytes: u64, files: &[(&str, &str)]) -> String {
        let requirement = Requirement::new(bytes).unwrap();
        for (name, text) in files {
            fs::write(requirement.folder.path().join(name), text).unwrap();
        }
        requirement
            .check()
            .map_or_else(|error| error.to_string(), |()| "met".to_owned())
    }

    #[test]
    fn the_step_that_a_process_did_not_take_is_the_reason() {
        for (steps, part) in [
            ("listed\n", "process 7 listed the devices and opened none"),
            (
                "seen\nlisted\nopened\n",
                "process 7 opened a device and made no queue pair",
            ),
            (
                "listed\nopened\nqueue-pair\nbytes 0\n",
                "process 7 made queue pairs and connected none",
            ),
            (
                "seen\nnode-opened\n",
                "process 7 opened /dev/infiniband/uverbsN itself",
            ),
            ("seen\n", "linked statically"),
            ("", "no process asked"),
        ] {
            let found = verdict(1, &[("7-ab.use", steps)]);
            assert_contains!(found, part, "{steps}");
        }
        assert!(verdict(1, &[]).contains("no process asked"));
    }

    #[test]
    fn every_process_that_listed_devices_has_to_move_the_bytes() {
        let moved = "listed\nopened\nqueue-pair\nready\nbytes 4096\n";
        assert_eq!(
            verdict(4096, &[("7-a.use", moved), ("8-a.use", "seen\n")]),
            "met"
        );
        assert!(verdict(4097, &[("7-a.use", moved)]).contains("moved 4096 bytes, and 4097"));
        let one_did_not = verdict(1, &[("7-a.use", moved), ("8-a.use", "listed\n")]);
        assert!(one_did_not.contains("process 8 listed") && !one_did_not.contains("process 7"));
    }

    #[test]
    fn the_two_libraries_of_a_process_count_as_one() {
        let files = [
            ("7-a.use", "seen\n"),
            ("7-b.use", "listed\nopened\nbytes 5\n"),
        ];
        assert_eq!(verdict(5, &files), "met");
    }

    #[test]
    fn a_process_that_was_killed_while_it_was_connected_moved_an_unknown_number() {
        let files = [("7-a.use", "listed\nopened\nqueue-pair\nready\n")];
        assert_eq!(verdict(1, &files), "met");
        assert!(verdict(2, &files).contains("before its bytes were counted"));
    }
}
