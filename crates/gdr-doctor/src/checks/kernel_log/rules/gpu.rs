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
    why: "NVIDIA's driver logs errors of GPUs as numbered Xid messages. Some are caused by \
          programs. After a fault of the GPU itself, transfers may be wrong.",
    criteria: "fail: an Xid that needs a reset or a power cycle. warn: one of a program or a link. \
               info: another one. pass: none. unknown: the log may not be read.",
    sources: &[
        "https://docs.nvidia.com/deploy/xid-errors/",
        "https://github.com/oracle-quickstart/oci-hpc (catalogue of Xids)",
    ],
    symptom_of: &["gpu.present"],
    scope: Scope::Log(&Rule {
        patterns: &[
            Pattern {
                expression: expressions::XID_CAUSED,
                why: |captures| {
                    let mut found = numbered(captures);
                    found.summary =
                        format!("Xid {} after {}", &captures["consequence"], found.summary);
                    found
                },
            },
            Pattern {
                expression: expressions::XID,
                why: numbered,
            },
        ],
        window: 1.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

fn numbered(captures: &Captures<'_>) -> Finding {
    let number = captures["number"].parse().unwrap_or(0);
    xid::meaning(number, &captures["bdf"])
}

pub(in crate::checks::kernel_log) const GPU_START: Check = Check {
    id: CheckId("klog.gpu_start"),
    title: "NVIDIA's driver has started every GPU",
    why: "The driver gives up a GPU that does not answer, does not initialize, or is not supported \
          by this driver. Such messages have no Xid. The GPU then does not exist for CUDA.",
    criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &[
        "open-gpu-kernel-modules: kernel-open/nvidia/{nv,nv-pci}.c",
        "https://github.com/NVIDIA/NVSentinel/issues/155",
    ],
    symptom_of: &["gpu.present", "klog.bar_unassigned"],
    scope: Scope::Log(&Rule {
        patterns: &[
            Pattern {
                expression: expressions::GPU_UNSUPPORTED,
                why: |_| {
                    Finding::fail("this driver does not support it").fix(Fix::manual(
                        "Use a driver that supports it",
                        "GPUs from Blackwell on need the open kernel modules, GPUs before Turing \
                         the proprietary ones; a GPU newer than the driver needs a newer driver",
                    ))
                },
            },
            Pattern {
                expression: expressions::GPU_LOST,
                why: |_| {
                    xid::power_cycled(Finding::fail(
                        "it has fallen off the bus: its driver cannot reach it",
                    ))
                },
            },
            Pattern {
                expression: expressions::GPU_POWER,
                why: |_| {
                    xid::power_cycled(Finding::fail(
                        "it did not come back from a state without power",
                    ))
                },
            },
            Pattern {
                expression: expressions::GPU_INIT,
                why: |_| reset(Finding::fail("its driver could not initialize it")),
            },
            Pattern {
                expression: expressions::GPU_RESET,
                why: |_| {
                    reset(Finding::fail(
                        "the driver uses a GPU no more until it is reset",
                    ))
                },
            },
            Pattern {
                expression: expressions::GPU_PROBE,
                why: |_| {
                    Finding::fail("the driver could not start a GPU").fix(Fix::user(
                        "Read the driver's messages before it",
                        "dmesg | grep -i nvrm",
                    ))
                },
            },
        ],
        window: 1.0,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

fn reset(finding: Finding) -> Finding {
    finding.fix(
        Fix::run(
            "Reset the GPU",
            "nvidia-smi --gpu-reset   # else power-cycle the machine",
        )
        .risk(Risk::Medium, "programs on the GPU end"),
    )
}

pub(in crate::checks::kernel_log) const FABRIC: Check = Check {
    id: CheckId("klog.fabric"),
    title: "the state of the NVSwitch fabric is current",
    why: "After a restart of the fabric manager under running GPUs, often by an upgrade of its \
          package, the driver refuses multicast over NVSwitches: NVLS in NCCL and NVSHMEM fails.",
    criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
    sources: &["https://github.com/NVIDIA/nvshmem/issues/40"],
    symptom_of: &["fabricmanager"],
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::FABRIC_STALE,
            why: |_| {
                Finding::fail("the driver's state of the NVSwitch fabric is out of date")
                    .fix(
                        Fix::run("Reset all GPUs", "nvidia-smi --gpu-reset   # or reboot")
                            .risk(Risk::Medium, "programs on all GPUs end"),
                    )
                    .fix(Fix::user(
                        "Until then do without multicast",
                        "export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1",
                    ))
            },
        }],
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
    why: "A crash in libnccl.so is a fault of a program: of NCCL, of a plugin, or of the caller. \
          The node is not at fault.",
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
    title: "programs use the libraries of the loaded driver",
    why: "The driver's module refuses programs whose libraries have another version: NVML and CUDA \
          fail to initialize.",
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
                        "load the new module (end all programs that use the GPUs, or reboot); in \
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
        title: "firmware assigned addresses to every BAR of the GPUs",
        why: "A GPU with a large BAR1 needs addresses above 4 GiB. Without them its driver does \
              not initialize, or works without BAR1.",
        criteria: "fail: such a message. pass: none. unknown: the log may not be read.",
        sources: &["NVIDIA driver README: common problems"],
        symptom_of: &["bar1.size", "gpu.present"],
        scope: Scope::Log(&Rule {
            patterns: &[Pattern {
                expression: expressions::BAR_UNASSIGNED,
                why: |captures| {
                    Finding::fail(format!("firmware assigned no addresses to its \
                                           BAR{}", &captures["bar"]),
            )
            .fix(Fix::manual(
                "Provide address space for it",
                "turn on \"Above 4G decoding\" and \"Resizable BAR\" in the BIOS; in a virtual \
                 machine give the guest a larger 64-bit MMIO range",
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
            "Check the links for errors",
            "nvidia-smi nvlink --errorcounters",
        ))
    }
}
