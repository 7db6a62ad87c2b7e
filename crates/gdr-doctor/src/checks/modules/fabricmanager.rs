//! `fabricmanager`: on machines with NVSwitch the fabric manager runs.

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::facts::Container;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Persistence, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("fabricmanager"),
    group: Group::Modules,
    title: "the fabric manager of NVSwitch machines runs",
    documentation: Documentation {
        means: "GPUs joined by NVSwitch refuse CUDA with error 802 (system not yet initialized) \
                until the fabric manager, of the driver's own version, has set the switches up.",
        reads: "PCI functions of vendor 0x10de and class 0x0680xx; \
                /run/nvidia-fabricmanager/nv-fabricmanager.pid; the unit \
                nvidia-fabricmanager.service; what CUDA answers.",
        judges: "pass: running, or CUDA works. fail: not, or CUDA answers that the system is not \
                 initialized. skip: no NVSwitch, or a container where CUDA was not asked.",
        sources: &[
            "NVIDIA Fabric Manager user guide",
            "https://github.com/pytorch/pytorch/issues/35710",
        ],
    },
    purposes: &[],
    symptom_of: &[CheckId("nvidia.version"), CheckId("nvidia.userspace_match")],
    run,
};

const PID: &str = "/run/nvidia-fabricmanager/nv-fabricmanager.pid";

fn run(context: &Context<'_>) -> Vec<Finding> {
    let inventory = context.inventory;
    if !inventory.tree.is_present() {
        return vec![Finding::unknown(
            Subject::Node,
            "the list of PCI functions",
            &inventory.tree,
        )];
    }
    let switches: Vec<String> = (inventory.nvswitches())
        .map(|function| function.bdf.to_string())
        .collect();
    if switches.is_empty() {
        return vec![Finding::skip("there is no NVSwitch")];
    }
    let unit = context.text(&format!(
        "{}/nvidia-fabricmanager.service",
        virtual_path::SYSTEMD
    ));
    let pid = context.text(PID);
    let active =
        (unit.present()).is_some_and(|unit| unit.lines().any(|line| line == "ActiveState=active"));
    let refused = (context.facts().cuda.present())
        .and_then(|cuda| cuda.error.as_deref())
        .filter(|error| {
            ["802", "SYSTEM_NOT_READY", "not yet initialized"]
                .iter()
                .any(|word| error.contains(word))
        });
    let finding = if let Some(error) = refused {
        stopped("CUDA answers that the NVSwitch fabric is not set up").evidence("CUDA", error)
    } else if active || pid.is_present() {
        Finding::pass(Subject::Node, "the fabric manager runs")
    } else if answers(context) {
        Finding::pass(
            Subject::Node,
            "CUDA works, so the fabric manager has set the switches up",
        )
    } else if context.facts().container.present() == Some(&Container::Yes) {
        Finding::skip("this is a container: the host runs the fabric manager")
    } else if unit.is_unknown() && pid.is_unknown() {
        Finding::unknown(Subject::Node, "whether the fabric manager runs", &unit)
    } else {
        stopped("the fabric manager does not run: CUDA fails with error 802")
    };
    vec![
        finding
            .evidence("NVSwitches", switches.join(" "))
            .evidence("nvidia-fabricmanager.service", state(&unit))
            .evidence(PID, pid.to_string()),
    ]
}

/// Whether CUDA shows GPUs, which it does not before the fabric is set up.
fn answers(context: &Context<'_>) -> bool {
    (context.facts().cuda.present())
        .is_some_and(|cuda| cuda.error.is_none() && !cuda.devices.is_empty())
}

fn state(unit: &Datum<String>) -> String {
    match unit {
        Datum::Present(text) => (text.lines())
            .find(|line| line.starts_with("ActiveState="))
            .unwrap_or("no ActiveState")
            .to_owned(),
        absent => absent.to_string(),
    }
}

fn stopped(summary: &str) -> Finding {
    Finding::fail(Subject::Node, summary).fix(
        Fix::now(
            "Run the fabric manager, of the driver's version, now and at every boot",
            Action::Command {
                line: "systemctl enable --now nvidia-fabricmanager".to_owned(),
            },
        )
        .persistence(Persistence::Permanent)
        .risk(Risk::Low, "jobs on the GPUs are disturbed if any run"),
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{turned_into, verdict};
    use crate::finding::Verdict;

    const UNIT: &str = "@systemd/nvidia-fabricmanager.service";

    fn with_nvswitch() -> MemorySource {
        turned_into(
            example::healthy().without(virtual_path::CUDA_DEVICES),
            example::NICS[0],
            (0x10de, 0x22a3),
            0x06_8000,
        )
    }

    #[test]
    fn a_running_manager_passes_and_a_stopped_one_fails() {
        let active = with_nvswitch().file(UNIT, "ActiveState=active\n");
        assert_eq!(verdict(&CHECK, &active), Verdict::Pass);
        assert_eq!(
            verdict(&CHECK, &with_nvswitch().file(PID, "77\n")),
            Verdict::Pass
        );
        let failed = with_nvswitch().file(UNIT, "ActiveState=failed\n");
        assert_eq!(verdict(&CHECK, &failed), Verdict::Fail);
    }

    #[test]
    fn a_container_is_judged_by_what_cuda_answers() {
        let container = with_nvswitch().file("/.dockerenv", "");
        assert_eq!(verdict(&CHECK, &container), Verdict::Skip);
        let works = container.file(
            virtual_path::CUDA_DEVICES,
            "{\"error\":null,\"devices\":[{\"pci\":\"0000:18:00.0\"}]}",
        );
        assert_eq!(verdict(&CHECK, &works), Verdict::Pass);
    }

    #[test]
    fn what_cuda_answers_counts_more() {
        let node = with_nvswitch().file(PID, "77\n").file(
            virtual_path::CUDA_DEVICES,
            "{\"error\":\"cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY\",\"devices\":[]}",
        );
        assert_eq!(verdict(&CHECK, &node), Verdict::Fail);
    }

    #[test]
    fn without_nvswitches_or_a_capture_nothing_is_judged() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let unread = with_nvswitch().not_collected(UNIT).not_collected(PID);
        assert_eq!(verdict(&CHECK, &unread), Verdict::Unknown);
    }
}
