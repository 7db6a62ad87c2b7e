//! The likely cause of a failed iteration, from its results.

use super::report::{
    Cause, CauseKind, Checks, Difference, Ended, Iteration, Outcome, PacketCounts, Packets,
};
use crate::error::Error;

/// Contents of GPU memory, as a comparison found them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Sent,
    Before,
    Part(Difference),
    Other(Difference),
    Unknown,
}

impl Contents {
    fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Equal => Self::Sent,
            Outcome::Differs(d) if d.still_before == d.words => Self::Before,
            Outcome::Differs(d) if d.still_before > 0 => Self::Part(*d),
            Outcome::Differs(d) => Self::Other(*d),
            Outcome::Failed { .. } | Outcome::NotDone { .. } => Self::Unknown,
        }
    }

    fn describe(self) -> String {
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
            Self::Unknown => "the contents of GPU memory could not be read".into(),
        }
    }
}

/// Returns the cause of an iteration that ended with `error`. A failed request takes precedence, because the error may
/// be its consequence.
pub(super) fn diagnose_error(iteration: &Iteration, error: &Error) -> Cause {
    let found = [
        ("the RDMA WRITE", &iteration.sent),
        ("the receive of the WRITE's immediate", &iteration.received),
        ("the RDMA READ", &iteration.read),
    ]
    .into_iter()
    .filter(|(_, ended)| matches!(ended, Ended::Error { .. } | Ended::Late { .. }))
    .find_map(|(what, ended)| requests(what, ended, iteration));
    match found {
        Some((kind, what, remedy)) => Cause {
            kind,
            iteration: iteration.number,
            what: format!("{what}; after that, {error}"),
            remedy: remedy.into_owned(),
        },
        None => Cause::of_error(iteration.number, error),
    }
}

/// Describes lost, damaged and rejected packets, from the devices' counters.
fn packets(packets: &Packets) -> Option<(String, &'static str)> {
    let Packets { sender, receiver } = packets;
    let damaged = [("sender", sender), ("receiver", receiver)]
        .into_iter()
        .filter_map(|(end, counts)| counts.map(|counts| (end, counts)))
        .find(|(_, counts)| counts.icrc_mismatches > 0);
    if let Some((end, counts)) = damaged {
        return Some((
            format!(
                "packets arrive damaged: {} of {} that the {end} received have a wrong ICRC",
                counts.icrc_mismatches, counts.received
            ),
            "something on the path changes them: a middlebox or tunnel that rewrites headers (NAT, or the \
             IPv4 identification), a NIC's offload, or a bad link; compare \
             over another path or over IPv6",
        ));
    }
    let sender = sender.as_ref()?;
    if sender.sends_failed > 0 {
        return Some((
            format!("the kernel refused to send {} times", sender.sends_failed),
            "check that the interface is up and has a route to the peer (`ip route get`), and the \
             firewall of this host (`nft list ruleset`)",
        ));
    }
    let strange = |counts: &PacketCounts| counts.wrong_source + counts.kernel_drops;
    let foreign = receiver.as_ref().map_or(0, strange);
    if sender.received == 0 && foreign > 0 {
        return Some((
            format!(
                "the other end dropped {foreign} packets that did not come from its peer's address and port"
            ),
            "an address translation on the path changes them, or they leave by another interface: \
             name the right device on the sender, or see `ip route get` there",
        ));
    }
    if sender.received == 0 {
        let arrived = receiver.map(|counts| counts.received);
        return Some(match arrived {
            Some(0) => (
                "no packet reached the other end".to_owned(),
                "a firewall drops UDP towards the receiver, or the route is wrong: open the UDP port \
                 above, and see `ip route get` on the sender",
            ),
            Some(some) => (
                format!("{some} packets reached the other end, and no packet came back"),
                "a firewall drops UDP towards the sender, or the route back is wrong: open the UDP \
                 port above, and see `ip route get` on the receiver",
            ),
            None => (
                "no packet came back".to_owned(),
                "check whether the peer still runs, and whether a firewall drops UDP between the \
                 two addresses",
            ),
        });
    }
    let unknown = receiver.map_or(0, |counts| counts.unknown_queue_pair);
    if unknown > 0 {
        return Some((
            format!(
                "the other end dropped {unknown} packets for a queue pair that it does not have"
            ),
            "its program ended or connected again meanwhile: start both ends again",
        ));
    }
    if sender.sequence_naks_received > 0 {
        return Some((
            format!(
                "the other end reported {} times that a packet is missing (NAK, PSN sequence error)",
                sender.sequence_naks_received
            ),
            "packets are lost or arrive out of order: see the drops of both interfaces \
             (`ip -s link`), and of switches where flow control (PFC) is off",
        ));
    }
    Some((
        format!(
            "{} packets came back, the last of them without acknowledging the request",
            sender.received
        ),
        "packets are lost (a link that went down, a full queue), or the other end requests the \
         same packets repeatedly: see the drops of both interfaces (`ip -s link`)",
    ))
}

