//! A node in memory.

use std::collections::BTreeMap;

use super::{Absence, Datum, Errno, MAX_ENTRIES, MAX_FILE, Source, path};

#[derive(Clone, Debug)]
enum Entry {
    File(Vec<u8>),
    Link(String),
    Directory,
    Denied,
    NotCollected,
    Failed(Errno),
}

impl Entry {
    /// Returns this entry's absence, if it has no content.
    fn absence<T>(&self) -> Option<Datum<T>> {
        match self {
            Self::Denied => Some(Err(Absence::Denied)),
            Self::NotCollected => Some(Err(Absence::NotCollected)),
            Self::Failed(errno) => Some(Err(Absence::Failed(*errno))),
            Self::File(_) | Self::Link(_) | Self::Directory => None,
        }
    }
}

/// A node in memory, for tests and for captures in other formats.
///
/// ```
/// use gdr_node::{Absence, MemorySource, Source};
///
/// let node = MemorySource::new()
///     .file("/sys/devices/system/node/online", "0-1\n")
///     .denied("/sys/kernel/security/lockdown");
/// assert_eq!(node.text("/sys/devices/system/node/online").unwrap(), "0-1");
/// assert_eq!(node.read("/sys/kernel/security/lockdown"), Err(Absence::Denied));
/// assert_eq!(node.read("/sys/nothing"), Err(Absence::Missing));
/// ```
///
/// A path may contain links added earlier. An entry replaces an earlier one at the same path, so that a test can start
/// from a whole node and change a part of it.
#[derive(Clone, Debug)]
pub struct MemorySource {
    entries: BTreeMap<String, Entry>,
    whole: bool,
}

impl MemorySource {
    /// Returns an empty, completely known node: every other path is [`Absence::Missing`].
    #[must_use]
    pub fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            whole: true,
        }
    }

    /// Returns an empty, partially known node: every other path is [`Absence::NotCollected`].
    #[must_use]
    pub fn partial() -> Self {
        Self {
            entries: BTreeMap::new(),
            whole: false,
        }
    }

    /// Adds a file.
    #[must_use]
    pub fn file(self, path: &str, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.with(
            path,
            Entry::File(bytes[..bytes.len().min(MAX_FILE)].to_vec()),
        )
    }

    /// Adds a link.
    #[must_use]
    pub fn link_to(self, path: &str, target: &str) -> Self {
        self.with(path, Entry::Link(target.to_owned()))
    }

    /// Adds an empty directory. The directories above a file exist implicitly.
    #[must_use]
    pub fn directory(self, path: &str) -> Self {
        self.with(path, Entry::Directory)
    }

    /// Adds an entry that takes more privilege to read.
    #[must_use]
    pub fn denied(self, path: &str) -> Self {
        self.with(path, Entry::Denied)
    }

    /// Adds an entry that was not collected.
    #[must_use]
    pub fn not_collected(self, path: &str) -> Self {
        self.with(path, Entry::NotCollected)
    }

    /// Adds an entry that fails with this error when read.
    #[must_use]
    pub fn failing(self, path: &str, errno: Errno) -> Self {
        self.with(path, Entry::Failed(errno))
    }

    /// Removes the entry at a path and everything below it. Links in parent directories are followed; a link at the
    /// path itself is removed.
    #[must_use]
    pub fn without(mut self, path: &str) -> Self {
        let at = self.place(path);
        let below = format!("{at}/");
        self.entries
            .retain(|key, _| *key != at && !key.starts_with(&below));
        self
    }

    /// Returns every path that was added, in order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    fn with(mut self, path: &str, entry: Entry) -> Self {
        let at = self.place(path);
        self.entries.insert(at, entry);
        self
    }

    /// Returns the key of the entry at `path`.
    fn place(&self, path: &str) -> String {
        path::resolve_parent(path, |at| self.raw_link(at))
            .ok()
            .unwrap_or_else(|| path.trim_end_matches('/').to_owned())
    }

    fn raw_link(&self, at: &str) -> Datum<String> {
        match self.entries.get(at) {
            Some(Entry::Link(target)) => Ok(target.clone()),
            _ => Err(Absence::Missing),
        }
    }

    fn absent<T>(&self) -> Datum<T> {
        if self.whole {
            Err(Absence::Missing)
        } else {
            Err(Absence::NotCollected)
        }
    }
}

