use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gdrdrv"),
    title: "if gdrdrv is loaded, it matches the driver and users may open it",
    why: "NVIDIA's GDRCopy maps GPU memory for the CPU through the module gdrdrv. NVSHMEM and UCX \
          use it for small messages. The module must be built for the flavour of the loaded \
          driver, and /dev/gdrdrv must be accessible to users and in the container. gdr itself \
          does not need it.",
    inputs: "/proc/modules; /sys/module/gdrdrv/version; the mode of /dev/gdrdrv; the kernel log \
             for the flavour that it was built for.",
    criteria: "pass: loaded, matching, accessible. info: not loaded. warn: built for the other \
               flavour, no device node, or users may not open it. unknown: the list of modules is \
               not known.",
    sources: &[
        "https://github.com/NVIDIA/gdrcopy (insmod.sh, gdrdrv.c)",
        "https://github.com/NVIDIA/gdrcopy/issues/138",
    ],
    workloads: &[Workload::Gdrcopy, Workload::Nvshmem, Workload::Ucx],
    scope: Scope::Node(run),
    ..super::CHECK
};

const NODE: &str = "/dev/gdrdrv";
/// Every user may read and write.
const OPEN: u32 = 0o666;

fn run(context: &Context<'_>) -> Judgement {
    let facts = context.facts();
    let version = context.text("/sys/module/gdrdrv/version");
    if version.is_err() {
        let module = facts.module("gdrdrv");
        if module == Err(Absence::Missing) {
            let load = Fix::now("Load gdrdrv", Action::load("gdrdrv"));
            return Ok(Finding::info(
                "gdrdrv is not loaded: libraries that use it copy another way; gdr maps without it",
            )
            .fix(load));
        }
        module.known("the list of loaded modules")?;
    }
    let built = context.logged(|line| line.contains("gdrdrv") && line.contains("built for"));
    let flavour = built.as_deref().and_then(|line| {
        if line.contains("built for proprietary") {
            Some(Flavour::Proprietary)
        } else if line.contains("built for opensource") {
            Some(Flavour::Open)
        } else {
            None
        }
    });
    let running = (facts.nvidia.as_ref().ok()).and_then(|driver| driver.flavour.ok());
    let nodes = context.text(virtual_path::DEVICE_NODES);
    let node = nodes.by_ref().and_then(|text| {
        text.lines()
            .find(|line| line.ends_with(NODE))
            .ok_or(Absence::Missing)
    });
    let finding = match (&node, flavour, running) {
        (_, Some(built), Some(running)) if built != running => Finding::warn(
            "gdrdrv was built for the other flavour of NVIDIA's driver: mapping fails",
        )
        .fix(
            Fix::manual(
                "Build gdrdrv again",
                "reinstall gdrdrv-dkms while the driver of this flavour is installed",
            )
            .risk(Risk::Low, "programs that use gdrdrv end"),
        ),
        (Err(Absence::Missing), _, _) => no_node(context),
        (Ok(line), _, _) if !is_open(line) => Finding::warn(
            "gdrdrv is loaded, but not every user may open /dev/gdrdrv",
        )
        .fix(Fix::run(
            "Let every user open it until the next boot",
            format!("chmod 0666 {NODE}"),
        )),
        (Ok(_), _, _) => Finding::pass("gdrdrv is loaded and every user may open it"),
        (absent, _, _) => Finding::unknown("the mode of /dev/gdrdrv", absent),
    };
    let finding = finding
        .evidence("/sys/module/gdrdrv/version", version.shown())
        .evidence(NODE, node.shown());
    Ok(finding.evidence_all(built.map(|line| ("kernel log", line))))
}

fn no_node(context: &Context<'_>) -> Finding {
    let finding = Finding::warn("gdrdrv is loaded, but /dev/gdrdrv does not exist");
    if context.is_container() {
        finding.fix(Fix::user(
            "Pass the device to the container",
            "docker run --device=/dev/gdrdrv",
        ))
    } else {
        finding.fix(Fix::run(
            "Reload the module and create its device node",
            "systemctl restart gdrcopy",
        ))
    }
}

/// Returns whether every user may read and write the node of a line such as `0666 236:0 rw
/// /dev/gdrdrv`.
fn is_open(line: &str) -> bool {
    let mode = line.split_whitespace().next();
    mode.and_then(|mode| u32::from_str_radix(mode, 8).ok())
        .is_some_and(|mode| mode & OPEN == OPEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn with_node(line: &str) -> MemorySource {
        example::healthy().file(virtual_path::DEVICE_NODES, line)
    }

    #[test]
    fn a_matching_module_with_an_open_node_passes() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
    }

    #[test]
    fn the_other_flavour_a_closed_node_and_no_node_are_warnings() {
        let other = example::healthy().file(
            virtual_path::KERNEL_LOG,
            "[ 1.0] gdrdrv:gdrdrv_init:loading gdrdrv version 2.5 built for proprietary NVIDIA \
             driver\n",
        );
        assert_eq!(verdict(&CHECK, &other), Warn);
        assert_eq!(
            verdict(&CHECK, &with_node("0660 236:0 rw /dev/gdrdrv\n")),
            Warn
        );
        let container = with_node("").file("/.dockerenv", "");
        let found = worst(&CHECK, &container);
        assert!(
            found.fixes[0].actions[0]
                .to_string()
                .contains("--device=/dev/gdrdrv")
        );
    }

    #[test]
    fn a_node_without_gdrdrv_is_info() {
        let none = example::healthy()
            .without("/sys/module/gdrdrv")
            .file("/proc/modules", "");
        assert_eq!(verdict(&CHECK, &none), Info);
    }
}
