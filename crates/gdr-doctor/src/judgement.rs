//! The result of a check for one subject.

use gdr_node::{Absence, Datum};

use crate::finding::{Finding, Subject};

/// The finding of a check about one subject, or the reason why there is none.
pub(crate) type Judgement = Result<Finding, Unjudged>;

/// The reason why a check has no finding about a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unjudged {
    /// The check is not about this subject.
    OutOfScope,
    /// The check does not apply, for this reason.
    Skip(String),
    /// A fact that the check needs is absent: its name, and the absence.
    Unknown(String, Absence),
}

impl Unjudged {
    /// Returns the judgement that the check does not apply.
    pub(crate) fn skip(why: impl Into<String>) -> Self {
        Self::Skip(why.into())
    }

    /// Returns the finding with the reason; none if the subject is out of scope.
    pub(crate) fn finding(self, subject: Subject) -> Option<Finding> {
        let finding = match self {
            Self::OutOfScope => return None,
            Self::Skip(why) => Finding::skip(why),
            Self::Unknown(what, absence) => Finding::unknown(&what, &Err::<(), _>(absence)),
        };
        Some(finding.about(subject))
    }
}

/// Facts that a check needs.
pub(crate) trait Known<T> {
    /// Returns the fact. If it is absent, the finding is that `what` is unknown.
    fn known(self, what: impl Into<String>) -> Result<T, Unjudged>;

    /// Like [`known`](Self::known), but the check does not apply if the fact is [`Absence::Missing`].
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
