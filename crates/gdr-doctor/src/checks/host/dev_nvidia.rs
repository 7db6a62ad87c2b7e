//! `dev.nvidia`: GPUs can be opened.

use gdr_node::{Bdf, Datum, virtual_path};

use super::device_list::{DeviceNode, read};
use crate::check::{Check, CheckId, Documentation, Group};
use crate::checks::pcie::devices;
use crate::context::Context;
use crate::facts::Container;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix};

pub(super) const CHECK: Check = Check {
    id: CheckId("dev.nvidia"),
    group: Group::Host,
    title: "the device nodes of GPUs are there and may be opened",
    documentation: Documentation {
        means: "CUDA opens /dev/nvidiactl, /dev/nvidia-uvm and one node for each GPU. Where one is \
                missing, or was made when the driver had another number, CUDA finds no device.",
        reads: "The nodes with their modes and numbers, and whether this process may read and write \
                them; \"Device Minor\" in /proc/driver/nvidia/gpus/*/information; /proc/devices.",
        judges: "pass: there, open, of the right number. warn: there, and not open to this process. \
                 fail: missing or of another number. skip: no GPU, or no driver loaded. unknown: \
                 not collected.",
        sources: &[
            "NVIDIA driver README, chapter 8: device files",
            "nvidia-modprobe(1)",
        ],
    },
    purposes: &[],
    symptom_of: &[CheckId("gpu.driver"), CheckId("gpu.present")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let gpus = match devices::gpus(context) {
        Ok(gpus) => gpus,
        Err(why) => return why,
    };
    if context.facts().nvidia == Datum::Missing {
        return vec![Finding::skip("NVIDIA's driver is not loaded")];
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
    let majors = context.text("/proc/devices").into_present();
    let major = |driver: &str| {
        majors.as_deref().and_then(|text| {
            text.lines().find_map(|line| {
                let (number, name) = line.trim().split_once(' ')?;
                (name == driver)
                    .then(|| number.parse::<u32>().ok())
                    .flatten()
            })
        })
    };
    let mut findings = Vec::new();
    for (path, driver) in [
        ("/dev/nvidiactl", "nvidia"),
        ("/dev/nvidia-uvm", "nvidia-uvm"),
    ] {
        let found = judge(context, Subject::Node, path, &nodes, major(driver));
        findings.push(found);
    }
    for (gpu, function) in gpus {
        let subject = Subject::gpu(gpu);
        match minor(context, function.bdf) {
            Datum::Present(minor) => {
                let path = format!("/dev/nvidia{minor}");
                findings.push(judge(context, subject, &path, &nodes, major("nvidia")));
            }
            absent => findings.push(Finding::unknown(
                subject,
                "the number of its device node",
                &absent,
            )),
        }
    }
    findings
}

fn minor(context: &Context<'_>, bdf: Bdf) -> Datum<u32> {
    let path = format!("/proc/driver/nvidia/gpus/{bdf}/information");
    context.text(&path).and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Device Minor:"));
        line.and_then(|number| number.trim().parse().ok()).into()
    })
}

fn judge(
    context: &Context<'_>,
    subject: Subject,
    path: &str,
    nodes: &[DeviceNode],
    major: Option<u32>,
) -> Finding {
    let Some(node) = nodes.iter().find(|node| node.path == path) else {
        return Finding::fail(subject, format!("{path} is missing: CUDA cannot open it"))
            .evidence(virtual_path::DEVICE_NODES, format!("no {path}"))
            .fix(make(context));
    };
    let finding = match major {
        Some(major) if major != node.major => Finding::fail(
            subject,
            format!(
                "{path} has number {}, and the driver has {major}: it leads nowhere",
                node.major
            ),
        )
        .fix(make(context)),
        _ if !node.open => Finding::warn(subject, format!("{path} may not be opened from here"))
            .fix(Fix::now(
                "Let every user open it",
                Action::Command {
                    line: format!("chmod 0666 {path}"),
                },
            )),
        _ => Finding::pass(subject, format!("{path} may be opened")),
    };
    finding.evidence(virtual_path::DEVICE_NODES, node.line.clone())
}

fn make(context: &Context<'_>) -> Fix {
    if context.facts().container == Datum::Present(Container::Yes) {
        return Fix::user(
            "Start the container with the GPUs",
            "docker run --gpus all …   # needs the NVIDIA Container Toolkit on the host",
        );
    }
    Fix::now(
        "Make the nodes",
        Action::Command {
            line: "nvidia-modprobe -u -c=0 && nvidia-smi".into(),
        },
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, with_nodes, worst};
    use crate::finding::Verdict;

    #[test]
    fn nodes_that_may_be_opened_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 10]);
    }

    #[test]
    fn a_missing_node_and_one_of_another_number_fail() {
        let node = with_nodes(|line| (!line.ends_with("/nvidia5")).then(|| line.to_owned()));
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Fail);
        assert_eq!(found.subject.to_string(), "GPU5");
        let node = with_nodes(|line| Some(line.replace("507:0", "505:0")));
        assert_eq!(verdict(&CHECK, &node), Verdict::Fail);
    }

    #[test]
    fn a_closed_node_is_warned_of() {
        let node = with_nodes(|line| Some(line.replace("195:255 rw", "195:255 --")));
        assert_eq!(verdict(&CHECK, &node), Verdict::Warn);
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        let node = example::healthy().not_collected(virtual_path::DEVICE_NODES);
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        let path = format!("/proc/driver/nvidia/gpus/{}/information", example::GPUS[0]);
        assert_eq!(
            verdict(&CHECK, &example::healthy().denied(&path)),
            Verdict::Unknown
        );
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }

    #[test]
    fn without_a_gpu_or_its_driver_it_is_no_question() {
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
        let node = example::healthy().without("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &node), Verdict::Skip);
    }
}
