//! The lines before the one at hand, which may be the rest of them.

use crate::matcher::Hits;

/// A line, kept for what the next ones may add to it.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) number: usize,
    pub(crate) text: Vec<u8>,
    pub(crate) hits: Hits,
    /// Whether it alone may name what failed.
    pub(crate) is_complete: bool,
}

/// The last lines, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Previous {
    /// The first `length` of these.
    lines: [Part; 2],
    length: usize,
}

impl Previous {
    pub(crate) fn lines(&self) -> &[Part] {
        &self.lines[..self.length]
    }

    /// Forgets all, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }

    /// Adds a line in place of the oldest.
    pub(crate) fn push(&mut self, number: usize, text: &[u8], hits: &Hits) -> &mut Part {
        if self.length == self.lines.len() {
            self.lines.rotate_left(1);
            self.length -= 1;
        }
        let part = &mut self.lines[self.length];
        self.length += 1;
        part.number = number;
        part.text.clear();
        part.text.extend_from_slice(text);
        part.hits.clone_from(hits);
        part
    }
}
