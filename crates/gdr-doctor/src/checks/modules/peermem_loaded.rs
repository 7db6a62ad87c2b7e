use crate::checks::prelude::*;
use crate::gpudirect_support;
use crate::peermem::PeerMemory;

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.loaded"),
    title: "NICs can access GPU memory by dma-buf or a peer-memory module",
    why: "A NIC accesses GPU memory by dma-buf or through a peer-memory module (nvidia_peermem, \
          formerly nv_peer_mem). With neither, registering GPU memory fails with `Bad address`, or \
          a library silently stages through host memory, which is slow.",
    inputs: "/proc/modules, /sys/module/nvidia_peermem, /sys/module/nv_peer_mem; for dma-buf the \
             inputs of dmabuf.gpu and dmabuf.nic.",
    criteria: "pass: a module is loaded, or dma-buf works between all GPUs and their NICs. info: \
               no module, and dma-buf was not tried with every NIC. warn: no module, and dma-buf \
               does not work. fail: the same with proprietary modules. skip: no GPU or no NIC.",
    sources: &[
        "NVIDIA driver README, chapter GPUDirect RDMA Peer Memory Client",
        "NCCL src/transport/net_ib/gdr.cc",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["gpu.present", "nvidia.version", "peermem.symbol"],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let module = gpudirect_support::peer_module(context);
    let everywhere = gpudirect_support::dmabuf_everywhere(context);
    let finding = match (&module, &everywhere) {
        (Ok(module), _) => {
            Finding::pass(format!("{module} is loaded")).evidence("/proc/modules", *module)
        }
        (_, Ok(true)) => Finding::pass(
            "dma-buf works between every GPU and its NICs: no peer-memory module is needed",
        ),
        _ if context.gpus().next().is_none() => return Err(runner::no_gpu(context)),
        _ if context.nics().is_empty() => return Err(runner::no_nic(context)),
        (Err(Absence::Missing), Ok(false)) => neither(context),
        (Err(Absence::Missing), _) => Finding::info(
            "no peer-memory module is loaded, and dma-buf was not tried with every NIC",
        )
        .fix(load(context)),
        (absent, _) => Finding::unknown("the list of loaded modules", absent),
    };
    Ok(finding)
}

fn neither(context: &Context<'_>) -> Finding {
    let facts = context.facts();
    let proprietary = (facts.nvidia.as_ref().ok())
        .is_some_and(|driver| driver.flavour == Ok(Flavour::Proprietary));
    let (verdict, why) = if proprietary {
        (
            Verdict::Fail,
            "no peer-memory module is loaded, and the proprietary modules do not export dma-buf: \
             NICs cannot access GPU memory",
        )
    } else {
        (
            Verdict::Warn,
            "no peer-memory module is loaded and dma-buf does not work: NICs cannot access GPU \
             memory, and libraries stage through host memory",
        )
    };
    Finding::new(verdict, why)
        .evidence("/proc/modules", "neither nvidia_peermem nor nv_peer_mem")
        .fix(load(context))
}

fn load(context: &Context<'_>) -> Fix {
    let fix = Fix::now(
        "Load nvidia_peermem, now and at every boot",
        PeerMemory::load(),
    )
    .then(PeerMemory::enable())
    .effect(Effect::Now)
    .persistence(Persistence::Permanent);
    if context.is_container() {
        fix.risk(Risk::Low, "on the host: a container cannot load modules")
    } else {
        fix
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn proprietary() -> MemorySource {
        without_peermem().without(virtual_path::CUDA_DEVICES).file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n",
        )
    }

    #[test]
    fn a_module_or_dma_buf_passes() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        assert_eq!(verdict(&CHECK, &without_peermem()), Pass);
        let old = without_peermem().file("/sys/module/nv_peer_mem/initstate", "live\n");
        assert_eq!(verdict(&CHECK, &old), Pass);
    }

    #[test]
    fn neither_is_a_warning_and_a_failure_with_proprietary_modules() {
        let found = judged(&CHECK, &proprietary(), Fail);
        assert_eq!(
            found.fixes[0].actions[0].to_string(),
            "modprobe nvidia_peermem"
        );
        let old = without_peermem()
            .without(virtual_path::CUDA_DEVICES)
            .file("/proc/sys/kernel/osrelease", "5.4.0\n");
        assert_eq!(verdict(&CHECK, &old), Warn);
    }

    #[test]
    fn in_a_container_the_fix_names_the_host() {
        let node = proprietary().file("/.dockerenv", "");
        let caution = worst(&CHECK, &node).fixes[0].caution.clone();
        assert!(caution.unwrap().contains("on the host"));
    }

    #[test]
    fn untried_dma_buf_is_info_and_a_node_without_nics_is_skipped() {
        let untried = without_peermem().without(virtual_path::VERBS_DEVICES);
        assert_eq!(verdict(&CHECK, &untried), Info);
        let none = without_peermem().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
