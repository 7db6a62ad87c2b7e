use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.mig"),
    title: "no GPU is divided into instances (MIG)",
    why: "A GPU in MIG mode has no NVLink, and each of its instances has only a part of BAR1. \
          GPUDirect RDMA works with some instance profiles only.",
    inputs: "/proc/driver/nvidia/capabilities/gpu*/mig/gi*; in a capture the MIG mode of nvidia-smi.",
    criteria: "pass: no GPU instance. info: GPU instances exist, or a GPU is in MIG mode. skip: the driver is not loaded.",
    sources: &["NVIDIA Multi-Instance GPU user guide, capabilities in /proc"],
    scope: Scope::Node(run),
    ..super::CHECK
};

const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

fn run(context: &Context<'_>) -> Judgement {
    if context.facts().nvidia == Err(Absence::Missing) {
        return Err(Unjudged::skip("NVIDIA's driver is not loaded"));
    }
    let gpus = match context.source.list(CAPABILITIES) {
        Err(Absence::Missing) => return Ok(Finding::pass("this driver does not support MIG")),
        Err(Absence::NotCollected) if context.facts().nvml.is_ok() => return by_mode(context),
        names => names.known("the list of capabilities of NVIDIA's driver")?,
    };
    let mut divided = Vec::new();
    for gpu in gpus.iter().filter(|name| name.starts_with("gpu")) {
        let path = format!("{CAPABILITIES}/{gpu}/mig");
        let names = context.source.list(&path).ok().unwrap_or_default();
        let instances: Vec<String> = (names.into_iter())
            .filter(|name| name.starts_with("gi"))
            .collect();
        if !instances.is_empty() {
            divided.push((path, instances.join(" ")));
        }
    }
    if divided.is_empty() {
        return Ok(Finding::pass("no GPU is divided"));
    }
    Ok(found(divided.len()).evidence_all(divided))
}

/// By the mode that nvidia-smi reports.
fn by_mode(context: &Context<'_>) -> Judgement {
    let answer = context.facts().nvml.by_ref().known("the MIG mode")?;
    let modes = || answer.devices.iter().map(|gpu| gpu.mig);
    let divided = modes().filter(|mode| *mode == Some(true)).count();
    if divided > 0 {
        return Ok(found(divided));
    }
    let is_known = modes().any(|mode| mode.is_some());
    let absence: Datum<()> = is_known.then_some(()).ok_or(Absence::NotCollected);
    absence.known("the MIG mode")?;
    Ok(Finding::pass("no GPU is divided"))
}

fn found(divided: usize) -> Finding {
    Finding::info(format!(
        "{} divided into instances (MIG), which have no NVLink",
        match divided {
            1 => "1 GPU is".to_owned(),
            n => format!("{n} GPUs are"),
        }
    ))
    .fix(
        Fix::run("Disable MIG", "nvidia-smi -mig 0")
            .persistence(Persistence::Permanent)
            .risk(Risk::Medium, "every process on the GPUs has to end first"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn whole_gpus_pass_and_divided_ones_are_info() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let divided = example::healthy().file(
            "/proc/driver/nvidia/capabilities/gpu3/mig/gi1/access",
            "DeviceFileMinor: 30\n",
        );
        assert_eq!(verdict(&CHECK, &divided), Info);
    }
}
