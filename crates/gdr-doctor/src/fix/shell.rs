//! Texts in a shell script.

/// Returns a word that the shell takes as it is.
pub(super) fn word(text: &str) -> String {
    let plain = !text.is_empty()
        && (text.chars()).all(|c| c.is_ascii_alphanumeric() || "/._-+:=,@%".contains(c));
    if plain {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Returns a comment of as many lines as the text has. No character of it ends the comment.
pub(super) fn comment(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line: String = line
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        out.push_str(format!("# {line}").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_plain_is_quoted() {
        assert_eq!(word("/sys/class/net/ens1"), "/sys/class/net/ens1");
        assert_eq!(word("a b"), "'a b'");
        assert_eq!(word("$(x)'"), r"'$(x)'\'''");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn no_line_of_a_comment_is_a_command() {
        assert_eq!(comment("a\nrm -rf /\r\u{1b}x"), "# a\n# rm -rf /  x\n");
    }
}
