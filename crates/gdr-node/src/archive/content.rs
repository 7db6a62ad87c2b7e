//! Recorded reads of a node, and the answers that they imply.

use std::collections::BTreeMap;

use crate::source::{Absence, Datum, MAX_ENTRIES, Source, path};

/// The reads of one path, with their answers. No directory above the path is a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathRecord {
    pub(crate) file: Option<Datum<Vec<u8>>>,
    pub(crate) list: Option<Datum<Vec<String>>>,
    pub(crate) link: Option<Datum<String>>,
}

/// Recorded reads of a node, and the answers that they imply.
///
/// A read that was not recorded is [`Absence::NotCollected`], unless another answer implies it: a name absent from a
/// listed directory is missing, nothing exists below a file, and a file is neither a directory nor a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    paths: BTreeMap<String, PathRecord>,
}

impl Content {
    pub(crate) fn record(&mut self, at: &str) -> &mut PathRecord {
        if !self.paths.contains_key(at) {
            self.paths.insert(at.to_owned(), PathRecord::default());
        }
        // Inserted above if absent.
        self.paths.entry(at.to_owned()).or_default()
    }

    pub(crate) fn get(&self, at: &str) -> Option<&PathRecord> {
        self.paths.get(at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &PathRecord)> {
        self.paths.iter().map(|(at, record)| (at.as_str(), record))
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// Returns what other reads imply about the file at a path.
    pub(crate) fn implied_file<T>(&self, at: &str) -> Datum<T> {
        if self.is_directory(at) {
            return Err(Absence::Missing);
        }
        self.implied_by_above(at)
    }

    /// Returns what other reads imply about the directory at a path.
    pub(crate) fn implied_list<T>(&self, at: &str) -> Datum<T> {
        if self.is_file(at) {
            return Err(Absence::Missing);
        }
        self.implied_by_above(at)
    }

    /// Returns what other reads imply about the link at a path. A recorded read of the path or below it followed all
    /// links first, so the path itself is not one.
    pub(crate) fn implied_link<T>(&self, at: &str) -> Datum<T> {
        let below = format!("{}/", at.trim_end_matches('/'));
        let asked = |record: &PathRecord| record.file.is_some() || record.list.is_some();
        let next = self.paths.range(below.clone()..).next();
        if self.get(at).is_some_and(asked) || next.is_some_and(|(at, _)| at.starts_with(&below)) {
            return Err(Absence::Missing);
        }
        self.implied_by_above(at)
    }

    fn is_file(&self, at: &str) -> bool {
        matches!(self.get(at), Some(record) if matches!(record.file, Some(Ok(_))))
    }

    fn is_directory(&self, at: &str) -> bool {
        let below = format!("{}/", at.trim_end_matches('/'));
        matches!(self.get(at), Some(record) if matches!(record.list, Some(Ok(_))))
            || self
                .paths
                .range(below.clone()..)
                .take_while(|(next, _)| next.starts_with(&below))
                .any(|(_, record)| {
                    matches!(record.file, Some(Ok(_))) || matches!(record.link, Some(Ok(_)))
                })
    }

    /// Returns what the directories above imply about a path.
    fn implied_by_above<T>(&self, at: &str) -> Datum<T> {
        let mut below = at;
        while let Some((above, name)) = below.rsplit_once('/') {
            let directory = if above.is_empty() { "/" } else { above };
            if self.is_file(directory) {
                return Err(Absence::Missing);
            }
            if let Some(PathRecord {
                list: Some(Ok(names)),
                ..
            }) = self.get(directory)
                // A name missing from a truncated list may exist.
                && names.len() < MAX_ENTRIES
                && names.binary_search_by(|known| known.as_str().cmp(name)).is_err()
            {
                return Err(Absence::Missing);
            }
            below = above;
        }
        Err(Absence::NotCollected)
    }

    /// Returns the target of the link at a path, by recorded reads only, for [`path::resolve`].
    pub(crate) fn raw_link(&self, at: &str) -> Datum<String> {
        match self.get(at).and_then(|record| record.link.as_ref()) {
            Some(link) => link.clone(),
            None => Err(Absence::NotCollected),
        }
    }
}

impl Source for Content {
    fn read(&self, path: &str) -> Datum<Vec<u8>> {
        self.resolve(path)
            .and_then(|at| match self.get(&at).and_then(|p| p.file.as_ref()) {
                Some(file) => file.clone(),
                None => self.implied_file(&at),
            })
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        self.resolve(path)
            .and_then(|at| match self.get(&at).and_then(|p| p.list.as_ref()) {
                Some(list) => list.clone(),
                None => self.implied_list(&at),
            })
    }

    fn link(&self, path: &str) -> Datum<String> {
        path::resolve_parent(path, |at| self.raw_link(at)).and_then(|at| {
            match self.get(&at).and_then(|p| p.link.as_ref()) {
                Some(link) => link.clone(),
                None => self.implied_link(&at),
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

    fn content() -> Content {
        let mut content = Content::default();
        content.record("/a").list = Some(Ok(vec!["b".into(), "c".into()]));
        content.record("/a/b").file = Some(Ok(b"1".to_vec()));
        content.record("/a/c").link = Some(Ok("../d".into()));
        content.record("/d/e").file = Some(Err(Absence::Denied));
        content.record("/d/f").file = Some(Ok(Vec::new()));
        content
    }

    #[test]
    fn a_name_that_a_listed_directory_does_not_have_is_missing() {
        let content = content();
        assert_eq!(content.read("/a/x"), Err(Absence::Missing));
        assert_eq!(content.list("/a/x/y/z"), Err(Absence::Missing));
        assert_eq!(content.link("/a/x"), Err(Absence::Missing));
        assert_eq!(content.read("/d/x"), Err(Absence::NotCollected));
        assert_eq!(content.list("/d"), Err(Absence::NotCollected));
    }

    #[test]
    fn a_file_is_no_directory_and_a_directory_is_no_file() {
        let content = content();
        assert_eq!(content.list("/a/b"), Err(Absence::Missing));
        assert_eq!(content.link("/a/b"), Err(Absence::Missing));
        assert_eq!(content.read("/a/b/x"), Err(Absence::Missing));
        assert_eq!(content.read("/a"), Err(Absence::Missing));
        assert_eq!(content.read("/d"), Err(Absence::Missing));
        assert_eq!(content.link("/d"), Err(Absence::Missing));
    }

    #[test]
    fn links_are_followed_and_refusals_kept() {
        let content = content();
        assert_eq!(content.read("/a/c/e"), Err(Absence::Denied));
        assert_eq!(content.resolve("/a/c/f"), Ok("/d/f".to_owned()));
        assert_eq!(content.link("/a/c"), Ok("../d".to_owned()));
    }

    #[test]
    fn a_name_that_a_cut_list_does_not_have_is_not_collected() {
        let mut content = Content::default();
        let names = (0..MAX_ENTRIES).map(|n| format!("{n:08}")).collect();
        content.record("/a").list = Some(Ok(names));
        assert_eq!(content.read("/a/x"), Err(Absence::NotCollected));
    }
}
