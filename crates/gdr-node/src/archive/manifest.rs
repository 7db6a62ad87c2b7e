//! The first entry of an archive: its origin, and facts that are not files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::source::{Absence, Source, virtual_path};

/// The entry's name.
pub(super) const NAME: &str = "gdr-archive.json";
/// The name of the format.
pub(super) const SCHEMA: &str = "gdr-archive";
/// The format version that is written, and the only one that is read.
pub(super) const VERSION: u32 = 1;

/// Which node was collected, when, and by which version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The version of gdr that collected it.
    pub gdr: String,
    /// The time of collection in seconds since 1970-01-01 00:00 UTC.
    pub collected: u64,
    /// The node's name; a pseudonym in a redacted archive.
    pub host: String,
    /// The release of its kernel.
    pub kernel: String,
    /// Its architecture: `x86_64`.
    pub machine: String,
    /// Whether root collected it; other users read less.
    pub root: bool,
    /// Whether names and addresses were replaced.
    pub redacted: bool,
}

impl Origin {
    /// Determines the origin from the node's own files; the caller supplies the version of gdr and the time.
    pub fn of(source: &dyn Source, gdr: &str, collected: u64) -> Self {
        let line = |path: &str, name: &str| {
            let text = source.text(path).ok()?;
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name))?.trim();
            Some(value.to_owned())
        };
        // `Uid:` real, effective, saved, file system.
        let user = line("/proc/self/status", "Uid:");
        let effective = user
            .as_deref()
            .and_then(|ids| ids.split_whitespace().nth(1));
        let text = |path: &str| source.text(path).ok().unwrap_or_default();
        Self {
            gdr: gdr.to_owned(),
            collected,
            host: text("/proc/sys/kernel/hostname"),
            kernel: text("/proc/sys/kernel/osrelease"),
            machine: line(virtual_path::UNAME, "machine ").unwrap_or_default(),
            root: effective == Some("0"),
            redacted: false,
        }
    }
}

/// The first entry, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) schema: String,
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) origin: Origin,
    /// The number of entries that follow.
    pub(super) entries: usize,
    /// The directories that were listed.
    pub(super) lists: BTreeMap<String, Vec<String>>,
    /// The failed reads, unless implied by the rest.
    pub(super) absent: BTreeMap<String, Absent>,
}

/// The fields common to every version of the format.
#[derive(Debug, Deserialize)]
pub(super) struct Version {
    pub(super) schema: String,
    pub(super) version: u32,
    #[serde(default)]
    pub(super) gdr: String,
}

/// The absences at a path, by kind of read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Absent {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<Absence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) list: Option<Absence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<Absence>,
}
