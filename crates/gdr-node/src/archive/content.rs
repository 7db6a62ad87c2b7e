//! What was read of a node, and what follows from it.

use std::collections::BTreeMap;

use crate::source::{Datum, MAX_ENTRIES, Source, path};

/// What was asked about one path, and what the answers were. The path has no links above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: Option<Datum<Vec<u8>>>,
    pub(crate) list: Option<Datum<Vec<String>>>,
    pub(crate) link: Option<Datum<String>>,
}

/// What was read of a node, and what follows from it.
///
/// What was not asked is [`Datum::NotCollected`], unless another answer settles it: what is not in
/// a directory that was listed is missing, below a file there is nothing, and a file is neither a
/// directory nor a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    places: BTreeMap<String, Place>,
}

impl Content {
    pub(crate) fn place(&mut self, at: &str) -> &mut Place {
        if !self.places.contains_key(at) {
            self.places.insert(at.to_owned(), Place::default());
        }
        // Was put in right above, where it was not there.
        self.places.entry(at.to_owned()).or_default()
    }

    pub(crate) fn get(&self, at: &str) -> Option<&Place> {
        self.places.get(at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Place)> {
        self.places.iter().map(|(at, place)| (at.as_str(), place))
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// What follows about the file at a path, whatever was asked about it.
    pub(crate) fn implied_file<T>(&self, at: &str) -> Datum<T> {
        if self.is_directory(at) {
            return Datum::Missing;
        }
        self.implied_by_above(at)
    }

    /// What follows about the directory at a path.
    pub(crate) fn implied_list<T>(&self, at: &str) -> Datum<T> {
        if self.is_file(at) {
            return Datum::Missing;
        }
        self.implied_by_above(at)
    }

    /// What follows about the link at a path: where something else was asked about it or about
    /// what is below it, links were followed until there was none.
    pub(crate) fn implied_link<T>(&self, at: &str) -> Datum<T> {
        let below = format!("{}/", at.trim_end_matches('/'));
        let asked = |place: &Place| place.file.is_some() || place.list.is_some();
        let next = self.places.range(below.clone()..).next();
        if self.get(at).is_some_and(asked) || next.is_some_and(|(at, _)| at.starts_with(&below)) {
            return Datum::Missing;
        }
        self.implied_by_above(at)
    }

    fn is_file(&self, at: &str) -> bool {
        matches!(self.get(at), Some(place) if matches!(place.file, Some(Datum::Present(_))))
    }

    fn is_directory(&self, at: &str) -> bool {
        let below = format!("{}/", at.trim_end_matches('/'));
        matches!(self.get(at), Some(place) if matches!(place.list, Some(Datum::Present(_))))
            || self
                .places
                .range(below.clone()..)
                .take_while(|(next, _)| next.starts_with(&below))
                .any(|(_, place)| {
                    matches!(place.file, Some(Datum::Present(_)))
                        || matches!(place.link, Some(Datum::Present(_)))
                })
    }

    /// What the directories above a path say about it.
    fn implied_by_above<T>(&self, at: &str) -> Datum<T> {
        let mut below = at;
        while let Some((above, name)) = below.rsplit_once('/') {
            let directory = if above.is_empty() { "/" } else { above };
            if self.is_file(directory) {
                return Datum::Missing;
            }
            if let Some(Place {
                list: Some(Datum::Present(names)),
                ..
            }) = self.get(directory)
                // A list that was cut says nothing about what it lacks.
                && names.len() < MAX_ENTRIES
                && names.binary_search_by(|known| known.as_str().cmp(name)).is_err()
            {
                return Datum::Missing;
            }
            below = above;
        }
        Datum::NotCollected
    }

    /// Where the link at a path leads, of what was asked only: what [`path::resolve`] needs.
    pub(crate) fn raw_link(&self, at: &str) -> Datum<String> {
        match self.get(at).and_then(|place| place.link.as_ref()) {
            Some(link) => link.clone(),
            None => Datum::NotCollected,
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
        content.place("/a").list = Some(Datum::Present(vec!["b".into(), "c".into()]));
        content.place("/a/b").file = Some(Datum::Present(b"1".to_vec()));
        content.place("/a/c").link = Some(Datum::Present("../d".into()));
        content.place("/d/e").file = Some(Datum::Denied);
        content.place("/d/f").file = Some(Datum::Present(Vec::new()));
        content
    }

    #[test]
    fn what_a_listed_directory_lacks_is_missing() {
        let content = content();
        assert_eq!(content.read("/a/x"), Datum::Missing);
        assert_eq!(content.list("/a/x/y/z"), Datum::Missing);
        assert_eq!(content.link("/a/x"), Datum::Missing);
        assert_eq!(content.read("/d/x"), Datum::NotCollected);
        assert_eq!(content.list("/d"), Datum::NotCollected);
    }

    #[test]
    fn a_file_is_no_directory_and_a_directory_is_no_file() {
        let content = content();
        assert_eq!(content.list("/a/b"), Datum::Missing);
        assert_eq!(content.link("/a/b"), Datum::Missing);
        assert_eq!(content.read("/a/b/x"), Datum::Missing);
        assert_eq!(content.read("/a"), Datum::Missing);
        assert_eq!(content.read("/d"), Datum::Missing);
        assert_eq!(content.link("/d"), Datum::Missing);
    }

    #[test]
    fn links_are_followed_and_refusals_kept() {
        let content = content();
        assert_eq!(content.read("/a/c/e"), Datum::Denied);
        assert_eq!(content.resolve("/a/c/f"), Datum::Present("/d/f".to_owned()));
        assert_eq!(content.link("/a/c"), Datum::Present("../d".to_owned()));
    }

    #[test]
    fn a_list_that_was_cut_says_nothing_about_what_it_lacks() {
        let mut content = Content::default();
        let names = (0..MAX_ENTRIES).map(|n| format!("{n:08}")).collect();
        content.place("/a").list = Some(Datum::Present(names));
        assert_eq!(content.read("/a/x"), Datum::NotCollected);
    }
}