impl Default for MemorySource {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for MemorySource {
    fn read(&self, path: &str) -> Datum<Vec<u8>> {
        self.resolve(path)
            .and_then(|at| match self.entries.get(&at) {
                Some(Entry::File(bytes)) => Ok(bytes.clone()),
                Some(entry) => entry.absence().unwrap_or(Err(Absence::Missing)),
                None => self.absent(),
            })
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        self.resolve(path).and_then(|at| {
            match self.entries.get(&at) {
                Some(Entry::File(_)) => return Err(Absence::Missing),
                Some(entry) => {
                    if let Some(absence) = entry.absence() {
                        return absence;
                    }
                }
                None => {}
            }
            let below = if at == "/" {
                at.clone()
            } else {
                format!("{at}/")
            };
            let mut names: Vec<String> = Vec::new();
            for (key, _) in self.entries.range(below.clone()..) {
                let Some(rest) = key.strip_prefix(&below) else {
                    break;
                };
                let name = rest.split('/').next().unwrap_or(rest);
                if names.last().is_none_or(|last| last != name) && names.len() < MAX_ENTRIES {
                    names.push(name.to_owned());
                }
            }
            names.sort();
            names.dedup();
            if names.is_empty() && !matches!(self.entries.get(&at), Some(Entry::Directory)) {
                return self.absent();
            }
            Ok(names)
        })
    }

    fn link(&self, path: &str) -> Datum<String> {
        path::resolve_parent(path, |at| self.raw_link(at)).and_then(|at| {
            match self.entries.get(&at) {
                Some(Entry::Link(target)) => Ok(target.clone()),
                Some(entry) => entry.absence().unwrap_or(Err(Absence::Missing)),
                None => self.absent(),
            }
        })
    }

    fn resolve(&self, path: &str) -> Datum<String> {
        path::resolve(path, |at| self.raw_link(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_exist_by_their_entries() {
        let node = MemorySource::new()
            .file("/a/b/one", "1")
            .file("/a/b-side", "2")
            .file("/a/b/two", "3")
            .link_to("/a/c", "b");
        let names = |path: &str| node.list(path).unwrap();
        assert_eq!(names("/a"), ["b", "b-side", "c"]);
        assert_eq!(names("/a/c"), ["one", "two"]);
        assert_eq!(node.text("/a/c/two"), Ok("3".to_owned()));
    }

    #[test]
    fn text_ends_before_its_zero_byte() {
        let node = MemorySource::new().file("/x", b"0-1\n\0");
        assert_eq!(node.text("/x"), Ok("0-1".to_owned()));
    }

    #[test]
    fn a_node_can_be_changed_through_its_links_and_things_taken_out() {
        let node = MemorySource::new()
            .link_to("/class/x", "../devices/x")
            .file("/devices/x/one", "1")
            .file("/class/x/two", "2")
            .file("/class/x/one", "changed")
            .failing("/class/x/three", Errno(5))
            .not_collected("/class/x/four")
            .file("@kmsg", "words\n");
        assert_eq!(node.text("/devices/x/two"), Ok("2".to_owned()));
        assert_eq!(node.text("/class/x/one"), Ok("changed".to_owned()));
        assert_eq!(node.read("/class/x/three"), Err(Absence::Failed(Errno(5))));
        assert_eq!(node.read("/class/x/four"), Err(Absence::NotCollected));
        assert_eq!(node.text("@kmsg"), Ok("words".to_owned()));
        let node = node.without("/class/x/one").without("/devices/y");
        assert_eq!(node.read("/class/x/one"), Err(Absence::Missing));
        let node = node.without("/class/x");
        assert_eq!(node.read("/class/x/two"), Err(Absence::Missing));
        assert_eq!(node.text("/devices/x/two"), Ok("2".to_owned()));
    }

    #[test]
    fn a_part_of_a_node_does_not_claim_that_the_rest_is_missing() {
        let node = MemorySource::partial().file("/sys/x", "1");
        assert_eq!(node.read("/sys/y"), Err(Absence::NotCollected));
        assert_eq!(node.list("/proc"), Err(Absence::NotCollected));
        assert_eq!(node.link("/sys/z"), Err(Absence::NotCollected));
    }
}
