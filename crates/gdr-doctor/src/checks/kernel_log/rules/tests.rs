//! The messages that rules match, and those that they do not.

use gdr_node::{MemorySource, example, virtual_path};
use regex::Regex;
use snapshot::assert_contains;

use crate::check::Check;
use crate::checks;
use crate::checks::fixture::{findings, judged, verdict, worst};
use crate::finding::Verdict::{self, Fail, Info};
use crate::runner::Scope;

use messages::{EXAMPLES, LOST_GPU, forms};

#[path = "messages.rs"]
mod messages;

fn logged(lines: &[&str]) -> MemorySource {
    let text: String = lines
        .iter()
        .enumerate()
        .map(|(number, line)| format!("[{:5}.000000] {line}\n", 10 + number))
        .collect();
    example::healthy().file(virtual_path::KERNEL_LOG, text)
}

/// Returns every check that is a rule.
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
fn a_message_is_the_same_finding_in_every_form() {
    for (id, _, verdict, message) in EXAMPLES {
        let rule = checks::find(id).unwrap();
        for printed in forms(message) {
            let node = example::healthy().file(virtual_path::KERNEL_LOG, format!("{printed}\n"));
            let found = worst(rule, &node);
            assert_eq!(found.verdict, *verdict, "{printed}: {}", found.summary);
        }
    }
}

#[test]
fn a_record_of_several_lines_is_one_finding() {
    let rule = checks::find("klog.gpu_start").unwrap();
    for form in 0..7 {
        let printed = LOST_GPU.map(|line| forms(line)[form].clone()).join("\n");
        let node = example::healthy().file(virtual_path::KERNEL_LOG, format!("{printed}\n"));
        assert_eq!(worst(rule, &node).verdict, Fail, "{printed}");
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
