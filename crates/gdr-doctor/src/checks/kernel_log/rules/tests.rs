//! The messages that rules match, and those that they do not.

use gdr_node::{MemorySource, example, virtual_path};
use regex::Regex;
use snapshot::assert_contains;

use crate::check::Check;
use crate::checks;
use crate::checks::fixture::{findings, judged, verdict, worst};
use crate::explain::explain;
use crate::finding::Verdict::{self, Fail, Info, Warn};
use crate::runner::Scope;

/// For each rule: the subject, the verdict and the message.
#[rustfmt::skip]
const EXAMPLES: &[(&str, &str, Verdict, &str)] = &[
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

fn logged(lines: &[&str]) -> MemorySource {
    let text: String = lines
        .iter()
        .enumerate()
        .map(|(number, line)| format!("[{:5}.000000] {line}\n", 10 + number))
        .collect();
    example::healthy().file(virtual_path::KERNEL_LOG, text)
}

/// Every check that is a rule.
fn rules() -> impl Iterator<Item = &'static Check> {
    checks::all().filter(|check| matches!(check.scope, Scope::Log(_)))
}

#[test]
fn every_expression_compiles() {
    for check in rules() {
        let Scope::Log(rule) = check.scope else {
            continue;
        };
        for pattern in rule.patterns {
            assert!(
                Regex::new(pattern.expression).is_ok(),
                "{}",
                pattern.expression
            );
        }
    }
}

#[test]
fn every_rule_matches_its_messages_and_no_others() {
    for (id, subject, verdict, line) in EXAMPLES {
        let node = logged(&[line]);
        for rule in rules() {
            let found = worst(rule, &node);
            if rule.id.0 == *id {
                assert_eq!(found.verdict, *verdict, "{line}: {}", found.summary);
                assert_eq!(found.subject.to_string(), *subject, "{line}");
                assert_eq!(found.verdict.is_bad(), !found.fixes.is_empty(), "{line}");
            } else {
                assert_eq!(found.verdict, Verdict::Pass, "{} takes {line}", rule.id);
            }
        }
    }
}

#[test]
fn every_message_is_explained_by_a_cause_that_names_its_rule() {
    for (id, .., line) in EXAMPLES {
        let found = explain(line);
        let first = found
            .first()
            .unwrap_or_else(|| panic!("{line} is not explained"));
        let checks = first.cause.checks;
        assert!(checks.contains(id), "{line}: {}", first.cause.id);
        assert_eq!(found.len(), 1, "{line} has other causes, too");
    }
}

