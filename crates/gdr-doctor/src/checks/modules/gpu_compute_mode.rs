//! `gpu.compute_mode`: several processes may use a GPU.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::{Action, Fix};

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.compute_mode"),
    group: Group::Modules,
    title: "several processes may use each GPU",
    documentation: Documentation {
        means: "In the mode EXCLUSIVE_PROCESS a second process gets no context on the GPU, which \
                breaks jobs with several ranks on one GPU, and helpers beside the job. PROHIBITED \
                lets nobody in.",
        reads: "CU_DEVICE_ATTRIBUTE_COMPUTE_MODE of each GPU.",
        judges: "pass: default. warn: exclusive. fail: prohibited. skip: CUDA was not asked for \
                 it. unknown: what CUDA answers was not collected.",
        sources: &["CUDA Driver API: CUcomputemode"],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

/// `CU_COMPUTEMODE_PROHIBITED`, `CU_COMPUTEMODE_EXCLUSIVE_PROCESS` of cuda.h; 1 was exclusive to a
/// thread.
const PROHIBITED: u32 = 2;
const EXCLUSIVE: [u32; 2] = [1, 3];

fn run(context: &Context<'_>) -> Vec<Finding> {
    let asked = |gpu: &gdr_node::GpuDevice| match &context.facts().cuda {
        Datum::Present(cuda) => cuda
            .device(gpu.bdf)
            .and_then(|device| device.compute_mode)
            .into(),
        absent => absent.as_ref().and_then(|_| Datum::<u32>::Missing),
    };
    let findings: Vec<Finding> = (context.gpus())
        .map(|gpu| {
            let subject = Subject::gpu(gpu);
            let (verdict, summary) = match asked(gpu) {
                Datum::Present(PROHIBITED) => (Verdict::Fail, "no process may use it"),
                Datum::Present(mode) if EXCLUSIVE.contains(&mode) => (
                    Verdict::Warn,
                    "only one process may use it: jobs with several ranks on it fail",
                ),
                Datum::Present(_) => (Verdict::Pass, "any number of processes may use it"),
                Datum::Missing => (Verdict::Skip, "CUDA was not asked for its compute mode"),
                absent => return Finding::unknown(subject, "the compute mode", &absent),
            };
            let finding = Finding::new(verdict, subject, summary);
            let finding = match asked(gpu) {
                Datum::Present(mode) => {
                    finding.evidence("CU_DEVICE_ATTRIBUTE_COMPUTE_MODE", mode.to_string())
                }
                _ => finding,
            };
            if verdict.is_bad() {
                finding.fix(Fix::now(
                    "Let every process use it, until the next boot",
                    Action::Command {
                        line: format!("nvidia-smi -i {} -c 0", gpu.bdf),
                    },
                ))
            } else {
                finding
            }
        })
        .collect();
    if findings.is_empty() {
        return vec![super::no_gpu(context)];
    }
    super::once(findings, "all GPUs")
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};

    use super::*;
    use crate::checks::fixture::verdict;

    fn in_mode(mode: u32) -> MemorySource {
        example::healthy().file(
            virtual_path::CUDA_DEVICES,
            format!(
                "{{\"devices\":[{{\"pci\":\"{}\",\"compute_mode\":{mode}}}]}}",
                example::GPUS[0]
            ),
        )
    }

    #[test]
    fn the_default_passes_and_the_others_are_bad() {
        assert_eq!(verdict(&CHECK, &in_mode(0)), Verdict::Pass);
        assert_eq!(verdict(&CHECK, &in_mode(3)), Verdict::Warn);
        assert_eq!(verdict(&CHECK, &in_mode(2)), Verdict::Fail);
    }

    #[test]
    fn what_was_not_asked_or_not_collected_is_not_judged() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Skip);
        let unread = example::healthy().not_collected(virtual_path::CUDA_DEVICES);
        assert_eq!(verdict(&CHECK, &unread), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
