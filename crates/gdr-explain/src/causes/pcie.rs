//! PCI Express and the IOMMU.

use super::{follows, hand, likely, run, sure};
use crate::{Cause, Fact, Strength};
use gdr_doctor::kernel_log::expressions;

/// Machines whose cards the reader cannot move.
const NO_SLOTS: &[Fact] = &[Fact::VirtualMachine, Fact::Spark];

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "iommu-fault",
        title: "The IOMMU blocked an access by this device",
        why: "The device used an address that the IOMMU does not map for it. Between a GPU and a \
              NIC, the driver passed on the peer's untranslated address although the IOMMU \
              translates. The transfer fails, or hangs without an error.",
        patterns: &[
            sure(expressions::FAULT_INTEL),
            sure(expressions::FAULT_AMD),
            sure(expressions::FAULT_AMD_NAMED),
            sure(expressions::FAULT_ARM),
            sure(r"dmar: drhd: handling fault status"),
            likely(r"\b(dmar|amd-vi)\b.{0,40}\b(fault|io_page_fault)\b"),
        ],
        remedies: &[
            run(
                "Let the IOMMU pass addresses through, then reboot",
                "iommu=pt",
            ),
            run(
                "See how the IOMMU is set, and which devices have faults",
                "gdr doctor --only iommu.mode,iommu.faults,acs.path",
            ),
            hand("Update the NIC and GPU drivers: current drivers map peers' addresses"),
        ],
        checks: &["iommu.faults", "klog.iommu_fault", "iommu.mode", "acs.path"],
        sources: &[
            "Linux drivers/iommu/intel/dmar.c, drivers/iommu/amd/iommu.c, drivers/iommu/arm",
            "NVIDIA/nccl issue 2079",
            "NVIDIA/cuda-samples issue 48",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "iommu-translates",
        title: "The IOMMU translates: peer traffic may hang or fail",
        why: "RCCL warns if the kernel was started without iommu=pt. Devices' addresses are then \
              translated, and traffic between peers goes through the IOMMU or is lost.",
        patterns: &[
            sure(r"missing .?iommu=pt"),
            likely(
                r"\biommu\b.{0,40}(is )?(enabled|translating|not in passthrough).{0,60}(p2p|peer|gpudirect|rdma|hang)",
            ),
        ],
        remedies: &[
            run("Start the kernel with this option", "iommu=pt"),
            run("See how the IOMMU is set", "gdr doctor --only iommu.mode"),
        ],
        checks: &["iommu.mode", "acs.path"],
        sources: &["ROCm/rccl src/init.cc", "ROCm/vllm issue 390"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "pcie-lost",
        title: "PCI Express has lost data",
        why: "An uncorrected error, a read that was never answered (completion time-out), or a \
              port that was shut down to contain an error (DPC) ends the transfer, and often \
              disables the device. Usual reasons are a riser, a cable, a retimer's firmware or a \
              failed device.",
        patterns: &[
            sure(expressions::AER_UNCORRECTED),
            sure(expressions::AER_COMPLETION_TIMEOUT),
            sure(expressions::DPC),
            sure(expressions::SLOT_EMPTY),
            sure(r"\bpcie bus error: severity=uncorrect"),
            sure(r"\buesta:.*\bcmpltto\+"),
            follows(
                r"event severity: (fatal|recoverable)",
                r"section_type: pcie error",
                Strength::Sure,
            ),
            likely(r"\b(aer|pcie?)\b.{0,60}\buncorrect(ed|able)\b.{0,40}\berror"),
            likely(r"\bcmpltto\b +\(first\)|\bcompletion timeout\b +\(first\)"),
            // The bits of the status register, as the kernel names them.
            likely(
                r"\[ ?\d+\] +(dlp|sdes|fcp|cmpltabrt|rxof|malftlp|ecrc|(data link|flow control) protocol|surprise down|completer abort|receiver overflow|malformed tlp|poisoned tlp)\b",
            ),
            likely(
                r"\b(root|downstream) port link has been reset\b|\baer: device recovery failed\b",
            ),
        ],
        remedies: &[
            run(
                "See which link counts errors",
                "gdr doctor --only link.aer,klog.aer",
            ),
            hand("Reseat the card, its riser and its cables; try another slot").unless(NO_SLOTS),
            hand("Update the firmware of retimers, switches and the device"),
        ],
        checks: &["link.aer", "klog.aer", "gpu.present"],
        sources: &[
            "Linux drivers/pci/pcie/{aer,dpc}.c",
            "PCI Express Base Specification 6.0, 6.2",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "pcie-corrected",
        title: "A PCI Express link has to resend damaged packets",
        why: "Corrected errors do not lose data, but cost bandwidth if there are many. A few at \
              start or after a wake-up are normal. `NonFatalErr` (advisory) alone comes from the \
              search for devices.",
        patterns: &[
            likely(expressions::AER_CORRECTED),
            likely(r"\bpcie bus error: severity=correct"),
            follows(
                r"event severity: corrected",
                r"section_type: pcie error",
                Strength::Likely,
            ),
        ],
        remedies: &[
            run(
                "See whether their number grows",
                "gdr doctor --only link.aer,link.width,link.speed",
            ),
            hand("If it grows, reseat the card, its riser and its cables").unless(NO_SLOTS),
        ],
        checks: &["link.aer"],
        sources: &["Linux drivers/pci/pcie/aer.c"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "pcie-narrow",
        title: "The slot or an upstream port gives the device less bandwidth than it could use",
        why: "The kernel names the narrowest link between the device and the processor. It has \
              too few lanes or an old PCIe generation, or is limited by a riser or by a slot that \
              shares its lanes.",
        patterns: &[
            sure(expressions::PCIE_BANDWIDTH),
            sure(r"available pcie bandwidth, limited by"),
        ],
        detail: Some(bandwidth),
        remedies: &[
            run(
                "See every link on the path",
                "gdr doctor --only link.width,link.speed,link.bottleneck",
            ),
            hand(
                "Move the card to a slot with its full width; set the slot's generation in the \
                 firmware",
            )
            .unless(NO_SLOTS),
        ],
        checks: &[
            "link.bottleneck",
            "link.width",
            "link.speed",
            "klog.pcie_bandwidth",
        ],
        sources: &["Linux drivers/pci/pci.c: __pcie_print_link_status"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "bar-unassigned",
        title: "The firmware or the kernel found no addresses for a BAR of the device",
        why: "A GPU with a large BAR1 needs addresses above 4 GiB. Without Above-4G decoding, or \
              in a virtual machine whose window is too small, the BAR has no address, and the \
              driver does not start or works without it.",
        patterns: &[
            sure(expressions::BAR_UNASSIGNED),
            sure(r"this pci i/o region assigned to your nvidia device is invalid"),
            likely(r"\bbar \d+.{0,40}: (no space for|failed to assign|can't assign)"),
        ],
        remedies: &[
            hand("Enable Above-4G decoding (and resizable BAR) in the firmware's setup"),
            run("Let the kernel assign the BARs again", "pci=realloc"),
            hand("In a virtual machine, give the guest a larger 64-bit MMIO window"),
        ],
        checks: &["bar1.size", "klog.bar_unassigned"],
        sources: &[
            "NVIDIA driver README: common problems",
            "Linux drivers/pci/setup-res.c",
        ],
        ..Cause::DEFAULT
    },
];

/// Returns what is available, of the kernel's line.
fn bandwidth(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let end = text.find(" available PCIe bandwidth")?;
    let start = text[..end].rfind(": ").map_or(0, |at| at + 2);
    let rest = &text[end..];
    let link = rest
        .find(" link")
        .map_or(rest, |at| &rest[..at + " link".len()]);
    Some(format!("{}{link}", &text[start..end]))
}
