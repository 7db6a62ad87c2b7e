//! `pci.runtime_pm`: no GPU and no NIC is suspended.

use gdr_node::Datum;
use gdr_node::pci::Function;

use super::devices;
use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix};

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.runtime_pm"),
    group: Group::Pcie,
    title: "no GPU and no NIC is suspended",
    documentation: Documentation {
        means: "Linux may power down a device that nobody has open. A suspended GPU or NIC answers \
                no peer, and in D3cold its BARs and settings are lost until it is woken.",
        reads: "power/runtime_status, power/control and d3cold_allowed of the function in sysfs.",
        judges: "pass: active, or runtime power management is not used. warn: suspended. unknown: \
                 not collected.",
        sources: &[
            "Linux Documentation/ABI/testing/sysfs-devices-power",
            "Linux Documentation/power/pci.rst",
        ],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    match devices::both(context) {
        Ok(all) => (all.into_iter())
            .map(|(subject, function)| judge(context, subject, function))
            .collect(),
        Err(why) => why,
    }
}

fn judge(context: &Context<'_>, subject: Subject, function: &Function) -> Finding {
    let path = |name: &str| format!("/sys/bus/pci/devices/{}/{name}", function.bdf);
    let status = match context.text(&path("power/runtime_status")) {
        Datum::Present(status) => status,
        // A kernel without runtime power management has no such file.
        Datum::Missing => return Finding::pass(subject, "this kernel does not suspend it"),
        absent => return Finding::unknown(subject, "whether it is suspended", &absent),
    };
    if !matches!(status.as_str(), "suspended" | "suspending") {
        return Finding::pass(subject, "it is not suspended")
            .evidence(path("power/runtime_status"), status);
    }
    let mut finding = Finding::warn(subject, "it is suspended and answers no peer")
        .evidence(path("power/runtime_status"), status);
    for name in ["power/control", "d3cold_allowed"] {
        if let Datum::Present(value) = context.text(&path(name)) {
            finding = finding.evidence(path(name), value);
        }
    }
    finding.fix(Fix::now(
        "Keep it awake",
        Action::WriteSysfs {
            path: path("power/control"),
            value: "on".into(),
        },
    ))
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    fn status() -> String {
        format!(
            "/sys/bus/pci/devices/{}/power/runtime_status",
            example::GPUS[0]
        )
    }

    #[test]
    fn active_devices_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 18]);
    }

    #[test]
    fn a_suspended_gpu_is_warned_of() {
        let found = worst(&CHECK, &example::healthy().file(&status(), "suspended\n"));
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(found.subject.to_string(), "GPU0");
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_nothing_to_look_at_is_no_question() {
        let node = example::healthy().not_collected(&status());
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .directory("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
