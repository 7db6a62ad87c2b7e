use super::memory_lock::{Limit, own_and_privilege};
use crate::checks::prelude::*;
use crate::process::{Capability, Process};

pub(super) const CHECK: Check = Check {
    id: CheckId("memlock.container"),
    title: "processes in the container may lock enough memory",
    why: "Inside a container no process can raise the limit of locked memory. It can be set only \
          when the container is started.",
    inputs: "\"Max locked memory\" of this process; Uid, CapEff and CapBnd (bit 14, CAP_IPC_LOCK) \
             in /proc/self/status: a capability that was added to a container is effective only \
             for processes of root; /.dockerenv, /run/.containerenv and /proc/1/cgroup to find out \
             whether this is a container.",
    criteria: "skip: not a container. pass: no limit, or CAP_IPC_LOCK is effective. fail: less \
               than 1 MiB. warn: 1 MiB or more. unknown: not collected.",
    sources: &[
        "docker run --ulimit memlock=-1:-1, --cap-add IPC_LOCK",
        "https://github.com/stas00/ml-engineering (network debugging)",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let container = context.facts().container.by_ref();
    if container.known("whether this is a container")? == &Container::No {
        return Err(Unjudged::skip("this is not a container"));
    }
    let (lock, privileged) = own_and_privilege(context)?;
    let process = Process::read(context.source);
    let inert = !privileged && process.could_have(Capability::IPC_LOCK) == Ok(true);
    let given = if inert && process.is_root() == Ok(false) {
        "; CAP_IPC_LOCK was added to the container, but has no effect, since this process does not \
         run as root"
    } else {
        ""
    };
    let finding = match lock.soft {
        Limit::Unlimited => {
            Finding::pass("the container was started without a limit of locked memory")
        }
        _ if privileged => Finding::pass("the container has CAP_IPC_LOCK"),
        soft => Finding::new(
            if soft.is_little() {
                Verdict::Fail
            } else {
                Verdict::Warn
            },
            format!(
                "the container was started with a limit of {soft}: {}{given}",
                soft.consequence()
            ),
        ),
    };
    let finding = finding.evidence(
        format!("{} (Max locked memory)", virtual_path::LIMITS_SELF),
        lock.soft,
    );
    let finding = match context.text("/proc/self/status") {
        Ok(status) => finding.evidence("/proc/self/status", relevant(&status)),
        _ => finding,
    };
    Ok(finding
        .fix_if_bad(runtime())
        .fix(docker())
        .fix(kubernetes()))
}

/// Returns the lines of /proc/self/status that the finding rests on.
fn relevant(status: &str) -> String {
    let wanted = ["Uid:", "CapEff:", "CapBnd:"];
    let lines = status
        .lines()
        .filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    let lines: Vec<String> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    lines.join(", ")
}

/// Returns the fix for all users of all containers, including Kubernetes' ones.
fn runtime() -> Fix {
    Fix {
        effect: Effect::AtRestart,
        ..Fix::manual(
            "On the host, remove the limit that containers inherit from the container runtime",
            "on the host: `systemctl edit containerd` (crio, docker), add the lines `[Service]` and \
             `LimitMEMLOCK=infinity`, `systemctl restart containerd`, then start the container \
             again",
        )
    }
}

fn docker() -> Fix {
    Fix {
        privilege: Privilege::Root,
        risk: Risk::None,
        ..Fix::user(
            "Docker or Podman: restart the container with an option that applies to every user in \
             it",
            "docker run --ulimit memlock=-1:-1 --device /dev/infiniband …",
        )
    }
}

fn kubernetes() -> Fix {
    let mut fix = Fix::user(
        "Kubernetes: restart the pod, for containers that run as root",
        "",
    );
    fix.actions = vec![Action::Manual {
        text: "in the pod: securityContext.capabilities.add: [IPC_LOCK]. It has no effect in a \
               container that does not run as root. For such containers set LimitMEMLOCK of the \
               container runtime, since Kubernetes has no setting for the limit"
            .into(),
    }];
    fix
}

#[cfg(test)]
mod tests {
    use gdr_node::Inventory;
    use snapshot::assert_contains;

    use super::super::memory_lock::limits;
    use super::*;
    use crate::checks::fixture::*;
    use crate::diagnosis::{Selection, diagnose};

    fn container(soft: &str) -> MemorySource {
        example::healthy()
            .file("/.dockerenv", "")
            .file("@limits/self", limits(soft, soft))
            .file("/proc/self/status", "CapEff:\t00000000a80425fb\n")
    }

    #[test]
    fn a_capability_without_effect_is_named_and_the_fix_sets_the_limit_of_the_runtime() {
        let node = container("65536").file(
            "/proc/self/status",
            "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n\
             CapBnd:\t00000000a80465fb\n",
        );
        let found = judged(&CHECK, &node, Fail);
        assert_contains!(found.summary, "has no effect");
        let first = found.fixes[0].actions[0].to_string();
        assert_contains!(first, "LimitMEMLOCK=infinity");
        let evidence = found.evidence.iter().any(|it| it.value.contains("CapBnd"));
        assert!(evidence, "{:?}", found.evidence);
        // Without the capability the summary does not name it.
        let found = judged(&CHECK, &container("8388608"), Warn);
        assert!(!found.summary.contains("no effect"), "{}", found.summary);
    }

    #[test]
    fn a_node_that_is_not_a_container_is_skipped() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Skip]);
    }

    #[test]
    fn a_container_without_a_limit_passes() {
        assert_eq!(verdict(&CHECK, &container("unlimited")), Pass);
        let capable = container("65536").file("/proc/self/status", "CapEff:\t0000000000004000\n");
        assert_eq!(verdict(&CHECK, &capable), Pass);
    }

    #[test]
    fn the_limit_of_the_container_is_the_cause_of_that_of_the_process() {
        let node = container("65536");
        let found = judged(&CHECK, &node, Fail);
        assert_eq!(found.fixes.len(), 3);
        let inventory = Inventory::read(&node);
        let both = Selection::all().only([CHECK.id, CheckId("memlock.self")]);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &both);
        assert_eq!(diagnosis.counts().fail, 2);
        let causes = diagnosis.root_causes();
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].1.check.id, CHECK.id);
    }

    #[test]
    fn an_uncollected_limit_is_unknown() {
        let node = container("1").without("/proc/self").without("@limits");
        assert_eq!(verdict(&CHECK, &node), Unknown);
        let node = container("1").not_collected("/proc/self/status");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
