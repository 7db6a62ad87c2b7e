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
    title: "PCI Express has reported no lost packets on the way",
    why: "An uncorrected error, or a port that was shut down to contain one (DPC), costs the \
          transfer and often the device. Functions that are neither a GPU nor a NIC nor above one \
          do not matter here.",
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
                    Finding::fail(
                        "a read of it was never answered (completion time-out): data was lost",
                    )
                    .fix(contact())
                },
            },
            Pattern {
                expression: expressions::DPC,
                why: |_| {
                    Finding::fail(
                        "the port was shut down to contain an error, and what is below with it",
                    )
                    .fix(contact())
                },
            },
        ],
        window: 1.0,
        on_the_way_only: true,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const IOMMU_FAULT: Check = Check {
    id: CheckId("klog.iommu_fault"),
    title: "the IOMMU has blocked no GPU and no NIC",
    why: "A fault that names a GPU or a NIC is an access to a peer that the IOMMU did not let \
          through: the transfer fails or hangs.",
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
            // It names no device: whose it was is not known.
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
        on_the_way_only: true,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const PCIE_BANDWIDTH: Check = Check {
    id: CheckId("klog.pcie_bandwidth"),
    title: "no device was found behind a link that is narrower or slower than it",
    why: "The kernel names the narrowest link above a device that could do more. Slots share lanes \
          by design; link.bottleneck judges whether a NIC's port is faster than its links.",
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
        on_the_way_only: true,
        ..Rule::DEFAULT
    }),
    ..CHECK
};

pub(in crate::checks::kernel_log) const LOCKDOWN: Check = Check {
    id: CheckId("klog.lockdown"),
    title: "the kernel has refused no module and no setting",
    why: "With Secure Boot the kernel takes only modules that are signed with a key it knows, and \
          keeps programs from writing registers of devices.",
    criteria: "warn: a module or a write was refused. info: a module without a known signature was \
          loaded all the same. pass: none. unknown: the log may not be read.",
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
                    Finding::warn("the kernel kept a program from writing registers of devices",
                )
                .fix(Fix::manual(
                    "Set them elsewhere",
                    "use settings of the BIOS or arguments of the kernel, or turn Secure Boot \
                     off",
                ))
                },
            },
            Pattern {
                expression: expressions::MODULE_REFUSED,
                why: |_| {
                    Finding::warn("the kernel refused a module without a known key").fix(
                        Fix::manual(
                            "Let the kernel know the key",
                            "sign the module and enrol the key (mokutil --import KEY, then start \
                         the machine again), or turn Secure Boot off",
                        ),
                    )
                },
            },
            Pattern {
                expression: expressions::MODULE_TAINTS,
                why: |_| {
                    Finding::info("a module without a known signature was loaded all the same")
                },
            },
        ],
        ..Rule::DEFAULT
    }),
    ..CHECK
};

fn blocked(_: &Captures<'_>) -> Finding {
    Finding::fail("the IOMMU blocked an access of it").fix(
        Fix::at_boot(
            "Let the IOMMU pass addresses on as they are",
            Action::boot("iommu=pt"),
        )
        .risk(
            Risk::Medium,
            "devices are no longer kept from memory that is not theirs",
        ),
    )
}

fn contact() -> Fix {
    Fix::manual(
        "Find the bad contact",
        "seat the card, its riser and its cables again; move the card to another slot to tell the \
         card from the slot",
    )
    .risk(Risk::Medium, "the machine is powered off for it")
}
