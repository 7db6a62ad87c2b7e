//! What an error text of NCCL, UCX, perftest, the kernel or a loader most likely means for
//! GPUDirect RDMA, and whether a log shows it at work.
//!
//! The knowledge is a table of [`Cause`]s ([`causes()`]); [`explain()`] ranks those that a text or a
//! whole log speaks of, [`read()`] does so for a log of any length, and [`Explanation::confirm`]
//! holds one against what the checks found on this node.
//!
//! ```
//! use gdr_explain::{InUse, explain, read};
//!
//! let found = explain("modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument");
//! assert_eq!(found[0].cause.id, "peermem-symbols");
//!
//! let log = "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n";
//! let answer = read(log.as_bytes())?;
//! assert_eq!(answer.gpudirect.in_use, InUse::Yes);
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod causes;
mod channel;
mod clean;
#[cfg(test)]
mod differential;
mod explainer;
mod facts;
mod hosts;
mod lines;
mod literals;
mod matcher;
mod mention;
mod parts;
mod signs;
mod usage;

use std::collections::BTreeSet;

use gdr_doctor::{CheckId, Diagnosis, Verdict};
use serde::Serialize;

pub use causes::all as causes;
pub use channel::{Direction, Transport};
pub use explainer::{Answer, Explainer, explain, read};
pub use facts::Fact;
pub use hosts::{addresses, hosts};
pub use lines::MAX_LINE;
pub use parts::{Operation, Parts, Status};
pub use usage::{Connection, Connections, GpuDirect, InUse, UsageEvidence};

/// How sure a pattern is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Strength {
    /// The text fits other causes as well.
    Weak,
    /// The text mostly has this cause.
    Likely,
    /// The text has no other cause.
    Sure,
}

/// A text that speaks of a cause.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// A regular expression over one line, case ignored.
    pub text: &'static str,
    /// What has to stand in a line shortly before, where something has to.
    pub after: Option<&'static str>,
    /// What must not stand in the same line.
    pub unless: Option<&'static str>,
    /// How sure it is.
    pub strength: Strength,
}

/// A way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// What to do.
    pub what: &'static str,
    /// The command or setting that does it, where there is one.
    pub command: Option<&'static str>,
    /// On which machines it helps.
    #[serde(skip)]
    pub when: When,
}

/// On which machines a remedy helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// On all.
    Always,
    /// On machines with one of these facts, where it comes first.
    Only(&'static [Fact]),
    /// On machines without any of these facts.
    Unless(&'static [Fact]),
}

/// What a cause is to the error that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It can be the error.
    Fault,
    /// It follows from an error that is named elsewhere.
    Consequence,
    /// It does no harm.
    Harmless,
}

/// Reads from a line what it says beyond its cause.
pub type Detail = fn(&[u8]) -> Option<String>;

/// What may have caused an error text.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cause {
    /// Its stable name.
    pub id: &'static str,
    /// Whether it can be the error itself.
    pub kind: Kind,
    /// One line.
    pub title: &'static str,
    /// How it comes about, and why it shows as it does.
    pub why: &'static str,
    /// What speaks of it.
    #[serde(skip)]
    pub patterns: &'static [Pattern],
    /// What more a line says of it.
    #[serde(skip)]
    pub detail: Option<Detail>,
    /// What to do, the best first.
    pub remedies: &'static [Remedy],
    /// What each fact about the machine means for this cause.
    #[serde(skip)]
    pub facts: &'static [(Fact, &'static str)],
    /// Facts that make it harmless.
    #[serde(skip)]
    pub harmless: &'static [Fact],
    /// The checks that tell whether it is so on a node.
    pub checks: &'static [&'static str],
    /// Where this is known from.
    pub sources: &'static [&'static str],
}

impl Cause {
    /// What most causes have in common, for struct update.
    const DEFAULT: Self = Self {
        id: "",
        kind: Kind::Fault,
        title: "",
        why: "",
        patterns: &[],
        detail: None,
        remedies: &[],
        facts: &[],
        harmless: &[],
        checks: &[],
        sources: &[],
    };
}

/// A line that spoke of a cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Match {
    /// From 1.
    pub line: usize,
    /// What stood there, or the part of it that matters.
    pub text: String,
    /// How sure it is.
    pub strength: Strength,
    /// The parts by which the cause was inferred, where no pattern knew the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
}

/// A cause that a text speaks of.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The cause.
    pub cause: &'static Cause,
    /// The first lines that spoke of it: at most [`Explanation::MAX_MATCHES`].
    pub matches: Vec<Match>,
    /// What these lines say beyond the cause, such as what an Xid stands for: at most
    /// [`Explanation::MAX_MATCHES`].
    pub details: Vec<String>,
    /// How many lines spoke of it.
    pub lines: usize,
    /// Whether it can be the error itself, on the machine that the text is about.
    pub kind: Kind,
    /// What other facts in the text mean for it.
    pub because: Vec<&'static str>,
    /// What to do on the machine that the text is about, the best first.
    pub remedies: Vec<Remedy>,
}

/// What the checks say of a cause on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "here", rename_all = "lowercase")]
pub enum Confirmation {
    /// A check found something wrong that fits.
    Confirmed {
        /// The check.
        check: CheckId,
        /// What it found.
        summary: String,
    },
    /// All that could tell found nothing wrong.
    Refuted,
    /// None could tell.
    Open,
}

impl Explanation {
    /// The most lines that are kept of a cause.
    pub const MAX_MATCHES: usize = 5;

    /// The surest line.
    pub fn strength(&self) -> Strength {
        (self.matches.iter().map(|it| it.strength))
            .max()
            .unwrap_or(Strength::Weak)
    }

    /// The parts by which the cause was inferred, where no pattern spoke of it.
    pub fn inferred(&self) -> Option<Parts> {
        let mut parts = self.matches.iter().map(|it| it.parts);
        let first = parts.next()??;
        parts.all(|it| it.is_some()).then_some(first)
    }

    /// Takes into account what the text says about its machine.
    fn consider(&mut self, facts: &BTreeSet<Fact>) {
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

    /// Holds the cause against what the checks found.
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
        // A check that does not apply here says nothing about the machine that has the error.
        let open = relevant()
            .any(|judged| matches!(judged.finding.verdict, Verdict::Unknown | Verdict::Skip));
        if reported && !open {
            Confirmation::Refuted
        } else {
            Confirmation::Open
        }
    }
}

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
