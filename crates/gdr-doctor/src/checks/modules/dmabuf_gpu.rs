//! `dmabuf.gpu`: the GPUs export their memory as dma-buf.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};
use crate::reach;

pub(super) const CHECK: Check = Check {
    id: CheckId("dmabuf.gpu"),
    group: Group::Modules,
    title: "GPUs export their memory as dma-buf",
    documentation: Documentation {
        means: "dma-buf is the kernel's own way for a NIC into GPU memory: no module besides the \
                driver, and no rebuild when the RDMA stack changes. Without it a peer-memory \
                module has to do.",
        reads: "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED of each GPU. Where CUDA was not asked: \
                /proc/driver/nvidia/version, the kernel's version, CONFIG_DMA_SHARED_BUFFER and \
                CONFIG_PCI_P2PDMA.",
        judges: "pass: CUDA says so, or open modules from 515 on with kernel 5.12 or later. warn: \
                 not. skip: no GPU.",
        sources: &[
            "CUDA Driver API: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED",
            "https://github.com/siderolabs/pkgs/issues/1356",
            "https://github.com/NVIDIA/nccl/issues/1474",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[
        CheckId("gpu.present"),
        CheckId("nvidia.version"),
        CheckId("nvidia.flavour"),
    ],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let findings: Vec<Finding> = (context.gpus())
        .map(|gpu| {
            let answer = reach::dmabuf_of_gpu(context, gpu.bdf);
            let subject = Subject::gpu(gpu);
            let finding = match &answer.is {
                Datum::Present(true) => Finding::pass(subject, answer.why.clone()),
                Datum::Present(false) => {
                    Finding::warn(subject, format!("no dma-buf: {}", answer.why)).fix(
                        Fix::manual(
                            "Use the open modules on a kernel that knows dma-buf",
                            "install nvidia-open 515 or later and kernel 5.12 or later; until then \
                         load a peer-memory module",
                        )
                        .risk(Risk::Medium, "every process on the GPUs ends"),
                    )
                }
                absent => Finding::unknown(subject, &answer.why, absent),
            };
            answer.onto(finding)
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
    use crate::checks::fixture::{findings, verdict, verdicts};
    use crate::finding::Verdict;

    #[test]
    fn what_is_so_of_all_gpus_is_said_once() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
        let closed = example::healthy().without(virtual_path::CUDA_DEVICES).file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n",
        );
        assert_eq!(verdicts(&CHECK, &closed), [Verdict::Warn]);
    }

    #[test]
    fn one_gpu_that_differs_is_named() {
        let node = example::healthy().file(
            virtual_path::CUDA_DEVICES,
            format!(
                "{{\"devices\":[{{\"pci\":\"{}\",\"dma_buf_supported\":false}}]}}",
                example::GPUS[2]
            ),
        );
        let found = findings(&CHECK, &node);
        let bad: Vec<String> = (found.iter().filter(|it| it.verdict == Verdict::Warn))
            .map(|it| it.subject.to_string())
            .collect();
        assert_eq!((found.len(), bad), (8, vec!["GPU2".to_owned()]));
    }

    #[test]
    fn without_gpus_it_does_not_apply_and_without_a_capture_nothing_is_said() {
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let unread = example::healthy()
            .without(virtual_path::CUDA_DEVICES)
            .not_collected("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &unread), Verdict::Unknown);
    }
}
