use super::memory_lock::{Limit, own_and_privilege};
use crate::checks::prelude::*;
use crate::process::{Capability, Process};

pub(super) const CHECK: Check = Check {
    id: CheckId("memlock.container"),
    title: "the container may lock as much memory as it needs",
    why: "Inside a container no process can lift the limit of locked memory: it is set when the \
          container is started, or not at all.",
    inputs: "\"Max locked memory\" of the process that looks; Uid, CapEff and CapBnd (bit 14, \
          CAP_IPC_LOCK) in /proc/self/status: a capability that was added to a container takes \
          effect for root's processes only; /.dockerenv, /run/.containerenv and /proc/1/cgroup for \
          whether this is a container.",
    criteria: "skip: no container. pass: no limit, or CAP_IPC_LOCK in effect. fail: less than 1 \
          MiB. warn: 1 MiB or more. unknown: not collected.",
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
        return Err(Unjudged::skip("this is no container"));
    }
    let (lock, privileged) = own_and_privilege(context)?;
    let process = Process::read(context.source);
    let inert = !privileged && process.could_have(Capability::IPC_LOCK) == Ok(true);
    let given = if inert && process.is_root() == Ok(false) {
        "; CAP_IPC_LOCK was added to it and has no effect, since this process is not root's"
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
        Ok(status) => finding.evidence("/proc/self/status", who(&status)),
        _ => finding,
    };
    Ok(finding
        .fix_if_bad(runtime())
        .fix(docker())
        .fix(kubernetes()))
}

/// The lines of a status that decide.
fn who(status: &str) -> String {
    let wanted = ["Uid:", "CapEff:", "CapBnd:"];
    let lines = status
        .lines()
        .filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    let lines: Vec<String> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    lines.join(", ")
}

/// What holds for every user of every container, Kubernetes' included.
fn runtime() -> Fix {
    Fix {
        effect: Effect::AtRestart,
        ..Fix::manual(
            "On the host, lift the limit that the container runtime passes on",
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
            "Start the container again, Docker or Podman: the option holds for every user in it",
            "docker run --ulimit memlock=-1:-1 --device /dev/infiniband …",
        )
    }
}

fn kubernetes() -> Fix {
    let mut fix = Fix::user("Start the pod again: Kubernetes, as root in the pod", "");
    fix.actions = vec![Action::Manual {
        text: "in the pod: securityContext.capabilities.add: [IPC_LOCK]. It has no effect for a \
               container that runs as another user than root: set LimitMEMLOCK of the container \
               runtime for these, since Kubernetes has no setting of its own for the limit"
            .into(),
    }];
    fix
}

#[cfg(test)]
mod tests {
    use gdr_node::Inventory;

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
    fn a_capability_that_has_no_effect_is_said_to_have_none_and_the_runtime_is_advised() {
        let node = container("65536").file(
            "/proc/self/status",
            "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n\
             CapBnd:\t00000000a80465fb\n",
        );
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Fail);
        assert!(found.summary.contains("has no effect"), "{}", found.summary);
        let first = found.fixes[0].actions[0].to_string();
        assert!(first.contains("LimitMEMLOCK=infinity"), "{first}");
        let evidence = found.evidence.iter().any(|it| it.value.contains("CapBnd"));
        assert!(evidence, "{:?}", found.evidence);
        // Without the capability there is nothing to say of it.
        let found = worst(&CHECK, &container("8388608"));
        assert_eq!(found.verdict, Warn);
        assert!(!found.summary.contains("no effect"), "{}", found.summary);
    }

    #[test]
    fn outside_of_a_container_it_is_no_question() {
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
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Fail);
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
    fn what_was_not_collected_is_unknown() {
        let node = container("1").without("/proc/self").without("@limits");
        assert_eq!(verdict(&CHECK, &node), Unknown);
        let node = container("1").not_collected("/proc/self/status");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
