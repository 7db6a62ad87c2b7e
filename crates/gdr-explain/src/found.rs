//! Causes found in a text.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::facts::Fact;
use crate::parts::{self, Parts};
use crate::{Cause, Explanation, Strength};

/// An indication of a cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark<'a> {
    /// The number of the line.
    pub(crate) number: usize,
    pub(crate) line: &'a [u8],
    /// Where in the line.
    pub(crate) at: usize,
    pub(crate) strength: Strength,
    /// The parts from which it was inferred.
    pub(crate) parts: Option<Parts>,
}

/// Causes by their place in the table, and what was last said about them.
#[derive(Debug)]
pub(crate) struct Found {
    table: &'static [&'static Cause],
    causes: Vec<Option<Explanation>>,
    /// Indications in the current line, of which the surest is kept: cause, strength and place in the line.
    spoken: Vec<(usize, Strength, usize)>,
    /// Line of the last indication of each strength; 0 means none.
    said: [(Strength, usize); 3],
}

impl Found {
    /// Starts with these causes, none of them found.
    pub(crate) fn new(table: &'static [&'static Cause]) -> Self {
        Self {
            table,
            causes: Vec::new(),
            spoken: Vec::new(),
            said: [Strength::Weak, Strength::Likely, Strength::Sure].map(|strength| (strength, 0)),
        }
    }

    /// Records an indication in the current line, at this place.
    pub(crate) fn speak(&mut self, cause: usize, strength: Strength, at: usize) {
        self.spoken.push((cause, strength, at));
    }

    /// Returns whether the line at hand says anything so far.
    pub(crate) fn is_spoken(&self) -> bool {
        !self.spoken.is_empty()
    }

    /// Returns whether the current line, or a line since `start`, indicates anything surer than `strength`.
    pub(crate) fn is_surer_since(&self, start: usize, strength: Strength) -> bool {
        self.spoken.iter().any(|(_, spoken, _)| *spoken > strength)
            || (self.said.iter()).any(|(said, on)| *on >= start && *said > strength)
    }

    /// Returns whether anything was said since line `start`.
    pub(crate) fn is_said_since(&self, start: usize) -> bool {
        self.said.iter().any(|(_, on)| *on > 0 && *on >= start)
    }

    /// Returns whether another line of this strength adds to a cause but a number.
    pub(crate) fn is_certain(&self, cause: usize, strength: Strength) -> bool {
        let known = self.causes.get(cause).and_then(Option::as_ref);
        known.is_some_and(|it| {
            it.matches.len() == Explanation::MAX_MATCHES && it.strength() >= strength
        })
    }

    /// Keeps an indication of a cause.
    pub(crate) fn keep(&mut self, cause: usize, mark: Mark<'_>) {
        self.causes.resize_with(self.table.len(), || None);
        let of = self.table[cause];
        let explanation = self.causes[cause].get_or_insert_with(|| Explanation::new(of));
        explanation.add(mark);
    }

    /// Ends a line: keeps its surest indication.
    pub(crate) fn keep_spoken(&mut self, number: usize, line: &[u8]) {
        let Some(surest) = self.spoken.iter().map(|(_, strength, _)| *strength).max() else {
            return;
        };
        for (said, on) in &mut self.said {
            if *said == surest {
                *on = number.max(*on);
            }
        }
        let mut spoken = std::mem::take(&mut self.spoken);
        spoken.sort_unstable();
        spoken.dedup_by_key(|(cause, strength, _)| (*cause, *strength));
        for (cause, strength, at) in spoken.drain(..) {
            if strength == surest {
                let parts = None;
                let mark = Mark {
                    number,
                    line,
                    at,
                    strength,
                    parts,
                };
                self.keep(cause, mark);
            }
        }
        self.spoken = spoken;
    }

    /// Returns all causes of a text with these facts about its machine, likeliest first.
    pub(crate) fn finish(self, facts: &BTreeSet<Fact>) -> Vec<Explanation> {
        let mut causes: Vec<Explanation> = self.causes.into_iter().flatten().collect();
        let order = |it: &Explanation| {
            let first = it.matches.first();
            let parts = first.and_then(|first| first.parts);
            parts.map(|parts| parts::rank(parts, it.cause.id))
        };
        for explanation in &mut causes {
            explanation.consider(facts);
        }
        causes.sort_by_key(|it| {
            (
                it.kind,
                Reverse(it.strength()),
                it.matches.first().map(|first| first.line),
                order(it),
                Reverse(it.lines),
            )
        });
        causes
    }
}
