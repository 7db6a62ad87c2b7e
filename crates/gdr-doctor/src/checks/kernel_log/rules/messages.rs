//! Messages of the kernel, for the tests of the rules and of gdr-explain.

use super::Verdict::{self, Fail, Info, Warn};

/// For each rule: the subject, the verdict and the message.
#[rustfmt::skip]
pub(super) const EXAMPLES: &[(&str, &str, Verdict, &str)] = &[
    ("klog.xid", "GPU0", Fail,
        "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', GPU has fallen off the bus."),
    ("klog.xid", "GPU0", Warn,
        "NVRM: Xid (PCI:0000:18:00): 13, pid=1, Graphics Exception"),
    ("klog.xid", "GPU0", Warn,
        "NVRM: Xid (PCI:0000:18:00): 45, pid=1, name=x, Ch 00000001 caused by previous Xid 149"),
    ("klog.gpu_start", "this node", Fail,
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned"),
    ("klog.gpu_start", "this node", Fail,
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned"),
    ("klog.gpu_start", "GPU0", Fail,
        "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x24:0x72:1568)"),
    ("klog.gpu_start", "GPU0", Fail,
        "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330) installed in this system has fallen \
         off the bus and is not responding to commands."),
    ("klog.gpu_start", "GPU0", Fail,
        "nvidia: probe of 0000:18:00.0 failed with error -1"),
    ("klog.gpu_start", "this node", Fail,
        "NVRM: The NVIDIA probe routine was not called for 3 device(s)."),
    ("klog.gpu_start", "GPU0", Fail,
        "nvidia 0000:18:00.0: Unable to change power state from D3cold to D0, device inaccessible"),
    ("klog.nic_health", "mlx5_1", Fail,
        "bnxt_en 0000:19:00.0 ens1f0np0: Error (timeout: 500000) msg {0x24 0x1b3} len:0"),
    ("klog.nic_health", "mlx5_1", Fail,
        "bnxt_en 0000:19:00.0: QPLIB: cmdq[0x1a]=0x3 timedout (100000) msec"),
    ("klog.nic_command", "this node", Warn,
        "infiniband bnxt_re0: QPLIB: cmdq[0x2a3]=0x9 status 0x5"),
    ("klog.nic_command", "this node", Warn,
        "infiniband rdmap16s27: Failed to process command CREATE_QP (opcode 1) comp_status 5 err -12"),
    ("klog.fabric", "this node", Fail,
        "NVRM: nvCheckOkFailedNoLog: Check failed: NVLink fabric state cached by the driver is out \
         of sync [NV_ERR_FABRIC_STATE_OUT_OF_SYNC] (0x00000087)"),
    ("klog.nic_health", "mlx5_1", Fail,
        "mlx5_core: probe of 0000:19:00.0 failed with error -22"),
    ("klog.nic_health", "mlx5_1", Fail,
        "mlx5_core 0000:19:00.0 ens1: TX timeout detected"),
    ("klog.sxid", "mlx5_0", Fail,
        "nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    ("klog.sxid", "0000:05:01.0", Warn,
        "nvidia-nvswitch3: SXid (PCI:0000:05:01.0): 19084, Non-fatal, Link 30"),
    ("klog.dmabuf_topology", "this node", Fail,
        "NVRM: dma-buf attach failed: PCI topology not supported for dma-buf"),
    ("klog.dmabuf_force_pcie", "this node", Fail,
        "NVRM: dma-buf attach failed: topology not supported for mapping type FORCE_PCIE"),
    ("klog.dmabuf_struct_page", "this node", Fail,
        "NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page"),
    ("klog.umem", "this node", Fail,
        "mlx5_1: mr_umem_get:812:(pid 77): umem get failed (-14)"),
    ("klog.access_reg", "mlx5_1", Info,
        "mlx5_core 0000:19:00.0: mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1) \
         failed, status bad operation(0x2)"),
    ("klog.nic_health", "mlx5_1", Fail,
        "mlx5_core 0000:19:00.0: poll_health:800:(pid 0): device's health compromised - \
         reached miss count"),
    ("klog.nic_health", "mlx5_1", Warn,
        "mlx5_core 0000:19:00.0: temp_warn:172:(pid 0): High temperature on sensors"),
    ("klog.nic_health", "mlx5_1", Info,
        "mlx5_core 0000:19:00.0: Port module event: module 0, Cable unplugged"),
    ("klog.aer", "GPU0", Fail,
        "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction \
         Layer"),
    ("klog.aer", "0000:17:00.0", Fail,
        "pcieport 0000:17:00.0: DPC: containment event, status:0x1f01 source:0x0000"),
    ("klog.aer", "0000:e1:00.0", Info,
        "nvme 0000:e1:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal)"),
    ("klog.aer", "0000:17:00.0", Fail,
        "pcieport 0000:17:00.0: pciehp: Slot(3): Link Down"),
    ("klog.nic_health", "mlx5_1", Fail,
        "mlx5_core 0000:19:00.0: mlx5_health_try_recover:330:(pid 812): health recovery flow aborted, \
         PCI reads still not working"),
    ("klog.iommu_fault", "mlx5_1", Fail,
        "DMAR: [DMA Write NO_PASID] Request device [19:00.0] fault addr 0x3f8000000000"),
    ("klog.iommu_fault", "GPU0", Fail,
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=18:00.0 domain=0x0001]"),
    ("klog.iommu_fault", "0000:e3:00.0", Info,
        "xhci_hcd 0000:e3:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0001]"),
    ("klog.lockdown", "this node", Warn,
        "Lockdown: setpci: direct PCI access is restricted; see man kernel_lockdown.7"),
    ("klog.lockdown", "this node", Warn,
        "Loading of unsigned module is rejected"),
    ("klog.lockdown", "this node", Info,
        "nvidia: module verification failed: signature and/or required key missing - \
         tainting kernel"),
    ("klog.iommu_fault", "this node", Info,
        "arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:"),
    ("klog.aer", "GPU0", Fail,
        "nvidia 0000:18:00.0:    [14] CmpltTO                (First)"),
    ("klog.driver_mismatch", "this node", Warn,
        "NVRM: API mismatch: the client has the version 550.54.15, but"),
    ("klog.bar_unassigned", "GPU0", Fail,
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:18:00.0)"),
    ("klog.driver_symbol", "this node", Warn,
        "gdrdrv: disagrees about version of symbol nvidia_p2p_get_pages"),
    ("klog.nic_command", "mlx5_1", Warn,
        "mlx5_core 0000:19:00.0: mlx5_cmd_out_err:808:(pid 11): CREATE_MKEY(0x200) op_mod(0x0) \
         failed, status limits exceeded(0x8), syndrome (0x1f3a), err(-12)"),
    ("klog.pcie_bandwidth", "mlx5_1", Info,
        "mlx5_core 0000:19:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe \
         x4 link at 0000:17:00.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)"),
    ("klog.nccl_segfault", "this node", Info,
        "python3[4]: segfault at 18 ip 00007f sp 00007f error 4 in libnccl.so.2.20.5[7f]"),
];

/// A record that the driver prints in several lines, of the rule `klog.gpu_start`.
pub(super) const LOST_GPU: [&str; 3] = [
    "NVRM: The NVIDIA GPU 0000:18:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
];

/// Returns a message as each tool prints it.
pub(super) fn forms(message: &str) -> [String; 9] {
    [
        format!("[   12.345678] {message}"),
        format!("[Sun Feb 23 16:24:18 2025] {message}"),
        format!("kern  :err   : [   12.345678] {message}"),
        format!("<3>[   12.345678] {message}"),
        format!("3,977,12345678,-;{message}"),
        format!("Feb 23 16:24:18 gpu01 kernel: {message}"),
        format!("2025-02-23T16:24:18.123456+00:00 gpu01 kernel: [   12.345678] {message}"),
        format!("{{\"_TRANSPORT\":\"kernel\",\"MESSAGE\":\"{message}\",\"PRIORITY\":\"3\"}}"),
        format!("gpu01: [   12.345678] {message}"),
    ]
}
