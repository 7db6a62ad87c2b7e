//! `gpu.ecc`: the GPUs' memory corrects its errors.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::{Action, Effect, Fix, Persistence, Risk};
use crate::reach::model;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.ecc"),
    group: Group::Modules,
    title: "the GPUs' memory corrects its errors",
    documentation: Documentation {
        means: "With ECC off a flipped bit in GPU memory goes over the network unseen. Data centre \
                GPUs have it on as they are delivered.",
        reads: "CU_DEVICE_ATTRIBUTE_ECC_ENABLED of each GPU.",
        judges: "pass: on, or a GeForce, which has none. warn: off. skip: CUDA was not asked for \
                 it. unknown: what CUDA answers was not collected.",
        sources: &["CUDA Driver API: CU_DEVICE_ATTRIBUTE_ECC_ENABLED"],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let findings: Vec<Finding> = (context.gpus())
        .map(|gpu| {
            let subject = Subject::gpu(gpu);
            let cuda = match &context.facts().cuda {
                Datum::Present(cuda) => cuda,
                Datum::Missing => return skip(subject),
                absent => return Finding::unknown(subject, "whether ECC is on", absent),
            };
            let enabled = cuda.device(gpu.bdf).and_then(|device| device.ecc_enabled);
            let geforce = model(context, gpu.bdf).is_some_and(|name| name.contains("GeForce"));
            let finding = match enabled {
                Some(true) => Finding::pass(subject, "ECC is on"),
                Some(false) if geforce => Finding::pass(subject, "a GeForce has no ECC"),
                Some(false) => Finding::warn(subject, "ECC is off").fix(
                    Fix::now(
                        "Switch ECC on",
                        Action::Command {
                            line: format!("nvidia-smi -i {} -e 1", gpu.bdf),
                        },
                    )
                    .effect(Effect::AtReboot)
                    .persistence(Persistence::Permanent)
                    .risk(
                        Risk::Low,
                        "a few percent of memory or bandwidth on some GPUs",
                    ),
                ),
                None => return skip(subject),
            };
            finding.evidence(
                "CU_DEVICE_ATTRIBUTE_ECC_ENABLED",
                u8::from(enabled == Some(true)).to_string(),
            )
        })
        .collect();
    if findings.is_empty() {
        return vec![super::no_gpu(context)];
    }
    super::once(findings, "all GPUs")
}

fn skip(subject: Subject) -> Finding {
    Finding::new(
        Verdict::Skip,
        subject,
        "CUDA was not asked whether ECC is on",
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};

    use super::*;
    use crate::checks::fixture::verdict;

    fn with_ecc(on: bool, name: &str) -> MemorySource {
        example::healthy().file(
            virtual_path::CUDA_DEVICES,
            format!(
                "{{\"devices\":[{{\"pci\":\"{}\",\"name\":\"{name}\",\"ecc_enabled\":{on}}}]}}",
                example::GPUS[0]
            ),
        )
    }

    #[test]
    fn on_passes_and_off_is_warned_of_where_there_could_be() {
        assert_eq!(
            verdict(&CHECK, &with_ecc(true, "NVIDIA H100")),
            Verdict::Pass
        );
        assert_eq!(
            verdict(&CHECK, &with_ecc(false, "NVIDIA H100")),
            Verdict::Warn
        );
        assert_eq!(
            verdict(&CHECK, &with_ecc(false, "NVIDIA GeForce RTX 3090")),
            Verdict::Pass
        );
    }

    #[test]
    fn what_was_not_asked_or_not_collected_is_not_judged() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Skip);
        let unread = example::healthy().not_collected(virtual_path::CUDA_DEVICES);
        assert_eq!(verdict(&CHECK, &unread), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