/// A message as each tool prints it.
fn forms(message: &str) -> [String; 9] {
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

#[test]
fn a_message_has_one_answer_from_the_doctor_and_from_explain_in_every_form() {
    for (id, _, verdict, message) in EXAMPLES {
        let rule = checks::find(id).unwrap();
        for printed in forms(message) {
            let node = example::healthy().file(virtual_path::KERNEL_LOG, format!("{printed}\n"));
            let found = worst(rule, &node);
            assert_eq!(found.verdict, *verdict, "{printed}: {}", found.summary);
            let explained = explain(&printed);
            let first = explained.first().map(|it| it.cause.checks);
            assert!(first.is_some_and(|checks| checks.contains(id)), "{printed}");
        }
    }
}

#[test]
fn a_record_of_several_lines_has_one_answer_from_the_doctor_and_from_explain() {
    let lines = [
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ];
    let rule = checks::find("klog.gpu_start").unwrap();
    for form in 0..7 {
        let printed: Vec<String> = lines.iter().map(|it| forms(it)[form].clone()).collect();
        let printed = printed.join("\n");
        let node = example::healthy().file(virtual_path::KERNEL_LOG, format!("{printed}\n"));
        assert_eq!(worst(rule, &node).verdict, Fail, "{printed}");
        assert_eq!(explain(&printed)[0].cause.id, "gpu-lost", "{printed}");
    }
}

#[test]
fn every_rule_passes_on_a_quiet_log_and_is_unknown_without_one() {
    let quiet = example::healthy();
    let denied = example::healthy().denied(virtual_path::KERNEL_LOG);
    for rule in rules() {
        assert_eq!(verdict(rule, &quiet), Verdict::Pass, "{}", rule.id);
        assert_eq!(verdict(rule, &denied), Verdict::Unknown, "{}", rule.id);
    }
}

#[test]
fn normal_boot_messages_pass() {
    let node = logged(&[
        "pcieport 0000:15:01.0: AER: enabled with IRQ 122",
        "pcieport 0000:15:01.0: DPC: enabled with IRQ 122",
        "pcieport 0000:15:01.0: DPC: error containment capabilities: Int Msg #0, RPExt+",
        "DMAR: Host address width 46",
        "DMAR: dmar0: reg_base_addr fbffc000 ver 5:0 cap 8d2078c106f0466",
        "AMD-Vi: Interrupt remapping enabled",
        "pcieport 0000:15:01.0: AER: Corrected error received: 0000:15:01.0",
        "mlx5_core 0000:19:00.0: Port module event: module 0, Cable plugged",
        "pcieport 0000:15:01.0: PCIe Bus Error: severity=Corrected, type=Transaction Layer",
        "pcieport 0000:15:01.0:    [13] NonFatalErr",
        "pcieport 0000:15:01.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
    ]);
    for rule in rules() {
        assert_eq!(verdict(rule, &node), Verdict::Pass, "{}", rule.id);
    }
}

#[test]
fn a_peer_memory_module_that_does_not_match_fails_only_if_it_is_needed() {
    let check = checks::find("klog.peermem_symbol").unwrap();
    let line = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)";
    let found = judged(check, &logged(&[line]), Info);
    assert!(
        found.summary.ends_with("one is loaded now"),
        "{}",
        found.summary
    );
    let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n";
    let needed = logged(&[line])
        .file("/proc/driver/nvidia/version", text)
        .without("@cuda/devices.json")
        .without("@verbs/devices.json")
        .without("/sys/module/nvidia_peermem")
        .without("/sys/kernel/mm/memory_peers")
        .file("/proc/modules", "ib_core 1 0 - Live 0x0\n");
    let found = judged(check, &needed, Fail);
    assert_eq!(found.fixes.len(), 2);
}

#[test]
fn many_messages_are_a_warning_and_a_single_one_is_info() {
    let check = checks::find("klog.peermem_context").unwrap();
    let line = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, \
                skipping further processing";
    let old = |node: MemorySource| {
        let version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  495.29.05  Tue\n";
        node.file("/proc/driver/nvidia/version", version)
    };
    assert_eq!(worst(check, &old(logged(&[line]))).verdict, Verdict::Info);
    let found = worst(check, &old(logged(&[line; 5])));
    assert_eq!(found.verdict, Verdict::Warn);
    assert!(found.summary.ends_with("(5 times)"), "{}", found.summary);
    // A later driver says the same when it skips a late callback.
    let found = worst(check, &logged(&[line; 5]));
    assert_eq!(found.verdict, Verdict::Info);
    assert_contains!(found.summary, "harmless");
    // Three within two hours do not reach the rate.
    let slow = old(example::healthy()).file(
        virtual_path::KERNEL_LOG,
        format!("[ 1.0] {line}\n[ 3600.0] {line}\n[ 7200.0] {line}\n"),
    );
    assert_eq!(worst(check, &slow).verdict, Verdict::Info);
}

#[test]
fn of_a_log_alone_the_driver_shows_whether_a_device_matters() {
    let check = checks::find("klog.aer").unwrap();
    let of = |driver: &str| {
        let line = format!("[ 1.0] {driver} 0000:41:00.0: PCIe Bus Error: severity=Uncorrected\n");
        verdict(
            check,
            &MemorySource::partial().file(virtual_path::KERNEL_LOG, line),
        )
    };
    assert_eq!(
        (of("mlx5_core"), of("nvidia"), of("nvme")),
        (Fail, Fail, Info)
    );
}

#[test]
fn equal_messages_of_one_gpu_are_one_finding() {
    let check = checks::find("klog.xid").unwrap();
    let xid = |gpu: &str| format!("NVRM: Xid (PCI:0000:{gpu}:00): 119, pid=1, Timeout");
    let (one, other) = (xid("18"), xid("1a"));
    let found = findings(check, &logged(&[&one, &one, &other, &one]));
    let reported: Vec<String> = found
        .iter()
        .map(|it| format!("{}: {}", it.subject, it.summary))
        .collect();
    let said = "Xid 119: the GPU's system processor (GSP) did not answer";
    assert_eq!(
        reported,
        [format!("GPU0: {said} (3 times)"), format!("GPU1: {said}")]
    );
}
