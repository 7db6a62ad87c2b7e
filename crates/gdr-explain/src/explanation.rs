//! A cause that a text indicates, with the lines that indicate it.

use std::collections::BTreeSet;

use gdr_doctor::{CheckId, Diagnosis, Verdict};
use serde::Serialize;

use crate::cause::{Cause, Kind, Remedy, Strength, When};
use crate::clean::excerpt;
use crate::facts::Fact;
use crate::found::Mark;
use crate::parts::Parts;

/// A line that indicates a cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Match {
    /// From 1.
    pub line: usize,
    /// The text of the line, or the relevant part of it.
    pub text: String,
    /// How sure it is.
    pub strength: Strength,
    /// The parts from which the cause was inferred, if no pattern matched the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
}

/// A cause that a text indicates.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The cause.
    pub cause: &'static Cause,
    /// The first lines that indicate it: at most [`Explanation::MAX_MATCHES`].
    pub matches: Vec<Match>,
    /// What these lines say beyond the cause, such as the meaning of an Xid: at most [`Explanation::MAX_MATCHES`].
    pub details: Vec<String>,
    /// How many lines indicate it.
    pub lines: usize,
    /// Whether it can be the error itself, on the machine that the text is about.
    pub kind: Kind,
    /// What other facts in the text mean for it.
    pub because: Vec<&'static str>,
    /// What to do on the machine that the text is about, best remedy first.
    pub remedies: Vec<Remedy>,
}

/// What the checks say about a cause on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "here", rename_all = "lowercase")]
pub enum Confirmation {
    /// A check found a matching fault.
    Confirmed {
        /// The check.
        check: CheckId,
        /// What it found.
        summary: String,
    },
    /// None of the checks that could tell found a fault.
    Refuted,
    /// None could tell.
    Open,
}

impl Explanation {
    /// Maximum number of lines to keep for a cause.
    pub const MAX_MATCHES: usize = 5;

    /// Returns the surest line.
    pub fn strength(&self) -> Strength {
        (self.matches.iter().map(|it| it.strength))
            .max()
            .unwrap_or(Strength::Weak)
    }

    /// Returns the parts from which the cause was inferred, if no pattern matched.
    pub fn inferred(&self) -> Option<Parts> {
        let mut parts = self.matches.iter().map(|it| it.parts);
        let first = parts.next()??;
        parts.all(|it| it.is_some()).then_some(first)
    }

    /// Creates an explanation that no line supports yet.
    pub(crate) fn new(cause: &'static Cause) -> Self {
        Self {
            cause,
            matches: Vec::new(),
            details: Vec::new(),
            lines: 0,
            kind: cause.kind,
            because: Vec::new(),
            remedies: Vec::new(),
        }
    }

    /// Counts a line, and keeps it if it is among the first, or surer than all lines kept.
    pub(crate) fn add(&mut self, mark: Mark<'_>) {
        let Mark {
            number,
            line,
            at,
            strength,
            parts,
        } = mark;
        if let Some(last) = self.matches.last_mut().filter(|last| last.line == number) {
            last.strength = last.strength.max(strength);
            return;
        }
        self.lines += 1;
        if self.details.len() < Self::MAX_MATCHES
            && let Some(detail) = self.cause.detail.and_then(|detail| detail(line))
            && !self.details.contains(&detail)
        {
            self.details.push(detail);
        }
        let surer = self.matches.iter().all(|it| it.strength < strength);
        if self.matches.len() == Self::MAX_MATCHES {
            if !surer {
                return;
            }
            self.matches.pop();
        }
        self.matches.push(Match {
            line: number,
            text: excerpt(line, at),
            strength,
            parts,
        });
    }

    /// Takes into account what the text says about its machine.
    pub(crate) fn consider(&mut self, facts: &BTreeSet<Fact>) {
        let has_any = |of: &[Fact]| of.iter().any(|fact| facts.contains(fact));
        let cause = self.cause;
        if has_any(cause.harmless) {
            self.kind = Kind::Harmless;
        }
        let known = cause.facts.iter().filter(|(fact, _)| facts.contains(fact));
        self.because = known.map(|(_, meaning)| *meaning).collect();
        let (only, rest): (Vec<&Remedy>, Vec<&Remedy>) = (cause.remedies.iter())
            .filter(|remedy| match remedy.when {
                When::Always => true,
                When::Only(of) => has_any(of),
                When::Unless(of) => !has_any(of),
            })
            .partition(|remedy| matches!(remedy.when, When::Only(_)));
        let is_harmless_here = self.kind == Kind::Harmless && cause.kind != Kind::Harmless;
        let rest = if is_harmless_here { Vec::new() } else { rest };
        self.remedies = only.into_iter().chain(rest).copied().collect();
    }

    /// Compares the cause with what the checks found.
    pub fn confirm(&self, diagnosis: &Diagnosis) -> Confirmation {
        let relevant = || {
            (diagnosis.findings.iter())
                .filter(|judged| self.cause.checks.contains(&judged.check.id.0))
        };
        let worst = relevant()
            .filter(|judged| judged.finding.verdict.is_bad())
            .max_by_key(|judged| judged.finding.verdict);
        if let Some(judged) = worst {
            return Confirmation::Confirmed {
                check: judged.check.id,
                summary: format!("{}: {}", judged.finding.subject, judged.finding.summary),
            };
        }
        let reported = relevant()
            .any(|judged| matches!(judged.finding.verdict, Verdict::Pass | Verdict::Info));
        // A check that does not apply here says nothing about the machine with the error.
        let open = relevant()
            .any(|judged| matches!(judged.finding.verdict, Verdict::Unknown | Verdict::Skip));
        if reported && !open {
            Confirmation::Refuted
        } else {
            Confirmation::Open
        }
    }
}
