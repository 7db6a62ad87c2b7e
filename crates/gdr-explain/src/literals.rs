//! Literals that a text must contain for a regular expression to match.

use regex_syntax::hir::{Hir, HirKind};

/// Minimum length of a literal that is worth a search.
const SHORTEST: usize = 2;
/// From this length on, digits are treated like any other literal.
const SURELY_NO_NUMBER: usize = 4;
/// Maximum length of a literal to search for. Of a longer one, both ends are searched.
///
/// A longer literal is seldom rarer, and would make the search table too large for a cache.
pub(crate) const LONGEST: usize = 8;
/// Maximum number of branches of an alternation to keep. An expression with more has no literals.
const MOST: usize = 64;

/// What a text must contain for an expression to match it, as a formula over literals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need<L> {
    Literal(L),
    All(Vec<Need<L>>),
    Any(Vec<Need<L>>),
}

/// Returns the literals, in lower case, that every matching text contains; `None` if there are none.
///
/// The expression is treated as case-insensitive.
pub(crate) fn required(expression: &str) -> Option<Need<String>> {
    let parsed = regex_syntax::ParserBuilder::new()
        .unicode(false)
        .utf8(false)
        .build()
        .parse(&expression.to_lowercase_literals())
        .ok()?;
    of(&parsed)
}

impl<L> Need<L> {
    /// Returns the same formula over other names of the literals.
    pub(crate) fn map<M>(self, name: &mut impl FnMut(L) -> M) -> Need<M> {
        match self {
            Self::Literal(literal) => Need::Literal(name(literal)),
            Self::All(parts) => Need::All(parts.into_iter().map(|it| it.map(name)).collect()),
            Self::Any(parts) => Need::Any(parts.into_iter().map(|it| it.map(name)).collect()),
        }
    }

    /// Returns whether a text that has the literals for which `has` is true meets it.
    pub(crate) fn is_met(&self, has: &impl Fn(&L) -> bool) -> bool {
        match self {
            Self::Literal(literal) => has(literal),
            Self::All(parts) => parts.iter().all(|part| part.is_met(has)),
            Self::Any(parts) => parts.iter().any(|part| part.is_met(has)),
        }
    }
}

impl Need<String> {
    /// Few long literals, at least one of which occurs in every matching text.
    pub(crate) fn rarest(&self) -> Vec<&str> {
        match self {
            Self::Literal(literal) => vec![literal],
            Self::Any(parts) => parts.iter().flat_map(Self::rarest).collect(),
            Self::All(parts) => (parts.iter().map(Self::rarest))
                .max_by_key(|literals| {
                    let shortest = literals.iter().map(|it| it.len()).min().unwrap_or(0);
                    (shortest, usize::MAX - literals.len())
                })
                .unwrap_or_default(),
        }
    }
}

/// Converts literals to lower case, but leaves escapes such as `\S` and `\B` unchanged.
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
            // The P of `(?P<Name>` is not part of the text.
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

fn of(hir: &Hir) -> Option<Need<String>> {
    match hir.kind() {
        HirKind::Literal(literal) => of_literal(std::str::from_utf8(&literal.0).ok()?),
        HirKind::Capture(capture) => of(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => of(&repetition.sub),
        HirKind::Concat(parts) => {
            let mut parts: Vec<Need<String>> = parts.iter().filter_map(of).collect();
            if parts.len() > 1 {
                Some(Need::All(parts))
            } else {
                parts.pop()
            }
        }
        HirKind::Alternation(branches) if branches.len() <= MOST => {
            let branches: Option<Vec<Need<String>>> = branches.iter().map(of).collect();
            branches.map(Need::Any)
        }
        _ => None,
    }
}

fn of_literal(text: &str) -> Option<Need<String>> {
    if text.len() < SHORTEST || !text.is_ascii() || is_part_of_numbers(text) {
        return None;
    }
    let literal = |text: &str| Need::Literal(text.to_owned());
    Some(if text.len() <= LONGEST {
        literal(text)
    } else {
        let (start, end) = (&text[..LONGEST], &text[text.len() - LONGEST..]);
        Need::All(vec![literal(start), literal(end)])
    })
}

/// Returns whether times and addresses contain the text by chance, which would make each line of a log look like a
/// different kind.
fn is_part_of_numbers(text: &str) -> bool {
    let is_of_words = |byte: u8| byte.is_ascii_alphabetic() && !byte.is_ascii_hexdigit();
    text.len() < SURELY_NO_NUMBER && !text.bytes().any(is_of_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rarest(expression: &str) -> Option<Vec<String>> {
        let need = required(expression)?;
        Some(need.rarest().into_iter().map(str::to_owned).collect())
    }

    /// Returns whether a text with these literals may match.
    fn is_met(expression: &str, literals: &[&str]) -> bool {
        let need = required(expression).unwrap();
        need.is_met(&|literal| literals.contains(&literal.as_str()))
    }

    #[test]
    fn the_longest_part_that_every_match_has_is_searched_first() {
        assert_eq!(
            rarest(r"not insert '?(a|b)'?.*(invalid argument|x)"),
            Some(vec![" insert ".to_owned()])
        );
        assert_eq!(
            rarest(r"(?P<Bus>[0-9a-f]+): NVRM: Xid\b \S+"),
            Some(vec!["vrm: xid".to_owned()])
        );
        assert_eq!(
            rarest(r"(first|second|third)\d+"),
            Some(["first", "second", "third"].map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn every_part_of_a_match_is_required() {
        let expression = r"(completion|\bwc\b).*error \d|error.*(opcode|vendor)";
        assert!(is_met(expression, &["wc", "error "]));
        assert!(is_met(expression, &["error", "vendor"]));
        assert!(!is_met(expression, &["error", "error "]));
        assert!(!is_met(expression, &["wc", "opcode"]));
    }

    #[test]
    fn both_ends_of_a_long_literal_are_required() {
        let expression = "pcie bus error: severity=uncorrect";
        assert!(is_met(expression, &["pcie bus", "ncorrect"]));
        assert!(!is_met(expression, &["pcie bus"]));
    }

    #[test]
    fn short_numbers_are_not_searched_for() {
        assert_eq!(required("(12|8a) ").as_ref(), None);
        assert!(is_met(r"error (12|8a)\b", &["error "]));
        assert!(!is_met(r"error.*(0000|qp)\b", &["error"]));
    }

    #[test]
    fn where_a_branch_has_no_literal_there_are_none() {
        assert_eq!(required(r"(first|\d+)"), None);
        assert_eq!(required(r"(first)?"), None);
        assert_eq!(required(r"a"), None);
    }
}
