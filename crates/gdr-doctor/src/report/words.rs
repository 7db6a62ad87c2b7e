//! The sentences that every report for people shares.

use crate::diagnosis::{Counts, Outcome};
use crate::fix::{Effect, Fix, Persistence, Privilege, Risk};

/// What a diagnosis comes to.
pub(super) const fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Healthy => "Nothing is wrong.",
        Outcome::Warning => "GPUDirect RDMA works here, but not as well as it could.",
        Outcome::Failure => "GPUDirect RDMA does not work here as it should.",
        Outcome::Undecided => "Too little is known to tell.",
    }
}

/// How many findings of each verdict.
pub(super) fn counts(counts: Counts) -> String {
    format!(
        "{} failed, {} warned, {} not known, {} fine, {} do not apply",
        counts.fail,
        counts.warn,
        counts.unknown,
        counts.pass + counts.info,
        counts.skip
    )
}

/// Who may do it, when it helps, for how long, at what risk.
pub(crate) fn terms(fix: &Fix) -> String {
    let who = match fix.privilege {
        Privilege::User => "no root needed",
        Privilege::Root => "as root",
    };
    let when = match fix.effect {
        Effect::Now => "helps at once",
        Effect::AtRestart => "helps what is started after",
        Effect::AtReboot => "helps after a reboot",
    };
    let span = match fix.persistence {
        Persistence::UntilExit => "for that process",
        Persistence::UntilReboot => "until the next reboot",
        Persistence::Permanent => "for good",
    };
    let risk = match fix.risk {
        Risk::None => "no risk",
        Risk::Low => "low risk",
        Risk::Medium => "some risk",
        Risk::High => "high risk",
    };
    format!("{who}, {when}, {span}, {risk}")
}

/// `1 finding follows`, `4 findings follow`.
pub(super) fn follow(symptoms: usize) -> String {
    if symptoms == 1 {
        "1 finding follows from it".to_owned()
    } else {
        format!("{symptoms} findings follow from it")
    }
}
