//! Regular expressions for messages of the kernel. The checks of the kernel log match case; gdr-explain
//! does not.
//!
//! The group `bdf`, if there is one, is the address of the function that the message is about.

/// A numbered error of a GPU (Xid).
pub const XID: &str = r"NVRM: Xid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<number>[0-9]+)";
/// A numbered error that another one caused, whose number the driver names (R580 and later).
pub const XID_CAUSED: &str = r"NVRM: Xid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<consequence>[0-9]+),.* caused by previous Xid (?P<number>[0-9]+)";
/// The GPU does not answer its driver, which gives it up.
pub const GPU_LOST: &str = r"NVRM: (?:The NVIDIA GPU (?P<bdf>[0-9a-fA-F:.]+) .*|GPU (?P<bdf2>[0-9a-fA-F:.]+): .*|)[Ff]allen off the bus|NVRM: .*\[NV_ERR_GPU_IS_LOST\]";
/// A GPU answers nothing more until it is reset.
pub const GPU_RESET: &str = r"NVRM: .*\[NV_ERR_RESET_REQUIRED\]";
/// The driver could not initialize a GPU.
pub const GPU_INIT: &str = r"NVRM: (?:GPU (?P<bdf>[0-9a-fA-F:.]+): )?(?:RmInitAdapter failed|RmInitAdapter: .*(?:failed|Cannot)|rm_init_adapter failed|osInitNvMapping: .*Cannot attach)";
/// The driver does not support a GPU, or not in this flavour.
pub const GPU_UNSUPPORTED: &str = r"NVRM: The NVIDIA GPU (?P<bdf>[0-9a-fA-F:.]+) .*(?:is not supported by|requires use of the NVIDIA open)";
/// The driver could not start a GPU.
pub const GPU_PROBE: &str = r"nvidia: probe of (?P<bdf>[0-9a-fA-F:.]+) failed with error|nvidia (?P<bdf2>[0-9a-fA-F:.]+): probe with driver nvidia failed with error|NVRM: The NVIDIA probe routine (?:failed|was not called) for [0-9]+ device|NVRM: N(?:one of the NVIDIA|o NVIDIA) (?:graphics adapters?|devices?) (?:were |was )?(?:initialized|probed|found)";
/// The GPU does not come back from a state without power.
pub const GPU_POWER: &str = r"\bnvidia (?P<bdf>[0-9a-fA-F:.]+): (?:[Uu]nable to|can't) change power state from \w+ to D0.*inaccessible";
/// The fabric manager was restarted, and the driver's fabric state is stale.
pub const FABRIC_STALE: &str = r"NVRM: .*FABRIC_STATE_OUT_OF_SYNC";
/// A numbered error of an NVSwitch (SXid).
pub const SXID: &str =
    r"SXid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<number>[0-9]+), (?P<kind>Fatal|Non-fatal)?";
/// A program that crashed in NCCL.
pub const NCCL_SEGFAULT: &str =
    r"(?:segfault|trap invalid opcode|general protection).* in libnccl\.so";
/// The driver's module and libraries have different versions.
pub const API_MISMATCH: &str = r"NVRM: API mismatch: ";
/// Firmware assigned no addresses to a BAR of a GPU.
pub const BAR_UNASSIGNED: &str =
    r"NVRM: BAR(?P<bar>[0-9]) is 0M @ 0x0 \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\)";

/// The peer-memory module was built for another ib_core.
pub const PEERMEM_SYMBOL: &str = r"(?:nvidia.peermem|nv_peer_mem): (?:Unknown symbol|disagrees about version of symbol) ib_(?:un)?register_peer_memory_client";
/// A module that uses the NVIDIA driver was built for another version of it.
pub const DRIVER_SYMBOL: &str = r"(?P<module>gdrdrv|nvidia.peermem|nv_peer_mem|nvidia.fs): (?:Unknown symbol|disagrees about version of symbol) nvidia_\w+";
/// The peer-memory module frees pages that the driver has taken back.
pub const PEERMEM_CONTEXT: &str =
    r"(?:nvidia.peermem|nv_peer_mem).*(?:invalid context|invalid page_table)";
