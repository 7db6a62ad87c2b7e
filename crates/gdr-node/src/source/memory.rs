//! A node held in memory.

use std::collections::BTreeMap;

use super::{Datum, Errno, MAX_ENTRIES, MAX_FILE, Source, path};

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
    /// Why this entry answers nothing, if that is all it does.
    fn absence<T>(&self) -> Option<Datum<T>> {
        match self {
            Self::Denied => Some(Datum::Denied),
            Self::NotCollected => Some(Datum::NotCollected),
            Self::Failed(errno) => Some(Datum::Failed(*errno)),
            Self::File(_) | Self::Link(_) | Self::Directory => None,
        }
    }
}

/// A node held in memory: for tests, and for captures that were read from elsewhere.
///
/// ```
/// use gdr_node::{Datum, MemorySource, Source};
///
/// let node = MemorySource::new()
///     .file("/sys/devices/system/node/online", "0-1\n")
///     .denied("/sys/kernel/security/lockdown");
/// assert_eq!(node.text("/sys/devices/system/node/online").into_present().unwrap(), "0-1");
/// assert_eq!(node.read("/sys/kernel/security/lockdown"), Datum::Denied);
/// assert_eq!(node.read("/sys/nothing"), Datum::Missing);
/// ```
///
/// A path may lead through links that were put in before, and what is put in again is replaced:
/// a test takes a whole node and changes what it is about.
#[derive(Clone, Debug)]
pub struct MemorySource {
    entries: BTreeMap<String, Entry>,
    whole: bool,
}

impl MemorySource {
    /// A node of which all is known: what is not put in is [`Datum::Missing`].
    #[must_use]
    pub fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            whole: true,
        }
    }

    /// A node of which only a part is known: what is not put in is [`Datum::NotCollected`].
    #[must_use]
    pub fn partial() -> Self {
        Self {
            entries: BTreeMap::new(),
            whole: false,
        }
    }

    /// Puts in a file.
    #[must_use]
    pub fn file(self, path: &str, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.with(
            path,
            Entry::File(bytes[..bytes.len().min(MAX_FILE)].to_vec()),
        )
    }

    /// Puts in a link.
    #[must_use]
    pub fn link_to(self, path: &str, target: &str) -> Self {
        self.with(path, Entry::Link(target.to_owned()))
    }

    /// Puts in an empty directory. Those above a file are there by themselves.
    #[must_use]
    pub fn directory(self, path: &str) -> Self {
        self.with(path, Entry::Directory)
    }

    /// Puts in something that may not be read.
    #[must_use]
    pub fn denied(self, path: &str) -> Self {
        self.with(path, Entry::Denied)
    }

    /// Puts in something of which the capture holds nothing.
    #[must_use]
    pub fn not_collected(self, path: &str) -> Self {
        self.with(path, Entry::NotCollected)
    }

    /// Puts in something whose reading fails with this error.
    #[must_use]
    pub fn failing(self, path: &str, errno: Errno) -> Self {
        self.with(path, Entry::Failed(errno))
    }

    /// Takes out what is at a path and all that is below it. Links in the directories above are
    /// followed, a link at the path itself is taken out.
    #[must_use]
    pub fn without(mut self, path: &str) -> Self {
        let at = self.place(path);
        let below = format!("{at}/");
        self.entries
            .retain(|key, _| *key != at && !key.starts_with(&below));
        self
    }

    /// Every path that was put in, in order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    fn with(mut self, path: &str, entry: Entry) -> Self {
        let at = self.place(path);
        self.entries.insert(at, entry);
        self
    }

    /// Where something at `path` is kept.
    fn place(&self, path: &str) -> String {
        path::resolve_parent(path, |at| self.raw_link(at))
            .into_present()
            .unwrap_or_else(|| path.trim_end_matches('/').to_owned())
    }

    fn raw_link(&self, at: &str) -> Datum<String> {
        match self.entries.get(at) {
            Some(Entry::Link(target)) => Datum::Present(target.clone()),
            _ => Datum::Missing,
        }
    }

    fn absent<T>(&self) -> Datum<T> {
        if self.whole {
            Datum::Missing
        } else {
            Datum::NotCollected
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
                Some(Entry::File(bytes)) => Datum::Present(bytes.clone()),
                Some(entry) => entry.absence().unwrap_or(Datum::Missing),
                None => self.absent(),
            })
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        self.resolve(path).and_then(|at| {
            match self.entries.get(&at) {
                Some(Entry::File(_)) => return Datum::Missing,
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
            Datum::Present(names)
        })
    }

    fn link(&self, path: &str) -> Datum<String> {
        path::resolve_parent(path, |at| self.raw_link(at)).and_then(|at| {
            match self.entries.get(&at) {
                Some(Entry::Link(target)) => Datum::Present(target.clone()),
                Some(entry) => entry.absence().unwrap_or(Datum::Missing),
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
    fn directories_are_made_of_what_lies_in_them() {
        let node = MemorySource::new()
            .file("/a/b/one", "1")
            .file("/a/b-side", "2")
            .file("/a/b/two", "3")
            .link_to("/a/c", "b");
        let names = |path: &str| node.list(path).into_present().unwrap();
        assert_eq!(names("/a"), ["b", "b-side", "c"]);
        assert_eq!(names("/a/c"), ["one", "two"]);
        assert_eq!(node.text("/a/c/two"), Datum::Present("3".to_owned()));
    }

    #[test]
    fn text_ends_before_its_zero_byte() {
        let node = MemorySource::new().file("/x", b"0-1\n\0");
        assert_eq!(node.text("/x"), Datum::Present("0-1".to_owned()));
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
        assert_eq!(node.text("/devices/x/two"), Datum::Present("2".to_owned()));
        assert_eq!(
            node.text("/class/x/one"),
            Datum::Present("changed".to_owned())
        );
        assert_eq!(node.read("/class/x/three"), Datum::Failed(Errno(5)));
        assert_eq!(node.read("/class/x/four"), Datum::NotCollected);
        assert_eq!(node.text("@kmsg"), Datum::Present("words".to_owned()));
        let node = node.without("/class/x/one").without("/devices/y");
        assert_eq!(node.read("/class/x/one"), Datum::Missing);
        let node = node.without("/class/x");
        assert_eq!(node.read("/class/x/two"), Datum::Missing);
        assert_eq!(node.text("/devices/x/two"), Datum::Present("2".to_owned()));
    }

    #[test]
    fn a_part_of_a_node_does_not_claim_that_the_rest_is_missing() {
        let node = MemorySource::partial().file("/sys/x", "1");
        assert_eq!(node.read("/sys/y"), Datum::NotCollected);
        assert_eq!(node.list("/proc"), Datum::NotCollected);
        assert_eq!(node.link("/sys/z"), Datum::NotCollected);
    }
}