/// Returns the cause of a failed iteration; `None` for one that passed.
pub(super) fn diagnose(iteration: &Iteration) -> Option<Cause> {
    let found = fill(&iteration.filled)
        .or_else(|| requests("the RDMA WRITE", &iteration.sent, iteration))
        .or_else(|| {
            requests(
                "the receive of the WRITE's immediate",
                &iteration.received,
                iteration,
            )
        })
        .or_else(|| memory(&iteration.checks))
        .or_else(|| requests("the RDMA READ", &iteration.read, iteration))
        .or_else(|| read_back(&iteration.read_back));
    found.map(|(kind, what, remedy)| Cause {
        kind,
        iteration: iteration.number,
        what,
        remedy: remedy.into_owned(),
    })
}

/// Status of requests that were not acknowledged.
const RETRY_EXCEEDED: &str = "RETRY_EXC_ERR";

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
            format!("the GPU could not be filled with pattern A: {reason}")
        }
    };
    let remedy = "the GPU, its driver or its memory is at fault, not RDMA: see `dmesg` for Xid \
                  messages";
    Some((CauseKind::Fill, what, remedy.into()))
}

fn requests(what: &str, ended: &Ended, iteration: &Iteration) -> Found {
    let held = Contents::of(&iteration.checks.copy).describe();
    match ended {
        Ended::Done { .. } => None,
        Ended::Late {
            waited_ms,
            completions,
            due,
        } => {
            let mut what = format!(
                "{what} did not complete: {completions} of {due} completions came within the \
                 deadline of {} s; {held}",
                *waited_ms as f64 / 1000.0
            );
            if let Some((counted, _)) = packets(&iteration.packets) {
                what += &format!("; {counted}");
            }
            let remedy = "check that the peer runs and its packets arrive (UDP, the port \
                          above), or allow a longer timeout";
            Some((CauseKind::NoCompletion, what, remedy.into()))
        }
        Ended::Error {
            status,
            meaning,
            remedy,
        } => {
            let mut what = format!("{what} completed with {status}: {meaning}; {held}");
            let mut remedy = remedy.clone().into();
            if status == RETRY_EXCEEDED
                && let Some((counted, better)) = packets(&iteration.packets)
            {
                what += &format!("; {counted}");
                remedy = better.into();
            }
            Some((CauseKind::ErrorCompletion, what, remedy))
        }
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
            let what = format!("comparing GPU memory by {who} failed: {reason}");
            return Some((CauseKind::Looking, what, "see the reason".into()));
        }
    }
    // The comparison through a mapping is optional; the other two are not.
    for (who, outcome) in &looks[..2] {
        if let Outcome::NotDone { reason } = outcome {
            let what = format!("GPU memory was not compared by {who}: {reason}");
            return Some((CauseKind::Looking, what, "see the reason".into()));
        }
    }
    let [kernel, copy, mapping] = looks.map(|(_, outcome)| Contents::of(outcome));
    let agree = kernel == copy && (mapping == copy || mapping == Contents::Unknown);
    if kernel == Contents::Sent && agree {
        return guards(&checks.guards);
    }
    let success = "although every call and completion reported success";
    Some(match (kernel, copy, mapping) {
        (Contents::Before, Contents::Before, Contents::Sent) => (
            CauseKind::NothingArrived,
            format!(
                "the writes never reached GPU memory: it is still pattern A everywhere, {success}. \
                 The CPU mapping shows pattern B: it is a mapping of other memory"
            ),
            "check the mapping, and compare with a staged run, which does not use it".into(),
        ),
        (Contents::Before, Contents::Before, _) => (
            CauseKind::NothingArrived,
            format!(
                "the writes never reached GPU memory: it is still pattern A everywhere, by every \
                 comparison, {success}"
            ),
            "the bytes were placed elsewhere or dropped at the receiver: compare a \
             staged run with a direct one, and check the mapping"
                .into(),
        ),
        _ if !agree => (
            CauseKind::Disagreement,
            format!(
                "the comparisons disagree, {success}. A kernel: {}. A copy: {}. The CPU \
                 mapping: {}",
                kernel.describe(),
                copy.describe(),
                mapping.describe()
            ),
            "one of them is stale or reads other memory: check the mapping".into(),
        ),
        (Contents::Part(_), ..) => (
            CauseKind::PartlyArrived,
            format!("only part arrived: {}, {success}", copy.describe()),
            "writes were lost or had not been flushed at the completion: compare a \
             staged run with a direct one"
                .into(),
        ),
        _ => (
            CauseKind::WrongBytes,
            format!(
                "the bytes that arrived are not those that were sent: {}, {success}",
                copy.describe()
            ),
            "bytes were damaged or misplaced: see which integrity checks this path has, and check \
             the mapping"
                .into(),
        ),
    })
}

