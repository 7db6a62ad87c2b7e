//! From what was seen to why.

use serde::Serialize;

use super::report::{Checks, Difference, Ended, Iteration, Outcome};

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Which kind of failure.
    pub kind: CauseKind,
    /// The iteration, from 1.
    pub iteration: u32,
    /// What is wrong, and what that proves.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CauseKind {
    /// GPU memory does not hold what the GPU itself wrote.
    Fill,
    /// A request ended with an error.
    ErrorCompletion,
    /// A request did not end in time.
    NoCompletion,
    /// A request was refused, or a wrong completion came.
    Request,
    /// Everything ended with success, and GPU memory is as before.
    NothingArrived,
    /// Everything ended with success, and part of GPU memory is as before.
    PartlyArrived,
    /// Something arrived that was not sent.
    WrongBytes,
    /// Two ways of looking at the same memory see different bytes.
    Disagreement,
    /// Bytes outside the target were changed.
    Guards,
    /// The bytes arrived, and reading them back brought others.
    ReadBack,
    /// Looking at memory failed.
    Looking,
    /// Something else failed, the peer perhaps.
    Other,
}

impl Cause {
    /// Of a run that ended with an error in `iteration`.
    pub(super) fn of_error(iteration: u32, error: &crate::Error) -> Self {
        Self {
            kind: CauseKind::Other,
            iteration,
            what: format!("iteration {iteration} could not be finished: {error}"),
            remedy: "nothing is proved about the bytes of this iteration; see the reason".into(),
        }
    }
}

/// What the GPU holds, as far as anybody could see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Sent,
    Before,
    Part(Difference),
    Other(Difference),
    Unknown,
}

impl Held {
    fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Equal => Self::Sent,
            Outcome::Differs(d) if d.still_before == d.words => Self::Before,
            Outcome::Differs(d) if d.still_before > 0 => Self::Part(*d),
            Outcome::Differs(d) => Self::Other(*d),
            Outcome::Failed { .. } | Outcome::NotDone { .. } => Self::Unknown,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Sent => "GPU memory holds all of pattern B".into(),
            Self::Before => "GPU memory is still pattern A everywhere".into(),
            Self::Part(d) => format!(
                "{} of {} words of GPU memory are still pattern A, the first at byte {}",
                d.still_before, d.words, d.first_offset
            ),
            Self::Other(d) => format!(
                "{} of {} words of GPU memory are neither pattern",
                d.mismatches, d.words
            ),
            Self::Unknown => "what GPU memory holds could not be seen".into(),
        }
    }
}

/// Why `iteration` failed, if it did.
pub(super) fn judge(iteration: &Iteration) -> Option<Cause> {
    let found = fill(&iteration.filled)
        .or_else(|| requests("the RDMA WRITE", &iteration.sent, &iteration.checks))
        .or_else(|| {
            requests(
                "the receive of the WRITE's immediate",
                &iteration.received,
                &iteration.checks,
            )
        })
        .or_else(|| memory(&iteration.checks))
        .or_else(|| requests("the RDMA READ", &iteration.read, &iteration.checks))
        .or_else(|| read_back(&iteration.read_back));
    found.map(|(kind, what, remedy)| Cause {
        kind,
        iteration: iteration.number,
        what,
        remedy: remedy.into_owned(),
    })
}

