//! `memlock.self`: this process may lock enough memory.

use gdr_node::{Datum, virtual_path};

use super::memory_lock::{Capability, Limit, has, own};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Effect, Fix, Persistence, Privilege, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("memlock.self"),
    group: Group::Host,
    title: "a process started from here may lock as much memory as it needs",
    documentation: Documentation {
        means: "Queues of RDMA connections and buffers in host memory are locked, and the kernel \
                counts them against RLIMIT_MEMLOCK. The defaults, 64 KiB or 8 MiB, are used up by \
                the first queues: \"Cannot allocate memory\" follows. Memory of GPUs is not \
                counted.",
        reads: "The limit \"Max locked memory\" of the process that looks, and bit 14 (CAP_IPC_LOCK) \
                of CapEff in /proc/self/status, which lifts it.",
        judges: "pass: no limit, or CAP_IPC_LOCK. warn: 64 MiB or more. fail: less. unknown: not \
                 collected.",
        sources: &[
            "Linux mm/util.c: account_locked_vm; drivers/infiniband/core/umem.c",
            "https://github.com/openucx/ucx/issues/8229",
            "https://github.com/NVIDIA/nccl-tests/issues/206",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("memlock.container")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let lock = match own(context) {
        Datum::Present(lock) => lock,
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the limit of locked memory",
                &absent,
            )];
        }
    };
    let privileged = has(context, Capability::IPC_LOCK) == Datum::Present(true);
    let shown = format!("soft {}, hard {}", lock.soft, lock.hard);
    let finding = match lock.soft {
        Limit::Unlimited => Finding::pass(Subject::Node, "memory may be locked without limit"),
        soft if privileged => Finding::pass(
            Subject::Node,
            format!("this process may lock memory without limit (CAP_IPC_LOCK); others get {soft}"),
        ),
        soft if soft.is_little() => Finding::fail(
            Subject::Node,
            format!("only {soft} of memory may be locked: creating queues fails"),
        ),
        soft => Finding::warn(
            Subject::Node,
            format!("{soft} of memory may be locked: large host buffers fail to register"),
        ),
    };
    let bad = finding.verdict.is_bad();
    let mut finding = finding.evidence(
        format!("{} (Max locked memory)", virtual_path::LIMITS_SELF),
        shown,
    );
    if bad && lock.hard == Limit::Unlimited {
        finding = finding.fix(Fix::user(
            "Raise the limit in this shell",
            "ulimit -l unlimited",
        ));
    }
    if bad {
        finding = finding.fix(for_logins());
    }
    vec![finding]
}

/// Logins get no limit.
pub(super) fn for_logins() -> Fix {
    Fix {
        title: "Lift the limit for all logins".into(),
        actions: vec![Action::WriteFile {
            path: "/etc/security/limits.d/90-gdr-memlock.conf".into(),
            content: "* - memlock unlimited\nroot - memlock unlimited\n".into(),
        }],
        privilege: Privilege::Root,
        effect: Effect::AtRestart,
        persistence: Persistence::Permanent,
        risk: Risk::Low,
        caution: Some(
            "every user may then lock all memory; log in again, and start daemons anew, for it to \
             take effect"
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::super::memory_lock::limits;
    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    fn limited(soft: &str, hard: &str) -> MemorySource {
        example::healthy()
            .file("@limits/self", limits(soft, hard))
            .file("/proc/self/status", "CapEff:\t0000000000000000\n")
    }

    #[test]
    fn no_limit_passes() {
        assert_eq!(
            verdicts(&CHECK, &limited("unlimited", "unlimited")),
            [Verdict::Pass]
        );
    }

    #[test]
    fn the_default_of_8_mib_fails_and_a_gibibyte_is_a_warning() {
        let found = worst(&CHECK, &limited("8388608", "8388608"));
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(found.summary.contains("8192 KiB"), "{}", found.summary);
        assert_eq!(found.fixes.len(), 1);
        let found = worst(&CHECK, &limited("1073741824", "unlimited"));
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(found.fixes[0].privilege, Privilege::User);
    }

    #[test]
    fn who_may_lock_whatever_the_limit_passes_and_is_told_of_others() {
        let node =
            limited("65536", "65536").file("/proc/self/status", "CapEff:\t000001ffffffffff\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Pass);
        assert!(
            found.summary.contains("others get 64 KiB"),
            "{}",
            found.summary
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let garbage = example::healthy()
            .file("@limits/self", "Max locked memory much\n")
            .without("/proc/self");
        assert_eq!(verdict(&CHECK, &garbage), Verdict::Unknown);
    }
}
