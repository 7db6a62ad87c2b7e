//! Recording reads of a node.

use std::cell::{Cell, RefCell};

use crate::archive::{Archive, Content, Origin};
use crate::source::{Absence, Datum, Source, path};

/// The most bytes kept of all files together, which is what fits an archive.
const MOST_BYTES: u64 = 60 << 20;

/// A [`Source`] that forwards to another one, and records every answer.
///
/// A reader that used the recorder gets the same answers from the archive.
///
/// ```
/// use gdr_node::archive::Origin;
/// use gdr_node::collect::Recorder;
/// use gdr_node::{Inventory, example};
///
/// let node = example::node();
/// let recorder = Recorder::new(&node);
/// let live = Inventory::read(&recorder);
/// let archive = recorder.finish(Origin::default());
/// assert_eq!(Inventory::read(&archive), live);
/// ```
pub struct Recorder<'a> {
    source: &'a dyn Source,
    content: RefCell<Content>,
    bytes: Cell<u64>,
}

impl<'a> Recorder<'a> {
    /// Starts recording the reads of a source.
    pub fn new(source: &'a dyn Source) -> Self {
        Self {
            source,
            content: RefCell::default(),
            bytes: Cell::new(0),
        }
    }

    /// Returns an archive of the recorded reads.
    pub fn finish(self, origin: Origin) -> Archive {
        Archive::new(origin, self.content.into_inner())
    }

    /// Returns the number of paths that were read.
    pub fn paths(&self) -> usize {
        self.content.borrow().len()
    }

    /// Returns the target of the link at a path without links above it.
    fn raw_link(&self, at: &str) -> Datum<String> {
        let known = {
            let content = self.content.borrow();
            match content.get(at).and_then(|record| record.link.clone()) {
                Some(link) => link,
                None => content.implied_link(at),
            }
        };
        if known != Err(Absence::NotCollected) {
            return known;
        }
        let link = self.source.link(at);
        self.content.borrow_mut().record(at).link = Some(link.clone());
        link
    }

    /// Returns the file, or "not collected" if the archive is full.
    fn fit(&self, file: Datum<Vec<u8>>) -> Datum<Vec<u8>> {
        if let Ok(bytes) = &file {
            let total = self.bytes.get().saturating_add(bytes.len() as u64);
            if total > MOST_BYTES {
                return Err(Absence::NotCollected);
            }
            self.bytes.set(total);
        }
        file
    }
}

impl Source for Recorder<'_> {
    fn read(&self, path: &str) -> Datum<Vec<u8>> {
        self.resolve(path).and_then(|at| {
            let known = {
                let content = self.content.borrow();
                content.get(&at).and_then(|record| record.file.clone())
            };
            known.unwrap_or_else(|| {
                let file = self.fit(self.source.read(&at));
                self.content.borrow_mut().record(&at).file = Some(file.clone());
                file
            })
        })
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        self.resolve(path).and_then(|at| {
            let known = {
                let content = self.content.borrow();
                content.get(&at).and_then(|record| record.list.clone())
            };
            known.unwrap_or_else(|| {
                let list = self.source.list(&at);
                self.content.borrow_mut().record(&at).list = Some(list.clone());
                list
            })
        })
    }

    fn link(&self, path: &str) -> Datum<String> {
        path::resolve_parent(path, |at| self.raw_link(at)).and_then(|at| self.raw_link(&at))
    }

    fn resolve(&self, path: &str) -> Datum<String> {
        path::resolve(path, |at| self.raw_link(at))
    }
}