type Found = Option<(CauseKind, String, std::borrow::Cow<'static, str>)>;

fn fill(outcome: &Outcome) -> Found {
    let what = match outcome {
        Outcome::Equal => return None,
        Outcome::Differs(d) => format!(
            "before anything was sent, {} of {} words were not what a kernel had just written \
             there: byte {} is {:#010x}, {:#010x} was written",
            d.mismatches, d.words, d.first_offset, d.found, d.expected
        ),
        Outcome::Failed { reason } | Outcome::NotDone { reason } => {
            format!("the GPU could not be made to hold pattern A: {reason}")
        }
    };
    let remedy = "the GPU, its driver or its memory is at fault, not RDMA: see `dmesg` for Xid \
                  messages";
    Some((CauseKind::Fill, what, remedy.into()))
}

fn requests(what: &str, ended: &Ended, checks: &Checks) -> Found {
    let held = Held::of(&checks.copy).words();
    match ended {
        Ended::Done { .. } => None,
        Ended::Late {
            waited_ms,
            completions,
            due,
        } => Some((
            CauseKind::NoCompletion,
            format!(
                "{what} did not complete: {completions} of {due} completions came within the \
                 deadline of {} s; {held}",
                *waited_ms as f64 / 1000.0
            ),
            "see whether the peer runs and its packets get through (UDP, the port above), or give \
             a longer --timeout"
                .into(),
        )),
        Ended::Error {
            status,
            meaning,
            remedy,
        } => Some((
            CauseKind::ErrorCompletion,
            format!("{what} completed with {status}: {meaning}; {held}"),
            remedy.clone().into(),
        )),
        Ended::Failed { reason } | Ended::NotDone { reason } => Some((
            CauseKind::Request,
            format!("{what} was not done: {reason}; {held}"),
            "see the reason".into(),
        )),
    }
}

fn memory(checks: &Checks) -> Found {
    let looks = [
        ("a kernel", &checks.kernel),
        ("a copy to the host", &checks.copy),
        ("the CPU mapping", &checks.mapping),
    ];
    for (who, outcome) in looks {
        if let Outcome::Failed { reason } = outcome {
            let what = format!("looking at GPU memory by {who} failed: {reason}");
            return Some((CauseKind::Looking, what, "see the reason".into()));
        }
    }
    // Without a mapping two looks are left; without those nothing is proved.
    for (who, outcome) in &looks[..2] {
        if let Outcome::NotDone { reason } = outcome {
            let what = format!("nobody looked at GPU memory by {who}: {reason}");
            return Some((CauseKind::Looking, what, "see the reason".into()));
        }
    }
    let [kernel, copy, mapping] = looks.map(|(_, outcome)| Held::of(outcome));
    let agree = kernel == copy && (mapping == copy || mapping == Held::Unknown);
    if kernel == Held::Sent && agree {
        return guards(&checks.guards);
    }
    let success = "although every call and completion said success";
    Some(match (kernel, copy, mapping) {
        (Held::Before, Held::Before, Held::Sent) => (
            CauseKind::NothingArrived,
            format!(
                "the writes never reached GPU memory: it is still pattern A everywhere, {success}. \
                 The CPU mapping shows pattern B: it is a mapping of other memory"
            ),
            "run `gdr sanity`, and compare with --staged, which does without the mapping".into(),
        ),
        (Held::Before, Held::Before, _) => (
            CauseKind::NothingArrived,
            format!(
                "the writes never reached GPU memory: it is still pattern A everywhere, by every \
                 way of looking, {success}"
            ),
            "the bytes were placed elsewhere or dropped at the receiver: compare --staged with \
             --direct, and run `gdr sanity`"
                .into(),
        ),
        _ if !agree => (
            CauseKind::Disagreement,
            format!(
                "the ways of looking disagree, {success}. A kernel: {}. A copy: {}. The CPU \
                 mapping: {}",
                kernel.words(),
                copy.words(),
                mapping.words()
            ),
            "one of them is stale or looks at other memory: run `gdr sanity`".into(),
        ),
        (Held::Part(_), ..) => (
            CauseKind::PartlyArrived,
            format!("only part arrived: {}, {success}", copy.words()),
            "writes were lost or had not been flushed when the completion came: compare --staged \
             with --direct"
                .into(),
        ),
        _ => (
            CauseKind::WrongBytes,
            format!(
                "other bytes arrived than were sent: {}, {success}",
                copy.words()
            ),
            "bytes were damaged or misplaced on their way: see what of integrity is checked on \
             this path, and run `gdr sanity`"
                .into(),
        ),
    })
}

fn guards(outcome: &Outcome) -> Found {
    let what = match outcome {
        Outcome::Equal => return None,
        Outcome::Differs(d) => format!(
            "{} words around the target were changed, which the WRITE did not name; the first \
             holds {:#010x} instead of {:#010x}",
            d.mismatches, d.found, d.expected
        ),
        Outcome::Failed { reason } | Outcome::NotDone { reason } => {
            format!("the bytes around the target could not be looked at: {reason}")
        }
    };
    let remedy = "bytes were misplaced: do not use this path, and report it";
    Some((CauseKind::Guards, what, remedy.into()))
}

fn read_back(outcome: &Outcome) -> Found {
    let what = match outcome {
        Outcome::Equal => return None,
        Outcome::Differs(d) => format!(
            "the bytes arrived in GPU memory, but {} of {} words that RDMA READ brought back \
             differ: byte {} is {:#010x} instead of {:#010x}",
            d.mismatches, d.words, d.first_offset, d.found, d.expected
        ),
        Outcome::Failed { reason } | Outcome::NotDone { reason } => {
            format!("what RDMA READ brought back could not be compared: {reason}")
        }
    };
    let remedy = "reading through this path is broken: compare --staged with --direct";
    Some((CauseKind::ReadBack, what, remedy.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Iteration {
        Iteration {
            number: 3,
            seed_before: 1,
            seed_sent: 2,
            filled: Outcome::Equal,
            sent: Ended::Done { ns: 1 },
            received: Ended::Done { ns: 1 },
            checks: Checks {
                kernel: Outcome::Equal,
                copy: Outcome::Equal,
                mapping: Outcome::Equal,
                guards: Outcome::Equal,
            },
            read: Ended::Done { ns: 1 },
            read_back: Outcome::Equal,
        }
    }

    fn differs(mismatches: u64, still_before: u64) -> Outcome {
        Outcome::Differs(Difference {
            words: 8,
            mismatches,
            still_before,
            first_offset: 4,
            expected: 1,
            found: 2,
        })
    }

    fn with(change: impl FnOnce(&mut Iteration)) -> Cause {
        let mut iteration = good();
        change(&mut iteration);
        let cause = judge(&iteration).expect("it passed");
        assert_eq!(cause.iteration, 3);
        assert!(!cause.remedy.is_empty());
        cause
    }

    #[test]
    fn all_is_well_only_where_every_part_is() {
        assert_eq!(judge(&good()), None);
        let mut unmapped = good();
        unmapped.checks.mapping = Outcome::not_done("no mapping here");
        assert_eq!(judge(&unmapped), None);
    }

    #[test]
    fn success_without_bytes_is_named_for_what_it_is() {
        let nothing = |i: &mut Iteration| {
            i.checks.kernel = differs(8, 8);
            i.checks.copy = differs(8, 8);
            i.checks.mapping = differs(8, 8);
        };
        let cause = with(nothing);
        assert_eq!(cause.kind, CauseKind::NothingArrived);
        assert!(
            cause.what.contains("still pattern A everywhere"),
            "{}",
            cause.what
        );
        let cause = with(|i| {
            nothing(i);
            i.checks.mapping = Outcome::Equal;
        });
        assert_eq!(cause.kind, CauseKind::NothingArrived);
        assert!(
            cause.what.contains("a mapping of other memory"),
            "{}",
            cause.what
        );
    }

    #[test]
    fn part_of_the_bytes_is_told_from_wrong_bytes_and_from_disagreement() {
        let all = |outcome: Outcome| {
            with(|i| {
                i.checks.kernel = outcome.clone();
                i.checks.copy = outcome.clone();
                i.checks.mapping = outcome;
            })
        };
        assert_eq!(all(differs(5, 5)).kind, CauseKind::PartlyArrived);
        assert_eq!(all(differs(5, 0)).kind, CauseKind::WrongBytes);
        let cause = with(|i| i.checks.mapping = differs(1, 1));
        assert_eq!(cause.kind, CauseKind::Disagreement);
        let cause = with(|i| i.checks.kernel = differs(1, 1));
        assert_eq!(cause.kind, CauseKind::Disagreement);
        let cause = with(|i| i.checks.guards = differs(1, 0));
        assert_eq!(cause.kind, CauseKind::Guards);
    }

    #[test]
    fn what_nobody_looked_at_does_not_pass() {
        let changes: [fn(&mut Iteration); 5] = [
            |i| i.checks.kernel = Outcome::not_done("x"),
            |i| i.checks.copy = Outcome::not_done("x"),
            |i| i.checks.guards = Outcome::not_done("x"),
            |i| i.read_back = Outcome::not_done("x"),
            |i| i.filled = Outcome::not_done("x"),
        ];
        for change in changes {
            with(change);
        }
    }

    #[test]
    fn a_missing_completion_names_its_deadline_and_what_memory_holds() {
        let cause = with(|i| {
            i.sent = Ended::Late {
                waited_ms: 10_500,
                completions: 1,
                due: 4,
            };
            i.checks.copy = differs(3, 3);
        });
        assert_eq!(cause.kind, CauseKind::NoCompletion);
        assert!(
            cause
                .what
                .contains("1 of 4 completions came within the deadline of 10.5 s")
        );
        assert!(
            cause
                .what
                .contains("3 of 8 words of GPU memory are still pattern A")
        );
    }

    #[test]
    fn an_error_completion_brings_its_meaning_and_remedy() {
        let cause = with(|i| {
            i.received = Ended::Error {
                status: "RETRY_EXC_ERR".into(),
                meaning: "the peer did not answer".into(),
                remedy: "look at it".into(),
            };
        });
        assert_eq!(cause.kind, CauseKind::ErrorCompletion);
        assert!(
            cause
                .what
                .contains("RETRY_EXC_ERR: the peer did not answer")
        );
        assert_eq!(cause.remedy, "look at it");
    }

    #[test]
    fn bytes_that_do_not_come_back_are_a_failure_of_reading() {
        let cause = with(|i| i.read_back = differs(1, 0));
        assert_eq!(cause.kind, CauseKind::ReadBack);
    }
}
