//! Text from a peer, made safe to print.

use std::fmt;

/// How many characters are kept at most.
const MOST: usize = 200;

/// Text from a peer that is safe to print: a single line of bounded length, without characters that
/// affect a terminal or the surrounding text.
///
/// Control and format characters (changes of direction, zero width), separators of lines and
/// paragraphs, and unassigned characters are escaped as in Rust. The backslash is escaped too, so
/// that the peer cannot forge an escape. It is displayed in quotation marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerText(String);

impl PeerText {
    /// Makes untrusted text safe.
    pub fn new(text: &str) -> Self {
        let mut safe = String::new();
        let mut characters = text.chars();
        let mut kept = 0;
        for character in characters.by_ref() {
            let before = safe.len();
            escape(character, &mut safe);
            kept += safe[before..].chars().count();
            if kept > MOST {
                safe.truncate(before);
                let rest = 1 + characters.count();
                safe += &format!("... ({rest} more characters)");
                break;
            }
        }
        Self(safe)
    }

    /// Makes untrusted bytes safe; invalid UTF-8 is replaced.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::new(&String::from_utf8_lossy(bytes))
    }

    /// Returns the text without quotation marks.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text without quotation marks.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for PeerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

fn escape(character: char, safe: &mut String) {
    match character {
        // Invisible, but letters and symbols to Unicode.
        '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' => {
            safe.extend(character.escape_unicode());
        }
        // The text is displayed in quotation marks.
        '"' => safe.push('\''),
        '\'' => safe.push(character),
        _ => safe.extend(character.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_text_is_unchanged() {
        for text in ["no GPU here", "für 3 µs: don't", "日本 mlx5_0", ""] {
            assert_eq!(PeerText::new(text).as_str(), text);
        }
    }

    #[test]
    fn characters_that_forge_a_line_or_hide_in_one_are_escaped() {
        for text in [
            "\nPASS: 10 of 10 times",
            "\r\u{1b}[2J",
            "\u{202e}gnp",
            "a\u{200b}b\u{feff}",
            "\u{2028}PASS\u{2029}",
            "\u{85}\u{9b}31m",
            "\u{e0041}\u{ad}\u{61c}",
            "\u{3164}\u{2800}",
            "\u{301}\u{fe0f}",
            "\u{e000}\u{a0}\u{3000}",
        ] {
            let safe = PeerText::new(text);
            let hidden = |c: char| !c.is_ascii_graphic() && c != ' ';
            assert!(!safe.as_str().contains(hidden), "{safe:?}");
            assert!(safe.as_str().contains("\\u{") || safe.as_str().contains("\\n"));
        }
        assert_eq!(PeerText::new("\\n\"").to_string(), "\"\\\\n'\"");
    }

    #[test]
    fn long_text_is_cut_and_the_cut_is_stated() {
        let long = PeerText::new(&"x".repeat(60_000));
        assert!(long.as_str().ends_with("... (59800 more characters)"));
        assert!(long.as_str().len() < 250, "{}", long.as_str().len());
        let exact = "y".repeat(MOST);
        assert_eq!(PeerText::new(&exact).as_str(), exact);
        let escaped = PeerText::new(&"\u{202e}".repeat(1000));
        assert!(escaped.as_str().len() < 250, "{escaped}");
    }

    proptest! {
        #[test]
        fn any_text_is_one_bounded_line(bytes: Vec<u8>, text in "\\PC*|[\\p{C}\\p{Z}]*") {
            for safe in [PeerText::from_bytes(&bytes), PeerText::new(&text)] {
                prop_assert!(safe.as_str().chars().count() < MOST + 40);
                prop_assert!(!safe.as_str().contains(|c: char| c.is_control()));
                let forging = ['\u{2028}', '\u{2029}', '\u{202e}', '"'];
                prop_assert!(!safe.as_str().contains(forging));
            }
        }
    }
}
