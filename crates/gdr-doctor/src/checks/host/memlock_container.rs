//! `memlock.container`: the container was started without a limit of locked memory.

use gdr_node::{Datum, virtual_path};

use super::memory_lock::{Capability, Limit, has, own};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::facts::Container;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Privilege, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("memlock.container"),
    group: Group::Host,
    title: "the container may lock as much memory as it needs",
    documentation: Documentation {
        means: "Inside a container nobody can lift the limit of locked memory: it is set when the \
                container is started, or not at all.",
        reads: "\"Max locked memory\" of the process that looks and bit 14 (CAP_IPC_LOCK) of CapEff \
                in /proc/self/status; /.dockerenv, /run/.containerenv and /proc/1/cgroup for \
                whether this is a container.",
        judges: "skip: no container. pass: no limit, or CAP_IPC_LOCK. fail: less than 64 MiB. warn: \
                 64 MiB or more. unknown: not collected.",
        sources: &[
            "docker run --ulimit memlock=-1:-1, --cap-add IPC_LOCK",
            "https://github.com/stas00/ml-engineering (network debugging)",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    match &context.facts().container {
        Datum::Present(Container::Yes) => {}
        Datum::Present(Container::No) => return vec![Finding::skip("this is no container")],
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "whether this is a container",
                absent,
            )];
        }
    }
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
    let finding = match lock.soft {
        Limit::Unlimited => Finding::pass(
            Subject::Node,
            "the container was started without a limit of locked memory",
        ),
        _ if privileged => Finding::pass(Subject::Node, "the container has CAP_IPC_LOCK"),
        soft if soft.is_little() => Finding::fail(
            Subject::Node,
            format!("the container was started with a limit of {soft}: creating queues fails"),
        ),
        soft => Finding::warn(
            Subject::Node,
            format!("the container was started with a limit of {soft}"),
        ),
    };
    let bad = finding.verdict.is_bad();
    let finding = finding.evidence(
        format!("{} (Max locked memory)", virtual_path::LIMITS_SELF),
        lock.soft.to_string(),
    );
    vec![if bad {
        finding.fix(docker()).fix(kubernetes())
    } else {
        finding
    }]
}

fn docker() -> Fix {
    Fix {
        privilege: Privilege::Root,
        risk: Risk::None,
        ..Fix::user(
            "Start the container anew: Docker, Podman",
            "docker run --ulimit memlock=-1:-1 --cap-add IPC_LOCK --device /dev/infiniband …",
        )
    }
}

fn kubernetes() -> Fix {
    let mut fix = Fix::user("Start the pod anew: Kubernetes", "");
    fix.actions = vec![Action::Manual {
        text:
            "in the pod: securityContext.capabilities.add: [IPC_LOCK]; Kubernetes has no setting \
               of its own for the limit, which comes from LimitMEMLOCK of containerd or crio"
                .into(),
    }];
    fix
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource, example};

    use super::super::memory_lock::limits;
    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::diagnosis::{Selection, diagnose};
    use crate::finding::Verdict;

    fn container(soft: &str) -> MemorySource {
        example::healthy()
            .file("/.dockerenv", "")
            .file("@limits/self", limits(soft, soft))
            .file("/proc/self/status", "CapEff:\t00000000a80425fb\n")
    }

    #[test]
    fn outside_of_a_container_it_is_no_question() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Skip]);
    }

    #[test]
    fn a_container_without_a_limit_passes() {
        assert_eq!(verdict(&CHECK, &container("unlimited")), Verdict::Pass);
        let capable = container("65536").file("/proc/self/status", "CapEff:\t0000000000004000\n");
        assert_eq!(verdict(&CHECK, &capable), Verdict::Pass);
    }

    #[test]
    fn the_limit_of_the_container_is_the_cause_of_that_of_the_process() {
        let node = container("65536");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Fail);
        assert_eq!(found.fixes.len(), 2);
        let inventory = Inventory::read(&node);
        let both = Selection::all().only([CHECK.id, CheckId("memlock.self")]);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &both);
        assert_eq!(diagnosis.counts().fail, 2);
        let causes = diagnosis.root_causes();
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].1.check.id, CHECK.id);
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let node = container("1").without("/proc/self").without("@limits");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
    }
}
