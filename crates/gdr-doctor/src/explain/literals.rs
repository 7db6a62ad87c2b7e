//! Literals without which a regular expression cannot match.

use regex_syntax::hir::{Hir, HirKind};

/// The shortest literal that is worth a search.
const SHORTEST: usize = 3;
/// The most literals that one expression is searched by.
const MOST: usize = 64;

/// Literals one of which stands in every text that the expression matches, in lower case; `None`
/// where there are no such.
///
/// The expression is taken as one that ignores case.
pub(super) fn required(expression: &str) -> Option<Vec<String>> {
    let parsed = regex_syntax::ParserBuilder::new()
        .unicode(false)
        .utf8(false)
        .build()
        .parse(&expression.to_lowercase_literals())
        .ok()?;
    of(&parsed)
}

/// Lower case for literals, while escapes such as `\S` and `\B` stay what they are.
trait LowercaseLiterals {
    fn to_lowercase_literals(&self) -> String;
}

impl LowercaseLiterals for str {
    fn to_lowercase_literals(&self) -> String {
        let mut lower = String::with_capacity(self.len());
        let mut escaped = false;
        let mut in_name = false;
        let mut before = ' ';
        for character in self.chars() {
            // `(?P<Name>` has a P that is not part of the text.
            let syntax = escaped || in_name || (before == '?' && character == 'P');
            lower.push(if syntax {
                character
            } else {
                character.to_ascii_lowercase()
            });
            in_name = (in_name || (before == 'P' && character == '<')) && character != '>';
            escaped = character == '\\' && !escaped;
            before = character;
        }
        lower
    }
}

fn of(hir: &Hir) -> Option<Vec<String>> {
    match hir.kind() {
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?.to_owned();
            (text.len() >= SHORTEST).then(|| vec![text])
        }
        HirKind::Capture(capture) => of(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => of(&repetition.sub),
        HirKind::Concat(parts) => concatenation(parts),
        HirKind::Alternation(branches) => {
            let mut all = Vec::new();
            for branch in branches {
                all.extend(of(branch)?);
            }
            (all.len() <= MOST).then_some(all)
        }
        _ => None,
    }
}

/// The best that one part of a sequence requires: long, and few.
fn concatenation(parts: &[Hir]) -> Option<Vec<String>> {
    parts.iter().filter_map(of).max_by_key(|literals| {
        let shortest = literals.iter().map(String::len).min().unwrap_or(0);
        (shortest.min(8), usize::MAX - literals.len(), shortest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literals(expression: &str) -> Option<Vec<String>> {
        required(expression)
    }

    #[test]
    fn the_longest_part_that_every_match_has_is_required() {
        assert_eq!(
            literals(r"could not insert '?(a|b)'?.*(invalid argument|x)"),
            Some(vec!["could not insert ".to_owned()])
        );
        assert_eq!(
            literals(r"(?P<Bus>[0-9a-f]+): NVRM: Xid\b \S+"),
            Some(vec![": nvrm: xid".to_owned()])
        );
        assert_eq!(
            literals(r"(first|second|third)\d+"),
            Some(["first", "second", "third"].map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn where_a_branch_has_no_literal_there_are_none() {
        assert_eq!(literals(r"(first|\d+)"), None);
        assert_eq!(literals(r"(first)?"), None);
        assert_eq!(literals(r"ab"), None);
    }
}
