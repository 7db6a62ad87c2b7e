use super::memory_lock::{Limit, own_and_privilege};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("memlock.self"),
    title: "processes that are started from here may lock enough memory",
    why: "The queues of RDMA connections and registered host memory are locked, and the kernel \
          counts them against RLIMIT_MEMLOCK. The first queues use up a default of 64 KiB. A limit \
          of 8 MiB is enough for some queues, but not for large buffers: registering them fails \
          with \"Cannot allocate memory\". GPU memory does not count.",
    inputs: "\"Max locked memory\" of this process, and bit 14 (CAP_IPC_LOCK) of CapEff in \
             /proc/self/status, which removes the limit.",
    criteria: "pass: no limit, or CAP_IPC_LOCK. warn: 1 MiB or more: queue pairs work, large \
               registrations fail. fail: less. unknown: not collected.",
    sources: &[
        "Linux mm/util.c: account_locked_vm; drivers/infiniband/core/umem.c",
        "https://github.com/openucx/ucx/issues/8229",
        "https://github.com/NVIDIA/nccl-tests/issues/206",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["memlock.container"],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let (lock, privileged) = own_and_privilege(context)?;
    let shown = format!("soft {}, hard {}", lock.soft, lock.hard);
    let finding = match lock.soft {
        Limit::Unlimited => Finding::pass("there is no limit of locked memory"),
        soft if privileged => Finding::pass(format!(
            "this process has no limit of locked memory (CAP_IPC_LOCK); others get {soft}"
        )),
        soft if soft.is_little() => Finding::fail(format!(
            "only {soft} of memory may be locked: {}",
            soft.consequence()
        )),
        soft => Finding::warn(format!(
            "{soft} of memory may be locked: {}",
            soft.consequence()
        )),
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
    Ok(finding)
}

/// Returns the fix that removes the limit for logins.
pub(super) fn for_logins() -> Fix {
    let action = Action::file(
        "/etc/security/limits.d/90-gdr-memlock.conf",
        "* - memlock unlimited\nroot - memlock unlimited\n",
    );
    Fix::now("Remove the limit for all logins", action)
        .effect(Effect::AtRestart)
        .persistence(Persistence::Permanent)
        .risk(
            Risk::Low,
            "every user may then lock all memory; it takes effect after a new login and after a \
             restart of daemons",
        )
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::super::memory_lock::limits;
    use super::*;
    use crate::checks::fixture::*;

    fn limited(soft: &str, hard: &str) -> MemorySource {
        example::healthy()
            .file("@limits/self", limits(soft, hard))
            .file("/proc/self/status", "CapEff:\t0000000000000000\n")
    }

    #[test]
    fn no_limit_passes() {
        assert_eq!(verdicts(&CHECK, &limited("unlimited", "unlimited")), [Pass]);
    }

    #[test]
    fn the_default_of_64_kib_fails_and_8_mib_is_a_warning() {
        assert_eq!(verdict(&CHECK, &limited("65536", "65536")), Fail);
        let found = judged(&CHECK, &limited("8388608", "8388608"), Warn);
        assert_contains!(found.summary, "8192 KiB");
        assert_contains!(found.summary, "queue pairs can be created");
        assert_eq!(found.fixes.len(), 1);
        let found = judged(&CHECK, &limited("1073741824", "unlimited"), Warn);
        assert_eq!(found.fixes[0].privilege, Privilege::User);
    }

    #[test]
    fn a_process_with_the_capability_passes_and_the_limit_of_others_is_shown() {
        let node =
            limited("65536", "65536").file("/proc/self/status", "CapEff:\t000001ffffffffff\n");
        let found = judged(&CHECK, &node, Pass);
        assert_contains!(found.summary, "others get 64 KiB");
    }

    #[test]
    fn an_unreadable_limit_is_unknown() {
        let garbage = example::healthy()
            .file("@limits/self", "Max locked memory much\n")
            .without("/proc/self");
        assert_eq!(verdict(&CHECK, &garbage), Unknown);
    }
}
