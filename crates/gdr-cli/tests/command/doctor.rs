//! `gdr doctor` and `gdr explain`.

use std::io::Write;
use std::process::{Command as Process, Stdio};

use assert_cmd::cargo_bin;
use serde_json::Value;

use super::{code, gdr, stderr, stdout};

fn doctor(line: &str) -> std::process::Output {
    gdr(["doctor"].into_iter().chain(line.split_whitespace()))
}

#[test]
fn a_node_without_gpus_gets_a_report_and_no_error() {
    // This node may have GPUs; what it may not do is to end in any other way.
    let output = doctor("");
    assert!(matches!(code(&output), 0..=3), "{}", stderr(&output));
    assert!(stdout(&output).contains("fine"), "{}", stdout(&output));
}

#[test]
fn the_example_is_labelled_and_is_the_same_every_time() {
    let text = stdout(&doctor("--example"));
    assert!(text.starts_with("This is the example node"), "{text}");
    let first = stdout(&doctor("--example --json"));
    assert_eq!(first, stdout(&doctor("--example --json")));
    let report: Value = serde_json::from_str(&first).unwrap();
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
    assert!(shown.contains("\njudges\n"), "{shown}");
    let wrong = doctor("show gpu.presnt");
    assert_eq!(code(&wrong), 64);
    assert!(
        stderr(&wrong).contains("gdr doctor list"),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn a_pair_that_is_not_there_is_named_with_those_that_are() {
    let output = doctor("--example --pair GPU9,mlx5_0");
    assert_eq!(code(&output), 64);
    let said = stderr(&output);
    assert!(
        said.contains("there is no GPU `GPU9`: there are GPU0, GPU1"),
        "{said}"
    );
}

#[test]
fn a_log_on_standard_input_is_explained() {
    let mut child = Process::new(cargo_bin!("gdr"))
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
fn a_text_that_means_nothing_is_undecided() {
    let output = gdr(["explain", "the weather is fine"]);
    assert_eq!(code(&output), 3);
    assert!(stdout(&output).contains("Nothing here is known"));
}

#[test]
fn a_dry_run_is_a_script_and_another_node_is_never_mended() {
    let output = gdr(["fix", "--example"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).starts_with("#!/bin/sh\n# What gdr fix would do on example-node."));
    let output = gdr(["fix", "--example", "--apply", "--yes"]);
    assert_eq!(code(&output), 64);
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let output = gdr(["fix", "--undo", "--journal", journal.to_str().unwrap()]);
    assert_eq!(code(&output), 0);
    assert_eq!(stdout(&output), "There is nothing to take back.\n");
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
    assert!(
        seen.contains("<figure class=\"topology\"><svg"),
        "no picture"
    );
    assert_eq!(
        seen.matches(">GPU7</text>").count(),
        3,
        "GPU7 and its row and column"
    );
    let log = stderr(&output);
    assert!(!log.contains("CONSOLE"), "{log}");
}
