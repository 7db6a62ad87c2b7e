//! `--require-rdma`: whether a program's processes used their RDMA devices, and if not, why.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gdr_trace::{PortTraffic, ProcessTrace, Report};
use tempfile::TempDir;

use crate::exit::Exit;

/// Variable that names the folder for the library's files.
const FOLDER: &str = "GDR_VERBS_USE";

/// RDMA traffic that a program must have.
#[derive(Debug)]
pub(crate) struct Requirement {
    /// Number of bytes that each process which listed devices must move.
    bytes: u64,
    folder: TempDir,
}

/// The program succeeded, but did not meet the requirement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequirementError {
    /// There is no directory for the records of the processes.
    #[error("a directory cannot be created in {}: {source}; set TMPDIR to another directory", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    /// The records cannot be read.
    #[error("the records of the processes in {} cannot be read: {source}", .folder.display())]
    Unreadable { folder: PathBuf, source: io::Error },
    /// No process asked for devices.
    #[error("--require-rdma is not met: {0}")]
    NoneListed(&'static str),
    /// Processes that asked for devices did not use them.
    #[error("--require-rdma is not met: {}", .0.join("; "))]
    Unused(Vec<String>),
}

impl RequirementError {
    /// Returns the status of `gdr run` and `gdr trace`.
    pub(crate) const fn exit(&self) -> Exit {
        match self {
            Self::Folder { .. } | Self::Unreadable { .. } => Exit::Launcher,
            Self::NoneListed(_) | Self::Unused(_) => Exit::NotMet,
        }
    }
}

/// A process on any of the hosts that this one runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    pid: u32,
    /// The scope of the number, as in the names of its files.
    rest: String,
}

impl Name {
    /// Returns the process that wrote a file, as `PID-NAMESPACE-HOST-COPY`.
    fn of_file(name: &str) -> Option<Self> {
        let (process, _copy) = name.rsplit_once('-')?;
        let (pid, rest) = process.split_once('-').unwrap_or((process, ""));
        Some(Self {
            pid: pid.parse().ok()?,
            rest: rest.to_owned(),
        })
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
    /// Bytes in packets, if the process lived to report them.
    bytes: Option<u64>,
}

impl Requirement {
    pub(crate) fn new(bytes: u64) -> Result<Self, RequirementError> {
        let made = tempfile::Builder::new().prefix("gdr-run-").tempdir();
        let folder = made.map_err(|source| RequirementError::Folder {
            folder: std::env::temp_dir(),
            source,
        })?;
        Ok(Self { bytes, folder })
    }

    /// Returns what the library has to know.
    pub(crate) fn variable(&self) -> (&'static str, &OsStr) {
        (FOLDER, self.folder.path().as_os_str())
    }

    /// Decides once all processes have ended.
    pub(crate) fn check(&self) -> Result<(), RequirementError> {
        self.judge(
            &self.processes()?,
            "no process asked for RDMA devices: the program does not use them, is statically linked, or cleared \
             LD_PRELOAD",
        )
    }

    /// Like [`Requirement::check`], with what a trace saw of all devices.
    pub(crate) fn check_traced(&self, report: &Report) -> Result<(), RequirementError> {
        let mut processes = self.processes()?;
        let mut named = BTreeSet::new();
        for traced in &report.processes {
            // Processes on several hosts may have the same number; each has its own trace.
            let known = processes
                .keys()
                .find(|name| name.pid == traced.pid && !named.contains(*name));
            let name = known.cloned().unwrap_or_else(|| Name {
                pid: traced.pid,
                rest: format!("trace {}", named.len()),
            });
            named.insert(name.clone());
            let process = processes.entry(name).or_default();
            process.add_trace(traced, &report.ports);
        }
        self.judge(
            &processes,
            "no process opened an RDMA device: the program does not use RDMA, chose another transport, is statically \
             linked, or cleared LD_PRELOAD",
        )
    }

    fn processes(&self) -> Result<BTreeMap<Name, Use>, RequirementError> {
        let folder = self.folder.path();
        read(folder).map_err(|source| RequirementError::Unreadable {
            folder: folder.to_owned(),
            source,
        })
    }

