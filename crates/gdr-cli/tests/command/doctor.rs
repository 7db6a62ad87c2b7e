//! `gdr doctor` and `gdr explain`.

use std::io::Write;
use std::path::Path;
use std::process::{Command as Process, Stdio};

use serde_json::Value;
use snapshot::assert_contains;

use super::{code, gdr, stderr, stdout};

fn doctor(line: &str) -> std::process::Output {
    gdr(["doctor"].into_iter().chain(line.split_whitespace()))
}

#[test]
fn a_node_without_gpus_gets_a_report_and_no_error() {
    // This node may have GPUs; what it may not do is to end in any other way.
    let output = doctor("");
    assert!(matches!(code(&output), 0..=3), "{}", stderr(&output));
    assert_contains!(stdout(&output), "fine");
}

#[test]
fn the_example_is_labelled_and_is_the_same_every_time() {
    let text = stdout(&doctor("--example"));
    assert!(text.starts_with("This is the example node"), "{text}");
    let report = || {
        let mut report: Value = serde_json::from_str(&stdout(&doctor("--example --json"))).unwrap();
        // The time is the run's.
        assert!(report["time"].take().is_string(), "{report}");
        report
    };
    let first = report();
    assert_eq!(first, report());
    let report = first;
    assert_eq!(report["schema"], "gdr.doctor");
    assert_eq!(report["host"], "example-node");
}

#[test]
fn every_format_is_written() {
    for (format, begins) in [
        ("md", "# GPUDirect RDMA on example-node"),
        ("html", "<!doctype html>"),
        ("junit", "<?xml"),
        ("prom", "# HELP gdr_doctor_outcome"),
        ("json", "{"),
    ] {
        let text = stdout(&doctor(&format!("--example --format {format}")));
        assert!(text.starts_with(begins), "{format}: {text}");
    }
}

#[test]
fn checks_are_listed_and_documented() {
    let list = stdout(&doctor("list"));
    assert!(list.contains("gpu.present"), "{list}");
    let shown = stdout(&doctor("show gpu.present"));
    assert_contains!(shown, "\njudges\n");
    let wrong = doctor("show gpu.presnt");
    assert_eq!(code(&wrong), 64);
    assert_contains!(stderr(&wrong), "did you mean gpu.present?");
}

#[test]
fn a_pair_that_is_not_there_is_named_with_those_that_are() {
    let output = doctor("--example --pair GPU9,mlx5_0");
    assert_eq!(code(&output), 64);
    let said = stderr(&output);
    assert_contains!(
        said,
        "device `GPU9` does not exist: the devices are GPU0, GPU1"
    );
}

#[test]
fn a_pair_may_be_named_in_either_order_and_a_good_one_gets_a_yes() {
    for pair in [
        "GPU0,mlx5_1",
        "mlx5_1,gpu0",
        "0000:19:00.0,18:00.0",
        "NIC1,GPU0",
    ] {
        let output = doctor(&format!("--example --pair {pair}"));
        assert_eq!(code(&output), 0, "{pair}: {}", stderr(&output));
        let text = stdout(&output);
        assert_contains!(
            text,
            "Yes: nothing is wrong between GPU0 and mlx5_1.",
            "{pair}"
        );
    }
    let output = doctor("--example --pair GPU4,GPU5");
    assert_eq!(code(&output), 64);
    let said = stderr(&output);
    assert_contains!(said, "GPU4 and GPU5 are both GPUs");
    assert_contains!(said, "gdr topo why GPU4 GPU5");
}

#[test]
fn a_far_nic_that_was_asked_about_is_not_called_the_nearest() {
    let output = doctor("--example --pair GPU0,mlx5_3");
    let text = stdout(&output);
    assert_eq!(code(&output), 1, "{text}");
    assert!(!text.contains("nearest NIC is"), "{text}");
    assert_contains!(text, "nearer NICs: mlx5_1 at PIX, mlx5_2 at PIX");
}

#[test]
fn a_prologue_that_needs_a_gpu_ends_with_2_and_a_reason_where_none_is_usable() {
    let output = doctor("--example --pair GPU0,mlx5_1 --require-gpu");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let dir = tempfile::tempdir().unwrap();
    let listing = dir.path().join("lspci.txt");
    std::fs::write(&listing, "00:00.0 Host bridge: Intel Corporation X\n").unwrap();
    let from = listing.to_str().unwrap();
    let output = doctor(&format!("--from {from} --only gpu.class --require-gpu"));
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    let said = stderr(&output);
    assert_contains!(said, "no GPU is usable: the list of GPUs is unknown");
}

#[test]
fn a_file_that_cannot_be_read_is_no_failure_of_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let words = dir.path().join("words.txt");
    std::fs::write(&words, "hello\n").unwrap();
    for path in [words.as_path(), dir.path().join("nothing").as_path()] {
        let output = doctor(&format!("--json --from {}", path.display()));
        assert_eq!(code(&output), 66, "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["error"]["name"], "input");
        assert_eq!(report["exit"], 66);
    }
}

