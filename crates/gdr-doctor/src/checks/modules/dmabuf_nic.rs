use crate::checks::prelude::*;
use crate::gpudirect_support;

pub(super) const CHECK: Check = Check {
    id: CheckId("dmabuf.nic"),
    title: "NIC drivers import dma-buf",
    why: "A NIC accesses GPU memory through a dma-buf only if its driver, the kernel's RDMA stack \
          and rdma-core support import. If one of them does not and no peer-memory module is \
          loaded, the NIC cannot access GPU memory.",
    inputs: "ibv_reg_dmabuf_mr with an invalid descriptor: EBADF means supported; EOPNOTSUPP and \
             EPROTONOSUPPORT mean unsupported. If that was not tried: the kernel's version, and \
             whether MLNX_OFED is loaded.",
    criteria: "pass: supported. info: unsupported, and a peer-memory module is loaded. fail: \
               unsupported, and none is loaded. unknown: not tried. skip: no NIC.",
    sources: &[
        "NCCL src/transport/net_ib/gdr.cc",
        "https://github.com/linux-rdma/perftest/issues/280",
        "man 3 ibv_reg_dmabuf_mr",
    ],
    workloads: Workload::RDMA,
    symptom_of: &[
        "nic.present",
        "nic.driver",
        "peermem.loaded",
        "peermem.symbol",
    ],
    scope: Scope::Several(run),
    together: Some("all NICs"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let module = gpudirect_support::peer_module(context).ok();
    let nics = context.nics();
    if nics.is_empty() {
        return Err(runner::no_nic(context));
    }
    Ok(runner::each(nics, |nic| {
        (Subject::nic(nic), Ok(judge(context, nic, module)))
    }))
}

fn judge(context: &Context<'_>, nic: &Nic<'_>, module: Option<&str>) -> Finding {
    let answer = gpudirect_support::dmabuf_of_nic(context, nic);
    let why = &answer.why;
    let finding = match (&answer.is, module) {
        (Ok(true), _) => Finding::pass(why),
        (Ok(false), Some(module)) => Finding::info(format!(
            "{why}; {module} is loaded and is used \
                                                            instead"
        )),
        (Ok(false), None) => Finding::fail(format!(
            "{why}, and no peer-memory module is loaded: the NIC cannot access GPU memory"
        ))
        .fix(
            Fix::manual(
                "Use a newer RDMA stack",
                "install kernel 5.12 or later, or current MLNX_OFED or DOCA, and rdma-core 34 or \
                 later",
            )
            .risk(
                Risk::Medium,
                "RDMA connections end while drivers are replaced",
            ),
        ),
        (absent, _) => Finding::unknown(why, absent),
    };
    answer.onto(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn refusing() -> MemorySource {
        let devices: Vec<String> = (0..10)
            .map(|n| format!("{{\"name\":\"mlx5_{n}\",\"dma_buf\":\"unsupported\"}}"))
            .collect();
        example::healthy().file(
            virtual_path::VERBS_DEVICES,
            format!("{{\"devices\":[{}]}}", devices.join(",")),
        )
    }

    #[test]
    fn missing_support_fails_only_without_a_peer_memory_module() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        assert_eq!(verdicts(&CHECK, &refusing()), [Info]);
        let neither = refusing()
            .file("/proc/modules", "mlx5_core 1 0 - Live 0x0\n")
            .without("/sys/module/nvidia_peermem");
        assert_eq!(verdicts(&CHECK, &neither), [Fail]);
    }

    #[test]
    fn untried_support_is_unknown_unless_the_kernel_is_too_old() {
        let untried = example::healthy().without(virtual_path::VERBS_DEVICES);
        assert_eq!(verdicts(&CHECK, &untried), [Unknown]);
        let old = untried
            .file("/proc/sys/kernel/osrelease", "5.4.0\n")
            .file("/proc/modules", "mlx5_core 1 0 - Live 0x0\n")
            .without("/sys/module/nvidia_peermem");
        assert_eq!(verdict(&CHECK, &old), Fail);
    }
}