/// The chipset is not known to forward traffic between peers.
pub const DMABUF_TOPOLOGY: &str =
    r"NVRM: dma-buf attach failed: PCI topology not supported for dma-buf";
/// NIC and GPU are in different IOMMU groups.
pub const DMABUF_FORCE_PCIE: &str =
    r"NVRM: dma-buf attach failed: (?:PCI )?topology not supported for mapping type FORCE_PCIE";
/// The NIC's driver does not support memory of other devices.
pub const DMABUF_STRUCT_PAGE: &str =
    r"NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page";
/// The NIC's driver could not pin memory.
pub const UMEM: &str = r"(?:mr_umem_get|reg_user_mr).*umem get failed \((?P<errno>-[0-9]+)\)";

/// The NIC's firmware refuses access to a register.
pub const ACCESS_REG: &str = r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*ACCESS_REG\(0x805\).* failed";
/// The NIC's firmware refused to create an object.
pub const NIC_COMMAND: &str = r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*\b(?P<command>CREATE_(?:MKEY|QP|CQ|SRQ|XRQ|DCT|EQ|UCTX|GENERAL_OBJECT)|ALLOC_(?:UAR|PD|TRANSPORT_DOMAIN))\(0x[0-9a-f]+\).*failed, status (?P<status>[a-z /]+)\(";
/// The NIC's firmware has failed.
pub const NIC_HEALTH: &str = r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*(?:health compromised|device's health|[Ff]irmware fatal|[Ff]atal error|[Ff]irmware internal error|fw fatal|fatal_sensors|FW.* timeout|[Ww]aiting for FW init|health recovery (?:flow )?(?:aborted|failed)|PCI reads still not working)";
/// The NIC is too hot.
pub const NIC_TEMPERATURE: &str = r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*High [Tt]emperature";
/// The slot gives the NIC too little power.
pub const NIC_POWER: &str = r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*insufficient power on the PCIe slot";
/// The NIC's driver could not start it.
pub const NIC_PROBE: &str = r"mlx5_core: probe of (?P<bdf>[0-9a-f:.]+) failed with error|mlx5_core (?P<bdf2>[0-9a-f:.]+): (?:probe with driver mlx5_core failed with error|mlx5_load_one failed|.*handle_hca_cap failed|probe_one.*failed)";
/// The NIC no longer sends what the kernel gave it.
pub const NIC_STALLED: &str = r"mlx5_core (?P<bdf>[0-9a-f:.]+)(?: \S+)?: (?:TX timeout detected|.*wait_func.*timeout|.*cmd.* timed? ?out)";
/// A NIC of Broadcom no longer answers its driver.
pub const BNXT_STALLED: &str = r"bnxt_en (?P<bdf>[0-9a-f:.]+)(?: \S+)?: (?:Error \(timeout: [0-9]+\) msg|Firmware not responding|Firmware (?:fatal|reset)|hwrm .*timeout|QPLIB: cmdq\[0x[0-9a-f]+\]=0x[0-9a-f]+ timed ?out)";
/// A NIC whose driver logs numbers refused a command: Broadcom's and EFA's.
pub const NIC_COMMAND_STATUS: &str = r"infiniband (?P<device>\w+): (?:QPLIB: cmdq\[0x[0-9a-f]+\]=(?P<code>0x[0-9a-f]+) status (?P<status>0x[0-9a-f]*[1-9a-f])|Failed to process command (?P<command>\w+) \(opcode [0-9]+\) comp_status (?P<status2>[0-9]+))";
/// A NIC of Amazon has no room for what is asked for.
pub const NIC_COMMAND_FULL: &str =
    r"Failed to process command (?:REG_MR|CREATE_\w+) \(opcode [0-9]+\) comp_status 1 err -[0-9]+";
/// A cable was pulled.
pub const NIC_CABLE: &str = r"mlx5_core (?P<bdf>[0-9a-f:.]+):.*Cable unplugged";

/// PCI Express has lost packets.
pub const AER_UNCORRECTED: &str = r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:PCIe Bus Error: severity=Uncorrect|AER: .*[Uu]ncorrect)";
/// A read without a completion, as the line after an error names the bit.
pub const AER_COMPLETION_TIMEOUT: &str = r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): +(?:AER: +)?\[ ?14\] (?:CmpltTO|Completion Timeout)";
/// PCI Express retransmitted damaged packets.
pub const AER_CORRECTED: &str = r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:PCIe Bus Error: severity=Correct|AER: .*\bCorrect(?:ed|able) error)";
/// A port was shut down to contain an error.
pub const DPC: &str = r"pcieport (?P<bdf>[0-9a-f:.]+): DPC: containment event";
/// The device in a slot is gone.
pub const SLOT_EMPTY: &str =
    r"pcieport (?P<bdf>[0-9a-f:.]+): pciehp: Slot\([^)]*\): (?:Link Down|Card not present)";
