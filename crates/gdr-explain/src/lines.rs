//! Lines of a text of any length that arrives in pieces, in bounded memory.

use memchr::memchr;

/// Maximum length in bytes of a piece of a line that is examined as a whole.
pub const MAX_LINE: usize = 16 << 10;

/// Number of bytes at the end of a long line's piece that are examined again with the next piece, so that nothing is
/// missed at the boundary.
const OVERLAP: usize = 1 << 10;

/// A line, or a piece of a long one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// From 1.
    pub(crate) number: usize,
    pub(crate) bytes: &'a [u8],
}

/// Splits its input at line ends.
#[derive(Debug)]
pub(crate) struct Lines {
    number: usize,
    /// Beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    encoding: Encoding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// Nothing has arrived.
    Unknown,
    /// ASCII, UTF-8, or any other encoding in which a line feed is one byte.
    Bytes,
    /// UTF-16, as Windows writes it. Only its ASCII characters are read.
    Wide,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self {
            number: 1,
            partial: Vec::new(),
            encoding: Encoding::Unknown,
        }
    }

    /// Calls `each` with every line that ends within `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8], each: &mut impl FnMut(Line<'_>)) {
        if self.encoding == Encoding::Unknown && !bytes.is_empty() {
            let wide = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
            self.encoding = if wide {
                Encoding::Wide
            } else {
                Encoding::Bytes
            };
        }
        if self.encoding == Encoding::Wide {
            let narrow: Vec<u8> = bytes.iter().copied().filter(u8::is_ascii).collect();
            let narrow: Vec<u8> = narrow.into_iter().filter(|byte| *byte != 0).collect();
            self.split(&narrow, each);
        } else {
            self.split(bytes, each);
        }
    }

    /// Calls `each` with the last line if it has no line end.
    pub(crate) fn finish(mut self, each: &mut impl FnMut(Line<'_>)) {
        if !self.partial.is_empty() {
            let partial = std::mem::take(&mut self.partial);
            self.emit(&partial, each);
        }
    }

    fn split(&mut self, mut bytes: &[u8], each: &mut impl FnMut(Line<'_>)) {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.partial.is_empty() {
                self.emit(line, each);
            } else {
                self.hold(line, each);
                let partial = std::mem::take(&mut self.partial);
                self.emit(&partial, each);
                self.partial = partial;
                self.partial.clear();
            }
            self.number += 1;
        }
        self.hold(bytes, each);
    }

    /// Stores the beginning of a line, and passes on pieces of it as it grows too long to store.
    fn hold(&mut self, mut bytes: &[u8], each: &mut impl FnMut(Line<'_>)) {
        while !bytes.is_empty() {
            let room = MAX_LINE.saturating_sub(self.partial.len()).min(bytes.len());
            let (now, later) = bytes.split_at(room);
            self.partial.extend_from_slice(now);
            bytes = later;
            if !bytes.is_empty() {
                each(Line {
                    number: self.number,
                    bytes: &self.partial,
                });
                self.partial.drain(..MAX_LINE - OVERLAP);
            }
        }
    }

    fn emit(&self, mut line: &[u8], each: &mut impl FnMut(Line<'_>)) {
        while line.len() > MAX_LINE {
            each(Line {
                number: self.number,
                bytes: &line[..MAX_LINE],
            });
            line = &line[MAX_LINE - OVERLAP..];
        }
        each(Line {
            number: self.number,
            bytes: line,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(pieces: &[&[u8]]) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        let mut each = |line: Line<'_>| {
            found.push((
                line.number,
                String::from_utf8_lossy(line.bytes).into_owned(),
            ));
        };
        let mut lines = Lines::new();
        for piece in pieces {
            lines.push(piece, &mut each);
        }
        lines.finish(&mut each);
        found
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let whole = lines_of(&[b"one\n\ntwo\nthree"]);
        let expected = [(1, "one"), (2, ""), (3, "two"), (4, "three")];
        let expected: Vec<(usize, String)> = expected
            .map(|(number, text)| (number, text.to_owned()))
            .into();
        assert_eq!(whole, expected);
        assert_eq!(lines_of(&[b"o", b"ne\n", b"\ntw", b"o\nthr", b"ee"]), whole);
    }

    #[test]
    fn a_long_line_is_looked_at_in_pieces_that_overlap() {
        let mut long = vec![b'x'; MAX_LINE * 2];
        long.extend_from_slice(b"the end\nnext");
        let one: Vec<(usize, String)> = lines_of(&[&long]);
        assert!(one.len() > 2);
        assert!(one.iter().all(|(_, text)| text.len() <= MAX_LINE));
        let (last, rest) = one.split_last().unwrap();
        assert_eq!(last, &(2, "next".to_owned()));
        assert!(rest.iter().all(|(number, _)| *number == 1));
        assert!(rest.last().unwrap().1.ends_with("the end"));
        let bytes: Vec<&[u8]> = long.chunks(1).collect();
        let apart = lines_of(&bytes);
        assert!(apart.iter().all(|(_, text)| text.len() <= MAX_LINE));
        assert_eq!(apart.last(), one.last());
        assert!(apart[apart.len() - 2].1.ends_with("the end"));
    }

    #[test]
    fn text_of_windows_is_read() {
        let wide: Vec<u8> = "\u{feff}ab\ncd"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let expected = [(1, "ab".to_owned()), (2, "cd".to_owned())];
        assert_eq!(lines_of(&[&wide]), expected);
    }
}
