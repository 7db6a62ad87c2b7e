use crate::checks::prelude::*;
use crate::context::Unit;

pub(super) const CHECK: Check = Check {
    id: CheckId("fabricmanager"),
    title: "the fabric manager runs on a machine with NVSwitch",
    why: "On a machine with NVSwitch, CUDA fails with error 802 (system not yet initialized) until \
          the fabric manager has configured the switches. Its version must be the driver's.",
    inputs: "PCI functions of vendor 0x10de and class 0x0680xx; \
             /run/nvidia-fabricmanager/nv-fabricmanager.pid; the unit \
             nvidia-fabricmanager.service; the error that CUDA returns.",
    criteria: "pass: it runs, or CUDA works. fail: it does not run, or CUDA returns error 802. \
               skip: no NVSwitch, or a container in which CUDA was not called.",
    sources: &[
        "NVIDIA Fabric Manager user guide",
        "https://github.com/pytorch/pytorch/issues/35710",
    ],
    symptom_of: &["nvidia.version", "nvidia.userspace_match"],
    scope: Scope::Node(run),
    ..super::CHECK
};

const PID: &str = "/run/nvidia-fabricmanager/nv-fabricmanager.pid";

fn run(context: &Context<'_>) -> Judgement {
    let inventory = context.inventory;
    let tree = inventory.tree.by_ref();
    tree.known("the list of PCI functions")?;
    let switches: Vec<String> = (inventory.nvswitches())
        .map(|function| function.bdf.to_string())
        .collect();
    if switches.is_empty() {
        return Err(Unjudged::skip("there is no NVSwitch"));
    }
    let unit = context.unit("nvidia-fabricmanager.service");
    let pid = context.text(PID);
    let active = unit.as_ref().is_ok_and(Unit::is_active);
    let refused = (context.facts().cuda.as_ref().ok())
        .and_then(|cuda| cuda.error.as_deref())
        .filter(|error| {
            ["802", "SYSTEM_NOT_READY", "not yet initialized"]
                .iter()
                .any(|word| error.contains(word))
        });
    let state = unit.by_ref().map(|unit| {
        let state = unit.property("ActiveState").unwrap_or("unknown");
        format!("ActiveState={state}")
    });
    let finding = if let Some(error) = refused {
        stopped("CUDA reports that the NVSwitch fabric is not configured").evidence("CUDA", error)
    } else if active || pid.is_ok() {
        Finding::pass("the fabric manager runs")
    } else if answers(context) {
        Finding::pass("CUDA works, so the fabric manager has configured the switches")
    } else if context.is_container() {
        Finding::skip("in a container the fabric manager runs on the host")
    } else if unit.is_unknown() && pid.is_unknown() {
        Finding::unknown("whether the fabric manager runs", &unit)
    } else {
        stopped("the fabric manager does not run: CUDA fails with error 802")
    };
    Ok(finding
        .evidence("NVSwitches", switches.join(" "))
        .evidence("nvidia-fabricmanager.service", state.shown())
        .evidence(PID, pid.shown()))
}

/// Returns whether CUDA lists GPUs, which it does only after the fabric is configured.
fn answers(context: &Context<'_>) -> bool {
    (context.facts().cuda.as_ref().ok())
        .is_some_and(|cuda| cuda.error.is_none() && !cuda.devices.is_empty())
}

fn stopped(summary: &str) -> Finding {
    Finding::fail(summary).fix(
        Fix::run(
            "Start the fabric manager of the driver's version, now and at every boot",
            "systemctl enable --now nvidia-fabricmanager",
        )
        .persistence(Persistence::Permanent)
        .risk(Risk::Low, "running jobs on the GPUs may fail"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

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
        assert_eq!(verdict(&CHECK, &active), Pass);
        assert_eq!(verdict(&CHECK, &with_nvswitch().file(PID, "77\n")), Pass);
        let failed = with_nvswitch().file(UNIT, "ActiveState=failed\n");
        assert_eq!(verdict(&CHECK, &failed), Fail);
    }

    #[test]
    fn a_container_passes_if_cuda_works_and_is_skipped_otherwise() {
        let container = with_nvswitch().file("/.dockerenv", "");
        assert_eq!(verdict(&CHECK, &container), Skip);
        let works = container.file(
            virtual_path::CUDA_DEVICES,
            "{\"error\":null,\"devices\":[{\"pci\":\"0000:18:00.0\"}]}",
        );
        assert_eq!(verdict(&CHECK, &works), Pass);
    }

    #[test]
    fn error_802_of_cuda_fails_although_the_manager_runs() {
        let node = with_nvswitch().file(PID, "77\n").file(
            virtual_path::CUDA_DEVICES,
            "{\"error\":\"cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY\",\"devices\":[]}",
        );
        assert_eq!(verdict(&CHECK, &node), Fail);
    }

    #[test]
    fn a_node_without_nvswitch_is_skipped() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
        let unread = with_nvswitch().not_collected(UNIT).not_collected(PID);
        assert_eq!(verdict(&CHECK, &unread), Unknown);
    }
}
