//! Error texts that no pattern knows, recognized by their parts: who speaks, what failed, and with
//! which status. What failed and how gives the causes.

mod operation;
mod status;

use std::fmt;
use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde::Serialize;

use crate::Strength;
use crate::causes::QUIET;

pub use self::operation::Operation;
use self::operation::Speaker;
pub(super) use self::operation::WORDS;
use self::status::STATUSES;
pub use self::status::Status;

/// The parts by which a line was recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// What failed.
    pub operation: Operation,
    /// How, where the line says it.
    pub status: Option<Status>,
}

/// What failed, and how: `a registration of memory: ENOMEM`.
impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        match self.status {
            Some(status) => write!(f, ": {status}"),
            None => Ok(()),
        }
    }
}

/// Which of the parts lead to which causes, the likeliest first. No status stands for any other.
const CAUSES: &[(Operation, &[Status], &[&str])] = {
    use Operation as O;
    use Status as S;
    &[
        (
            O::Registration,
            &[S::BadAddress],
            &["no-peer-memory-client", "dmabuf-unsupported"],
        ),
        (
            O::Registration,
            &[S::OutOfMemory, S::Denied],
            &["memlock", "keys-exhausted", "bar1-small"],
        ),
        (
            O::Registration,
            &[S::Again, S::Full],
            &["keys-exhausted", "bar1-small", "memlock"],
        ),
        (
            O::Registration,
            &[S::Invalid],
            &["registration-arguments", "no-peer-memory-client"],
        ),
        (
            O::Registration,
            &[S::Unsupported],
            &["dmabuf-unsupported", "no-peer-memory-client"],
        ),
        (O::Registration, &[], &["no-peer-memory-client", "memlock"]),
        (O::DmaBuf, &[S::OutOfMemory, S::Full], &["bar1-small"]),
        (O::DmaBuf, &[], &["dmabuf-unsupported", "dmabuf-attach"]),
        (O::GpuPin, &[S::OutOfMemory, S::Full], &["bar1-small"]),
        (O::GpuPin, &[], &["pages-refused", "bar1-small"]),
        (O::MemoryLock, &[], &["memlock"]),
        (
            O::QueueCreation,
            &[S::OutOfMemory, S::Again],
            &["memlock", "keys-exhausted", "nic-command"],
        ),
        (
            O::QueueCreation,
            &[S::Full],
            &["keys-exhausted", "nic-command"],
        ),
        (
            O::QueueCreation,
            &[S::Invalid],
            &["qp-arguments", "rdma-abi", "keys-exhausted"],
        ),
        (
            O::QueueCreation,
            &[S::Unsupported],
            &["rdma-abi", "nic-command"],
        ),
        (
            O::QueueCreation,
            &[S::Denied],
            &["memlock", "ibgda-privilege"],
        ),
        (O::QueueCreation, &[S::NoDevice], &["no-rdma-device"]),
        (O::QueueCreation, &[S::Io], &["nic-command", "nic-firmware"]),
        (
            O::QueueCreation,
            &[],
            &["memlock", "keys-exhausted", "qp-arguments"],
        ),
        (
            O::QueueTransition,
            &[S::Invalid],
            &["qp-arguments", "gid-index"],
        ),
        (
            O::QueueTransition,
            &[S::TimedOut, S::Unreachable],
            &["address-resolution"],
        ),
        (
            O::QueueTransition,
            &[S::NoDevice],
            &["gid-other-namespace", "gid-index"],
        ),
        (O::QueueTransition, &[S::Io], &["nic-command"]),
        (
            O::QueueTransition,
            &[],
            &["address-resolution", "qp-arguments", "gid-index"],
        ),
        (O::Post, &[S::Flushed], &["flush-error"]),
        (O::Post, &[], &["queue-operation"]),
        (O::Completion, &[S::RemoteAccess], &["remote-access"]),
        (
            O::Completion,
            &[S::Retries, S::TimedOut],
            &["transport-timeout"],
        ),
        (O::Completion, &[S::NotReady], &["receiver-not-ready"]),
        (O::Completion, &[S::Flushed], &["flush-error"]),
        (
            O::Completion,
            &[S::Length],
            &["length-error", "mtu-differs"],
        ),
        (
            O::Completion,
            &[S::Protection],
            &["acs-redirect", "queue-operation"],
        ),
        (O::Completion, &[], &["queue-operation", "remote-access"]),
        (
            O::Connection,
            &[S::NoDevice],
            &["no-rdma-device", "rdma-driver"],
        ),
        (O::Connection, &[S::Denied], &["no-rdma-device"]),
        (
            O::Connection,
            &[S::OutOfMemory],
            &["memlock", "keys-exhausted"],
        ),
        (
            O::Connection,
            &[S::Refused],
            &["control-connection", "peer-gone"],
        ),
        (
            O::Connection,
            &[S::TimedOut, S::Unreachable],
            &["address-resolution", "control-connection"],
        ),
        (
            O::Connection,
            &[],
            &["control-connection", "address-resolution"],
        ),
        (
            O::AddressResolution,
            &[S::NoDevice],
            &["gid-other-namespace", "no-rdma-device"],
        ),
        (O::AddressResolution, &[], &["address-resolution"]),
        (
            O::Gid,
            &[S::NoDevice],
            &["gid-other-namespace", "gid-index"],
        ),
        (O::Gid, &[], &["gid-index", "gid-table-holes"]),
        (O::DeviceOpen, &[S::OutOfMemory], &["memlock"]),
        (
            O::DeviceOpen,
            &[S::Unsupported],
            &["rdma-abi", "no-rdma-device"],
        ),
        (
            O::DeviceOpen,
            &[S::NoDevice, S::Denied],
            &["no-rdma-device", "rdma-driver"],
        ),
        (O::DeviceOpen, &[], &["no-rdma-device", "rdma-driver"]),
        (O::RdmaModule, &[], &["rdma-driver"]),
        (O::PeermemModule, &[S::Invalid], &["peermem-symbols"]),
        (O::PeermemModule, &[S::Full], &["module-in-use"]),
        (O::PeermemModule, &[S::Denied], &["lockdown"]),
        (
            O::PeermemModule,
            &[S::NoDevice],
            &["peermem-not-found", "no-peer-memory-client"],
        ),
        (
            O::PeermemModule,
            &[],
            &["no-peer-memory-client", "peermem-not-found"],
        ),
        (O::GdrdrvModule, &[], &["gdrdrv-missing"]),
        (O::CudaIpc, &[], &["cuda-ipc-memory"]),
        (O::PeerAccess, &[S::OutOfMemory, S::Full], &["bar1-small"]),
        (O::PeerAccess, &[], &["peer-access"]),
        (O::GpuRead, &[], &["gpu-lost"]),
        (O::DmaTranslation, &[], &["iommu-fault"]),
        (O::PcieRecovery, &[], &["pcie-lost", "gpu-lost"]),
        (O::Topology, &[], &["vm-topology", "gdr-distance"]),
        (O::Plugin, &[], &["nixl-plugin", "nixl-backend"]),
        (O::GpuOpen, &[], &["gpu-driver"]),
        (O::FabricHandle, &[], &["imex-channel"]),
        (
            O::NicObject,
            &[S::Unsupported],
            &["rdma-abi", "nic-command"],
        ),
        (O::NicObject, &[], &["nic-command"]),
        (O::PortQuery, &[], &["port-down"]),
    ]
};

