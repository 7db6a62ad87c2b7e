//! `gpu.class`: the GPUs are of a kind that NVIDIA supports GPUDirect RDMA on.

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::Fix;
use crate::reach::model;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.class"),
    group: Group::Modules,
    title: "the GPUs are of a kind that has GPUDirect RDMA",
    documentation: Documentation {
        means: "NVIDIA supports GPUDirect RDMA on data centre and professional GPUs. GeForce cards \
                have a small window to their memory or refuse peers, so that registering GPU \
                memory fails or only small buffers fit.",
        reads: "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED (116) of each GPU; its name of CUDA, \
                of /proc/driver/nvidia/gpus/*/information or of a listing; its PCI class.",
        judges: "pass: CUDA says so, or by its name or class it is no GeForce. warn: CUDA says \
                 no, or it is a GeForce. unknown: neither is to be told. skip: no GPU.",
        sources: &[
            "CUDA Driver API: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED",
            "https://github.com/NVIDIA/gdrcopy/blob/master/README.md",
            "https://github.com/FlagOpen/FlagCX/issues/61",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("gpu.present")],
    run,
};

/// 3D controller: a GPU without a screen, which only data centres have.
const HEADLESS: u16 = 0x0302;

fn run(context: &Context<'_>) -> Vec<Finding> {
    let findings: Vec<Finding> = (context.gpus())
        .map(|gpu| {
            let subject = Subject::gpu(gpu);
            let asked = (context.facts().cuda.present())
                .and_then(|cuda| cuda.device(gpu.bdf))
                .and_then(|device| device.gpu_direct_rdma_supported);
            let name = model(context, gpu.bdf);
            let headless = context
                .function(gpu.bdf)
                .and_then(|function| function.identity.class)
                .is_some_and(|class| class.subclass() == HEADLESS);
            let called = name.clone().unwrap_or_else(|| "this GPU".to_owned());
            let geforce = name.as_deref().is_some_and(|name| name.contains("GeForce"));
            let finding = match asked {
                Some(true) => Finding::pass(subject, format!("{called} has GPUDirect RDMA")),
                Some(false) => Finding::warn(
                    subject,
                    format!("CUDA says that {called} has no GPUDirect RDMA"),
                )
                .fix(staging()),
                None if geforce => Finding::warn(
                    subject,
                    format!("{called} is a GeForce, for which GPUDirect RDMA is not supported"),
                )
                .fix(staging()),
                None if name.is_some() => Finding::pass(subject, format!("{called} is no GeForce")),
                None if headless => {
                    Finding::pass(subject, "it has no screen: a GPU for data centres")
                }
                None => Finding::new(
                    Verdict::Unknown,
                    subject,
                    "its name was not collected: whether it is a GeForce is not known",
                ),
            };
            match asked {
                Some(is) => finding.evidence(
                    "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED",
                    u8::from(is).to_string(),
                ),
                None => finding.evidence("name", called),
            }
        })
        .collect();
    if findings.is_empty() {
        return vec![super::no_gpu(context)];
    }
    super::once(findings, "all GPUs")
}

fn staging() -> Fix {
    Fix::user(
        "Go through the host",
        "export NCCL_NET_GDR_LEVEL=LOC UCX_IB_GPU_DIRECT_RDMA=no",
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};

    fn called(name: &str) -> MemorySource {
        example::healthy().without(virtual_path::CUDA_DEVICES).file(
            &format!("/proc/driver/nvidia/gpus/{}/information", example::GPUS[0]),
            format!("Model: \t\t {name}\nIRQ:   \t\t 1\n"),
        )
    }

    #[test]
    fn what_cuda_says_or_the_name_decides() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
        assert_eq!(
            verdict(&CHECK, &called("NVIDIA RTX 6000 Ada")),
            Verdict::Pass
        );
        assert_eq!(
            verdict(&CHECK, &called("NVIDIA GeForce RTX 3090")),
            Verdict::Warn
        );
        let refused = example::healthy().file(
            virtual_path::CUDA_DEVICES,
            format!(
                "{{\"devices\":[{{\"pci\":\"{}\",\"gpu_direct_rdma_supported\":false}}]}}",
                example::GPUS[0]
            ),
        );
        assert_eq!(verdict(&CHECK, &refused), Verdict::Warn);
    }

    #[test]
    fn a_display_without_a_name_is_not_judged() {
        let at = format!("/sys/bus/pci/devices/{}", example::GPUS[0]);
        let node = example::healthy()
            .without(virtual_path::CUDA_DEVICES)
            .without("/proc/driver/nvidia/gpus")
            .file(&format!("{at}/class"), "0x030000\n")
            .not_collected(&format!("{at}/config"));
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
