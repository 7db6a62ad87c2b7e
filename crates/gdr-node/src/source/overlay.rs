//! Combining several captures of one node.

use super::{Absence, Datum, Source};

/// Several captures of one node, in order of precedence: facts that one lacks come from the next.
#[derive(Default)]
pub struct Overlay {
    layers: Vec<Box<dyn Source>>,
}

impl Overlay {
    /// Adds a capture with the lowest precedence.
    pub fn push(&mut self, layer: Box<dyn Source>) {
        self.layers.push(layer);
    }

    /// Returns whether there is no capture.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Returns the only capture, or all of them as one.
    pub fn simplified(mut self) -> Box<dyn Source> {
        match self.layers.pop() {
            Some(only) if self.layers.is_empty() => only,
            last => {
                self.layers.extend(last);
                Box::new(self)
            }
        }
    }

    /// Returns the first value, else the first absence other than [`Absence::NotCollected`].
    fn first<T>(&self, ask: impl Fn(&dyn Source) -> Datum<T>) -> Datum<T> {
        let mut reason = Err(Absence::NotCollected);
        for layer in &self.layers {
            match ask(layer.as_ref()) {
                Ok(value) => return Ok(value),
                Err(Absence::NotCollected) => {}
                other if matches!(reason, Err(Absence::NotCollected)) => reason = other,
                _ => {}
            }
        }
        reason
    }
}

impl Source for Overlay {
    fn read(&self, path: &str) -> Datum<Vec<u8>> {
        self.first(|layer| layer.read(path))
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        self.first(|layer| layer.list(path))
    }

    fn link(&self, path: &str) -> Datum<String> {
        self.first(|layer| layer.link(path))
    }

    fn resolve(&self, path: &str) -> Datum<String> {
        // A capture's links are resolved within that capture.
        self.first(|layer| match layer.link(path) {
            Err(Absence::NotCollected) => Err(Absence::NotCollected),
            _ => layer.resolve(path),
        })
        .or_else(|_| super::path::resolve(path, |at| self.link(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    #[test]
    fn what_one_capture_does_not_know_the_next_one_answers() {
        let mut node = Overlay::default();
        assert!(node.is_empty());
        node.push(Box::new(
            MemorySource::partial().denied("/a").file("/b", "1"),
        ));
        node.push(Box::new(
            MemorySource::new().file("/a", "2").file("/b", "3"),
        ));
        assert_eq!(node.text("/a"), Ok("2".to_owned()));
        assert_eq!(node.text("/b"), Ok("1".to_owned()));
        assert_eq!(node.read("/c"), Err(Absence::Missing));
        assert_eq!(node.simplified().text("/a"), Ok("2".to_owned()));
        let mut partial = Overlay::default();
        partial.push(Box::new(MemorySource::partial()));
        assert_eq!(partial.read("/c"), Err(Absence::NotCollected));
    }
}
