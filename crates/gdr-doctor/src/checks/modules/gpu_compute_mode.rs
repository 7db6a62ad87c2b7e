use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.compute_mode"),
    title: "several processes may use each GPU",
    why: "In the mode EXCLUSIVE_PROCESS a second process cannot create a context on the GPU. Jobs \
          with several ranks on one GPU and tools beside the job fail. In the mode PROHIBITED no \
          process can.",
    inputs: "nvmlDeviceGetComputeMode or CU_DEVICE_ATTRIBUTE_COMPUTE_MODE of each GPU.",
    criteria: "pass: default. warn: exclusive. fail: prohibited. skip: neither library reported \
               the mode. unknown: their answers were not collected.",
    sources: &[
        "NVML API reference: nvmlDeviceGetComputeMode",
        "CUDA Driver API: CUcomputemode",
    ],
    scope: Scope::Gpu(judge),
    together: Some("all GPUs"),
    ..super::CHECK
};

/// `CU_COMPUTEMODE_PROHIBITED` and `CU_COMPUTEMODE_EXCLUSIVE_PROCESS` of cuda.h; 1 is the former
/// exclusive-thread mode.
const PROHIBITED: u32 = 2;
const EXCLUSIVE: [u32; 2] = [1, 3];

fn judge(context: &Context<'_>, gpu: &GpuDevice, _: &Function) -> Judgement {
    let fact = context.facts().of_gpu(gpu.bdf, |gpu| gpu.compute_mode);
    let unsaid = "neither CUDA nor NVML reported its compute mode";
    let (mode, library) = fact.known_or_skip("the compute mode", unsaid)?;
    let finding = match mode {
        PROHIBITED => Finding::fail("no process may use it"),
        mode if EXCLUSIVE.contains(&mode) => {
            Finding::warn("only one process may use it: jobs with several ranks on it fail")
        }
        _ => Finding::pass("several processes may use it"),
    };
    let source = match library {
        Library::Cuda => "CU_DEVICE_ATTRIBUTE_COMPUTE_MODE",
        Library::Nvml => "nvmlDeviceGetComputeMode",
    };
    let finding = finding.evidence(source, mode);
    if !finding.verdict.is_bad() {
        return Ok(finding);
    }
    Ok(finding.fix(Fix::run(
        "Set the default mode until the next boot",
        format!("nvidia-smi -i {} -c 0", gpu.bdf),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn in_mode(mode: u32) -> MemorySource {
        cuda_says(0, &format!(r#""compute_mode":{mode}"#))
    }

    #[test]
    fn the_default_mode_passes_and_the_others_do_not() {
        assert_eq!(verdict(&CHECK, &in_mode(0)), Pass);
        assert_eq!(verdict(&CHECK, &in_mode(3)), Warn);
        assert_eq!(verdict(&CHECK, &in_mode(2)), Fail);
    }

    #[test]
    fn an_unreported_mode_is_skipped_and_an_uncollected_one_is_unknown() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
    }
}
