//! Wrapping text between words to the width of a terminal.

/// The largest indent: if the second column of words starts beyond this, the rest of a line does not go below it.
const MOST_INDENT: usize = 24;

/// Returns the visible characters of a text, without color codes.
fn shown(text: &str) -> impl Iterator<Item = char> {
    let mut color = false;
    text.chars().filter(move |character| {
        let is_shown = !color && *character != '\u{1b}';
        color = (color || *character == '\u{1b}') && *character != 'm';
        is_shown
    })
}

/// Returns the width of a text in columns.
pub fn width(text: &str) -> usize {
    shown(text).count()
}

/// Wraps a line that is too long. Its continuation is indented to the second column of words, or else two columns more
/// than the line. A shell command (`$ ...`) stays a single command. A word longer than a line is not broken.
pub fn folded(line: &str, columns: usize) -> Vec<String> {
    if width(line) <= columns {
        return vec![line.to_owned()];
    }
    let plain: String = shown(line).collect();
    let text = plain.trim_start();
    let indent = plain.len() - text.len();
    if text.starts_with("$ ") {
        let rest = " ".repeat(indent + 4);
        return broken(line, columns.saturating_sub(2), &rest, " \\", Words::Quoted);
    }
    if text.starts_with("# ") {
        let rest = format!("{}#   ", " ".repeat(indent));
        return broken(line, columns, &rest, "", Words::Plain);
    }
    let second = text.find("  ").map(|gap| {
        let beyond = &text[gap..];
        text[..gap].chars().count() + beyond.len() - beyond.trim_start().len()
    });
    let rest = match second {
        Some(second) if indent + second <= MOST_INDENT.min(columns / 2) => indent + second,
        _ => indent + 2,
    };
    broken(line, columns, &" ".repeat(rest), "", Words::Plain)
}

/// Wraps each line of a text. Lines with tabs form a table, which is split into parts.
pub fn text_folded(text: &str, columns: usize) -> String {
    let mut lines = Vec::new();
    let all: Vec<&str> = text.split('\n').collect();
    for part in all.chunk_by(|one, other| one.contains('\t') == other.contains('\t')) {
        match part.first() {
            Some(line) if line.contains('\t') => lines.extend(table_in_parts(part, columns)),
            _ => lines.extend(part.iter().flat_map(|line| folded(line, columns))),
        }
    }
    lines.join("\n")
}

/// Splits a table into parts that fit, one below the other, each starting with the first column.
fn table_in_parts(lines: &[&str], columns: usize) -> Vec<String> {
    const TAB: usize = 8;
    let rows: Vec<Vec<&str>> = lines
        .iter()
        .map(|line| line.split('\t').collect())
        .collect();
    let most = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..most)
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let widest = cells.map(|cell| width(cell)).max().unwrap_or(0);
            (widest / TAB + 1) * TAB
        })
        .collect();
    let Some((head, rest)) = widths.split_first() else {
        return Vec::new();
    };
    // There is no tab after the last cell.
    let room = (columns + 1).saturating_sub(*head);
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let (mut from, mut used) = (0, 0);
    for (at, width) in rest.iter().enumerate() {
        if at > from && used + width > room {
            parts.push((from, at));
            (from, used) = (at, 0);
        }
        used += width;
    }
    parts.push((from, rest.len()));
    let mut written = Vec::new();
    for (number, (from, to)) in parts.iter().enumerate() {
        if number > 0 {
            written.push(String::new());
        }
        for row in &rows {
            let cells = row.get(1 + from..row.len().min(1 + to)).unwrap_or_default();
            let first = row.first().copied().unwrap_or_default();
            written.push([&[first], cells].concat().join("\t"));
        }
    }
    written
}

/// Wraps a text, without indent.
pub fn filled(text: &str, columns: usize) -> Vec<String> {
    text.split('\n')
        .flat_map(|line| broken(line, columns, "", "", Words::Plain))
        .collect()
}

/// What a space separates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    /// Every word.
    Plain,
    /// Words outside of quotes.
    Quoted,
}

fn broken(line: &str, columns: usize, indent: &str, joint: &str, words: Words) -> Vec<String> {
    let mut lines = Vec::new();
    let mut current = String::new();
    let mut is_empty = true;
    for (spaces, word) in pieces(line, words) {
        if !is_empty && width(&current) + width(spaces) + width(word) > columns {
            lines.push(std::mem::replace(&mut current, indent.to_owned()) + joint);
            current.push_str(word);
            continue;
        }
        current.push_str(spaces);
        current.push_str(word);
        is_empty = is_empty && word.is_empty();
    }
    lines.push(current);
    lines
}

/// Returns each word of a line, with the spaces before it.
fn pieces(line: &str, words: Words) -> Vec<(&str, &str)> {
    let mut pieces = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let word = rest.trim_start_matches(' ');
        let spaces = &rest[..rest.len() - word.len()];
        let mut quote = None;
        let end = word.find(|c: char| {
            match (quote, c) {
                (None, ' ') => return true,
                (None, '\'' | '"') if words == Words::Quoted => quote = Some(c),
                (Some(open), c) if c == open => quote = None,
                _ => {}
            }
            false
        });
        let end = end.unwrap_or(word.len());
        pieces.push((spaces, &word[..end]));
        rest = &word[end..];
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_rest_of_a_line_begins_below_its_second_column() {
        assert_eq!(
            folded("reached   one two three four five", 20),
            [
                "reached   one two",
                "          three four",
                "          five"
            ]
        );
        assert_eq!(
            folded("  - one two three", 12),
            ["  - one two", "    three"]
        );
        assert_eq!(folded("short", 12), ["short"]);
    }

    #[test]
    fn a_command_goes_on_behind_a_backslash_and_keeps_its_quotes() {
        assert_eq!(
            folded("  $ setpci -s 1 'a b c d e f' more", 20),
            ["  $ setpci -s 1 \\", "      'a b c d e f' \\", "      more"]
        );
    }

    #[test]
    fn the_rest_of_a_comment_is_a_comment() {
        assert_eq!(folded("# one two three", 11), ["# one two", "#   three"]);
    }

    #[test]
    fn colors_take_no_columns() {
        let colored = "\u{1b}[1mone\u{1b}[0m two";
        assert_eq!(folded(colored, 7), [colored]);
        assert_eq!(filled(colored, 4), ["\u{1b}[1mone\u{1b}[0m", "two"]);
    }

    #[test]
    fn a_table_that_is_too_wide_is_written_in_parts() {
        let text = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tPIX\tSYS\n\nLegend";
        assert_eq!(text_folded(text, 80), text);
        assert_eq!(
            text_folded(text, 24),
            "\tGPU0\tGPU1\nGPU0\t X \tPIX\n\n\tNIC0\nGPU0\tSYS\n\nLegend"
        );
    }

    proptest! {
        #[test]
        fn no_word_is_broken_or_lost_and_no_line_is_longer(
            line in "[ a-z-]{0,200}",
            columns in 10usize..120,
        ) {
            let lines = folded(&line, columns);
            let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
            prop_assert_eq!(words, line.split_whitespace().collect::<Vec<_>>());
            for line in lines {
                let one_word = line.split_whitespace().count() <= 1;
                prop_assert!(line.trim_end().len() <= columns || one_word, "{}", line);
            }
        }
    }
}
