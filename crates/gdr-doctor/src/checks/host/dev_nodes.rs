use super::device_list::{DeviceNode, read};
use crate::checks::prelude::*;

/// The directory of the character devices of verbs.
const CLASS: &str = "/sys/class/infiniband_verbs";

pub(super) const CHECK: Check = Check {
    id: CheckId("dev.nodes"),
    title: "the device nodes of RDMA devices exist and may be opened",
    why: "Verbs programs open /dev/infiniband/uverbsN, and connection managers open rdma_cm. A \
          container sees the devices in sysfs even without their nodes: libraries then print \"No \
          device found\" or \"Unable to open device\" and use sockets.",
    inputs: "/sys/class/infiniband_verbs/*/ibdev; the nodes in /dev/infiniband, their modes, and \
             whether this process may read and write them.",
    criteria: "pass: the node exists and every user may open it. warn: this process or some users \
               may not open it; or rdma_cm is missing. fail: missing. skip: no RDMA device. \
               unknown: not collected.",
    sources: &[
        "rdma-core kernel-boot/rdma-ulp-modules, udev/60-rdma-*.rules (mode 0666)",
        "https://github.com/NVIDIA/nccl/issues/451",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["nic.driver"],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let names = match context.source.list(CLASS) {
        Err(Absence::Missing) => return Ok(vec![without_interface(context)?]),
        names => names.known("the list of verbs devices")?,
    };
    let verbs: Vec<&String> = (names.iter())
        .filter(|name| name.starts_with("uverbs"))
        .collect();
    if verbs.is_empty() {
        return Err(Unjudged::skip("there is no RDMA device"));
    }
    let nodes = read(context).known("the list of device nodes")?;
    let mut findings = runner::each(verbs, |name| {
        let device = context.text(&format!("{CLASS}/{name}/ibdev"));
        let device = device.ok().unwrap_or_else(|| name.clone());
        let nic = context.nics().iter().find(|nic| nic.name == device);
        let mut all = context.inventory.rdma_functions();
        let left_out = nic.is_none() && all.any(|(rdma, _)| rdma.name == device);
        let subject = nic.map_or_else(|| Subject::Named(device.clone()), Subject::nic);
        if left_out {
            return (subject, Err(Unjudged::OutOfScope));
        }
        (
            subject,
            judge(context, &format!("/dev/infiniband/{name}"), &nodes),
        )
    });
    if (nodes.iter()).all(|node| node.path != "/dev/infiniband/rdma_cm") {
        findings.push(
            Finding::warn(
                "/dev/infiniband/rdma_cm is missing: programs that use rdma_cm cannot connect",
            )
            .evidence(virtual_path::DEVICE_NODES, "no /dev/infiniband/rdma_cm")
            .fix(missing(context, "rdma_ucm")),
        );
    }
    Ok(findings)
}

/// Returns the finding about a node whose kernel shows no verbs devices.
fn without_interface(context: &Context<'_>) -> Judgement {
    if (context.inventory.rdma.as_ref().ok()).is_none_or(Vec::is_empty) {
        return Err(Unjudged::skip("there is no RDMA device"));
    }
    let facts = context.facts();
    if facts.modules.is_err() || facts.module("ib_uverbs").is_ok() {
        // A capture without the class looks the same.
        Err(Absence::Missing).known("the list of verbs devices")?;
    }
    Ok(Finding::fail(
        "there are RDMA devices, but ib_uverbs is not loaded: programs cannot use \
                       them",
    )
    .evidence("/proc/modules", "no ib_uverbs")
    .fix(Fix::now("Load ib_uverbs", Action::load("ib_uverbs"))))
}

fn judge(context: &Context<'_>, path: &str, nodes: &[DeviceNode]) -> Judgement {
    let Some(node) = nodes.iter().find(|node| node.path == path) else {
        return Ok(
            Finding::fail(format!("{path} is missing: no program can open it"))
                .evidence(virtual_path::DEVICE_NODES, format!("no {path}"))
                .fix(missing(context, "ib_uverbs")),
        );
    };
    let all_users = node.mode & 0o006 == 0o006;
    let finding = match (node.open, all_users) {
        (true, true) => Finding::pass(format!("every user may open {path}")),
        (true, false) => Finding::warn(format!(
            "this process may open {path}, but not every user may"
        ))
        .fix(open_up()),
        (false, _) => Finding::warn(format!("this process may not open {path}")).fix(open_up()),
    };
    Ok(finding.evidence(virtual_path::DEVICE_NODES, &node.line))
}

/// Returns the fix for a missing node.
fn missing(context: &Context<'_>, module: &str) -> Fix {
    if context.is_container() {
        return Fix::user(
            "Start the container with the devices",
            "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1:-1 …",
        );
    }
    Fix::now(
        "Load the module that creates the node",
        Action::load(module.to_owned()),
    )
}

fn open_up() -> Fix {
    Fix::now(
        "Let every user open the nodes, as rdma-core's rules do",
        Action::file(
            "/etc/udev/rules.d/90-rdma-mode.rules",
            "SUBSYSTEM==\"infiniband_verbs\", MODE=\"0666\"\n\
                      KERNEL==\"rdma_cm\", MODE=\"0666\"\n",
        ),
    )
    .then(Action::run("udevadm control --reload && udevadm trigger"))
    .effect(Effect::Now)
    .persistence(Persistence::Permanent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn nodes_that_every_user_may_open_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn a_missing_node_fails_and_the_fix_differs_in_a_container() {
        let node = with_nodes(|line| (!line.ends_with("uverbs3")).then(|| line.to_owned()));
        let found = judged(&CHECK, &node, Fail);
        assert_eq!(found.subject.to_string(), "mlx5_3");
        assert!(found.fixes[0].title.contains("Load"));
        let found = worst(&CHECK, &node.file("/.dockerenv", ""));
        assert!(found.fixes[0].title.contains("container"));
    }

    #[test]
    fn closed_nodes_and_a_missing_rdma_cm_are_warnings() {
        let closed = with_nodes(|line| Some(line.replace("0666", "0600").replace(" rw ", " -- ")));
        assert_eq!(verdicts(&CHECK, &closed), [Warn; 10]);
        let node = with_nodes(|line| (!line.ends_with("rdma_cm")).then(|| line.to_owned()));
        assert_eq!(verdict(&CHECK, &node), Warn);
    }

    #[test]
    fn devices_without_ib_uverbs_fail() {
        let node = example::healthy().without(CLASS);
        assert_eq!(verdict(&CHECK, &node), Unknown);
        let node = node.file("/proc/modules", "ib_core 1 0 - Live 0x0\n");
        assert_eq!(verdict(&CHECK, &node), Fail);
    }

    #[test]
    fn uncollected_nodes_are_unknown_and_a_node_without_devices_is_skipped() {
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Skip);
    }
}