/// A link that is narrower or slower than its device.
pub const PCIE_BANDWIDTH: &str = r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?P<bandwidth>[0-9.]+ Gb/s) available PCIe bandwidth, limited by (?P<link>[0-9.]+ GT/s (?:PCIe )?x[0-9]+) link";

/// The IOMMU of Intel blocked an access.
pub const FAULT_INTEL: &str =
    r"DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[(?P<bdf>[0-9a-fx:.]+)\]";
/// The IOMMU of AMD blocked one, with the device in the message.
pub const FAULT_AMD: &str = r"AMD-Vi: Event logged \[(?:IO_PAGE_FAULT|INVALID_DEVICE_REQUEST|ILLEGAL_DEV_TABLE_ENTRY) device=(?P<bdf>[0-9a-f:.]+)";
/// AMD's IOMMU blocked one, with the device before the message.
pub const FAULT_AMD_NAMED: &str = r"(?P<bdf>[0-9a-f]{4,}:[0-9a-f:.]+): AMD-Vi: Event logged \[(?:IO_PAGE_FAULT|INVALID_DEVICE_REQUEST)";
/// The SMMU of ARM blocked one. It names the stream and seldom the device.
pub const FAULT_ARM: &str = r"arm-smmu(?:-v3)? .*(?:F_TRANSLATION|F_PERMISSION|F_ADDR_SIZE|event 0x(?:10|11|12|13) received|Unhandled context fault)";

/// Lockdown prevents programs from accessing registers of devices.
pub const LOCKDOWN_PCI: &str = r"Lockdown: .*direct PCI access";
/// The kernel refused a module.
pub const MODULE_REFUSED: &str = r"Key was rejected by service|Loading of (?:unsigned module|module with unavailable key) is rejected|Lockdown: .*unsigned module loading|PKCS#7 signature not signed with a trusted key|Required key not available";
/// The kernel loaded a module without a known key.
pub const MODULE_TAINTS: &str = r"module verification failed";

/// The first line of a crash report of the kernel, in any case.
pub const CRASH: &str = r"\boops\b|\bbug: (unable|kernel|soft|hard)|general protection fault|kernel bug at|unable to handle (kernel )?(null pointer|page fault|paging request|access)|internal error: oops";
/// The first line of a warning of the kernel.
pub const KERNEL_WARNING: &str =
    r"WARNING: (?:CPU: [0-9]+ PID: [0-9]+ at |[a-z]\S+\.[ch]:[0-9]+ at )";
/// A function of a driver in a crash report: `nvidia_ioctl+0x1b/0x30 [nvidia]`.
pub const DRIVER_FRAME: &str = r"\+0x[0-9a-f]+/0x[0-9a-f]+ \[(?P<module>nvidia\w*|nv_peer_mem|mlx[45]_\w+|ib_\w+|rdma_\w+|bnxt_re|irdma|efa|gdrdrv)\b";
