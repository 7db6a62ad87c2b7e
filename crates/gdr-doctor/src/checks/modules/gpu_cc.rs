use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.cc"),
    title: "no confidential computing keeps peers out of GPU memory",
    why: "In a confidential guest (Intel TDX, AMD SEV-SNP) with a GPU in the same mode, devices \
          outside of it reach no plain GPU memory: a NIC gets data only through buffers that the \
          CPU copies and encrypts.",
    inputs: "/proc/cpuinfo: flags hypervisor, tdx_guest; the kernel's log: `Memory Encryption \
          Features active`, `tdx: Guest detected`.",
    criteria: "pass: the machine itself, or a plain guest. fail: a confidential guest with a GPU. \
          skip: no GPU.",
    sources: &[
        "NVIDIA Confidential Computing deployment guide",
        "Linux arch/x86/coco/core.c, arch/x86/mm/mem_encrypt.c",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Node(run),
    ..super::CHECK
};

const MARKS: [&str; 2] = [
    "Memory Encryption Features active: AMD SEV",
    "tdx: Guest detected",
];

fn run(context: &Context<'_>) -> Judgement {
    if context.gpus().next().is_none() {
        return Err(runner::no_gpu(context));
    }
    let machine = &context.facts().machine;
    if machine.as_ref().ok() == Some(&Machine::Bare) {
        return Ok(Finding::pass("this is no confidential guest")
            .evidence("/proc/cpuinfo", "no flag hypervisor"));
    }
    let cpu = context.text("/proc/cpuinfo").known("the CPU")?;
    let flag = cpu.split_whitespace().any(|word| word == "tdx_guest");
    let mark = context.logged(|line| MARKS.iter().any(|mark| line.contains(mark)));
    let evidence = match mark {
        _ if flag => Some(("/proc/cpuinfo", "tdx_guest".to_owned())),
        mark => mark.map(|line| ("kernel log", line)),
    };
    let finding = match evidence {
        None => Finding::pass("this is a guest without memory encryption"),
        evidence => Finding::fail(
            "this is a confidential guest: a NIC cannot access unencrypted GPU memory",
        )
        .evidence_all(evidence)
        .fix(
            Fix::manual(
                "Use a plain guest, or stage through the host",
                "start the guest without TDX or SEV and the GPU with confidential computing off; \
                 otherwise set NCCL_NET_GDR_LEVEL=LOC",
            )
            .risk(
                Risk::High,
                "what the guest computes is then visible to its host",
            ),
        ),
    };
    Ok(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn machines_and_plain_guests_pass() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let guest = example::healthy().file("/proc/cpuinfo", "flags : fpu hypervisor\n");
        assert_eq!(verdict(&CHECK, &guest), Pass);
    }

    #[test]
    fn confidential_guests_fail_by_either_sign() {
        let guest = example::healthy().file("/proc/cpuinfo", "flags : hypervisor tdx_guest\n");
        assert_eq!(verdict(&CHECK, &guest), Fail);
        let snp = example::healthy()
            .file("/proc/cpuinfo", "flags : hypervisor\n")
            .file(
                virtual_path::KERNEL_LOG,
                "[    1.1] Memory Encryption Features active: AMD SEV SEV-ES SEV-SNP\n",
            );
        assert_eq!(verdict(&CHECK, &snp), Fail);
    }

    #[test]
    fn without_a_gpu_nothing_is_judged() {
        let unread = example::healthy().not_collected("/proc/cpuinfo");
        assert_eq!(verdict(&CHECK, &unread), Unknown);
    }
}
