//! Rules about messages of PCI Express, the IOMMU and Secure Boot.

use regex::Captures;

use super::super::rule::{Meaning, Pattern, Rate, Rule, always};
use crate::check::{CheckId, Purpose};
use crate::finding::Verdict;
use crate::fix::{Action, Fix, Risk};

pub(super) const AER: Rule = Rule {
    id: CheckId("klog.aer"),
    title: "PCI Express has reported no lost packets on the way",
    means: "An uncorrected error, or a port that was shut down to contain one (DPC), costs the \
            transfer and often the device. Functions that are neither a GPU nor a NIC nor above \
            one do not matter here.",
    judges: "fail: one on a GPU, a NIC or a bridge above one. info: one elsewhere. pass: none. \
             unknown: the log may not be read.",
    sources: &[
        "Linux drivers/pci/pcie/{aer,dpc}.c",
        "PCI Express Base Specification 6.0, 6.2",
    ],
    purposes: &[],
    symptom_of: &[CheckId("link.aer"), CheckId("gpu.present")],
    patterns: &[
        Pattern {
            expression: r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:PCIe Bus Error: severity=Uncorrect|AER: .*[Uu]ncorrect)",
            means: |_| Meaning::new(Verdict::Fail, "PCI Express has lost packets").fix(contact()),
        },
        Pattern {
            expression: r"pcieport (?P<bdf>[0-9a-f:.]+): DPC: containment event",
            means: |_| {
                Meaning::new(
                    Verdict::Fail,
                    "the port was shut down to contain an error, and what is below with it",
                )
                .fix(contact())
            },
        },
    ],
    rate: Rate::ONCE,
    window: 1.0,
    on_the_way_only: true,
    unless: always,
};

pub(super) const IOMMU_FAULT: Rule = Rule {
    id: CheckId("klog.iommu_fault"),
    title: "the IOMMU has blocked no GPU and no NIC",
    means: "A fault that names a GPU or a NIC is an access to a peer that the IOMMU did not \
            let through: the transfer fails or hangs.",
    judges: "fail: one of a GPU or a NIC. info: one of another device. pass: none. unknown: the \
             log may not be read.",
    sources: &[
        "Linux drivers/iommu/intel/dmar.c, drivers/iommu/amd/iommu.c",
        "https://github.com/NVIDIA/nccl/issues/2079",
    ],
    purposes: Purpose::RDMA,
    symptom_of: &[
        CheckId("iommu.faults"),
        CheckId("iommu.mode"),
        CheckId("acs.path"),
    ],
    patterns: &[
        Pattern {
            expression: r"DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[(?P<bdf>[0-9a-fx:.]+)\]",
            means: blocked,
        },
        Pattern {
            expression: r"AMD-Vi: Event logged \[IO_PAGE_FAULT device=(?P<bdf>[0-9a-f:.]+)",
            means: blocked,
        },
        Pattern {
            expression: r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f:.]+): AMD-Vi: Event logged \[IO_PAGE_FAULT",
            means: blocked,
        },
    ],
    rate: Rate::ONCE,
    window: 1.0,
    on_the_way_only: true,
    unless: always,
};

pub(super) const LOCKDOWN: Rule = Rule {
    id: CheckId("klog.lockdown"),
    title: "the kernel has refused no module and no setting",
    means: "With Secure Boot the kernel takes only modules that are signed with a key it knows, \
            and keeps programs from writing registers of devices.",
    judges: "warn: a module or a write was refused. info: a module without a known signature \
             was loaded all the same. pass: none. unknown: the log may not be read.",
    sources: &[
        "Linux Documentation: kernel_lockdown(7)",
        "Linux kernel/module/signing.c",
    ],
    purposes: &[],
    symptom_of: &[CheckId("modules.lockdown")],
    patterns: &[
        Pattern {
            expression: r"Lockdown: .*direct PCI access",
            means: |_| {
                Meaning::new(
                    Verdict::Warn,
                    "the kernel kept a program from writing registers of devices",
                )
                .fix(Fix::manual(
                    "Set them elsewhere",
                    "use settings of the BIOS or arguments of the kernel, or turn Secure Boot \
                     off",
                ))
            },
        },
        Pattern {
            expression: r"Key was rejected by service|Loading of (?:unsigned module|module with unavailable key) is rejected|Required key not available",
            means: |_| {
                Meaning::new(
                    Verdict::Warn,
                    "the kernel refused a module without a known key",
                )
                .fix(Fix::manual(
                    "Let the kernel know the key",
                    "sign the module and enrol the key (mokutil --import KEY, then start \
                         the machine anew), or turn Secure Boot off",
                ))
            },
        },
        Pattern {
            expression: r"module verification failed",
            means: |_| {
                Meaning::new(
                    Verdict::Info,
                    "a module without a known signature was loaded all the same",
                )
            },
        },
    ],
    rate: Rate::ONCE,
    window: 60.0,
    on_the_way_only: false,
    unless: always,
};

fn blocked(_: &Captures<'_>) -> Meaning {
    Meaning::new(Verdict::Fail, "the IOMMU blocked an access of it").fix(
        Fix::at_boot(
            "Let the IOMMU pass addresses on as they are",
            Action::KernelArgument {
                argument: "iommu=pt".into(),
            },
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
        "seat the card, its riser and its cables anew; move the card to another slot to tell the \
         card from the slot",
    )
    .risk(Risk::Medium, "the machine is powered off for it")
}
