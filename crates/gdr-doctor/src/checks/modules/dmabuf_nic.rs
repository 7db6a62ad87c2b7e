//! `dmabuf.nic`: the NICs' drivers import dma-buf.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::{Fix, Risk};
use crate::reach;

pub(super) const CHECK: Check = Check {
    id: CheckId("dmabuf.nic"),
    group: Group::Modules,
    title: "NIC drivers import dma-buf",
    documentation: Documentation {
        means: "A dma-buf of GPU memory is of use only to a NIC whose driver, with the kernel's \
                RDMA stack and rdma-core, takes it. Where none does and no peer-memory module is \
                loaded, no NIC reaches GPU memory.",
        reads: "ibv_reg_dmabuf_mr with a descriptor that is none: EBADF says that it would take a \
                good one, EOPNOTSUPP and EPROTONOSUPPORT that it would not. Where that was not \
                tried: the kernel's version, and whether MLNX_OFED is loaded.",
        judges: "pass: supported. info: not, and a peer-memory module is loaded. fail: not, and \
                 none is. unknown: not tried. skip: no NIC.",
        sources: &[
            "NCCL src/transport/net_ib/gdr.cc",
            "https://github.com/linux-rdma/perftest/issues/280",
            "man 3 ibv_reg_dmabuf_mr",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[
        CheckId("nic.present"),
        CheckId("nic.driver"),
        CheckId("peermem.loaded"),
        CheckId("peermem.symbol"),
    ],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let module = reach::peer_module(context).into_present();
    let findings: Vec<Finding> = (context.nics().iter())
        .map(|nic| {
            let answer = reach::dmabuf_of_nic(context, nic);
            let subject = Subject::nic(nic);
            let finding = match (&answer.is, module) {
                (Datum::Present(true), _) => Finding::pass(subject, answer.why.clone()),
                (Datum::Present(false), Some(module)) => Finding::new(
                    Verdict::Info,
                    subject,
                    format!("{}; {module} does instead", answer.why),
                ),
                (Datum::Present(false), None) => Finding::fail(
                    subject,
                    format!(
                        "{}, and no peer-memory module is loaded: it cannot reach GPU memory",
                        answer.why
                    ),
                )
                .fix(
                    Fix::manual(
                        "Use a newer RDMA stack",
                        "install kernel 5.12 or later, or current MLNX_OFED or DOCA, and \
                         rdma-core 34 or later",
                    )
                    .risk(
                        Risk::Medium,
                        "RDMA connections end while drivers are replaced",
                    ),
                ),
                (absent, _) => Finding::unknown(subject, &answer.why, absent),
            };
            answer.onto(finding)
        })
        .collect();
    if findings.is_empty() {
        return vec![super::no_nic(context)];
    }
    super::once(findings, "all NICs")
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};

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
    fn it_is_a_fault_only_where_peermem_is_not_there_either() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
        assert_eq!(verdicts(&CHECK, &refusing()), [Verdict::Info]);
        let neither = refusing()
            .file("/proc/modules", "mlx5_core 1 0 - Live 0x0\n")
            .without("/sys/module/nvidia_peermem");
        assert_eq!(verdicts(&CHECK, &neither), [Verdict::Fail]);
    }

    #[test]
    fn what_was_not_tried_is_not_known_unless_the_kernel_is_too_old() {
        let untried = example::healthy().without(virtual_path::VERBS_DEVICES);
        assert_eq!(verdicts(&CHECK, &untried), [Verdict::Unknown]);
        let old = untried
            .file("/proc/sys/kernel/osrelease", "5.4.0\n")
            .file("/proc/modules", "mlx5_core 1 0 - Live 0x0\n")
            .without("/sys/module/nvidia_peermem");
        assert_eq!(verdict(&CHECK, &old), Verdict::Fail);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let none = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Verdict::Skip);
    }
}
