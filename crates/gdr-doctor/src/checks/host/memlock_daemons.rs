use super::memlock_self::for_logins;
use super::memory_lock::{Limit, read};
use crate::checks::prelude::*;

/// The daemons that start jobs, by process name, and their possible units. Jobs do not inherit from
/// kubelet and systemd: containers inherit from their runtime, services from their unit.
const DAEMONS: [(&str, &[&str]); 8] = [
    ("slurmd", &["slurmd.service"]),
    ("containerd", &["containerd.service"]),
    ("crio", &["crio.service"]),
    ("dockerd", &["docker.service"]),
    ("k3s", &["k3s.service"]),
    ("pbs_mom", &["pbs.service"]),
    ("torque_mom", &["pbs.service"]),
    ("sshd", &["sshd.service", "ssh.service"]),
];

pub(super) const CHECK: Check = Check {
    id: CheckId("memlock.daemons"),
    title: "daemons that start jobs do not limit locked memory",
    why: "A job inherits its limits from the daemon that starts it (slurmd, a container runtime, \
          sshd), not from the shell in which a user runs `ulimit -l`. RDMA may therefore work in a \
          shell and fail in the queue. Logins over ssh get their limits from limits.d through PAM.",
    inputs: "\"Max locked memory\" in /proc/<pid>/limits of the daemons; LimitMEMLOCK of their \
             units; memlock in /etc/security/limits.conf and limits.d for logins; \
             PropagateResourceLimits of Slurm.",
    criteria: "pass: no limit. warn: a limit. info: a limit of sshd that limits.d removes for \
               logins. skip: none of the daemons runs. unknown: not collected.",
    sources: &[
        "systemd.exec(5): LimitMEMLOCK=",
        "limits.conf(5), pam_limits(8)",
        "slurm.conf(5): PropagateResourceLimitsExcept",
        "https://github.com/NVIDIA/nccl-tests/issues/206",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Several(run),
    otherwise: Some("no daemon that starts jobs runs on this node"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let limits = context.source.list(virtual_path::LIMITS);
    let units = context.source.list(virtual_path::SYSTEMD);
    if limits.is_unknown() && units.is_err() {
        limits.known("the list of limits of daemons that start jobs")?;
    }
    Ok(runner::each(DAEMONS, |(daemon, units)| {
        (
            Subject::Named(daemon.to_owned()),
            judge(context, daemon, units),
        )
    }))
}

fn judge(context: &Context<'_>, daemon: &str, units: &[&str]) -> Judgement {
    let path = format!("{}/{daemon}", virtual_path::LIMITS);
    let unit = units.iter().find_map(|unit| {
        let path = format!("{}/{unit}", virtual_path::SYSTEMD);
        Some((*unit, path, context.unit(unit).ok()?))
    });
    let (source, limit) = match read(context, &path) {
        Ok(lock) => (path, lock.soft),
        absent => {
            // If the limits of a running daemon are not readable, its unit has them.
            let (_, path, unit) = unit.as_ref().ok_or(Unjudged::OutOfScope)?;
            if !unit.is_active() {
                return Err(Unjudged::OutOfScope);
            }
            let limit = (unit.property("LimitMEMLOCKSoft")).or(unit.property("LimitMEMLOCK"));
            let Some(limit) = limit.and_then(Limit::parse) else {
                let what = "the limit of locked memory that its jobs inherit";
                return Ok(Finding::unknown(what, &absent));
            };
            (path.clone(), limit)
        }
    };
    if limit == Limit::Unlimited {
        return Ok(Finding::pass(
            "its jobs inherit no limit of locked \
                                 memory",
        )
        .evidence(source, limit));
    }
    if daemon == "sshd" {
        return Ok(logins(context, limit).evidence(source, limit));
    }
    let mut finding = Finding::warn(format!(
        "jobs that it starts may lock only {limit} of memory"
    ))
    .evidence(source, limit);
    if daemon == "slurmd" {
        let text = context.text("/etc/slurm/slurm.conf").ok();
        let line = text.as_deref().and_then(|text| {
            text.lines()
                .map(str::trim)
                .find(|line| line.starts_with("PropagateResourceLimits"))
        });
        if let Some(line) = line {
            finding = finding.evidence("/etc/slurm/slurm.conf", line);
        }
    }
    let unit = unit.map_or(units[0], |(unit, ..)| unit);
    finding = finding.fix(lift(unit));
    if daemon == "slurmd" {
        finding = finding.fix(
            Fix::now(
                "Make Slurm ignore the limit of the submitting shell",
                Action::Manual {
                    text: "add to slurm.conf: PropagateResourceLimitsExcept=MEMLOCK, then run \
                       `scontrol reconfigure`"
                        .into(),
                },
            )
            .persistence(Persistence::Permanent),
        );
    }
    Ok(finding)
}

fn logins(context: &Context<'_>, limit: Limit) -> Finding {
    let mut files = vec!["/etc/security/limits.conf".to_owned()];
    let names = context.source.list("/etc/security/limits.d").ok();
    files.extend(
        names
            .into_iter()
            .flatten()
            .map(|name| format!("/etc/security/limits.d/{name}")),
    );
    let lifted = files.into_iter().find_map(|file| {
        let text = context.text(&file).ok()?;
        let line = text.lines().map(str::trim).find(|line| lifts(line))?;
        Some((file, line.to_owned()))
    });
    match lifted {
        Some((file, line)) => Finding::info(format!(
            "it has a limit of {limit}, which {file} removes for logins"
        ))
        .evidence(file, line),
        None => Finding::warn(format!("logins over ssh may lock only {limit} of memory"))
            .fix(for_logins()),
    }
}

/// Returns whether a line of limits.conf removes the limit for all users: `* - memlock unlimited`.
fn lifts(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(
        words[..],
        [
            "*",
            "-" | "soft",
            "memlock",
            "unlimited" | "-1" | "infinity",
            ..
        ]
    )
}

fn lift(unit: &str) -> Fix {
    let action = Action::file(
        format!("/etc/systemd/system/{unit}.d/90-memlock.conf"),
        "[Service]\nLimitMEMLOCK=infinity\n",
    );
    Fix::now(format!("Remove the limit of {unit}"), action)
        .effect(Effect::AtRestart)
        .persistence(Persistence::Permanent)
        .risk(
            Risk::Medium,
            format!(
                "it takes effect after `systemctl daemon-reload && systemctl restart {unit}`, which \
                 may end jobs that {unit} started"
            ),
        )
}

#[cfg(test)]
mod tests {
    use super::super::memory_lock::limits;
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn daemons_without_a_limit_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 3]);
    }

    #[test]
    fn a_limit_of_slurmd_is_a_warning_with_a_drop_in_as_fix() {
        let node = example::healthy()
            .file("@limits/slurmd", limits("8388608", "8388608"))
            .file("/etc/slurm/slurm.conf", "PropagateResourceLimits=ALL\n");
        let found = judged(&CHECK, &node, Warn);
        assert_eq!(found.subject, Subject::Named("slurmd".into()));
        assert!(matches!(
            &found.fixes[0].actions[0],
            Action::WriteFile { path, content }
                if path == "/etc/systemd/system/slurmd.service.d/90-memlock.conf"
                    && content.contains("LimitMEMLOCK=infinity")
        ));
        assert_eq!(found.fixes.len(), 2);
    }

    #[test]
    fn limits_d_removes_the_limit_of_sshd_for_logins() {
        let node = example::healthy().file("@limits/sshd", limits("8388608", "8388608"));
        assert_eq!(verdict(&CHECK, &node), Info);
        let node = node.without("/etc/security/limits.d");
        assert_eq!(verdict(&CHECK, &node), Warn);
    }

    #[test]
    fn the_unit_decides_if_the_limits_of_a_daemon_are_not_readable() {
        let node = example::healthy().denied("@limits/containerd").file(
            "@systemd/containerd.service",
            "ActiveState=active\nLimitMEMLOCK=8388608\n",
        );
        assert_eq!(verdict(&CHECK, &node), Warn);
        let node = node.file("@systemd/containerd.service", "ActiveState=active\n");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }

    #[test]
    fn a_node_without_such_a_daemon_is_skipped() {
        let alone = MemorySource::new().file("@limits/self", limits("1", "1"));
        assert_eq!(verdict(&CHECK, &alone), Skip);
    }
}
