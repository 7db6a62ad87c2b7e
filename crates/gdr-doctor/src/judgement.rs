//! What a check finds about one subject, or why it finds nothing.

use gdr_node::{Absence, Datum};

use crate::finding::{Finding, Subject};

/// What a check finds about one subject.
pub(crate) type Judgement = Result<Finding, Unjudged>;

/// Why a check has no judgement about a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unjudged {
    /// The subject is not one of those that the check is about.
    OutOfScope,
    /// The check does not apply, and why.
    Skip(String),
    /// Something that decides is not known: what it is, and why.
    Unknown(String, Absence),
}

impl Unjudged {
    /// The check does not apply.
    pub(crate) fn skip(why: impl Into<String>) -> Self {
        Self::Skip(why.into())
    }

    /// The finding that says so, where there is one.
    pub(crate) fn finding(self, subject: Subject) -> Option<Finding> {
        let finding = match self {
            Self::OutOfScope => return None,
            Self::Skip(why) => Finding::skip(why),
            Self::Unknown(what, absence) => Finding::unknown(&what, &Err::<(), _>(absence)),
        };
        Some(finding.about(subject))
    }
}

/// What a check needs to know before it can judge.
pub(crate) trait Known<T> {
    /// The fact; where it is absent, `what` is unknown.
    fn known(self, what: impl Into<String>) -> Result<T, Unjudged>;

    /// As [`known`](Self::known), but where the node has no such thing, the check does not apply.
    fn known_or_skip(self, what: &str, skip: &str) -> Result<T, Unjudged>;
}

impl<T> Known<T> for Datum<T> {
    fn known(self, what: impl Into<String>) -> Result<T, Unjudged> {
        self.map_err(|absence| Unjudged::Unknown(what.into(), absence))
    }

    fn known_or_skip(self, what: &str, skip: &str) -> Result<T, Unjudged> {
        match self {
            Err(Absence::Missing) => Err(Unjudged::skip(skip)),
            datum => datum.known(what),
        }
    }
}
