//! Rules about messages of GPUs and NVSwitches.

use regex::Captures;

use super::super::rule::{Meaning, Pattern, Rate, Rule, always};
use super::super::xid;
use crate::check::{CheckId, Purpose};
use crate::finding::Verdict;
use crate::fix::{Action, Fix, Risk};

pub(super) const XID: Rule = Rule {
    id: CheckId("klog.xid"),
    title: "no GPU has reported an error (Xid)",
    means: "NVIDIA's driver logs errors of GPUs as numbered Xid messages. Some are faults of a \
            program, others of the GPU: after those no transfer can be trusted.",
    judges: "by the number: fail for those that need a reset or a power cycle, warn for those \
             of programs and links, info for the rest. pass: none. unknown: the log may not be \
             read.",
    sources: &[
        "https://docs.nvidia.com/deploy/xid-errors/",
        "https://github.com/oracle-quickstart/oci-hpc (catalogue of Xids)",
    ],
    purposes: &[],
    symptom_of: &[CheckId("gpu.present")],
    patterns: &[Pattern {
        expression: r"NVRM: Xid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<number>[0-9]+)",
        means: |captures| {
            let number = captures["number"].parse().unwrap_or(0);
            xid::meaning(number, &captures["bdf"])
        },
    }],
    rate: Rate::ONCE,
    window: 1.0,
    on_the_way_only: false,
    unless: always,
};

pub(super) const SXID: Rule = Rule {
    id: CheckId("klog.sxid"),
    title: "no NVSwitch has reported an error (SXid)",
    means: "An NVSwitch logs its errors as SXid messages. Fatal ones end every program that \
            uses NVLink until the GPUs are reset.",
    judges: "fail: a fatal one. warn: another. pass: none. unknown: the log may not be read.",
    sources: &["NVIDIA Fabric Manager user guide: NVSwitch SXids"],
    purposes: &[],
    symptom_of: &[],
    patterns: &[Pattern {
        expression: r"SXid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<number>[0-9]+), (?P<kind>Fatal|Non-fatal)?",
        means: sxid,
    }],
    rate: Rate::ONCE,
    window: 1.0,
    on_the_way_only: false,
    unless: always,
};

pub(super) const NCCL_SEGFAULT: Rule = Rule {
    id: CheckId("klog.nccl_segfault"),
    title: "no program has crashed in NCCL",
    means: "A crash in libnccl.so is one of a program: of NCCL, of a plugin, or of how it was \
            called. It says nothing of the node.",
    judges: "info: such a message. pass: none. unknown: the log may not be read.",
    sources: &["https://github.com/leptonai/gpud (NCCL matcher)"],
    purposes: &[Purpose::Nccl],
    symptom_of: &[],
    patterns: &[Pattern {
        expression: r"segfault at .* in libnccl\.so",
        means: |_| Meaning::new(Verdict::Info, "a program has crashed in NCCL"),
    }],
    rate: Rate::ONCE,
    window: 1.0,
    on_the_way_only: false,
    unless: always,
};

fn sxid(captures: &Captures<'_>) -> Meaning {
    let number = &captures["number"];
    if captures
        .name("kind")
        .is_some_and(|kind| kind.as_str() == "Fatal")
    {
        Meaning::new(
            Verdict::Fail,
            format!("SXid {number}: a fatal error of the NVSwitch"),
        )
        .fix(
            Fix::now(
                "Reset all GPUs and switches",
                Action::Command {
                    line: "nvidia-smi --gpu-reset && systemctl restart nvidia-fabricmanager".into(),
                },
            )
            .risk(Risk::Medium, "programs on all GPUs end"),
        )
    } else {
        Meaning::new(
            Verdict::Warn,
            format!("SXid {number}: an error of the NVSwitch"),
        )
        .fix(Fix::user(
            "Look whether links have errors",
            "nvidia-smi nvlink --errorcounters",
        ))
    }
}
