//! A paragraph of text that is broken at words.

/// The columns of a terminal that a text report fills.
pub(super) const COLUMNS: usize = 100;

/// A paragraph: words in colours, broken where a line is full. Its first line begins with a lead,
/// and the others hang below the text.
#[derive(Debug, Default)]
pub(super) struct Paragraph {
    /// What stands before the text: as it is shown, and how many columns it takes.
    lead: (String, usize),
    /// Words with the escape code of their colour, empty for none.
    words: Vec<(&'static str, String)>,
}

impl Paragraph {
    /// Creates a paragraph that begins with these characters.
    pub(super) fn new(lead: &str) -> Self {
        Self {
            lead: (lead.to_owned(), lead.chars().count()),
            words: Vec::new(),
        }
    }

    /// Adds a mark to the lead, which is shown in colour and takes `columns`.
    pub(super) fn mark(mut self, shown: &str, columns: usize) -> Self {
        self.lead.0.push_str(shown);
        self.lead.1 += columns;
        self
    }

    /// Adds words in a colour.
    pub(super) fn text(mut self, color: &'static str, text: &str) -> Self {
        let words = text.split_whitespace();
        self.words
            .extend(words.map(|word| (color, word.to_owned())));
        self
    }

    /// Returns the lines. A word that is longer than a line, such as a path, stays whole.
    pub(super) fn lines(&self, paint: impl Fn(&str, &str) -> String) -> Vec<String> {
        let hang = self.lead.1;
        let mut lines = vec![self.lead.0.clone()];
        let (mut column, mut begun) = (hang, false);
        for (color, word) in &self.words {
            let width = word.chars().count();
            if begun && column + 1 + width > COLUMNS {
                lines.push(" ".repeat(hang));
                (column, begun) = (hang, false);
            }
            let Some(line) = lines.last_mut() else {
                break;
            };
            if begun {
                line.push(' ');
                column += 1;
            }
            if color.is_empty() {
                line.push_str(word);
            } else {
                line.push_str(&paint(color, word));
            }
            column += width;
            begun = true;
        }
        for line in &mut lines {
            line.truncate(line.trim_end().len());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_breaks_at_words_and_hangs_below_its_text() {
        let text = "word ".repeat(40);
        let lines = Paragraph::new("    fix: ")
            .text("", &text)
            .lines(|_, it| it.to_owned());
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("    fix: word "));
        assert!(lines[1].starts_with("         word "));
        assert!(lines.iter().all(|line| line.len() <= COLUMNS));
        let path = format!("/sys/{}", "x".repeat(2 * COLUMNS));
        let lines = Paragraph::new("  ")
            .text("", &path)
            .lines(|_, it| it.to_owned());
        assert_eq!(lines, [format!("  {path}")]);
    }
}
