//! Rules about messages of PCI Express, the IOMMU and Secure Boot.

use regex::Captures;

use super::super::CHECK;
use super::super::expressions;
use super::super::rule::{Pattern, Rule};
use crate::check::{Check, CheckId, Workload};
use crate::finding::Finding;
use crate::fix::{Action, Fix, Risk};
use crate::runner::Scope;

pub(in crate::checks::kernel_log) const AER: Check = Check {
    id: CheckId("klog.aer"),
    title: "PCI Express has reported no lost packets of GPUs and NICs",
    why: "An uncorrected error, or a port that was shut down to contain one (DPC), costs the \
          transfer and often the device. Functions other than GPUs, NICs and the bridges above \
          them do not matter.",
    criteria: "fail: one on a GPU, a NIC or a bridge above one. info: one elsewhere. pass: none. \
          unknown: the log may not be read.",
    sources: &[
        "Linux drivers/pci/pcie/{aer,dpc}.c",
        "PCI Express Base Specification 6.0, 6.2",
    ],
    symptom_of: &["link.aer", "gpu.present"],
    scope: Scope::Log(&Rule {
        patterns: &[
            Pattern {
                expression: expressions::AER_UNCORRECTED,
                why: |_| Finding::fail("PCI Express has lost packets").fix(contact()),
            },
            Pattern {
                expression: expressions::AER_COMPLETION_TIMEOUT,
                why: |_| {
                    Finding::fail("a read got no completion (completion time-out): data was lost")
                        .fix(contact())
                },
            },
            Pattern {
                expression: expressions::DPC,
                why: |_| {
                    Finding::fail(
                        "the port was shut down to contain an error: devices below it are not \
                         reachable",
                    )
                    .fix(contact())
                },
            },
            Pattern {
                expression: expressions::SLOT_EMPTY,
                why: |_| {
                    Finding::fail(
                        "the link to the device in its slot went down: the device is gone",
                    )
                    .fix(contact())
                },
            },
        ],
        window: 1.0,
        on_path_only: true,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const IOMMU_FAULT: Check = Check {
    id: CheckId("klog.iommu_fault"),
    title: "the IOMMU has not blocked any access of a GPU or NIC",
    why: "A fault that names a GPU or a NIC is an access to a peer that the IOMMU blocked: the \
          transfer fails or hangs.",
    criteria: "fail: one of a GPU or a NIC. info: one of another device. pass: none. unknown: the \
          log may not be read.",
    sources: &[
        "Linux drivers/iommu/intel/dmar.c, drivers/iommu/amd/iommu.c",
        "https://github.com/NVIDIA/nccl/issues/2079",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["iommu.faults", "iommu.mode", "acs.path"],
    scope: Scope::Log(&Rule {
        patterns: &[
            Pattern {
                expression: expressions::FAULT_INTEL,
                why: blocked,
            },
            Pattern {
                expression: expressions::FAULT_AMD,
                why: blocked,
            },
            Pattern {
                expression: expressions::FAULT_AMD_NAMED,
                why: blocked,
            },
            // The message does not name a device.
            Pattern {
                expression: expressions::FAULT_ARM,
                why: |_| {
                    Finding::info(
                        "the SMMU blocked an access of a device that the message does not name",
                    )
                },
            },
        ],
        window: 1.0,
        on_path_only: true,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const PCIE_BANDWIDTH: Check = Check {
    id: CheckId("klog.pcie_bandwidth"),
    title: "no device is below a link that is narrower or slower than the device",
    why: "The kernel logs the slowest link above a device that supports more. Slots share lanes by \
          design; link.bottleneck checks whether a NIC's port is faster than its links.",
    criteria: "info: such a message. pass: none. unknown: the log may not be read.",
    sources: &["Linux drivers/pci/pci.c: __pcie_print_link_status"],
    workloads: Workload::RDMA,
    scope: Scope::Log(&Rule {
        patterns: &[Pattern {
            expression: expressions::PCIE_BANDWIDTH,
            why: |captures| {
                Finding::info(format!(
                    "{} available over PCI Express, limited by a link of {}",
                    &captures["bandwidth"], &captures["link"]
                ))
            },
        }],
        on_path_only: true,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const LOCKDOWN: Check = Check {
    id: CheckId("klog.lockdown"),
    title: "the kernel has not refused a module or a register write",
    why: "With Secure Boot the kernel loads only modules that are signed with a trusted key, and \
          prevents programs from writing registers of devices.",
    criteria: "warn: a module or a write was refused. info: a module without a trusted signature \
               was loaded. pass: none. unknown: the log may not be read.",
    sources: &[
        "Linux Documentation: kernel_lockdown(7)",
        "Linux kernel/module/signing.c",
    ],
    symptom_of: &["modules.lockdown"],
    scope: Scope::Log(&Rule {
        patterns: &[
            Pattern {
                expression: expressions::LOCKDOWN_PCI,
                why: |_| {
                    Finding::warn("the kernel refused a program's write to registers of devices")
                        .fix(Fix::manual(
                            "Change the settings another way",
                            "use the BIOS setup or kernel arguments, or turn Secure Boot off",
                        ))
                },
            },
            Pattern {
                expression: expressions::MODULE_REFUSED,
                why: |_| {
                    Finding::warn("the kernel refused a module without a trusted signature").fix(
                        Fix::manual(
                            "Enrol the key of the module",
                            "sign the module and enrol the key (mokutil --import KEY, then \
                             reboot), or turn Secure Boot off",
                        ),
                    )
                },
            },
            Pattern {
                expression: expressions::MODULE_TAINTS,
                why: |_| Finding::info("a module without a trusted signature was loaded"),
            },
        ],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

fn blocked(_: &Captures<'_>) -> Finding {
    Finding::fail("the IOMMU blocked one of its accesses").fix(
        Fix::at_boot(
            "Make the IOMMU pass addresses through",
            Action::boot("iommu=pt"),
        )
        .risk(
            Risk::Medium,
            "devices of the host can then access all of its memory",
        ),
    )
}

fn contact() -> Fix {
    Fix::hardware(
        "Find the bad contact",
        "reseat the card, its riser and its cables; try another slot to find out whether the card \
         or the slot is bad",
    )
    .risk(Risk::Medium, "the machine has to be powered off")
}
