use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.cc"),
    title: "the node is not a confidential guest",
    why: "In a confidential guest (Intel TDX, AMD SEV-SNP) with a GPU in the same mode, devices \
          outside the guest cannot access unencrypted GPU memory. A NIC gets data only through \
          buffers that the CPU copies and encrypts.",
    inputs: "The flags hypervisor and tdx_guest in /proc/cpuinfo; `Memory Encryption Features \
             active` and `tdx: Guest detected` in the kernel log.",
    criteria: "pass: bare metal, or a guest without memory encryption. fail: a confidential guest \
               with a GPU. skip: no GPU.",
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
        return Ok(
            Finding::pass("this is not a guest").evidence("/proc/cpuinfo", "no flag hypervisor")
        );
    }
    let cpu = context.text("/proc/cpuinfo").known("the CPU")?;
    let flag = cpu.split_whitespace().any(|word| word == "tdx_guest");
    let mark = context.logged(|line| MARKS.iter().any(|mark| line.contains(mark)));
    let evidence = match mark {
        _ if flag => Some(("/proc/cpuinfo", "tdx_guest".to_owned())),
        mark => mark.map(|line| ("kernel log", line)),
    };
    let finding = match evidence {
        None => Finding::pass("the guest's memory is not encrypted"),
        evidence => Finding::fail(
            "this is a confidential guest: a NIC cannot access unencrypted GPU memory",
        )
        .evidence_all(evidence)
        .fix(
            Fix::manual(
                "Use a guest without memory encryption, or stage through host memory",
                "start the guest without TDX or SEV and the GPU with confidential computing off; \
                 otherwise set NCCL_NET_GDR_LEVEL=LOC",
            )
            .risk(Risk::High, "the host can then read the guest's memory"),
        ),
    };
    Ok(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn bare_metal_and_guests_without_encryption_pass() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let guest = example::healthy().file("/proc/cpuinfo", "flags : fpu hypervisor\n");
        assert_eq!(verdict(&CHECK, &guest), Pass);
    }

    #[test]
    fn confidential_guests_are_found_by_cpu_flag_or_kernel_log() {
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
}