/// Words that say that something went wrong, in whatever way. A line without any is not looked at.
pub(super) const FAILURE: &str = concat!(
    r"(\bfail|\berrors?\b|_error\b|\bunable\b|\bcannot\b|\bcan'?t\b|\bcould ?n[o']t\b|\bdenied\b|\brefused\b",
    r"|\breject|\binvalid\b|\bbad (address|parameter)|\bno such\b|\bno (\w+ ){1,2}(device|match|found|backend)",
    r"|\bnot (permitted|supported|available|found|loaded|enough|set)\b|\bno (matching|space|route|resources)\b|\bmissing\b",
    r"|\bnull\b|\baborted\b|\btimed ?out\b|\btime-?out\b|\binsufficient\b|\btoo (small|low|few|many|large|long)\b)",
    r"|(\bmust be (big|large|unlimited)|\bfault\b|\bunexpected\b|\bnot _?expected\b|\bunavailable\b|\bunsupported\b",
    r"|\bunreachable\b|\breset by\b|\bbroken pipe\b|\bexceeded\b|\bflush(ed|_err)|\bbusy\b|\bout ?of ?memory\b|\bexhausted\b",
    r"|\be(nomem|again|inval|fault|perm|acces|nodev|noent|nxio|nospc|busy|io|timedout|opnotsupp|notsupp|nosys)\b|\beconn",
    r"|\bretur\w+ -\d|\b(errno|err|rc|ret|retval)\b[ =:]*-?[1-9]|(rem|loc|qp)_(access|prot|len|inv_req)|retry_exc|not responding)",
);

