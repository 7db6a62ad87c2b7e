use super::memlock_self::for_logins;
use super::memory_lock::{Limit, read};
use crate::checks::prelude::*;

/// What starts jobs, by the names of processes, and the units that it may belong to. Of kubelet and
/// systemd itself no job inherits: containers do from their runtime, services from their unit.
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
    title: "daemons that start jobs pass on no limit of locked memory",
    why: "A job inherits its limits from what starts it, not from the shell in which a user \
          looked at `ulimit -l`: slurmd, a container runtime, sshd. That is why RDMA works by hand \
          and fails in the queue. Logins over ssh get theirs from limits.d by PAM.",
    inputs: "\"Max locked memory\" in /proc/<pid>/limits of the daemons; LimitMEMLOCK of their \
          units; memlock in /etc/security/limits.conf and limits.d for logins; \
          PropagateResourceLimits of Slurm.",
    criteria: "pass: no limit. warn: a limit. info: a limit of sshd that limits.d lifts for \
          logins. skip: none of them runs. unknown: not collected.",
    sources: &[
        "systemd.exec(5): LimitMEMLOCK=",
        "limits.conf(5), pam_limits(8)",
        "slurm.conf(5): PropagateResourceLimitsExcept",
        "https://github.com/NVIDIA/nccl-tests/issues/206",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Several(run),
    otherwise: Some("no daemon that starts jobs runs here"),
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
            // A daemon that runs and whose limits may not be seen is judged by its unit.
            let (_, path, unit) = unit.as_ref().ok_or(Unjudged::OutOfScope)?;
            if !unit.is_active() {
                return Err(Unjudged::OutOfScope);
            }
            let limit = (unit.property("LimitMEMLOCKSoft")).or(unit.property("LimitMEMLOCK"));
            let Some(limit) = limit.and_then(Limit::parse) else {
                let what = "the limit of locked memory that it passes on";
                return Ok(Finding::unknown(what, &absent));
            };
            (path.clone(), limit)
        }
    };
    if limit == Limit::Unlimited {
        return Ok(Finding::pass("it passes on no limit of locked memory").evidence(source, limit));
    }
    if daemon == "sshd" {
        return Ok(logins(context, limit).evidence(source, limit));
    }
    let mut finding = Finding::warn(format!(
        "jobs that it starts may lock {limit} of memory only"
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
                "Keep Slurm from passing on the limit of the shell that submits",
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
            "it has a limit of {limit} itself, which {file} lifts for logins"
        ))
        .evidence(file, line),
        None => Finding::warn(format!("logins by ssh may lock {limit} of memory only"))
            .fix(for_logins()),
    }
}

/// Whether a line of limits.conf lifts the limit for all: `* - memlock unlimited`.
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
    Fix {
        title: format!("Lift the limit of {unit}"),
        actions: vec![Action::file(
            format!("/etc/systemd/system/{unit}.d/90-memlock.conf"),
            "[Service]\nLimitMEMLOCK=infinity\n",
        )],
        privilege: Privilege::Root,
        effect: Effect::AtRestart,
        persistence: Persistence::Permanent,
        risk: Risk::Medium,
        caution: Some(format!(
            "it counts after `systemctl daemon-reload && systemctl restart {unit}`, which may end \
             what {unit} started"
        )),
    }
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
    fn a_limit_of_slurmd_is_warned_of_with_a_drop_in() {
        let node = example::healthy()
            .file("@limits/slurmd", limits("8388608", "8388608"))
            .file("/etc/slurm/slurm.conf", "PropagateResourceLimits=ALL\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Warn);
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
    fn logins_get_theirs_from_limits_d() {
        let node = example::healthy().file("@limits/sshd", limits("8388608", "8388608"));
        assert_eq!(verdict(&CHECK, &node), Info);
        let node = node.without("/etc/security/limits.d");
        assert_eq!(verdict(&CHECK, &node), Warn);
    }

    #[test]
    fn a_unit_speaks_for_a_daemon_that_may_not_be_looked_at() {
        let node = example::healthy().denied("@limits/containerd").file(
            "@systemd/containerd.service",
            "ActiveState=active\nLimitMEMLOCK=8388608\n",
        );
        assert_eq!(verdict(&CHECK, &node), Warn);
        let node = node.file("@systemd/containerd.service", "ActiveState=active\n");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_daemon_is_no_question() {
        let alone = MemorySource::new().file("@limits/self", limits("1", "1"));
        assert_eq!(verdict(&CHECK, &alone), Skip);
    }
}
