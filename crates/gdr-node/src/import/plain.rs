//! Cleaning a capture's text of what pasting, quoting and logging add.

use std::borrow::Cow;

use super::{ImportError, MAX_TEXT};

/// The longest line to read, in bytes. A matrix of four thousand devices needs half of it.
pub(super) const MOST_LINE: usize = 64 << 10;

/// Decodes text as UTF-8, or as UTF-16 if it has a byte order mark.
pub(super) fn decoded(bytes: &[u8]) -> Result<Cow<'_, [u8]>, ImportError> {
    let (units, from): (_, fn([u8; 2]) -> u16) = match bytes {
        [0xff, 0xfe, units @ ..] => (units, u16::from_le_bytes),
        [0xfe, 0xff, units @ ..] => (units, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, text @ ..] => return Ok(Cow::Borrowed(text)),
        text => return Ok(Cow::Borrowed(text)),
    };
    let (pairs, rest) = units.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(ImportError::Damaged(
            "text in UTF-16 ends in half a character".to_owned(),
        ));
    }
    let mut text = String::new();
    for unit in char::decode_utf16(pairs.iter().map(|pair| from(*pair))) {
        text.push(unit.unwrap_or(char::REPLACEMENT_CHARACTER));
        if text.len() > MAX_TEXT {
            return Err(ImportError::TooLong(units.len()));
        }
    }
    Ok(Cow::Owned(text.into_bytes()))
}

/// Returns the lines of a text, except overlong ones.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.len() <= MOST_LINE)
}

/// Returns the number of lines that [`lines`] skips.
pub(super) fn long_lines(text: &str) -> usize {
    text.lines().filter(|line| line.len() > MOST_LINE).count()
}

/// Removes quote marks (`> `) and terminal escapes, and normalizes the blanks of web pages.
pub(super) fn unquoted(text: &str) -> Cow<'_, str> {
    let is_quoted = |line: &str| line.trim_start_matches(' ').starts_with('>');
    let is_plain = !text.contains(['\u{a0}', '\u{1b}']) && !text.lines().any(is_quoted);
    if is_plain {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        let mut line = line;
        while let Some(quoted) = line.trim_start_matches(' ').strip_prefix('>') {
            // One blank belongs to the quote mark.
            line = quoted.strip_prefix(' ').unwrap_or(quoted);
        }
        put_without_escapes(&mut plain, line);
        plain.push('\n');
    }
    Cow::Owned(plain)
}

/// Appends a line without terminal escapes for underlining and color.
fn put_without_escapes(plain: &mut String, line: &str) {
    let mut parts = line.split('\u{1b}');
    let mut put = |part: &str| plain.extend(part.chars().map(blank));
    put(parts.next().unwrap_or_default());
    for part in parts {
        // `[4m`: parameters, then one letter.
        let end = part
            .find(|c: char| c.is_ascii_alphabetic())
            .map_or(part.len(), |at| at + 1);
        put(part.get(end..).unwrap_or_default());
    }
}

fn blank(c: char) -> char {
    if c == '\u{a0}' { ' ' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_escapes_and_the_blanks_of_web_pages_are_taken_off() {
        assert!(matches!(unquoted("a\n  b\n"), Cow::Borrowed(_)));
        assert_eq!(
            unquoted("> a\n> >  b\n>\nc > d\n"),
            "a\n b\n\nc > d\n".to_owned()
        );
        assert_eq!(unquoted("\u{a0}+-[\n\u{1b}[4mx\u{1b}[0m"), " +-[\nx\n");
    }

    #[test]
    fn a_byte_order_mark_identifies_the_encoding() {
        let utf16 = |text: &str, to: fn(u16) -> [u8; 2]| -> Vec<u8> {
            text.encode_utf16().flat_map(to).collect()
        };
        let little = utf16("\u{feff}GPU0 \u{e9}", u16::to_le_bytes);
        let big = utf16("\u{feff}GPU0 \u{e9}", u16::to_be_bytes);
        for bytes in [little.as_slice(), &big, b"\xef\xbb\xbfGPU0 \xc3\xa9"] {
            assert_eq!(decoded(bytes).unwrap(), "GPU0 \u{e9}".as_bytes());
        }
        assert!(matches!(
            decoded(&little[..5]),
            Err(ImportError::Damaged(_))
        ));
        // An unpaired surrogate.
        assert_eq!(
            decoded(b"\xff\xfe\x00\xd8x\x00").unwrap(),
            "\u{fffd}x".as_bytes()
        );
    }

    #[test]
    fn a_line_without_end_is_left_out_and_counted() {
        let text = format!("a\n{}\nb", "x".repeat(MOST_LINE + 1));
        assert_eq!(lines(&text).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(long_lines(&text), 1);
    }
}