    fn judge(
        &self,
        processes: &BTreeMap<Name, Use>,
        none: &'static str,
    ) -> Result<(), RequirementError> {
        let asked = || {
            processes
                .iter()
                .filter(|(_, it)| it.is_listed || it.is_node_opened)
        };
        if asked().next().is_none() {
            let why = match processes.values().any(|process| process.is_seen) {
                true => {
                    "a process found the devices in /sys, but no process called ibv_get_device_list in a libibverbs that gdr \
                     can replace: perhaps rdma-core is linked statically, and then cannot see gdr's devices"
                }
                false => none,
            };
            return Err(RequirementError::NoneListed(why));
        }
        let unused: Vec<_> = asked()
            .filter_map(|(name, process)| {
                let reason = process.reason(self.bytes)?;
                Some(format!("process {} {reason}", name.pid))
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

    /// Merges what two files of one process say.
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

    /// Adds what a trace saw. For a kernel device, the port counters count too, because a process into whose memory
    /// others write posts nothing.
    fn add_trace(&mut self, traced: &ProcessTrace, ports: &[PortTraffic]) {
        let is_own = |port: &&PortTraffic| traced.nics.iter().any(|nic| nic.name == port.nic);
        let of_ports = ports.iter().filter(is_own).fold(0_u64, |sum, port| {
            let both = port.sent_bytes.saturating_add(port.received_bytes);
            sum.saturating_add(both)
        });
        let posted = traced.queue_pairs.iter().map(|pair| pair.bytes());
        let moved = posted.fold(0, u64::saturating_add).max(of_ports);
        self.is_listed = true;
        self.is_opened = true;
        self.has_queue_pair |= !traced.queue_pairs.is_empty();
        if moved > 0 {
            self.is_ready = true;
            self.bytes = Some(self.bytes.unwrap_or(0).max(moved));
        }
    }

    /// Returns why it did not move this many bytes; `None` if it did. A process that was killed while its queue pairs
    /// worked counts as if it had moved a byte.
    fn reason(&self, wanted: u64) -> Option<String> {
        let moved = self.bytes.unwrap_or(u64::from(self.is_ready));
        if moved >= wanted {
            return None;
        }
        Some(if !self.is_opened && self.is_node_opened {
            "opened /dev/infiniband/uverbsN itself, as a bundled copy of rdma-core does: such a copy cannot use gdr's \
             devices"
                .to_owned()
        } else if !self.is_opened {
            "listed the devices but opened none: it chose another transport, or was given the name of a missing \
             device"
                .to_owned()
        } else if !self.has_queue_pair {
            "opened a device but created no queue pair: it needs a feature that the device lacks, or chose another \
             transport"
                .to_owned()
        } else if !self.is_ready {
            "created queue pairs but connected none: no peer connected, or the two could not agree"
                .to_owned()
        } else if self.bytes.is_none() {
            format!(
                "ended by _exit or a signal before its bytes were counted; {wanted} are required"
            )
        } else {
            format!("moved {moved} bytes; {wanted} are required")
        })
    }
}

/// Returns what each process wrote.
fn read(folder: &Path) -> io::Result<BTreeMap<Name, Use>> {
    let mut processes = BTreeMap::<Name, Use>::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(name) = name.strip_suffix(".use").and_then(Name::of_file) else {
            // An incomplete file has a different name.
            continue;
        };
        let process = processes.entry(name).or_default();
        let of_file = Use::parse(&fs::read_to_string(&path)?);
        *process = std::mem::take(process).with(of_file);
    }
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use gdr_trace::Ended;
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
            ("listed\n", "process 7 listed the devices but opened none"),
            (
                "seen\nlisted\nopened\n",
                "process 7 opened a device but created no queue pair",
            ),
            (
                "listed\nopened\nqueue-pair\nbytes 0\n",
                "process 7 created queue pairs but connected none",
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
        assert!(verdict(4097, &[("7-a.use", moved)]).contains("moved 4096 bytes; 4097"));
        let one_did_not = verdict(1, &[("7-a.use", moved), ("8-a.use", "listed\n")]);
        assert!(one_did_not.contains("process 8 listed") && !one_did_not.contains("process 7"));
    }

    #[test]
    fn processes_of_one_number_on_two_hosts_are_two() {
        let moved = "listed\nopened\nqueue-pair\nready\nbytes 4096\n";
        let none = verdict(1, &[("7-5-a-1.use", moved), ("7-6-b-1.use", "listed\n")]);
        assert!(none.contains("process 7 listed the devices"), "{none}");
        let half = verdict(8192, &[("7-5-a-1.use", moved), ("7-6-b-1.use", moved)]);
        assert_eq!(half.matches("moved 4096 bytes").count(), 2, "{half}");
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

    #[test]
    fn a_process_into_whose_memory_others_write_has_moved_what_the_ports_of_its_device_did() {
        use gdr_trace::layout::{self, header, nic};
        let mut file = vec![0; layout::FILE_LEN];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &layout::MAGIC);
        put(header::VERSION, &layout::VERSION.to_le_bytes());
        for table in [layout::NICS, layout::QUEUE_PAIRS] {
            put(header::USED + 4 * table.number, &1_u32.to_le_bytes());
            put(table.offset + table.row, &layout::READY.to_le_bytes());
        }
        put(
            layout::NICS.offset + layout::NICS.row + nic::NAME,
            b"mlx5_0",
        );
        let pair = layout::QUEUE_PAIRS.offset + layout::QUEUE_PAIRS.row;
        put(pair + layout::queue_pair::NIC, &1_u32.to_le_bytes());
        put(pair + layout::queue_pair::QPN, &7_u32.to_le_bytes());
        let traced = ProcessTrace::parse(&file).unwrap();
        let verdict = |nic: &str| {
            let mut report = Report::new(Vec::new(), Ended::Status(0), vec![traced.clone()]);
            report.ports.push(PortTraffic {
                nic: nic.to_owned(),
                port: 1,
                sent_bytes: 100,
                received_bytes: 4000,
            });
            let requirement = Requirement::new(4100).unwrap();
            requirement
                .check_traced(&report)
                .map_err(|error| error.to_string())
        };
        assert_eq!(verdict("mlx5_0"), Ok(()));
        let unmet = verdict("mlx5_1").unwrap_err();
        assert!(unmet.contains("connected none"), "{unmet}");
    }
}
