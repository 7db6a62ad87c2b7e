//! The `gdr` command from the outside, on the simulated GPU.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod collect;
mod devices;
mod doctor;
mod gdrcopy;
mod loopback;
mod topo;
mod verbs;

use std::ffi::OsStr;
use std::process::{Output, Stdio};

use assert_cmd::cargo::cargo_bin_cmd;
use assert_cmd::{Command, cargo_bin};
use regex::Regex;
use serde_json::Value;

/// `gdr` with these arguments and none of the caller's environment that would change it.
fn gdr<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    clean(cargo_bin_cmd!("gdr"))
        .args(arguments)
        .output()
        .unwrap()
}

fn clean(mut command: Command) -> Command {
    for variable in [
        "GDR_BACKEND",
        "GDR_COPY",
        "GDR_LOG",
        "NO_COLOR",
        "CLICOLOR_FORCE",
    ] {
        command.env_remove(variable);
    }
    // Whatever devices this machine has.
    command.env("GDR_LIBIBVERBS", "/nonexistent/libibverbs.so.1");
    command
}

/// As [`gdr`], on the simulated GPU also where there is a real one.
fn simulated(line: &str) -> Output {
    gdr(line.split_whitespace().chain(["--backend", "sim"]))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// What it prints when all is well.
fn fine(line: &str) -> String {
    let output = simulated(line);
    assert_eq!(code(&output), 0, "{line}: {}", stderr(&output));
    stdout(&output)
}

fn json(line: &str) -> Value {
    serde_json::from_str(&fine(&format!("{line} --json"))).unwrap()
}

/// Every line, in order, matches the pattern of its place.
fn assert_lines(text: &str, patterns: &[&str]) {
    let lines: Vec<_> = text.lines().collect();
    for (line, pattern) in lines.iter().zip(patterns) {
        let regex = Regex::new(&format!("^{pattern}$")).unwrap();
        assert!(
            regex.is_match(line),
            "`{line}` is not `{pattern}` in:\n{text}"
        );
    }
    assert_eq!(lines.len(), patterns.len(), "{text}");
}

#[test]
fn every_help_has_examples_and_the_exit_status() {
    for subcommand in [
        "loopback", "sanity", "copybw", "copylat", "apiperf", "pplat", "info",
    ] {
        for help in ["-h", "--help"] {
            let output = gdr([subcommand, help]);
            assert_eq!(code(&output), 0);
            let text = stdout(&output);
            assert!(
                text.contains(&format!("Examples:\n  gdr {subcommand}")),
                "{text}"
            );
            assert!(text.contains("Exit status:\n  0   fine"), "{text}");
        }
    }
    assert!(stdout(&gdr(["--help"])).contains("64  the command line makes no sense"));
}

#[test]
fn a_command_line_that_makes_no_sense_ends_with_64() {
    for line in [
        "",
        "frobnicate",
        "sanity --frobnicate",
        "sanity -t no_such_check",
        "copybw -s 1x",
        "copybw -w 0",
        "copybw -a malloc",
        "copybw -o 128K",
        "copylat -C",
        "pplat -s 6",
        "pplat -m 2",
        "pplat -T 4096",
        "info --backend nonsense",
        "completions tcsh",
    ] {
        let output = gdr(line.split_whitespace().chain(
            if line.contains("--backend") {
                [].iter()
            } else {
                ["--backend", "sim"].iter()
            }
            .copied(),
        ));
        assert_eq!(code(&output), 64, "{line}: {}", stderr(&output));
        assert!(!stderr(&output).is_empty(), "{line}");
    }
}

#[test]
fn a_backend_of_the_environment_is_read_and_the_option_wins() {
    let with = |value: &str, arguments: &[&str]| {
        clean(cargo_bin_cmd!("gdr"))
            .env("GDR_BACKEND", value)
            .args(arguments)
            .output()
            .unwrap()
    };
    let list = ["sanity", "-t", "refusal_backend_name"];
    let output = with("sim", &list);
    assert!(
        stdout(&output).starts_with("simulated: asked for by name\n"),
        "{}",
        stderr(&output)
    );
    let output = with("nonsense", &list);
    assert_eq!(code(&output), 64);
    let text = stderr(&output);
    assert_eq!(text.matches("no backend `nonsense`").count(), 1, "{text}");
    let output = with("nonsense", &[&list[..], &["--backend", "sim"]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn sanity_passes_on_the_simulated_gpu_and_says_that_it_is_one() {
    let text = fine("sanity");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("simulated: asked for by name"));
    let total = Regex::new(r"^Total: (\d+), Passed: \d+, Failed: 0, Waived: 2$").unwrap();
    let total = total.captures(lines.next().unwrap()).unwrap();
    assert!(total[1].parse::<u32>().unwrap() > 90, "{text}");
    let list = "\n\nList of waived tests:\n    basic_v2_forcepci_cumemalloc\n";
    assert!(text.contains(list), "{text}");
    assert!(
        text.contains("cannot force the mapping onto PCIe"),
        "{text}"
    );
    assert!(!text.contains("List of failed tests"), "{text}");
    assert!(
        text.ends_with("backend sim by simulated memory\n"),
        "{text}"
    );
}

#[test]
fn without_a_choice_sanity_uses_the_gpu_or_says_why_it_simulates() {
    let output = gdr(["sanity", "-t", "basic_cumemalloc"]);
    let text = stdout(&output);
    let reason = Regex::new("^simulated: no NVIDIA (driver|GPU) .+\nTotal: 1, ").unwrap();
    assert!(reason.is_match(&text) || text.starts_with("Total: 1, ") || code(&output) == 2);
}

#[test]
fn sanity_runs_the_checks_that_are_named_and_tells_how_they_go() {
    let output = simulated("sanity -v -t data_small_sizes -t attributes_sanity");
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("Total: 2, Passed: 2, Failed: 0, Waived: 0"));
    let told: Vec<_> = stderr(&output)
        .lines()
        .filter(|l| l.starts_with("&&&&"))
        .map(str::to_owned)
        .collect();
    assert_eq!(
        told,
        [
            "&&&& RUNNING data_small_sizes",
            "&&&& PASSED data_small_sizes",
            "&&&& RUNNING attributes_sanity",
            "&&&& PASSED attributes_sanity",
        ]
    );
    assert_lines(
        &fine("sanity -s -t attributes_sanity"),
        &["simulated: asked for by name"],
    );
}

#[test]
fn sanity_lists_its_checks_without_touching_a_gpu() {
    let text = fine("sanity -l");
    assert!(
        text.starts_with("List of all available tests:\n    attributes_sanity\n"),
        "{text}"
    );
    let extended = "\n\nList of all available extended tests:\n    basic_several_gib_mapping\n";
    assert!(text.contains(extended), "{text}");
    assert!(fine("sanity -l -v").contains("        The backend answers for its own properties."));
    let listed = json("sanity -l");
    assert!(
        listed
            .as_array()
            .unwrap()
            .iter()
            .all(|check| check["proves"].is_string())
    );
}

#[test]
fn every_report_names_its_schema_and_says_that_it_was_simulated() {
    for (line, schema) in [
        ("sanity -t basic_cumemalloc", "gdr.sanity"),
        ("copybw -s 64K -w 10 -r 10", "gdr.copybw"),
        ("copylat -s 64K -w 10 -r 10", "gdr.copylat"),
        ("apiperf -s 64K -n 5", "gdr.apiperf"),
        ("pplat -t 20", "gdr.pplat"),
        ("info", "gdr.info"),
    ] {
        let report = json(line);
        assert_eq!(report["schema"], schema, "{line}");
        assert_eq!(report["version"], 1, "{line}");
        assert_eq!(report["simulated"], true, "{line}");
        assert_eq!(report["backend"], "sim", "{line}");
    }
}

#[test]
fn a_comparison_with_cuda_begins_with_the_ratio() {
    for line in ["copybw -s 64K -w 20 -r 20", "copylat -s 64K -w 20 -r 20"] {
        let text = fine(&format!("{line} --against cuda"));
        let (_, table) = text
            .split_once("closing gdrdrv\n\nagainst cuMemcpy")
            .unwrap();
        let row = r"^ +[0-9.]+x +\d+ +(to|from) GPU( +[0-9.]+){3}$";
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert!(rows.len() >= 2, "{text}");
        assert!(
            rows.iter()
                .all(|line| Regex::new(row).unwrap().is_match(line)),
            "{table}"
        );
    }
}

#[test]
fn info_tells_the_route_of_every_kind_of_memory() {
    let text = fine("info");
    for expected in [
        "backend: sim",
        "copy routine: ",
        "cuMemAllocAsync",
        "simulated memory",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let info = json("info");
    assert_eq!(info["routes"].as_array().unwrap().len(), 4);
    assert!(
        info["routes"][0]["route"]
            .as_str()
            .unwrap()
            .contains("simulated memory")
    );
    assert!(
        info["copy_routines"]
            .as_array()
            .unwrap()
            .contains(&info["copy_routine"])
    );
}

#[test]
fn a_gpu_that_is_not_there_is_a_failure_that_counts_the_others() {
    let output = simulated("copybw --gpu 7");
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("no GPU 7: this process sees 2"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_mapping_type_that_there_is_not_is_a_failure_by_name() {
    let output = simulated("copybw -M cache");
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("write-combined"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error_to_speak_of() {
    let mut child = std::process::Command::new(cargo_bin!("gdr"))
        .args(["copybw", "-l", "-w", "10", "-r", "10", "--backend", "sim"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 3);
    assert_eq!(stderr(&output), "");
}

#[test]
fn color_is_given_only_where_it_is_asked_for() {
    let plain = simulated("info");
    assert!(!stdout(&plain).contains('\x1b'));
    let colored = simulated("info --color always");
    assert!(stdout(&colored).contains('\x1b'));
}

#[test]
fn completions_and_manual_pages_are_made_from_the_command_itself() {
    assert!(fine("completions bash").contains("copylat"));
    let directory = tempfile::tempdir().unwrap();
    let output = gdr([OsStr::new("man"), directory.path().as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let page = std::fs::read_to_string(directory.path().join("gdr-copybw.1")).unwrap();
    assert!(page.contains("Exit status"), "{page}");
}
