//! Writing down what is read.

use std::cell::{Cell, RefCell};

use crate::archive::{Archive, Content, Origin};
use crate::source::{Datum, Source, path};

/// The most bytes that are kept of all files; an archive may not hold more.
const MOST_BYTES: u64 = 60 << 20;

/// A [`Source`] that writes down every answer of another, and gives the same one again.
///
/// What runs over it runs over the archive just so: an archive that was made by letting the doctor
/// read through this answers all that the doctor asks.
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
    /// Begins to write down what is read of a node.
    pub fn new(source: &'a dyn Source) -> Self {
        Self {
            source,
            content: RefCell::default(),
            bytes: Cell::new(0),
        }
    }

    /// An archive of what was read.
    pub fn finish(self, origin: Origin) -> Archive {
        Archive::new(origin, self.content.into_inner())
    }

    /// How many paths were asked about.
    pub fn paths(&self) -> usize {
        self.content.borrow().len()
    }

    /// Where the link leads that is at a path without links above it.
    fn raw_link(&self, at: &str) -> Datum<String> {
        let known = {
            let content = self.content.borrow();
            match content.get(at).and_then(|place| place.link.clone()) {
                Some(link) => link,
                None => content.implied_link(at),
            }
        };
        if known != Datum::NotCollected {
            return known;
        }
        let link = self.source.link(at);
        self.content.borrow_mut().place(at).link = Some(link.clone());
        link
    }

    /// What is left of a file when the archive has no more room.
    fn fit(&self, file: Datum<Vec<u8>>) -> Datum<Vec<u8>> {
        if let Datum::Present(bytes) = &file {
            let total = self.bytes.get().saturating_add(bytes.len() as u64);
            if total > MOST_BYTES {
                return Datum::NotCollected;
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
                content.get(&at).and_then(|place| place.file.clone())
            };
            known.unwrap_or_else(|| {
                let file = self.fit(self.source.read(&at));
                self.content.borrow_mut().place(&at).file = Some(file.clone());
                file
            })
        })
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        self.resolve(path).and_then(|at| {
            let known = {
                let content = self.content.borrow();
                content.get(&at).and_then(|place| place.list.clone())
            };
            known.unwrap_or_else(|| {
                let list = self.source.list(&at);
                self.content.borrow_mut().place(&at).list = Some(list.clone());
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
