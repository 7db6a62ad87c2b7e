use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.mig"),
    title: "the GPUs are whole",
    why: "A GPU that is divided (MIG) has no NVLink and no peers of its own; each part has a part \
          of the window to its memory. GPUDirect RDMA works with some parts only.",
    inputs: "/proc/driver/nvidia/capabilities/gpu*/mig/gi*.",
    criteria: "pass: no GPU instance. info: there are some. skip: the driver is not loaded.",
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
    let finding = Finding::info(format!(
        "{} divided into instances (MIG), which have no peers over NVLink",
        match divided.len() {
            1 => "1 GPU is".to_owned(),
            n => format!("{n} GPUs are"),
        }
    ))
    .fix(
        Fix::run("Disable MIG", "nvidia-smi -mig 0")
            .persistence(Persistence::Permanent)
            .risk(Risk::Medium, "every process on the GPUs has to end first"),
    );
    Ok(finding.evidence_all(divided))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn whole_gpus_pass_and_divided_ones_are_worth_knowing() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let divided = example::healthy().file(
            "/proc/driver/nvidia/capabilities/gpu3/mig/gi1/access",
            "DeviceFileMinor: 30\n",
        );
        assert_eq!(verdict(&CHECK, &divided), Info);
    }

    #[test]
    fn without_a_driver_nothing_is_judged() {
        let none = example::healthy().without("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