/// Words that say the opposite.
const NO_FAILURE: &str = r"\b(no|0|without( any)?|zero) (\w+ )?(errors?|fail\w*)\b|\b(fail\w*|errors?)[\x22']?[:= ]+(0|none|false|null)\b|\b(will|would|may|might|could|should|can) (\w+ )?fail|\bif (\w+ ){0,4}fail|\bor (\w+ ){1,4}fails\b|\bfall(s|ing)? ?back\b|\b(skip|ignor)(s|ped|ping|ed|ing)\b|\bas expected\b";

/// What of RDMA and of GPUs speaks.
const SPEAKER: &str = r"rdma|verbs|infiniband|openib|\broce|\bib_|\bibv?\b|mlx[45]|irdma|bnxt_|\befa|erdma|\bionic|\bucx\b|\buc[tps]_|\bn?ccl\b|\brccl\b|nvshmem|libfabric|\bofi\b|\bfi_|gdr|gpu ?direct|nvidia|\bnvrm\b|\bnixl|mooncake|\buccl\b|\bgasnet|\bgpus?\b|\bhca\b|\brnic\b|\bnvme nvme\d|\bqps?\b";

struct Expressions {
    words: RegexSet,
    numbers: RegexSet,
    no_failure: Regex,
    speaker: Regex,
    quiet: Regex,
}

/// What the parts of a line say.
#[derive(Debug)]
pub(super) struct Inference {
    pub(super) parts: Parts,
    /// The ids of its causes, the likeliest first.
    pub(super) causes: &'static [&'static str],
    /// How sure the first of them is.
    pub(super) strength: Strength,
}

/// Returns what the parts of a line say in which the words at a place of [`WORDS`] stand, and one of
/// [`FAILURE`].
pub(super) fn infer(place: usize, line: &[u8]) -> Option<Inference> {
    let words = WORDS.get(place)?;
    let expressions = EXPRESSIONS.as_ref()?;
    let speaks = words.speaker == Speaker::Named || expressions.speaker.is_match(line);
    if !speaks || expressions.no_failure.is_match(line) || expressions.quiet.is_match(line) {
        return None;
    }
    let parts = Parts {
        operation: words.operation,
        status: expressions.status(line),
    };
    let (causes, strength) = causes_of(parts)?;
    Some(Inference {
        parts,
        causes,
        strength,
    })
}

/// Returns the causes that parts lead to, and how sure the first of them is.
fn causes_of(parts: Parts) -> Option<(&'static [&'static str], Strength)> {
    let of_operation = || (CAUSES.iter()).filter(|(it, ..)| *it == parts.operation);
    let of_status = parts
        .status
        .and_then(|status| of_operation().find(|(_, statuses, _)| statuses.contains(&status)));
    match of_status {
        Some((.., causes)) => Some((causes, Strength::Likely)),
        None => of_operation()
            .find(|(_, statuses, _)| statuses.is_empty())
            .map(|(.., causes)| (*causes, Strength::Weak)),
    }
}

/// Returns the place of a cause among those that parts lead to.
pub(super) fn rank(parts: Parts, cause: &str) -> usize {
    let place = causes_of(parts).and_then(|(causes, _)| causes.iter().position(|it| *it == cause));
    place.unwrap_or(usize::MAX)
}

static EXPRESSIONS: LazyLock<Option<Expressions>> = LazyLock::new(|| Expressions::new().ok());

