//! Finds which patterns a line matches: first by searching all literals at once, then by trying the expressions that
//! the found literals belong to.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::dfa::DFA;
use aho_corasick::{Anchored, MatchKind, StartKind};
use regex::bytes::{Regex, RegexBuilder};

use crate::literals::{self, Need};

/// Number of kinds of texts whose candidates are remembered.
const REMEMBERED: usize = 1024;

/// An expression over one line, case ignored.
#[derive(Debug)]
struct Expression {
    text: &'static str,
    /// Compiled when first needed, because a text needs few of them.
    compiled: OnceLock<Option<Regex>>,
}

/// Expressions, by their place in the list that they were given in.
#[derive(Debug)]
pub(crate) struct Matcher {
    expressions: Vec<Expression>,
    literals: Option<DFA>,
    /// For each literal, the expressions to try only if it occurs.
    tried_for: Vec<Vec<usize>>,
    /// The literals that have entries in `tried_for`.
    first: Hits,
    /// For each expression, the literals that it needs.
    needs: Vec<Option<Need<usize>>>,
    /// Expressions without a literal.
    always: Vec<usize>,
}

/// Candidates for recent texts, by the literals that these contained. A log has few kinds of lines, and a storm very
/// few.
#[derive(Debug, Default)]
pub(crate) struct Candidates(Vec<Option<(Hits, Vec<usize>)>>);

/// The literals that a text contains, as a set of bits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    /// The exclusive or of [`mix`] over the literals in the set.
    hash: u64,
    words: Vec<u64>,
}

impl Clone for Hits {
    fn clone(&self) -> Self {
        Self {
            hash: self.hash,
            words: self.words.clone(),
        }
    }

    // The derived implementation would not reuse the memory.
    fn clone_from(&mut self, other: &Self) {
        self.hash = other.hash;
        self.words.clone_from(&other.words);
    }
}

impl Hits {
    fn insert(&mut self, literal: usize) {
        let (word, bit) = (literal / 64, 1 << (literal % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if self.words[word] & bit == 0 {
            self.words[word] |= bit;
            self.hash ^= mix(literal);
        }
    }

    fn contains(&self, literal: usize) -> bool {
        let word = self.words.get(literal / 64).copied().unwrap_or(0);
        word & (1 << (literal % 64)) != 0
    }

    /// Clears the set, but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
        self.hash = 0;
    }

    /// Adds another text's.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (place, (word, more)) in self.words.iter_mut().zip(&other.words).enumerate() {
            for bit in bits(more & !*word) {
                self.hash ^= mix(place * 64 + bit);
            }
            *word |= more;
        }
    }

    /// Returns where the candidates for such a text are kept.
    fn slot(&self) -> usize {
        // The upper bits depend on all lower ones. The remainder fits.
        (self.hash >> 32) as usize % REMEMBERED
    }

    /// Returns the literals in both sets.
    fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        let words = self.words.iter().zip(&other.words).enumerate();
        words.flat_map(|(place, (one, two))| bits(one & two).map(move |bit| place * 64 + bit))
    }
}

/// Returns the bits of a word that are set.
fn bits(mut rest: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(bit)
    })
}

