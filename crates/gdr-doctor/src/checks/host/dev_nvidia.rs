use super::device_list::{DeviceNode, read};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("dev.nvidia"),
    title: "the device nodes of GPUs exist and may be opened",
    why: "CUDA opens /dev/nvidiactl, /dev/nvidia-uvm and one node for each GPU. If one is missing, \
          or has an old major number of the driver, CUDA finds no device.",
    inputs: "The nodes with their modes and numbers, and whether this process may read and write \
             them; \"Device Minor\" in /proc/driver/nvidia/gpus/*/information; /proc/devices.",
    criteria: "pass: the node exists, has the right number, and this process may open it. warn: \
               this process may not open it. fail: missing, or another number. skip: no GPU, or \
               the driver is not loaded. unknown: not collected.",
    sources: &[
        "NVIDIA driver README, chapter 8: device files",
        "nvidia-modprobe(1)",
    ],
    symptom_of: &["gpu.driver", "gpu.present"],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let gpus = runner::gpus(context)?;
    if context.facts().nvidia == Err(Absence::Missing) {
        return Err(Unjudged::skip("NVIDIA's driver is not loaded"));
    }
    let nodes = read(context).known("the list of device nodes")?;
    let majors = context.text("/proc/devices").ok();
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
    let shared = [
        ("/dev/nvidiactl", "nvidia"),
        ("/dev/nvidia-uvm", "nvidia-uvm"),
    ];
    let mut findings = runner::each(shared, |(path, driver)| {
        (Subject::Node, judge(context, path, &nodes, major(driver)))
    });
    findings.extend(runner::each(gpus, |(gpu, _)| {
        let minor = minor(context, gpu.bdf).known("the minor number of its device node");
        let judge = |minor| {
            let path = format!("/dev/nvidia{minor}");
            judge(context, &path, &nodes, major("nvidia"))
        };
        (Subject::gpu(gpu), minor.and_then(judge))
    }));
    Ok(findings)
}

fn minor(context: &Context<'_>, bdf: Bdf) -> Datum<u32> {
    let path = format!("/proc/driver/nvidia/gpus/{bdf}/information");
    context.text(&path).and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Device Minor:"));
        line.and_then(|number| number.trim().parse().ok())
            .ok_or(Absence::Missing)
    })
}

fn judge(context: &Context<'_>, path: &str, nodes: &[DeviceNode], major: Option<u32>) -> Judgement {
    let Some(node) = nodes.iter().find(|node| node.path == path) else {
        return Ok(
            Finding::fail(format!("{path} is missing: CUDA cannot open it"))
                .evidence(virtual_path::DEVICE_NODES, format!("no {path}"))
                .fix(create(context)),
        );
    };
    let finding = match major {
        Some(major) if major != node.major => Finding::fail(format!(
            "{path} has major number {}, but the driver has {major}: CUDA cannot open it",
            node.major
        ))
        .fix(create(context)),
        _ if !node.open => Finding::warn(format!("this process may not open {path}")).fix(
            Fix::run("Let every user open it", format!("chmod 0666 {path}")),
        ),
        _ => Finding::pass(format!("this process may open {path}")),
    };
    Ok(finding.evidence(virtual_path::DEVICE_NODES, &node.line))
}

fn create(context: &Context<'_>) -> Fix {
    if context.is_container() {
        return Fix::user(
            "Start the container with the GPUs",
            "docker run --gpus all …   # needs the NVIDIA Container Toolkit on the host",
        );
    }
    Fix::run("Create the nodes", "nvidia-modprobe -u -c=0 && nvidia-smi")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn nodes_that_may_be_opened_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn a_missing_node_and_one_of_another_number_fail() {
        let node = with_nodes(|line| (!line.ends_with("/nvidia5")).then(|| line.to_owned()));
        let found = judged(&CHECK, &node, Fail);
        assert_eq!(found.subject.to_string(), "GPU5");
        let node = with_nodes(|line| Some(line.replace("507:0", "505:0")));
        assert_eq!(verdict(&CHECK, &node), Fail);
    }

    #[test]
    fn a_closed_node_is_a_warning() {
        let node = with_nodes(|line| Some(line.replace("195:255 rw", "195:255 --")));
        assert_eq!(verdict(&CHECK, &node), Warn);
    }

    #[test]
    fn uncollected_nodes_are_unknown() {
        let path = format!("/proc/driver/nvidia/gpus/{}/information", example::GPUS[0]);
        assert_eq!(verdict(&CHECK, &example::healthy().denied(&path)), Unknown);
    }
}