#[test]
fn evidence_of_a_listing_names_the_listing_and_no_path_of_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let listing = dir.path().join("lspci.txt");
    let text = "00:00.0 Host bridge: Intel Corporation X\n\
                41:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n\
                \tStatus: Cap+\n\tKernel driver in use: nouveau\n";
    std::fs::write(&listing, text).unwrap();
    let output = doctor(&format!("-v --from {}", listing.display()));
    let text = stdout(&output);
    assert_contains!(text, "lspci.txt: driver of 0000:41:00.0: nouveau");
    assert!(!text.contains("/sys/bus/pci"), "{text}");
}

#[test]
fn text_reports_fit_100_columns_but_for_commands_and_explain_their_marks() {
    let text = stdout(&doctor("--example -v"));
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with("$ "))
    {
        let is_one_word = line.split_whitespace().count() < 3;
        assert!(line.chars().count() <= 100 || is_one_word, "{line}");
    }
    assert_contains!(text, "[x] failure  [!] warning  [?] not known");
}

#[test]
fn a_matrix_and_an_nccl_dump_get_a_verdict_on_what_they_show() {
    let dir = tempfile::tempdir().unwrap();
    let matrix = dir.path().join("topo.txt");
    std::fs::write(&matrix, "\tGPU0\tNIC0\nGPU0\t X \tPIX\nNIC0\tPIX\t X \n").unwrap();
    let output = doctor(&format!("--from {}", matrix.display()));
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let text = stdout(&output);
    assert_contains!(text, "Nothing wrong was found: 1 finding is fine");
    assert!(!text.contains("works here"), "{text}");
    let nccl = dir.path().join("nccl.xml");
    std::fs::write(
        &nccl,
        "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:13:00.0\" class=\"0x020700\" \
         link_speed=\"32 GT/s\" link_width=\"16\"><nic><net name=\"mlx5_0\" dev=\"0\" \
         speed=\"400000\" gdr=\"0\"/></nic></pci></cpu></system>",
    )
    .unwrap();
    let output = doctor(&format!("--from {}", nccl.display()));
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert_contains!(stdout(&output), "GPUDirect RDMA is off");
}

#[test]
fn json_has_every_key_once() {
    for line in ["peermem status --example --json", "doctor --example --json"] {
        let text = stdout(&gdr(line.split_whitespace()));
        let mut open: Vec<Vec<String>> = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some((key, _)) = line.split_once("\": ") {
                let keys = open.last_mut().unwrap();
                assert!(!keys.contains(&key.to_owned()), "{key} is there twice");
                keys.push(key.to_owned());
            }
            if line.ends_with('{') {
                open.push(Vec::new());
            } else if line.starts_with('}') {
                open.pop();
            }
        }
    }
}