/// Returns a number for a literal whose upper half depends on every bit of it.
fn mix(literal: usize) -> u64 {
    // The multipliers of Fibonacci hashing and of splitmix64.
    let mixed = (literal as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Matcher {
    pub(crate) fn new(expressions: impl IntoIterator<Item = &'static str>) -> Self {
        let expressions: Vec<Expression> = expressions
            .into_iter()
            .map(|text| Expression {
                text,
                compiled: OnceLock::new(),
            })
            .collect();
        let mut names: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let mut name_of = |text: &str| {
            let text: Vec<u8> = text.bytes().map(fold).collect();
            *names.entry(text.clone()).or_insert_with(|| {
                texts.push(text);
                texts.len() - 1
            })
        };
        let mut tried_for: Vec<Vec<usize>> = Vec::new();
        let mut first = Hits::default();
        let mut needs = Vec::new();
        let mut always = Vec::new();
        for (place, expression) in expressions.iter().enumerate() {
            let need = literals::required(expression.text);
            match &need {
                None => always.push(place),
                Some(need) => {
                    for literal in need.rarest() {
                        let literal = name_of(literal);
                        first.insert(literal);
                        if tried_for.len() <= literal {
                            tried_for.resize(literal + 1, Vec::new());
                        }
                        tried_for[literal].push(place);
                    }
                }
            }
            needs.push(need.map(|need| need.map(&mut |literal| name_of(&literal))));
        }
        // Literals and text are folded to 32 classes of bytes. With more classes, a row of the table would be twice as
        // long, and cache misses would slow the search down.
        let literals = DFA::builder()
            .match_kind(MatchKind::Standard)
            .start_kind(StartKind::Unanchored)
            .prefilter(false)
            .build(&texts)
            .ok();
        let mut matcher = Self {
            expressions,
            literals,
            tried_for,
            first,
            needs,
            always,
        };
        if matcher.literals.is_none() {
            matcher.try_all();
        }
        matcher
    }

    /// Treats every expression as a candidate for every text: slow, but equally correct.
    pub(crate) fn try_all(&mut self) {
        self.first = Hits::default();
        self.always = (0..self.expressions.len()).collect();
    }

    /// Adds the literals that a text contains.
    ///
    /// Kept separate, so that its loop has the registers to itself.
    #[inline(never)]
    pub(crate) fn search(&self, text: &[u8], hits: &mut Hits) {
        let Some(literals) = &self.literals else {
            return;
        };
        let Ok(mut state) = literals.start_state(Anchored::No) else {
            return;
        };
        for byte in text {
            state = literals.next_state(Anchored::No, state, FOLDED[usize::from(*byte)]);
            if literals.is_match(state) {
                found_at(literals, state, hits);
            }
        }
    }

    /// Adds the literals that span the byte at an offset: literals found neither in the text before it nor in the text
    /// after it.
    pub(crate) fn search_around(&self, text: &[u8], at: usize, hits: &mut Hits) {
        let start = (at + 1).saturating_sub(literals::LONGEST);
        let end = (at + literals::LONGEST).min(text.len());
        self.search(&text[start..end], hits);
    }

    /// Puts the expressions that may match a text with these literals into `found`, in order. All matching expressions
    /// are among them.
    fn candidates(&self, hits: &Hits, found: &mut Vec<usize>) {
        found.clone_from(&self.always);
        for literal in hits.common(&self.first) {
            for place in &self.tried_for[literal] {
                let need = self.needs[*place].as_ref();
                if need.is_none_or(|need| need.is_met(&|literal| hits.contains(*literal))) {
                    found.push(*place);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
    }

    /// Returns where an expression matches first.
    pub(crate) fn find(&self, place: usize, line: &[u8]) -> Option<Range<usize>> {
        let compiled = self.expressions[place].compiled();
        compiled?.find(line).map(|found| found.range())
    }

    #[cfg(test)]
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        let broken = self.expressions.iter().filter(|it| it.compiled().is_none());
        broken.map(|it| it.text).collect()
    }

    #[cfg(test)]
    pub(crate) fn without_literals(&self) -> Vec<usize> {
        self.always.clone()
    }
}

/// Every byte as the search sees it.
static FOLDED: [u8; 256] = {
    let mut folded = [0; 256];
    let mut byte = 0;
    while byte < folded.len() {
        // The cast is lossless, because there are 256 bytes.
        folded[byte] = fold(byte as u8);
        byte += 1;
    }
    folded
};

/// Returns the class of a byte: a letter of either case, two digits, or any punctuation. The expressions sort out false
/// positives.
const fn fold(byte: u8) -> u8 {
    match byte.to_ascii_lowercase() {
        // The rarest letters share classes.
        b'j' => b'x',
        b'q' => b'z',
        digit @ b'0'..=b'9' => digit & !1,
        // Only the punctuation that expressions use.
        b'#' | b'\'' | b'(' | b')' | b'+' | b',' | b'-' | b'.' | b'/' => b'.',
        b':' | b'<' | b'=' | b'>' | b'@' | b'[' | b']' | b'_' => b'.',
        other => other,
    }
}

/// Adds the literals that end here. Kept separate, so that the search itself stays in registers.
#[inline(never)]
fn found_at(literals: &DFA, state: StateID, hits: &mut Hits) {
    for index in 0..literals.match_len(state) {
        hits.insert(literals.match_pattern(state, index).as_usize());
    }
}

impl Candidates {
    /// Returns the expressions that may match a text with these literals.
    pub(crate) fn of(&mut self, matcher: &Matcher, hits: &Hits) -> &[usize] {
        self.0.resize_with(REMEMBERED, || None);
        let slot = &mut self.0[hits.slot()];
        let is_known = matches!(slot, Some((known, _)) if known == hits);
        let (known, places) = slot.get_or_insert_default();
        if !is_known {
            known.clone_from(hits);
            matcher.candidates(hits, places);
        }
        places
    }
}

impl Expression {
    /// Returns `None` if the expression is invalid, which a test rules out.
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
        let (mut hits, mut candidates) = (Hits::default(), Candidates::default());
        for (line, expected) in [
            ("GPU has FALLEN OFF the BUS", vec![0]),
            ("NVRM: Xid 79, fallen off the bus", vec![0, 1]),
            ("Bad Address 123", vec![2, 3]),
            ("nothing", vec![]),
        ] {
            let line = line.as_bytes();
            hits.clear();
            matcher.search(line, &mut hits);
            let found = |place: &usize| matcher.find(*place, line).is_some();
            let places = candidates.of(&matcher, &hits).iter();
            let matched: Vec<usize> = places.copied().filter(found).collect();
            assert_eq!(matched, expected);
        }
    }

    #[test]
    fn the_literals_of_two_texts_and_of_where_they_meet_are_those_of_both_together() {
        let matcher = Matcher::new(["8letters", "left", "right", "ftri", "ft"]);
        let joined = b"8lettersleftright 8letters";
        for cut in 0..joined.len() {
            let (left, right) = joined.split_at(cut);
            let mut apart = Hits::default();
            matcher.search(left, &mut apart);
            matcher.search(right, &mut apart);
            matcher.search_around(joined, cut, &mut apart);
            let mut whole = Hits::default();
            matcher.search(joined, &mut whole);
            assert_eq!(apart.hash, whole.hash, "{cut}");
            assert_eq!(apart.words, whole.words, "{cut}");
        }
    }
}
