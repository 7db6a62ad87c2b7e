use crate::checks::prelude::*;
use crate::gpudirect_support::model;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.ecc"),
    title: "ECC is on in the memory of the GPUs",
    why: "With ECC off, a flipped bit in GPU memory is sent over the network undetected. Data \
          centre GPUs are delivered with ECC on.",
    inputs: "nvmlDeviceGetEccMode or CU_DEVICE_ATTRIBUTE_ECC_ENABLED of each GPU.",
    criteria: "pass: on, or a GeForce, which has no ECC. warn: off. skip: neither library reported \
               it. unknown: their answers were not collected.",
    sources: &[
        "NVML API reference: nvmlDeviceGetEccMode",
        "CUDA Driver API: CU_DEVICE_ATTRIBUTE_ECC_ENABLED",
    ],
    scope: Scope::Gpu(judge),
    together: Some("all GPUs"),
    ..super::CHECK
};

fn judge(context: &Context<'_>, gpu: &GpuDevice, _: &Function) -> Judgement {
    let fact = context.facts().of_gpu(gpu.bdf, |gpu| gpu.ecc_enabled);
    let unsaid = "neither CUDA nor NVML reported whether ECC is on";
    let (enabled, library) = fact.known_or_skip("whether ECC is on", unsaid)?;
    let source = match library {
        Library::Cuda => "CU_DEVICE_ATTRIBUTE_ECC_ENABLED",
        Library::Nvml => "nvmlDeviceGetEccMode",
    };
    let geforce = model(context, gpu.bdf).is_some_and(|name| name.contains("GeForce"));
    let finding = if enabled {
        Finding::pass("ECC is on")
    } else if geforce {
        Finding::pass("a GeForce has no ECC")
    } else {
        Finding::warn("ECC is off").fix(
            Fix::run("Turn ECC on", format!("nvidia-smi -i {} -e 1", gpu.bdf))
                .effect(Effect::AtReboot)
                .persistence(Persistence::Permanent)
                .risk(
                    Risk::Low,
                    "on some GPUs it costs a few percent of memory or bandwidth",
                ),
        )
    };
    Ok(finding.evidence(source, u8::from(enabled)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn with_ecc(on: bool, name: &str) -> MemorySource {
        cuda_says(0, &format!(r#""name":"{name}","ecc_enabled":{on}"#))
    }

    #[test]
    fn off_is_a_warning_except_on_a_geforce() {
        assert_eq!(verdict(&CHECK, &with_ecc(true, "NVIDIA H100")), Pass);
        assert_eq!(verdict(&CHECK, &with_ecc(false, "NVIDIA H100")), Warn);
        assert_eq!(
            verdict(&CHECK, &with_ecc(false, "NVIDIA GeForce RTX 3090")),
            Pass
        );
    }

    #[test]
    fn the_evidence_names_the_library_that_reported_it() {
        let of = |path: &str, answer: &str| {
            let gpu = example::GPUS[0];
            let text = format!("{{\"devices\":[{{\"pci\":\"{gpu}\",{answer}}}]}}");
            let found = findings(&CHECK, &example::healthy().file(path, text));
            found
                .into_iter()
                .flat_map(|it| it.evidence)
                .next()
                .unwrap()
                .source
        };
        let ecc = "\"ecc_enabled\":true";
        assert_eq!(of(virtual_path::NVML_DEVICES, ecc), "nvmlDeviceGetEccMode");
        assert_eq!(
            of(virtual_path::CUDA_DEVICES, ecc),
            "CU_DEVICE_ATTRIBUTE_ECC_ENABLED"
        );
    }

    #[test]
    fn an_unreported_state_is_skipped_and_an_uncollected_one_is_unknown() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
    }
}
