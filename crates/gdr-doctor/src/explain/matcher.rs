//! Finds which patterns a line matches: first by literals, all at once, then by the expressions
//! that those literals belong to.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, MatchKind};
use regex::bytes::{Regex, RegexBuilder};

use super::literals;

/// An expression over one line, case ignored.
#[derive(Debug)]
struct Expression {
    text: &'static str,
    /// Built when it is first needed, since a text needs few of them.
    compiled: OnceLock<Option<Regex>>,
}

/// Expressions, by their place in the list that they were given in.
#[derive(Debug)]
pub(super) struct Matcher {
    expressions: Vec<Expression>,
    literals: Option<AhoCorasick>,
    /// Of each literal the expressions that need it.
    needed_by: Vec<Vec<usize>>,
    /// Expressions without a literal.
    always: Vec<usize>,
}

/// What a line matched; kept from line to line to save allocations.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Of each expression the number of the last line that it was a candidate for.
    seen: Vec<u64>,
    line: u64,
    list: Vec<usize>,
}

impl Matcher {
    pub(super) fn new(expressions: impl IntoIterator<Item = &'static str>) -> Self {
        let expressions: Vec<Expression> = expressions
            .into_iter()
            .map(|text| Expression {
                text,
                compiled: OnceLock::new(),
            })
            .collect();
        let mut texts: Vec<String> = Vec::new();
        let mut needed_by: Vec<Vec<usize>> = Vec::new();
        let mut always = Vec::new();
        for (place, expression) in expressions.iter().enumerate() {
            let Some(required) = literals::required(expression.text) else {
                always.push(place);
                continue;
            };
            for literal in required {
                if let Some(known) = texts.iter().position(|text| *text == literal) {
                    needed_by[known].push(place);
                } else {
                    texts.push(literal);
                    needed_by.push(vec![place]);
                }
            }
        }
        let literals = AhoCorasickBuilder::new()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            .kind(Some(AhoCorasickKind::DFA))
            .build(&texts)
            .ok();
        if literals.is_none() {
            always = (0..expressions.len()).collect();
        }
        Self {
            expressions,
            literals,
            needed_by,
            always,
        }
    }

    /// The expressions that may match a line: all that do are among them.
    pub(super) fn candidates<'a>(&self, line: &[u8], found: &'a mut Candidates) -> &'a [usize] {
        found.seen.resize(self.expressions.len(), 0);
        found.line += 1;
        found.list.clear();
        for place in &self.always {
            found.list.push(*place);
        }
        let hits = self
            .literals
            .iter()
            .flat_map(|it| it.find_overlapping_iter(line));
        for hit in hits {
            for place in &self.needed_by[hit.pattern().as_usize()] {
                if found.seen[*place] != found.line {
                    found.seen[*place] = found.line;
                    found.list.push(*place);
                }
            }
        }
        &found.list
    }

    /// Where an expression matches, as offset of the first byte.
    pub(super) fn find(&self, place: usize, line: &[u8]) -> Option<usize> {
        let compiled = self.expressions[place].compiled();
        compiled?.find(line).map(|found| found.start())
    }

    #[cfg(test)]
    pub(super) fn faults(&self) -> Vec<&'static str> {
        let broken = self.expressions.iter().filter(|it| it.compiled().is_none());
        broken.map(|it| it.text).collect()
    }

    #[cfg(test)]
    pub(super) fn without_literals(&self) -> Vec<usize> {
        self.always.clone()
    }
}

impl Expression {
    /// `None` where the expression is none, which a test rules out.
    fn compiled(&self) -> Option<&Regex> {
        let compiled = self.compiled.get_or_init(|| {
            RegexBuilder::new(self.text)
                .case_insensitive(true)
                .unicode(false)
                .build()
                .ok()
        });
        compiled.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_literals_leave_out_no_expression_that_matches() {
        let expressions = [
            r"fallen off.*bus",
            r"\bxid\b.*79",
            r"\d{3}",
            r"(no|bad) address",
        ];
        let matcher = Matcher::new(expressions);
        assert_eq!(matcher.without_literals(), [2]);
        let mut found = Candidates::default();
        for (line, expected) in [
            ("GPU has FALLEN OFF the BUS", vec![0]),
            ("NVRM: Xid 79, fallen off the bus", vec![0, 1]),
            ("Bad Address 123", vec![2, 3]),
            ("nothing", vec![]),
        ] {
            let line = line.as_bytes();
            let candidates = matcher.candidates(line, &mut found).to_vec();
            let mut matched: Vec<usize> = candidates
                .into_iter()
                .filter(|place| matcher.find(*place, line).is_some())
                .collect();
            matched.sort_unstable();
            assert_eq!(matched, expected);
        }
    }
}