#[test]
fn a_log_on_standard_input_is_explained() {
    let mut child = super::program()
        .args(["explain", "--offline", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let log = b"fine\n\xff\xfe\nCall to ibv_modify_qp failed with error No such device\n";
    child.stdin.take().unwrap().write_all(log).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "gdr.explain");
    assert_eq!(report["causes"][0]["cause"]["id"], "gid-other-namespace");
    assert_eq!(report["causes"][0]["matches"][0]["line"], 3);
}

#[test]
fn a_capture_that_does_not_exist_is_an_error_whatever_the_text_says() {
    let known = "Call to ibv_modify_qp failed with error No such device";
    for arguments in [
        vec!["nothing in particular"],
        vec![known],
        vec!["--offline", known],
        vec!["--offline", "--json", "nothing in particular"],
    ] {
        let missing = ["explain", "--from", "/does/not/exist"];
        let output = gdr(missing.into_iter().chain(arguments.iter().copied()));
        assert_eq!(code(&output), 66, "{arguments:?}: {}", stderr(&output));
        assert_contains!(stderr(&output), "/does/not/exist");
        let document = stdout(&output);
        if arguments.contains(&"--json") {
            assert_contains!(document, "\"gdr.error\"");
        } else {
            assert_eq!(document, "");
        }
    }
}

/// Returns what `gdr explain` makes of a log on standard input.
fn explained(arguments: &[&str], log: &str) -> std::process::Output {
    let mut child = super::program()
        .args(["explain", "--offline"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(log.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn a_kernel_log_with_addresses_of_another_machine_is_not_judged_by_this_node() {
    if !Path::new("/sys/bus/pci/devices").exists() {
        skip::skip("no PCI bus");
        return;
    }
    let log = "[   12.5] NVRM: Xid (PCI:beef:1b:00): 79, pid=1, GPU has fallen off the bus.";
    let output = super::program().args(["explain", log]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_contains!(text, "no PCI function at beef:1b:00.0");
    assert!(!text.contains("confirms it"), "{text}");
}

#[test]
fn a_healthy_log_is_answered_with_yes_and_ends_with_0() {
    let log = "\
n0:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
n0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
";
    let output = explained(&[], log);
    assert_eq!(code(&output), 0);
    let text = stdout(&output);
    assert!(
        text.starts_with("GPUDirect RDMA is in use: the one connection "),
        "{text}"
    );
    assert_contains!(text, "   line 2: n0:1:2");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let report: Value = serde_json::from_slice(&explained(&["--json"], log).stdout).unwrap();
    assert_eq!(report["gpudirect"]["in_use"], "yes");
    assert_eq!(report["causes"].as_array().unwrap().len(), 0);
}

#[test]
fn a_mixed_log_names_the_ranks_without_gpudirect() {
    let log = "\
Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/1
";
    let output = explained(&[], log);
    assert_eq!(code(&output), 0);
    let text = stdout(&output);
    assert!(
        text.starts_with("GPUDirect RDMA is in use in part: of 2 "),
        "{text}"
    );
    assert_contains!(text, "Ranks without it: 1\n");
    assert_contains!(text, "rank 1 to rank 9: sends through host memory");
}

#[test]
fn a_log_is_read_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nccl.log");
    std::fs::write(
        &path,
        "NCCL WARN Call to ibv_modify_qp failed with error No such device\n",
    )
    .unwrap();
    let output = gdr(["explain", "--offline", path.to_str().unwrap()]);
    assert_eq!(code(&output), 0);
    assert_contains!(stdout(&output), "gid-other-namespace");
}

#[test]
fn every_cause_is_listed_in_a_document() {
    let output = gdr(["explain", "--list", "--json"]);
    assert_eq!(code(&output), 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["schema"], "gdr.explain.causes");
    assert_eq!(report["version"], 1);
    let causes = report["causes"].as_array().unwrap();
    assert_eq!(
        causes.len(),
        stdout(&gdr(["explain", "--list"])).lines().count()
    );
    assert!(
        causes
            .iter()
            .all(|cause| cause["remedies"].as_array().is_some())
    );
}

#[test]
fn the_help_of_explain_has_the_undecided_status() {
    let help = stdout(&gdr(["explain", "--help"]));
    assert_contains!(help, "3   no known cause matches");
}

#[test]
fn a_text_that_means_nothing_is_undecided() {
    let output = gdr(["explain", "the weather is fine"]);
    assert_eq!(code(&output), 3);
    assert!(stdout(&output).contains("This text matches no known cause"));
}

#[test]
fn a_dry_run_prints_a_script_and_another_node_is_never_changed() {
    let output = gdr(["fix", "--example"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).starts_with("#!/bin/sh\n# What gdr fix would do on example-node."));
    let output = gdr(["fix", "--example", "--apply", "--yes"]);
    assert_eq!(code(&output), 64);
    let output = gdr(["fix", "--example", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let left = report["left"].as_array().unwrap();
    assert!(
        left.iter().any(|it| it["check"] == "link.width"),
        "{left:?}"
    );
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let output = gdr(["fix", "--undo", "--journal", journal.to_str().unwrap()]);
    assert_eq!(code(&output), 0);
    assert_eq!(stdout(&output), "There is nothing to undo.\n");
}

#[test]
fn the_peer_memory_of_a_node_is_described() {
    let output = gdr(["peermem", "status", "--example"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stdout(&output).starts_with("peer memory: active\n"),
        "{}",
        stdout(&output)
    );
    let output = gdr(["peermem", "status", "--example", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "gdr.peermem");
    assert_eq!(report["standing"], "active");
    // This node may or may not have it; it is described all the same.
    assert!(matches!(code(&gdr(["peermem", "status"])), 0..=3));
}

#[test]
fn the_page_opens_in_a_browser_with_its_picture() {
    let browser = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Process::new(name).arg("--version").output().is_ok());
    let Some(browser) = browser else {
        eprintln!("skipped: the_page_opens_in_a_browser_with_its_picture: no Chromium is here");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    std::fs::write(&page, stdout(&doctor("--example --format html"))).unwrap();
    let profile = format!("--user-data-dir={}", dir.path().join("profile").display());
    let output = Process::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--timeout=20000",
        ])
        .args([profile.as_str(), "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let seen = stdout(&output);
    assert!(
        seen.contains("<title>GPUDirect RDMA on example-node</title>"),
        "{seen:.200}"
    );
    // The parser of the browser put the picture where it belongs, with every device in it.
    assert_contains!(seen, "<figure class=\"topology\"><svg", "no picture");
    assert_eq!(
        seen.matches(">GPU7</text>").count(),
        3,
        "GPU7 and its row and column"
    );
    let log = stderr(&output);
    assert!(!log.contains("CONSOLE"), "{log}");
}
