//! Error texts, and the cause that `explain` names first.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use gdr_explain::{Explanation, Kind, MAX_LINE, Strength, causes, explain};
use proptest::prelude::*;
use snapshot::assert_contains;

use self::healthy::{HEALTHY, MENTIONS};
use self::texts::texts;

mod healthy;
mod kernel;
mod texts;
mod usage;

fn first(text: &str) -> &'static str {
    explain(text).first().map_or("nothing", |it| it.cause.id)
}

/// Fails with all wrong texts.
fn assert_none_wrong(wrong: &[String]) {
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_right_cause_comes_first() {
    let mut wrong = Vec::new();
    for (cause, text) in texts() {
        if first(text) != cause {
            wrong.push(format!("{text}: {}, not {cause}", first(text)));
        }
    }
    assert_none_wrong(&wrong);
}

#[test]
fn a_text_that_has_one_cause_names_no_other() {
    // Both are true of these.
    let several = [
        "failed to create mr",
        "qpn",
        "Bad address.",
        "HMEM transfers",
        "Disabled for HCA",
        "Channel",
        "ibv_reg_mr failed",
        "ibv_reg_mr(address",
        "Unable to use GIN",
    ];
    let mut wrong = Vec::new();
    for (cause, text) in texts() {
        let found = explain(text);
        let others: Vec<&str> = found.iter().skip(1).map(|it| it.cause.id).collect();
        // What is inferred may have several causes.
        if text.lines().count() == 1
            && !found.iter().any(|it| it.inferred().is_some())
            && !others.is_empty()
            && !several.iter().any(|it| text.contains(it))
        {
            wrong.push(format!("{text}: {cause}, and {others:?}"));
        }
    }
    assert_none_wrong(&wrong);
}

#[test]
fn a_healthy_text_has_no_cause() {
    let mut wrong = Vec::new();
    for text in HEALTHY {
        if first(text) != "nothing" {
            let found = explain(text);
            wrong.push(format!("{text}: {} by {:?}", first(text), found[0].matches));
        }
    }
    assert_none_wrong(&wrong);
}

#[test]
fn a_text_that_only_speaks_of_an_error_is_never_certain() {
    let wrong: Vec<String> = (MENTIONS.iter())
        .flat_map(|text| explain(text).into_iter().map(move |it| (text, it)))
        .filter(|(_, it)| it.kind == Kind::Fault && it.strength() > Strength::Weak)
        .map(|(text, it)| format!("{text}: {}", it.cause.id))
        .collect();
    assert_none_wrong(&wrong);
}

#[test]
fn a_counter_of_zero_names_no_cause() {
    for text in [
        "rocep0s1: 0 retry_exc_err, 0 rnr_nak_retry_err",
        "local_ack_timeout_err: 0\nrnr_retry_exc_err: 0",
        "{\"retry_exc_err\": 0, \"packets\": 12}",
    ] {
        assert_eq!(first(text), "nothing", "{text}");
    }
}

#[test]
fn what_a_text_says_about_its_machine_decides_between_remedies() {
    let of = |text: &str| explain(text).swap_remove(0);
    let geforce =
        of("device name = [NVIDIA GeForce RTX 4090]\nCouldn't allocate MR\nfailed to create mr");
    assert_eq!(geforce.cause.id, "no-peer-memory-client");
    assert_contains!(geforce.because[0], "GeForce", "{:?}", geforce.because);
    assert_contains!(
        geforce.remedies[0].what,
        "data-centre",
        "{:?}",
        geforce.remedies
    );
    let loads = |it: &Explanation| {
        it.remedies
            .iter()
            .any(|it| it.command == Some("modprobe nvidia_peermem"))
    };
    assert!(!loads(&geforce));
    assert!(loads(&of("Couldn't allocate MR\nfailed to create mr")));
    assert!(!loads(&of(
        "nvidia_peermem 16384 0\nCouldn't allocate MR\nfailed to create mr"
    )));
    let tcp = of(
        "network device 'mlx5_bond_0:1' is not available, please use one or more of: 'bond0'(tcp), 'lo'(tcp)",
    );
    assert!(
        tcp.remedies[0]
            .command
            .is_some_and(|it| it.contains("ucx_info")),
        "{:?}",
        tcp.remedies
    );
}

#[test]
fn a_message_that_is_harmless_on_a_platform_is_no_fault_there() {
    let message = "mlx5_core 0000:01:00.0: mlx5_pcie_event:301:(pid 8): Detected insufficient power on the PCIe slot (27W).";
    assert_eq!(explain(message)[0].kind, Kind::Fault);
    let spark = format!("DMI: NVIDIA NVIDIA_DGX_Spark/P4242, BIOS 5.36\n{message}");
    assert_eq!(explain(&spark)[0].kind, Kind::Harmless);
}

#[test]
fn a_fabric_manager_that_finds_no_nvswitch_is_no_fault() {
    let text = "nvidia-fabricmanager-start.sh[4756]: request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\nsystemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE";
    let found = explain(text).swap_remove(0);
    assert_eq!(
        (found.cause.id, found.kind),
        ("fabric-manager", Kind::Harmless)
    );
    assert_contains!(
        found.remedies[0].what,
        "no NVSwitches",
        "{:?}",
        found.remedies
    );
    assert_eq!(found.remedies.len(), 1);
}

#[test]
fn healthy_lines_in_a_row_have_no_cause() {
    let all = HEALTHY.join("\n");
    let found = explain(&all);
    let named: Vec<_> = found.iter().map(|it| (it.cause.id, &it.matches)).collect();
    assert!(named.is_empty(), "{named:?}");
}

#[test]
fn what_loggers_put_around_a_message_changes_nothing() {
    let wrappers: [(&str, &str); 11] = [
        ("[  812.345678] ", ""),
        ("[Sun Feb 23 16:24:18 2025] ", ""),
        ("Nov 22 07:31:54 gpu-node-17 kernel: ", ""),
        ("6,3973,227996636,-;", ""),
        ("2025-08-21T10:00:00.123456789Z stderr F ", ""),
        (
            "{\"log\":\"",
            "\\n\",\"stream\":\"stderr\",\"time\":\"2025-08-21T10:00:00.1Z\"}",
        ),
        ("[1,12]<stderr>:", "\r"),
        ("> ", ""),
        ("\u{1b}[1;31m", "\u{1b}[0m"),
        ("(RayWorker pid=4242, ip=10.0.0.1) ", ""),
        ("[rank3]: ", ""),
    ];
    let mut wrong = Vec::new();
    for (cause, text) in texts() {
        for (before, after) in wrappers {
            let lines: Vec<String> = (text.lines())
                .map(|line| format!("{before}{line}{after}"))
                .collect();
            let wrapped = lines.join("\n");
            // A time in front takes a line from those that begin with a word.
            if first(&wrapped) != cause {
                wrong.push(format!("{wrapped}: {}, not {cause}", first(&wrapped)));
            }
        }
        for changed in [
            text.to_uppercase(),
            text.to_lowercase(),
            text.replace('\n', "\r\n"),
        ] {
            if first(&changed) != cause {
                wrong.push(format!("{changed}: {}, not {cause}", first(&changed)));
            }
        }
    }
    assert_none_wrong(&wrong);
}

#[test]
fn a_wrapped_message_means_what_it_means_on_one_line() {
    let mut wrong = Vec::new();
    for (cause, text) in texts().filter(|(_, text)| !text.contains('\n')) {
        // As a terminal does it, within words.
        let hard: Vec<String> = (text.chars().collect::<Vec<char>>())
            .chunks(80)
            .map(|line| line.iter().collect())
            .collect();
        // As a mail program does it, between words.
        let mut soft = vec![String::new()];
        for word in text.split(' ') {
            if soft[soft.len() - 1].len() + word.len() > 72 {
                soft.push(String::new());
            }
            let line = soft.last_mut().unwrap();
            line.push_str(word);
            line.push(' ');
        }
        for lines in [hard, soft] {
            if lines.len() > 3 {
                continue;
            }
            let wrapped = lines.join("\n");
            if first(&wrapped) != cause {
                wrong.push(format!("{wrapped}: {}, not {cause}", first(&wrapped)));
            }
        }
    }
    assert_none_wrong(&wrong);
}

#[test]
fn every_cause_is_named_by_a_text() {
    for cause in causes() {
        assert!(
            texts().any(|(id, _)| id == cause.id),
            "{} has no text",
            cause.id
        );
    }
}

#[test]
fn of_a_log_the_surest_cause_comes_first_and_its_lines_are_shown() {
    let log = "\
host:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE
host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
host:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.1.1.2<48344> with error 4, opcode 0, len 0, vendor err 81
host:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.1.1.2<48344> with error 5, opcode 0, len 0, vendor err 249
";
    let found = explain(log);
    let ids: Vec<&str> = found.iter().map(|it| it.cause.id).collect();
    assert_eq!(ids, ["acs-redirect", "gdr-unused", "flush-error"]);
    assert_eq!(found[0].matches[0].line, 3);
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in "\\PC{0,200}(\n\\PC{0,200}){0,20}") {
        for explanation in explain(&text) {
            prop_assert!(!explanation.matches.is_empty());
            prop_assert!(explanation.matches.iter().all(|it| it.text.len() <= MAX_LINE));
        }
    }
}

