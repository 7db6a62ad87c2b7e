//! Known causes, grouped by what fails.

/// Matches a NIC's vendor error, syndrome or UCX's `synd`/`vend` with one of these codes.
macro_rules! vendor {
    ($codes:literal) => {
        concat!(
            r"(?:vend(?:or)?(?:[ _-]?(?:err(?:or)?|synd(?:rome?)?))?|\bsyndrome?)[ =:(]*(?:",
            $codes,
            r")\b"
        )
    };
}

/// Matches a completion with one of these statuses.
macro_rules! status {
    ($codes:literal) => {
        concat!(
            r"(?:(?:completion|\bwc\b|wc_?status|\bcqe?\b|work request|failed)\b.{0,100}\b(?:status|error)[ =:]*(?:",
            $codes,
            r")\b|\b(?:status|error)[ =:]*(?:",
            $codes,
            r")\b.{0,40}(?:opcode|vendor|wr_id))"
        )
    };
}

/// Matches what libmlx5 and GPUNetIO print about a failed completion with one of these syndromes. The numbers come from
/// the mlx5 completion queue entry; the verbs status has different ones.
macro_rules! syndrome {
    ($codes:literal) => {
        concat!(
            r"(?:completion|\bcqe\b).{0,60}\bsyndrome[ =:]*0x0?(?:",
            $codes,
            r")\b"
        )
    };
}

/// Matches lines about a call, whose error is an errno rather than the status of a completion.
const CALL: &str = concat!(
    r"\bibv_(reg|create|alloc|modify|query|open)|\b\w+_(mr|qp|cq|pd|ah)\b.{0,20}\bfail|\bregist",
    r"|\b(create|creating|allocate|allocating) (an? )?(qp|cq|srq|mr|pd|queue pair|completion queue)\b",
);

/// Matches an error that UCX logs from one of these source files: the subject is known, even if the message is not.
macro_rules! ucx_error {
    ($files:literal) => {
        concat!(r"\b(?:", $files, r")\.c:\d+ +ucx +error\b")
    };
}

/// Matches a warning that NCCL logs from one of these source files.
macro_rules! nccl_warning {
    ($files:literal) => {
        concat!(r"\b(?:", $files, r")\S*:\d+ +nccl warn\b")
    };
}

/// Matches an error that NVSHMEM logs from one of these source files.
macro_rules! nvshmem_error {
    ($files:literal) => {
        concat!(
            r"/(?:",
            $files,
            r")\S*:\d+: (?:non-zero status|null value|error)"
        )
    };
}

/// Matches an error from one of these source files, logged by a library in glog's format (Mooncake, UCCL, NIXL).
macro_rules! glog_error {
    ($files:literal) => {
        concat!(r"\be\d{4,8} .{0,40}\b(?:", $files, r")\.(?:cpp|cc):\d+\]")
    };
}

/// Matches a warning of libfabric about one of these subjects.
macro_rules! libfabric_warning {
    ($subjects:literal) => {
        concat!(r"\blibfabric:\S*:(?:", $subjects, r"):\w+\(\):\d+<warn>")
    };
}

/// Matches a driver message about a GPU error with one of these numbers, also as the cause of another.
macro_rules! xid {
    ($numbers:literal) => {
        concat!(
            r"\b(?:xid \(pci:[0-9a-f:.]+\):|previous xid) (?:",
            $numbers,
            r")\b"
        )
    };
}

/// Lines that do not report a failure: something that a library tries and does without.
pub(super) const QUIET: &str =
    r"\bnccl info\b|<(info|debug)>|\bucx +(debug|diag|trace|info)\b|\bdlvsym\b|data_direct";

/// The words before libmlx5's dump of a completion, which ends with `0000` and the vendor's code.
const DUMP: &str = "got completion with error";

mod gpus;
mod libraries;
mod modules;
mod nics;
mod path;
mod pcie;
mod registration;
mod setup;
mod transport;

use crate::{Cause, Fact, Pattern, Remedy, Strength, When};

/// Returns every cause.
pub fn all() -> impl Iterator<Item = &'static Cause> {
    [
        modules::CAUSES,
        registration::CAUSES,
        path::CAUSES,
        transport::CAUSES,
        setup::CAUSES,
        libraries::CAUSES,
        pcie::CAUSES,
        nics::CAUSES,
        gpus::CAUSES,
    ]
    .into_iter()
    .flatten()
}

/// Returns a pattern of texts that have no other cause.
const fn sure(text: &'static str) -> Pattern {
    Pattern {
        text,
        after: None,
        unless: None,
        strength: Strength::Sure,
    }
}

/// Returns a pattern of texts that mostly have this cause.
const fn likely(text: &'static str) -> Pattern {
    Pattern {
        text,
        after: None,
        unless: None,
        strength: Strength::Likely,
    }
}

/// Returns a pattern of texts that fit other causes as well.
const fn weak(text: &'static str) -> Pattern {
    Pattern {
        text,
        after: None,
        unless: None,
        strength: Strength::Weak,
    }
}

/// Returns a pattern of texts that have this cause if `after` stands before them.
const fn follows(after: &'static str, text: &'static str, strength: Strength) -> Pattern {
    Pattern {
        text,
        after: Some(after),
        unless: None,
        strength,
    }
}

/// Returns a remedy by a command or a setting.
const fn run(what: &'static str, command: &'static str) -> Remedy {
    Remedy {
        what,
        command: Some(command),
        when: When::Always,
    }
}

/// Returns a remedy by hand.
const fn hand(what: &'static str) -> Remedy {
    Remedy {
        what,
        command: None,
        when: When::Always,
    }
}

impl Pattern {
    /// Excludes lines that contain `text`.
    const fn unless(self, text: &'static str) -> Self {
        Self {
            unless: Some(text),
            ..self
        }
    }
}

impl Remedy {
    /// Offers it only on machines with one of these facts, and there first.
    const fn only(self, facts: &'static [Fact]) -> Self {
        Self {
            when: When::Only(facts),
            ..self
        }
    }

    /// Offers it on machines without any of these facts.
    const fn unless(self, facts: &'static [Fact]) -> Self {
        Self {
            when: When::Unless(facts),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_cause_has_its_own_name_a_way_out_and_a_source() {
        let mut ids = HashSet::new();
        for cause in all() {
            assert!(ids.insert(cause.id), "{} is there twice", cause.id);
            assert!(!cause.remedies.is_empty(), "{}", cause.id);
            assert!(!cause.patterns.is_empty(), "{}", cause.id);
            assert!(!cause.sources.is_empty(), "{}", cause.id);
        }
    }

    #[test]
    fn every_check_that_would_confirm_a_cause_exists() {
        for cause in all() {
            for check in cause.checks {
                assert!(
                    gdr_doctor::find(check).is_some(),
                    "{} names {check}",
                    cause.id
                );
            }
        }
    }
}
