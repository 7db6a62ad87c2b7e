//! The first entry of an archive: what it is, and what no file in it can say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::source::{Datum, Errno, Source, virtual_path};

/// The entry's name.
pub(super) const NAME: &str = "gdr-archive.json";
/// The name of the format.
pub(super) const SCHEMA: &str = "gdr-archive";
/// The version of the format that is written, and the only one that is read.
pub(super) const VERSION: u32 = 1;

/// Whose archive it is and how it came to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The version of gdr that collected it.
    pub gdr: String,
    /// When, in seconds since 1970-01-01 00:00 UTC.
    pub collected: u64,
    /// The node's name; a pseudonym in a redacted archive.
    pub host: String,
    /// The release of its kernel.
    pub kernel: String,
    /// Its architecture: `x86_64`.
    pub machine: String,
    /// Whether root collected it, who sees more.
    pub root: bool,
    /// Whether names and addresses were replaced.
    pub redacted: bool,
}

impl Origin {
    /// What a node says of itself; the version of gdr and the time are the caller's to know.
    pub fn of(source: &dyn Source, gdr: &str, collected: u64) -> Self {
        let line = |path: &str, name: &str| {
            let text = source.text(path).into_present()?;
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name))?.trim();
            Some(value.to_owned())
        };
        // `Uid:` real, effective, saved, file system.
        let user = line("/proc/self/status", "Uid:");
        let effective = user
            .as_deref()
            .and_then(|ids| ids.split_whitespace().nth(1));
        let text = |path: &str| source.text(path).into_present().unwrap_or_default();
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
    /// How many entries follow.
    pub(super) entries: usize,
    /// The directories that were listed.
    pub(super) lists: BTreeMap<String, Vec<String>>,
    /// The questions that got no answer, where that does not follow from the rest.
    pub(super) absent: BTreeMap<String, Absent>,
}

/// What is known of a format that may be another version's.
#[derive(Debug, Deserialize)]
pub(super) struct Version {
    pub(super) schema: String,
    pub(super) version: u32,
    #[serde(default)]
    pub(super) gdr: String,
}

/// Why there is no answer, for each kind of question about a path.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Absent {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<Absence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) list: Option<Absence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<Absence>,
}

/// A [`Datum`] without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Absence {
    Missing,
    Denied,
    NotCollected,
    /// With the error number of Linux.
    Failed(i32),
}

impl Absence {
    /// Why there is no value; `None` where there is one.
    pub(super) fn of<T>(datum: &Datum<T>) -> Option<Self> {
        match datum {
            Datum::Present(_) => None,
            Datum::Missing => Some(Self::Missing),
            Datum::Denied => Some(Self::Denied),
            Datum::NotCollected => Some(Self::NotCollected),
            Datum::Failed(errno) => Some(Self::Failed(errno.0)),
        }
    }

    pub(super) fn datum<T>(self) -> Datum<T> {
        match self {
            Self::Missing => Datum::Missing,
            Self::Denied => Datum::Denied,
            Self::NotCollected => Datum::NotCollected,
            Self::Failed(errno) => Datum::Failed(Errno(errno)),
        }
    }
}
