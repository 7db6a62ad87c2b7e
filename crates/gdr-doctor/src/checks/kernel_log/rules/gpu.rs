//! Rules about messages of GPUs and NVSwitches.

use regex::Captures;

use super::super::CHECK;
use super::super::expressions;
use super::super::rule::{Pattern, Rule};
use super::super::xid;
use crate::check::{Check, CheckId, Workload};
use crate::finding::Finding;
use crate::fix::{Fix, Risk};
use crate::runner::Scope;

pub(in crate::checks::kernel_log) const XID: Check = Check {
    id: CheckId("klog.xid"),
    title: "no GPU has reported an error (Xid)",
    why: "NVIDIA's driver logs errors of GPUs as numbered Xid messages. Some are faults of a \
          program, others of the GPU: after those no transfer can be trusted.",
    criteria: "by the number: fail for those that need a reset or a power cycle, warn for those of \
          programs and links, info for the rest. pass: none. unknown: the log may not be read.",
    sources: &[
        "https://docs.nvidia.com/deploy/xid-errors/",
        "https://github.com/oracle-quickstart/oci-hpc (catalogue of Xids)",
    ],
    symptom_of: &["gpu.present"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::XID,
            why: |captures| {
                let number = captures["number"].parse().unwrap_or(0);
                xid::meaning(number, &captures["bdf"])
            },
        }],
        window: 1.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const SXID: Check = Check {
    id: CheckId("klog.sxid"),
    title: "no NVSwitch has reported an error (SXid)",
    why: "An NVSwitch logs its errors as SXid messages. Fatal ones end every program that uses \
          NVLink until the GPUs are reset.",
    criteria: "fail: a fatal one. warn: another. pass: none. unknown: the log may not be read.",
    sources: &["NVIDIA Fabric Manager user guide: NVSwitch SXids"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::SXID,
            why: sxid,
        }],
        window: 1.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const NCCL_SEGFAULT: Check = Check {
    id: CheckId("klog.nccl_segfault"),
    title: "no program has crashed in NCCL",
    why: "A crash in libnccl.so is one of a program: of NCCL, of a plugin, or of how it was \
          called. It says nothing of the node.",
    criteria: "info: such a message. pass: none. unknown: the log may not be read.",
    sources: &["https://github.com/leptonai/gpud (NCCL matcher)"],
    workloads: &[Workload::Nccl],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::NCCL_SEGFAULT,
            why: |_| Finding::info("a program has crashed in NCCL"),
        }],
        window: 1.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const DRIVER_MISMATCH: Check = Check {
    id: CheckId("klog.driver_mismatch"),
    title: "programs use libraries of the driver that is loaded",
    why: "The driver's module refuses programs whose libraries come from another version: NVML and \
          CUDA do not start for them.",
    criteria: "warn: such a message. pass: none. unknown: the log may not be read.",
    sources: &["NVIDIA driver README: common problems"],
    symptom_of: &["nvidia.userspace_match"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::API_MISMATCH,
            why: |_| {
                Finding::warn("a program used libraries of another version of the driver").fix(
                    Fix::manual(
                        "Use one version of the driver",
                        "load the new module (end what uses the GPUs, or restart the machine); in \
                 containers use the libraries of the host's driver",
                    ),
                )
            },
        }],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const BAR_UNASSIGNED: Check =
    Check {
        id: CheckId("klog.bar_unassigned"),
        title: "firmware gave every BAR of the GPUs addresses",
        why: "A GPU with a large BAR1 needs addresses above 4 GiB. Without them its driver does \
              not start, or works without the BAR.",
        criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
        sources: &["NVIDIA driver README: common problems"],
        symptom_of: &["bar1.size", "gpu.present"],
        scope: Scope::Log(&Rule {
            patterns: &[Pattern {
                expression: expressions::BAR_UNASSIGNED,
                why: |captures| {
                    Finding::fail(format!("firmware gave its BAR{} no addresses", &captures["bar"]),
            )
            .fix(Fix::manual(
                "Make room for it",
                "switch on Above-4G decoding and resizable BAR in the firmware's setup; in a \
                 virtual machine give the guest a larger 64-bit window",
            ))
                },
            }],
            ..Rule::DEFAULT
        }),
        ..CHECK
    };

fn sxid(captures: &Captures<'_>) -> Finding {
    let number = &captures["number"];
    if captures
        .name("kind")
        .is_some_and(|kind| kind.as_str() == "Fatal")
    {
        Finding::fail(format!("SXid {number}: a fatal error of the NVSwitch")).fix(
            Fix::run(
                "Reset all GPUs and switches",
                "nvidia-smi --gpu-reset && systemctl restart nvidia-fabricmanager",
            )
            .risk(Risk::Medium, "programs on all GPUs end"),
        )
    } else {
        Finding::warn(format!("SXid {number}: an error of the NVSwitch")).fix(Fix::user(
            "Look whether links have errors",
            "nvidia-smi nvlink --errorcounters",
        ))
    }
}