#[test]
fn no_remedy_asks_for_what_the_machine_does_not_have() {
    let guest = "[    0.0] DMI: QEMU Standard PC (Q35 + ICH9, 2009), BIOS 1.16\n";
    let spark = "[    0.0] DMI: NVIDIA NVIDIA_DGX_Spark/P4242, BIOS 5.36\n";
    for line in [
        "[    9.0] pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Fatal)\n",
        "[    9.0] mlx5_core 0000:01:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 \
         GT/s PCIe x4 link at 0000:00:01.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)\n",
        "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n",
    ] {
        let asks = |text: String| {
            let found = explain(&text);
            assert!(!found.is_empty(), "{text}");
            let remedies = found.into_iter().flat_map(|it| it.remedies);
            let words =
                remedies.map(|it| format!("{} {}", it.what, it.command.unwrap_or_default()));
            words.collect::<Vec<_>>().join("; ")
        };
        let plain = asks(line.to_owned());
        assert!(
            plain.contains("slot") || plain.contains("modprobe"),
            "{plain}"
        );
        for machine in [guest, spark] {
            let there = asks(format!("{machine}{line}"));
            assert!(!there.contains("slot"), "{there}");
            assert!(
                machine == guest || !there.contains("modprobe nvidia_peermem"),
                "{there}"
            );
        }
    }
}
