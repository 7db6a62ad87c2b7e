//! `gdrdrv`: where gdrdrv is loaded, it fits the driver and may be opened.

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::facts::{Container, Flavour};
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("gdrdrv"),
    group: Group::Modules,
    title: "gdrdrv, where it is loaded, fits and may be opened",
    documentation: Documentation {
        means: "NVIDIA's GDRCopy maps GPU memory for the CPU through the module gdrdrv; NVSHMEM \
                and UCX use it for small messages. It has to be built for the flavour of the \
                driver that runs, and /dev/gdrdrv has to be open to users and in the container. \
                gdr itself maps without it.",
        reads: "/proc/modules, /sys/module/gdrdrv/version, the mode of /dev/gdrdrv, and in the \
                kernel's log for which flavour it was built.",
        judges: "pass: loaded, fits, open. info: not loaded. warn: built for the other flavour, no \
                 device node, or not open to users. unknown: the modules are not known.",
        sources: &[
            "https://github.com/NVIDIA/gdrcopy (insmod.sh, gdrdrv.c)",
            "https://github.com/NVIDIA/gdrcopy/issues/138",
        ],
    },
    purposes: &[Purpose::Gdrcopy, Purpose::Nvshmem, Purpose::Ucx],
    symptom_of: &[],
    run,
};

const NODE: &str = "/dev/gdrdrv";
/// Everybody may read and write.
const OPEN: u32 = 0o666;

fn run(context: &Context<'_>) -> Vec<Finding> {
    let facts = context.facts();
    let version = context.text("/sys/module/gdrdrv/version");
    if !version.is_present() {
        match facts.module("gdrdrv") {
            Datum::Present(_) => {}
            Datum::Missing => {
                return vec![
                    Finding::info(
                        Subject::Node,
                        "gdrdrv is not loaded: libraries that want it go another way; gdr maps \
                     without it",
                    )
                    .fix(Fix::now(
                        "Load gdrdrv where a library wants it",
                        Action::LoadModule {
                            module: "gdrdrv".to_owned(),
                        },
                    )),
                ];
            }
            absent => {
                return vec![Finding::unknown(
                    Subject::Node,
                    "the list of loaded modules",
                    &absent,
                )];
            }
        }
    }
    let log = context.text(virtual_path::KERNEL_LOG).into_present();
    let built = (log.iter().flat_map(|log| log.lines()))
        .rfind(|line| line.contains("gdrdrv") && line.contains("built for"));
    let flavour = built.and_then(|line| {
        if line.contains("built for proprietary") {
            Some(Flavour::Proprietary)
        } else if line.contains("built for opensource") {
            Some(Flavour::Open)
        } else {
            None
        }
    });
    let running = facts.nvidia.present().map(|driver| driver.flavour);
    let nodes = context.text(virtual_path::DEVICE_NODES);
    let node = nodes
        .as_ref()
        .and_then(|text| text.lines().find(|line| line.ends_with(NODE)).into());
    let finding = match (&node, flavour, running) {
        (_, Some(built), Some(running)) if built != running => Finding::warn(
            Subject::Node,
            "gdrdrv was built for the other flavour of NVIDIA's driver: it maps nothing",
        )
        .fix(
            Fix::manual(
                "Build gdrdrv anew",
                "reinstall gdrdrv-dkms now that the driver of this flavour is installed",
            )
            .risk(Risk::Low, "programs that use gdrdrv end"),
        ),
        (Datum::Missing, _, _) => no_node(context),
        (Datum::Present(line), _, _) if !is_open(line) => Finding::warn(
            Subject::Node,
            "gdrdrv is loaded and only some users may open /dev/gdrdrv",
        )
        .fix(Fix::now(
            "Open it to users until the next boot",
            Action::Command {
                line: format!("chmod 0666 {NODE}"),
            },
        )),
        (Datum::Present(_), _, _) => {
            Finding::pass(Subject::Node, "gdrdrv is loaded and may be opened")
        }
        (absent, _, _) => Finding::unknown(Subject::Node, "the mode of /dev/gdrdrv", absent),
    };
    let finding = finding
        .evidence("/sys/module/gdrdrv/version", version.to_string())
        .evidence(NODE, node.to_string());
    vec![match built {
        Some(line) => finding.evidence("kernel log", line),
        None => finding,
    }]
}

fn no_node(context: &Context<'_>) -> Finding {
    let finding = Finding::warn(
        Subject::Node,
        "gdrdrv is loaded and /dev/gdrdrv is not there",
    );
    if context.facts().container.present() == Some(&Container::Yes) {
        finding.fix(Fix::user(
            "Share the device with the container",
            "docker run --device=/dev/gdrdrv",
        ))
    } else {
        finding.fix(Fix::now(
            "Load the module anew, with its device node",
            Action::Command {
                line: "systemctl restart gdrcopy".to_owned(),
            },
        ))
    }
}

/// Whether `0666 236:0 rw /dev/gdrdrv` lets everybody in, or at least who reads it.
fn is_open(line: &str) -> bool {
    let mode = line.split_whitespace().next();
    mode.and_then(|mode| u32::from_str_radix(mode, 8).ok())
        .is_some_and(|mode| mode & OPEN == OPEN)
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, worst};
    use crate::finding::Verdict;

    fn with_node(line: &str) -> MemorySource {
        example::healthy().file(virtual_path::DEVICE_NODES, line)
    }

    #[test]
    fn one_that_fits_and_is_open_passes() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
    }

    #[test]
    fn the_other_flavour_a_closed_node_and_none_are_warned_of() {
        let other = example::healthy().file(
            virtual_path::KERNEL_LOG,
            "[ 1.0] gdrdrv:gdrdrv_init:loading gdrdrv version 2.5 built for proprietary NVIDIA \
             driver\n",
        );
        assert_eq!(verdict(&CHECK, &other), Verdict::Warn);
        assert_eq!(
            verdict(&CHECK, &with_node("0660 236:0 rw /dev/gdrdrv\n")),
            Verdict::Warn
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
    fn its_absence_is_worth_knowing_only() {
        let none = example::healthy()
            .without("/sys/module/gdrdrv")
            .file("/proc/modules", "");
        assert_eq!(verdict(&CHECK, &none), Verdict::Info);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let unread = example::healthy().not_collected(virtual_path::DEVICE_NODES);
        assert_eq!(verdict(&CHECK, &unread), Verdict::Unknown);
    }
}