impl Expressions {
    fn new() -> Result<Self, regex::Error> {
        let one = |text: &str| {
            RegexBuilder::new(text)
                .case_insensitive(true)
                .unicode(false)
                .build()
        };
        let set = |texts: Vec<String>| {
            RegexSetBuilder::new(texts)
                .case_insensitive(true)
                .unicode(false)
                .build()
        };
        let number = |numbers: &[u16]| {
            if numbers.is_empty() {
                // Matches nothing.
                return r"\b\B".to_owned();
            }
            let numbers: Vec<String> = numbers.iter().map(u16::to_string).collect();
            let numbers = numbers.join("|");
            format!(
                r"\b(err(no|or)?|code|ret(urned|val)?|rc|status|errno is)\b[ =:('\x22]{{0,4}}-?({numbers})\b|[\[(]-?({numbers})[\])]|[ =:]-({numbers})\b"
            )
        };
        let words = STATUSES.iter().map(|(_, words, _)| (*words).to_owned());
        let numbers = STATUSES.iter().map(|(_, _, numbers)| number(numbers));
        Ok(Self {
            words: set(words.collect())?,
            numbers: set(numbers.collect())?,
            no_failure: one(NO_FAILURE)?,
            speaker: one(SPEAKER)?,
            quiet: one(QUIET)?,
        })
    }

    /// Returns the status that a line has in words, else in a number.
    fn status(&self, line: &[u8]) -> Option<Status> {
        let first = |set: &RegexSet| set.matches(line).iter().next();
        let place = first(&self.words).or_else(|| first(&self.numbers))?;
        STATUSES.get(place).map(|(status, _, _)| *status)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{causes, explain};

    fn parts(line: &str) -> Option<Parts> {
        explain(line).first().and_then(|it| it.inferred())
    }

    #[test]
    fn every_row_names_causes_that_exist_and_every_operation_has_one_for_any_status() {
        assert!(EXPRESSIONS.is_some());
        let ids: HashSet<&str> = causes().map(|cause| cause.id).collect();
        for (operation, _, causes) in CAUSES {
            assert!(!causes.is_empty(), "{operation}");
            for cause in *causes {
                assert!(ids.contains(cause), "{operation}: {cause}");
            }
        }
        for words in WORDS {
            let any = |(operation, statuses, _): &(Operation, &[Status], &[&str])| {
                *operation == words.operation && statuses.is_empty()
            };
            assert!(CAUSES.iter().any(any), "{}", words.operation);
        }
    }

    #[test]
    fn what_failed_and_how_is_read_from_words_and_from_numbers() {
        for (line, operation, status) in [
            (
                "pool: app_reg_mr() failed, errno: 12",
                Operation::Registration,
                Some(Status::OutOfMemory),
            ),
            (
                "could not set up qp 7: error (-12)",
                Operation::QueueCreation,
                Some(Status::OutOfMemory),
            ),
            ("cannot move QP 7 to RTS", Operation::QueueTransition, None),
            (
                "mlx5_0: probe of device aborted: Permission denied",
                Operation::DeviceOpen,
                Some(Status::Denied),
            ),
            (
                "app: post_send: error 12: Cannot allocate memory",
                Operation::Post,
                Some(Status::OutOfMemory),
            ),
        ] {
            let expected = Parts { operation, status };
            assert_eq!(parts(line), Some(expected), "{line}");
        }
    }

    #[test]
    fn a_status_with_causes_of_its_own_is_likely_and_any_other_only_possible() {
        let strength = |line| explain(line).first().map(|it| it.strength());
        let line = "could not set up qp 7: Cannot allocate memory";
        assert_eq!(strength(line), Some(Strength::Likely));
        assert!(
            explain(line)[1..]
                .iter()
                .all(|it| it.strength() == Strength::Weak)
        );
        assert_eq!(strength("could not set up qp 7"), Some(Strength::Weak));
    }

    #[test]
    fn a_line_without_two_of_the_parts_or_without_a_failure_says_nothing() {
        for line in [
            "app_reg_mr of 4096 bytes",
            "cannot probe device: Permission denied",
            "the connection failed",
            "0 errors of app_reg_mr",
            "NCCL INFO app_reg_mr failed: Invalid argument",
            "nvme nvme0: address resolved (0): status 0",
        ] {
            assert_eq!(parts(line), None, "{line}");
        }
    }

    #[test]
    fn nothing_is_inferred_beside_a_line_that_a_pattern_knows() {
        let unknown = "could not set up qp 7: Cannot allocate memory";
        let known = "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.";
        assert!(parts(unknown).is_some());
        for text in [format!("{unknown}\n{known}"), format!("{known}\n{unknown}")] {
            let found = explain(&text);
            assert!(found.iter().all(|it| it.inferred().is_none()), "{text}");
        }
    }
}
