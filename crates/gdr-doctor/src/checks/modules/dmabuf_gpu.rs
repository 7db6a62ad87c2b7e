use crate::checks::prelude::*;
use crate::gpudirect_support;

pub(super) const CHECK: Check = Check {
    id: CheckId("dmabuf.gpu"),
    title: "GPUs export their memory as dma-buf",
    why: "dma-buf is the kernel's own interface for access to GPU memory by a NIC. It needs no \
          module besides the driver and no rebuild when the RDMA stack changes. Without it, NICs \
          need a peer-memory module.",
    inputs: "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED of each GPU. If CUDA did not report it: \
             /proc/driver/nvidia/version, the kernel's version, CONFIG_DMA_SHARED_BUFFER and \
             CONFIG_PCI_P2PDMA.",
    criteria: "pass: CUDA reports support; or open modules from 515 on with kernel 5.12 or later. \
               warn: no support. skip: no GPU.",
    sources: &[
        "CUDA Driver API: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED",
        "https://github.com/siderolabs/pkgs/issues/1356",
        "https://github.com/NVIDIA/nccl/issues/1474",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["gpu.present", "nvidia.version", "nvidia.flavour"],
    scope: Scope::Gpu(judge),
    together: Some("all GPUs"),
    ..super::CHECK
};

fn judge(context: &Context<'_>, gpu: &GpuDevice, _: &Function) -> Judgement {
    let answer = gpudirect_support::dmabuf_of_gpu(context, gpu.bdf);
    let finding = match &answer.is {
        Ok(true) => Finding::pass(answer.why.clone()),
        Ok(false) => Finding::warn(format!("no dma-buf: {}", answer.why)).fix(
            Fix::manual(
                "Use the open modules on a kernel with dma-buf for RDMA",
                "install nvidia-open 515 or later and kernel 5.12 or later; until then load a \
                 peer-memory module",
            )
            .risk(Risk::Medium, "every process on the GPUs ends"),
        ),
        absent => Finding::unknown(&answer.why, absent),
    };
    Ok(answer.onto(finding))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn equal_findings_about_all_gpus_are_merged() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        let closed = example::healthy().without(virtual_path::CUDA_DEVICES).file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n",
        );
        assert_eq!(verdicts(&CHECK, &closed), [Warn]);
    }

    #[test]
    fn one_gpu_that_differs_is_named() {
        let node = cuda_says(2, r#""dma_buf_supported":false"#);
        let found = findings(&CHECK, &node);
        let bad: Vec<String> = (found.iter().filter(|it| it.verdict == Warn))
            .map(|it| it.subject.to_string())
            .collect();
        assert_eq!((found.len(), bad), (8, vec!["GPU2".to_owned()]));
    }

    #[test]
    fn an_unread_driver_version_is_unknown() {
        let unread = example::healthy()
            .without(virtual_path::CUDA_DEVICES)
            .not_collected(virtual_path::KERNEL_LOG)
            .not_collected("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &unread), Unknown);
    }
}
