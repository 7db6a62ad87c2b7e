//! `dev.nodes`: RDMA devices can be opened.

use gdr_node::{Datum, virtual_path};

use super::device_list::{DeviceNode, read};
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::facts::Container;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Effect, Fix, Persistence};

/// Where the kernel names the character devices of verbs.
const CLASS: &str = "/sys/class/infiniband_verbs";

pub(super) const CHECK: Check = Check {
    id: CheckId("dev.nodes"),
    group: Group::Host,
    title: "the device nodes of RDMA devices are there and may be opened",
    documentation: Documentation {
        means: "Verbs open /dev/infiniband/uverbsN, and connection managers rdma_cm. A container \
                sees the devices in sysfs even where it was not given their nodes: libraries then \
                say \"No device found\" or \"Unable to open device\" and use sockets.",
        reads: "/sys/class/infiniband_verbs/*/ibdev; the nodes in /dev/infiniband with their modes, \
                and whether this process may read and write them.",
        judges: "pass: there, and open to this process. warn: there, and not open to it, or not to \
                 everybody; rdma_cm is missing. fail: missing. skip: no RDMA device. unknown: not \
                 collected.",
        sources: &[
            "rdma-core kernel-boot/rdma-ulp-modules, udev/60-rdma-*.rules (mode 0666)",
            "https://github.com/NVIDIA/nccl/issues/451",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("nic.driver")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let names = match context.source.list(CLASS) {
        Datum::Present(names) => names,
        Datum::Missing => return vec![without_interface(context)],
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the list of verbs devices",
                &absent,
            )];
        }
    };
    let verbs: Vec<&String> = (names.iter())
        .filter(|name| name.starts_with("uverbs"))
        .collect();
    if verbs.is_empty() {
        return vec![Finding::skip("there is no RDMA device")];
    }
    let nodes = match read(context) {
        Datum::Present(nodes) => nodes,
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the list of device nodes",
                &absent,
            )];
        }
    };
    let mut findings: Vec<Finding> = Vec::new();
    for name in verbs {
        let device = context.text(&format!("{CLASS}/{name}/ibdev"));
        let device = device.into_present().unwrap_or_else(|| name.clone());
        let nic = context.nics().iter().find(|nic| nic.name == device);
        // A NIC that is not asked about.
        let all = &mut context.inventory.rdma_functions();
        if nic.is_none() && all.any(|(rdma, _)| rdma.name == device) {
            continue;
        }
        let subject = nic.map_or_else(|| Subject::Named(device.clone()), Subject::nic);
        let path = format!("/dev/infiniband/{name}");
        findings.push(judge(context, subject, &path, &nodes));
    }
    if !nodes
        .iter()
        .any(|node| node.path == "/dev/infiniband/rdma_cm")
    {
        findings.push(
            Finding::warn(
                Subject::Node,
                "/dev/infiniband/rdma_cm is missing: programs that connect by rdma_cm fail",
            )
            .evidence(virtual_path::DEVICE_NODES, "no /dev/infiniband/rdma_cm")
            .fix(missing(context, "rdma_ucm")),
        );
    }
    findings
}

/// What is to be said where the kernel shows no verbs devices at all.
fn without_interface(context: &Context<'_>) -> Finding {
    if (context.inventory.rdma.present()).is_none_or(Vec::is_empty) {
        return Finding::skip("there is no RDMA device");
    }
    let facts = context.facts();
    if !facts.modules.is_present() || facts.module("ib_uverbs").is_present() {
        // A capture that leaves the class out looks the same.
        return Finding::unknown(
            Subject::Node,
            "the list of verbs devices",
            &Datum::<()>::Missing,
        );
    }
    Finding::fail(
        Subject::Node,
        "there are RDMA devices and no interface to them for programs",
    )
    .evidence("/proc/modules", "no ib_uverbs")
    .fix(Fix::now(
        "Load the interface",
        Action::LoadModule {
            module: "ib_uverbs".into(),
        },
    ))
}

fn judge(context: &Context<'_>, subject: Subject, path: &str, nodes: &[DeviceNode]) -> Finding {
    let Some(node) = nodes.iter().find(|node| node.path == path) else {
        return Finding::fail(
            subject,
            format!("{path} is missing: no program can open it"),
        )
        .evidence(virtual_path::DEVICE_NODES, format!("no {path}"))
        .fix(missing(context, "ib_uverbs"));
    };
    let everybody = node.mode & 0o006 == 0o006;
    let finding = match (node.open, everybody) {
        (true, true) => Finding::pass(subject, format!("{path} may be opened")),
        (true, false) => Finding::warn(
            subject,
            format!("{path} may be opened from here, but not by every user"),
        )
        .fix(open_up()),
        (false, _) => {
            Finding::warn(subject, format!("{path} may not be opened from here")).fix(open_up())
        }
    };
    finding.evidence(virtual_path::DEVICE_NODES, node.line.clone())
}

/// How a node that is missing is brought about.
fn missing(context: &Context<'_>, module: &str) -> Fix {
    if context.facts().container == Datum::Present(Container::Yes) {
        return Fix::user(
            "Start the container with the devices",
            "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1:-1 …",
        );
    }
    Fix::now(
        "Load what makes the node",
        Action::LoadModule {
            module: module.to_owned(),
        },
    )
}

fn open_up() -> Fix {
    Fix::now(
        "Let every user open them, as rdma-core's rules do",
        Action::WriteFile {
            path: "/etc/udev/rules.d/90-rdma-mode.rules".into(),
            content: "SUBSYSTEM==\"infiniband_verbs\", MODE=\"0666\"\n\
                      KERNEL==\"rdma_cm\", MODE=\"0666\"\n"
                .into(),
        },
    )
    .then(Action::Command {
        line: "udevadm control --reload && udevadm trigger".into(),
    })
    .effect(Effect::Now)
    .persistence(Persistence::Permanent)
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, with_nodes, worst};
    use crate::finding::Verdict;

    #[test]
    fn nodes_that_everybody_may_open_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 10]);
    }

    #[test]
    fn a_missing_node_fails_and_the_fix_differs_in_a_container() {
        let node = with_nodes(|line| (!line.ends_with("uverbs3")).then(|| line.to_owned()));
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Fail);
        assert_eq!(found.subject.to_string(), "mlx5_3");
        assert!(found.fixes[0].title.contains("Load"));
        let found = worst(&CHECK, &node.file("/.dockerenv", ""));
        assert!(found.fixes[0].title.contains("container"));
    }

    #[test]
    fn closed_nodes_and_a_missing_rdma_cm_are_warned_of() {
        let closed = with_nodes(|line| Some(line.replace("0666", "0600").replace(" rw ", " -- ")));
        assert_eq!(verdicts(&CHECK, &closed), [Verdict::Warn; 10]);
        let node = with_nodes(|line| (!line.ends_with("rdma_cm")).then(|| line.to_owned()));
        assert_eq!(verdict(&CHECK, &node), Verdict::Warn);
    }

    #[test]
    fn devices_without_an_interface_fail() {
        let node = example::healthy().without(CLASS);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        let node = node.file("/proc/modules", "ib_core 1 0 - Live 0x0\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Fail);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_no_device_is_no_question() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let node = example::healthy().not_collected(virtual_path::DEVICE_NODES);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Verdict::Skip);
    }
}
