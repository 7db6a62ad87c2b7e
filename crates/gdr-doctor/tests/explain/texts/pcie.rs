//! Texts of causes of PCIe and the IOMMU.

use super::Texts;

pub(crate) const TEXTS: Texts = &[
    (
        "iommu-fault",
        &[
            "DMAR: [DMA Write] Request device [02:00.0] fault addr ffe00000",
            "DMAR: DRHD: handling fault status reg 2",
            "DMAR: [DMA Write NO_PASID] Request device [19:00.0] fault addr 0x3f8000000000 [fault reason 0x05] PTE Write access is not set",
            "dmar_fault: DMAR: [DMA Read] Request device [86:00.0] PASID ffffffff fault addr 387fc0000000 [fault reason 06] PTE Read access is not set",
            "Sep 21 09:59:59 runtime kernel: nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]",
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=c1:00.0 domain=0x0001 address=0x20030000000 flags=0x0020]",
            "arm-smmu-v3 arm-smmu-v3.3.auto: event: F_TRANSLATION client: 0009:01:00.0 sid: 0x90100 ssid: 0x0 iova: 0x4c0000000",
        ],
    ),
    (
        "iommu-translates",
        &[
            "NCCL WARN Missing \"iommu=pt\" from kernel command line which can lead to system instablity or hang!",
        ],
    ),
    (
        "pcie-lost",
        &[
            "[  +0.000001] pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0",
            "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
            "pcieport 0000:37:02.0: AER: Uncorrected (Non-Fatal) error received: 0000:38:00.0",
            "pcieport 0000:17:00.0: DPC: containment event, status:0x1f01 source:0x0000",
            "mlx5_core 0000:38:00.0:    [14] CmpltTO                (First)",
            "\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO+ CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq- ACSViol-",
            "[ 9001.1] {1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1\n[ 9001.1] {1}[Hardware Error]: event severity: fatal\n[ 9001.1] {1}[Hardware Error]:   section_type: PCIe error\n[ 9001.1] {1}[Hardware Error]:   device_id: 0000:3b:00.0\n[ 9001.1] {1}[Hardware Error]:   aer_uncor_status: 0x00004000, aer_uncor_mask: 0x00100000",
            "[ 88.1] pcieport 0000:64:01.0: pciehp: Slot(3): Link Down\n[ 88.1] pcieport 0000:64:01.0: pciehp: Slot(3): Card not present",
        ],
    ),
    (
        "pcie-corrected",
        &[
            "pcieport 0000:37:02.0: AER: Corrected error received: 0000:38:00.0",
            "pcieport 0000:37:02.0: AER: Multiple Corrected error message received from 0000:38:00.0",
            "nvidia 0000:38:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        ],
    ),
    (
        "pcie-narrow",
        &[
            "mlx5_core 0000:19:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x4 link",
            "mlx5_core 0000:c1:00.0: 126.016 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x16 link at 0000:c0:01.1 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)",
        ],
    ),
    (
        "bar-unassigned",
        &[
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)",
            "pci 0000:04:00.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]",
            "[83260.063553] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n               NVRM: BAR1 is 0M @ 0x0 (PCI:0000:14:00.0)\n[83260.063557] nvidia: probe of 0000:14:00.0 failed with error -1\n[83260.106438] NVRM: The NVIDIA probe routine failed for 2 device(s).",
        ],
    ),
];