fn guards(outcome: &Outcome) -> Found {
    let what = match outcome {
        Outcome::Equal => return None,
        Outcome::Differs(d) => format!(
            "{} words around the target, which the WRITE does not cover, were changed; the first \
             holds {:#010x} instead of {:#010x}",
            d.mismatches, d.found, d.expected
        ),
        Outcome::Failed { reason } | Outcome::NotDone { reason } => {
            format!("the bytes around the target could not be read: {reason}")
        }
    };
    let remedy = "bytes were misplaced: do not use this path, and report it";
    Some((CauseKind::Guards, what, remedy.into()))
}

fn read_back(outcome: &Outcome) -> Found {
    let what = match outcome {
        Outcome::Equal => return None,
        Outcome::Differs(d) => format!(
            "the bytes arrived in GPU memory, but {} of {} words that RDMA READ returned \
             differ: byte {} is {:#010x} instead of {:#010x}",
            d.mismatches, d.words, d.first_offset, d.found, d.expected
        ),
        Outcome::Failed { reason } | Outcome::NotDone { reason } => {
            format!("the bytes that RDMA READ returned could not be compared: {reason}")
        }
    };
    let remedy = "reading through this path is broken: compare a staged run with a direct one";
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
            packets: Packets::default(),
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
        let cause = diagnose(&iteration).expect("it passed");
        assert_eq!(cause.iteration, 3);
        assert!(!cause.remedy.is_empty());
        cause
    }

    #[test]
    fn all_is_well_only_where_every_part_is() {
        assert_eq!(diagnose(&good()), None);
        let mut unmapped = good();
        unmapped.checks.mapping = Outcome::not_done("no mapping here");
        assert_eq!(diagnose(&unmapped), None);
    }

    #[test]
    fn success_without_bytes_is_nothing_arrived() {
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
    fn a_part_other_bytes_and_disagreement_are_different_causes() {
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
    fn a_missing_comparison_does_not_pass() {
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
    fn counters_distinguish_damaged_lost_and_refused_packets() {
        let unanswered = |sender: PacketCounts, receiver: Option<PacketCounts>| {
            with(|i| {
                i.sent = Ended::Error {
                    status: RETRY_EXCEEDED.into(),
                    meaning: "the peer did not answer".into(),
                    remedy: "a firewall".into(),
                };
                i.packets = Packets {
                    sender: Some(sender),
                    receiver,
                };
            })
        };
        let sent = PacketCounts {
            sent: 64,
            ..PacketCounts::default()
        };
        let arrived = |received| PacketCounts {
            received,
            ..PacketCounts::default()
        };
        let damaged = PacketCounts {
            icrc_mismatches: 60,
            ..arrived(64)
        };
        let refused = PacketCounts {
            sends_failed: 3,
            ..sent
        };
        let answered = PacketCounts {
            received: 9,
            ..sent
        };
        let translated = PacketCounts {
            wrong_source: 60,
            kernel_drops: 4,
            ..arrived(60)
        };
        let missed = PacketCounts {
            sequence_naks_received: 7,
            ..answered
        };
        for (cause, what, remedy) in [
            (
                unanswered(sent, Some(damaged)),
                "60 of 64 that the receiver received have a wrong ICRC",
                "changes them",
            ),
            (
                unanswered(damaged, None),
                "60 of 64 that the sender received have a wrong ICRC",
                "changes them",
            ),
            (
                unanswered(refused, Some(arrived(0))),
                "refused to send 3 times",
                "ip route get",
            ),
            (
                unanswered(sent, Some(arrived(0))),
                "no packet reached the other end",
                "towards the receiver",
            ),
            (
                unanswered(sent, Some(arrived(64))),
                "64 packets reached the other end, and no packet came back",
                "towards the sender",
            ),
            (unanswered(sent, None), "no packet came back", "firewall"),
            (
                unanswered(sent, Some(translated)),
                "dropped 64 packets that did not come from its peer's address and port",
                "address translation",
            ),
            (
                unanswered(missed, Some(arrived(64))),
                "reported 7 times that a packet is missing",
                "flow control",
            ),
            (
                unanswered(answered, Some(arrived(64))),
                "9 packets came back",
                "packets are lost",
            ),
        ] {
            assert!(cause.what.contains(RETRY_EXCEEDED), "{}", cause.what);
            assert!(cause.what.contains(what), "{}", cause.what);
            assert!(cause.remedy.contains(remedy), "{}", cause.remedy);
        }
        // A kernel device has no counters, so only the status is known.
        let silent = with(|i| {
            i.sent = Ended::Error {
                status: RETRY_EXCEEDED.into(),
                meaning: "m".into(),
                remedy: "a firewall".into(),
            };
        });
        assert_eq!(silent.remedy, "a firewall");
    }

    #[test]
    fn bytes_that_do_not_come_back_are_a_failure_of_reading() {
        let cause = with(|i| i.read_back = differs(1, 0));
        assert_eq!(cause.kind, CauseKind::ReadBack);
    }
}
