use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.runtime_pm"),
    title: "no GPU and no NIC is suspended",
    why: "Linux may suspend a device that no process has open. A suspended GPU or NIC does not \
          answer peers. In D3cold its BARs and settings are lost until it resumes.",
    inputs: "power/runtime_status, power/control and d3cold_allowed of the function in sysfs.",
    criteria: "pass: active, or the kernel has no runtime power management. warn: suspended. \
               unknown: not collected.",
    sources: &[
        "Linux Documentation/ABI/testing/sysfs-devices-power",
        "Linux Documentation/power/pci.rst",
    ],
    scope: Scope::Function(judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, function: &Function) -> Judgement {
    let path = |name: &str| format!("/sys/bus/pci/devices/{}/{name}", function.bdf);
    let status = match context.text(&path("power/runtime_status")) {
        // A kernel without runtime power management has no such file.
        Err(Absence::Missing) => return Ok(Finding::pass("this kernel does not suspend it")),
        status => status.known("whether it is suspended")?,
    };
    if !matches!(status.as_str(), "suspended" | "suspending") {
        return Ok(
            Finding::pass("it is not suspended").evidence(path("power/runtime_status"), status)
        );
    }
    let mut finding = Finding::warn("it is suspended and does not answer peers")
        .evidence(path("power/runtime_status"), status);
    for name in ["power/control", "d3cold_allowed"] {
        if let Ok(value) = context.text(&path(name)) {
            finding = finding.evidence(path(name), value);
        }
    }
    Ok(finding.fix(Fix::now(
        "Turn off runtime power management for it",
        Action::sysfs(path("power/control"), "on"),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn status() -> String {
        format!(
            "/sys/bus/pci/devices/{}/power/runtime_status",
            example::GPUS[0]
        )
    }

    #[test]
    fn active_devices_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 18]);
    }

    #[test]
    fn a_suspended_gpu_is_a_warning() {
        let found = judged(
            &CHECK,
            &example::healthy().file(&status(), "suspended\n"),
            Warn,
        );
        assert_eq!(found.subject.to_string(), "GPU0");
    }

    #[test]
    fn an_uncollected_status_is_unknown() {
        let node = example::healthy().not_collected(&status());
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
