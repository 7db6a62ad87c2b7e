//! `gpu.cc`: confidential computing does not keep peers out.

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::facts::Machine;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.cc"),
    group: Group::Modules,
    title: "no confidential computing keeps peers out of GPU memory",
    documentation: Documentation {
        means: "In a confidential guest (Intel TDX, AMD SEV-SNP) with a GPU in the same mode, \
                devices outside of it reach no plain GPU memory: a NIC gets data only through \
                buffers that the CPU copies and encrypts.",
        reads: "/proc/cpuinfo: flags hypervisor, tdx_guest; the kernel's log: `Memory Encryption \
                Features active`, `tdx: Guest detected`.",
        judges: "pass: the machine itself, or a plain guest. fail: a confidential guest with a \
                 GPU. skip: no GPU.",
        sources: &[
            "NVIDIA Confidential Computing deployment guide",
            "Linux arch/x86/coco/core.c, arch/x86/mm/mem_encrypt.c",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

const MARKS: [&str; 2] = [
    "Memory Encryption Features active: AMD SEV",
    "tdx: Guest detected",
];

fn run(context: &Context<'_>) -> Vec<Finding> {
    if context.gpus().next().is_none() {
        return vec![super::no_gpu(context)];
    }
    let machine = &context.facts().machine;
    if machine.present() == Some(&Machine::Bare) {
        return vec![
            Finding::pass(Subject::Node, "this is no confidential guest")
                .evidence("/proc/cpuinfo", "no flag hypervisor"),
        ];
    }
    let cpu = match context.text("/proc/cpuinfo") {
        Datum::Present(cpu) => cpu,
        absent => return vec![Finding::unknown(Subject::Node, "the CPU", &absent)],
    };
    let log = context.text(virtual_path::KERNEL_LOG).into_present();
    let flag = cpu.split_whitespace().any(|word| word == "tdx_guest");
    let mark = (log.iter().flat_map(|log| log.lines()))
        .find(|line| MARKS.iter().any(|mark| line.contains(mark)));
    let finding = match (flag, mark) {
        (false, None) => Finding::pass(Subject::Node, "this is a guest without memory encryption"),
        (_, mark) => Finding::fail(
            Subject::Node,
            "this is a confidential guest: a NIC reaches no plain GPU memory",
        )
        .evidence(
            if flag { "/proc/cpuinfo" } else { "kernel log" },
            if flag {
                "tdx_guest"
            } else {
                mark.unwrap_or_default()
            },
        )
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
    vec![finding]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    #[test]
    fn machines_and_plain_guests_pass() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        let guest = example::healthy().file("/proc/cpuinfo", "flags : fpu hypervisor\n");
        assert_eq!(verdict(&CHECK, &guest), Verdict::Pass);
    }

    #[test]
    fn confidential_guests_fail_by_either_sign() {
        let guest = example::healthy().file("/proc/cpuinfo", "flags : hypervisor tdx_guest\n");
        assert_eq!(verdict(&CHECK, &guest), Verdict::Fail);
        let snp = example::healthy()
            .file("/proc/cpuinfo", "flags : hypervisor\n")
            .file(
                virtual_path::KERNEL_LOG,
                "[    1.1] Memory Encryption Features active: AMD SEV SEV-ES SEV-SNP\n",
            );
        assert_eq!(verdict(&CHECK, &snp), Verdict::Fail);
    }

    #[test]
    fn without_a_gpu_or_a_capture_nothing_is_judged() {
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let unread = example::healthy().not_collected("/proc/cpuinfo");
        assert_eq!(verdict(&CHECK, &unread), Verdict::Unknown);
    }
}
