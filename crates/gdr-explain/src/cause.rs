//! What an error text may mean, and what to do.

use serde::Serialize;

use crate::facts::Fact;

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

/// A text that indicates a cause.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// A regular expression over one line, case ignored.
    pub text: &'static str,
    /// What must occur in a line shortly before, if anything.
    pub after: Option<&'static str>,
    /// What must not occur in the same line.
    pub unless: Option<&'static str>,
    /// How sure it is.
    pub strength: Strength,
}

/// A way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// What to do.
    pub what: &'static str,
    /// The command or setting that does it, if there is one.
    pub command: Option<&'static str>,
    /// The machines on which it helps.
    #[serde(skip)]
    pub when: When,
}

/// The machines on which a remedy helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// On all.
    Always,
    /// On machines with one of these facts, on which it comes first.
    Only(&'static [Fact]),
    /// On machines without any of these facts.
    Unless(&'static [Fact]),
}

/// How a cause relates to the error being explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It can be the error.
    Fault,
    /// It is the consequence of an error named elsewhere.
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
    /// How it arises, and why it shows in this way.
    pub why: &'static str,
    /// What speaks of it.
    #[serde(skip)]
    pub patterns: &'static [Pattern],
    /// Extracts further details from a line.
    #[serde(skip)]
    pub detail: Option<Detail>,
    /// What to do, best remedy first.
    pub remedies: &'static [Remedy],
    /// What each fact about the machine means for this cause.
    #[serde(skip)]
    pub facts: &'static [(Fact, &'static str)],
    /// Facts that make it harmless.
    #[serde(skip)]
    pub harmless: &'static [Fact],
    /// Checks that tell whether it applies to a node.
    pub checks: &'static [&'static str],
    /// Sources of this knowledge.
    pub sources: &'static [&'static str],
}

impl Cause {
    /// Values that most causes share, for struct update.
    pub(crate) const DEFAULT: Self = Self {
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
