//! Escaping text for XML and HTML.

use std::fmt;

/// Displays a text escaped for an element or quoted attribute of XML, SVG or HTML. Characters that XML 1.0 cannot
/// represent become U+FFFD.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\t' | '\n' | '\r' => f.write_char(c)?,
                c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                    f.write_char('\u{fffd}')?;
                }
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_becomes_markup() {
        let text = "<script>\"a\" & 'b'\u{1b}[0m";
        assert_eq!(
            Escaped(text).to_string(),
            "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;\u{fffd}[0m"
        );
    }
}
