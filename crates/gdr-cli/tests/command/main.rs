//! The `gdr` command from the outside, on the simulated GPU.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bad_input;
mod chaos;
mod ci_files;
mod collect;
mod compare;
mod copies;
mod devices;
mod doctor;
mod documents;
mod env;
mod fleet_files;
mod gdrcopy;
mod guide;
mod loopback;
mod mesh;
mod net;
mod objects;
mod perf;
mod preloaded;
mod run;
mod server;
mod shape;
mod simulation;
mod snapshots;
mod terminal;
mod topo;
mod trace;
mod unknown_peers;
mod verbs;
mod verdicts;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Output, Stdio};

use assert_cmd::cargo::cargo_bin_cmd;
use assert_cmd::{Command, cargo_bin};
use regex::Regex;
use serde_json::Value;
use snapshot::assert_contains;

/// `gdr` with these arguments and none of the caller's environment that would change it.
fn gdr<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    clean(cargo_bin_cmd!("gdr"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Copies a program that the test then runs. Another process writes the copy: a child that a different test starts
/// meanwhile would inherit a descriptor of this process for writing, and the kernel does not run such a file.
fn copy_program(from: impl AsRef<Path>, to: &Path) {
    Command::new("cp")
        .arg(from.as_ref())
        .arg(to)
        .assert()
        .success();
}

/// Variables of the caller that would change what `gdr` does.
const OF_THE_CALLER: [&str; 13] = [
    "GDR_BACKEND",
    "GDR_COPY",
    "GDR_LOG",
    "GDR_NICS",
    "GDR_VERBS_LIBRARY",
    "NCCL_GIN_TYPE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MAX_NRINGS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_NET_GDR_LEVEL",
    "NO_COLOR",
    "CLICOLOR_FORCE",
];

/// What tests have in their place: whatever devices this machine has, and whatever its user has measured.
const OF_TESTS: [(&str, &str); 3] = [
    ("GDR_LIBIBVERBS", "/nonexistent/libibverbs.so.1"),
    ("HOME", "/nonexistent"),
    ("XDG_STATE_HOME", "/nonexistent"),
];

fn clean(mut command: Command) -> Command {
    for variable in OF_THE_CALLER {
        command.env_remove(variable);
    }
    command.envs(OF_TESTS);
    command
}

/// The same for a process that a test talks with.
fn isolated(command: &mut std::process::Command) -> &mut std::process::Command {
    for variable in OF_THE_CALLER {
        command.env_remove(variable);
    }
    command.envs(OF_TESTS)
}

/// `gdr` as a process that a test talks with.
fn program() -> std::process::Command {
    let mut command = std::process::Command::new(cargo_bin!("gdr"));
    isolated(&mut command);
    command
}

/// Like [`gdr`], on the simulated GPU also where there is a real one.
fn simulated(line: &str) -> Output {
    gdr(line.split_whitespace().chain(["--simulate"]))
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

/// Returns what it prints, after checking that all is well.
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
fn running_text_fits_100_columns() {
    for line in [
        "loopback --simulate --udp-port 14840 --size 4K -i 2",
        "devices",
        "devices --example",
        "info --simulate",
        "sanity --simulate -t basic_cumemalloc -t basic_v2_forcepci_cumemalloc",
        "doctor list",
        "peermem status --example",
        "topo why --example GPU3 mlx5_4",
    ] {
        let text = stdout(&gdr(line.split(' ')));
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
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
        "copybw --simulate -o 128K",
        "copylat --simulate -C",
        "pplat --simulate -s 6",
        "pplat -m 2",
        "pplat --simulate -T 4096",
        "info --backend nonsense",
        "completions tcsh",
        "doctor --example --gpu 99",
        "topo --example -d 3",
        "nics --example --backend rm",
        "explain --simulate text",
        "sanity --gpu mlx5_0",
        "sanity --simulate --require-gpu",
        "sanity --simulate --backend rm",
        "loopback --connect 127.0.0.1 --gpu 1",
        "help frobnicate",
    ] {
        let output = gdr(line.split_whitespace());
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
        stdout(&output).starts_with("SIMULATED: GDR_BACKEND is sim\n"),
        "{}",
        stderr(&output)
    );
    let output = with("nonsense", &list);
    assert_eq!(code(&output), 64);
    let text = stderr(&output);
    assert_eq!(
        text.matches("`nonsense` is not a backend").count(),
        1,
        "{text}"
    );
    let output = with("nonsense", &[&list[..], &["--backend", "sim"]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn sanity_passes_on_the_simulated_gpu_and_says_that_it_is_one() {
    let text = fine("sanity");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("SIMULATED: --simulate was given"));
    let total = Regex::new(r"^Total: (\d+), Passed: \d+, Failed: 0, Waived: 8$").unwrap();
    let total = total.captures(lines.next().unwrap()).unwrap();
    assert!(total[1].parse::<u32>().unwrap() > 90, "{text}");
    let list = "\n\nList of waived tests:\n    basic_v2_forcepci_cumemalloc\n";
    assert!(text.contains(list), "{text}");
    assert_contains!(text, "cannot force the mapping onto PCIe");
    assert!(!text.contains("List of failed tests"), "{text}");
    assert_contains!(text, "backend sim by simulated memory\n");
}

#[test]
fn sanity_runs_the_checks_that_are_named_and_reports_how_they_go() {
    let output = simulated("sanity -v -t data_small_sizes -t attributes_sanity");
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("Total: 2, Passed: 2, Failed: 0, Waived: 0"));
    let logged: Vec<_> = stderr(&output)
        .lines()
        .filter(|l| l.starts_with("&&&&"))
        .map(str::to_owned)
        .collect();
    assert_eq!(
        logged,
        [
            "&&&& RUNNING data_small_sizes",
            "&&&& PASSED data_small_sizes",
            "&&&& RUNNING attributes_sanity",
            "&&&& PASSED attributes_sanity",
        ]
    );
    assert_lines(
        &fine("sanity -s -t attributes_sanity"),
        &[
            "SIMULATED: --simulate was given",
            "SIMULATED: no GPU was used: .+",
        ],
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
    assert_eq!(listed["schema"], "gdr.sanity.list");
    assert!(
        listed["checks"]
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
        ("copybw --sweep -s 4 --threads 2", "gdr.copysweep"),
        ("plan", "gdr.plan"),
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
        let (table, _) = table.split_once("\n\n").unwrap();
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
fn info_shows_the_route_of_every_kind_of_memory() {
    let text = fine("info");
    for expected in [
        "backend: sim",
        "copy routine: ",
        "cuMemAllocAsync",
        "simulated memory",
    ] {
        assert_contains!(text, expected);
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
    let error = stderr(&output);
    assert_contains!(error, "GPU 7 does not exist: this process sees 2");
    let remedy = "; --gpu takes an index, a UUID or a PCI address";
    assert!(error.contains(remedy), "{error}");
}

#[test]
fn a_mapping_type_that_there_is_not_is_a_failure_by_name() {
    let output = simulated("copybw -M cache");
    assert_eq!(code(&output), 2);
    assert_contains!(stderr(&output), "write-combined");
}

#[test]
fn a_reader_that_goes_away_is_no_error_to_speak_of() {
    let mut child = std::process::Command::new(cargo_bin!("gdr"))
        .args(["copybw", "-l", "-w", "10", "-r", "10", "--simulate"])
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
fn manual_pages_are_made_of_every_command_and_tool() {
    let directory = tempfile::tempdir().unwrap();
    let output = gdr([OsStr::new("man"), directory.path().as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let page = |name: &str| {
        let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(!text.contains("{exit"), "{text}");
        text
    };
    let copybw = page("gdr-copybw.1");
    assert_contains!(copybw, ".SH \"EXIT STATUS\"\n.nf\n  0   measured");
    assert!(page("gdrcopy_copybw.1").contains("  gdrcopy_copybw \\-l"));
    assert!(page("gdr.1").contains("\\fBgdr\\-doctor\\fR(1)"));
    page("gdr-topo-why.1");
}

#[test]
fn completions_know_names_and_gdrcopys_tools() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&gdr(["completions", shell]));
        let names = ["acs.path", "basic_cumemalloc", "dmabuf", "127.0.0.1"];
        // The generators for the other two shells complete no values.
        if matches!(shell, "bash" | "zsh" | "fish") {
            assert!(names.iter().all(|name| script.contains(name)), "{shell}");
        }
        assert_contains!(script, "gdrcopy_pplat", "{shell}");
        assert!(
            script
                .matches("using namespace System.Management.Automation\n")
                .count()
                <= 1
        );
    }
    let script = stdout(&gdr(["completions", "bash"]));
    let complete = |words: &[&str]| {
        let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
        let program = format!(
            "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _{} {} '{}' '{}'; echo \"${{COMPREPLY[@]}}\"",
            quoted.join(" "),
            words.len() - 1,
            words[0],
            words[0],
            words[words.len() - 1],
            words[words.len() - 2],
        );
        // It is longer than an argument may be.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), program).unwrap();
        let output = std::process::Command::new("bash").arg(file.path()).output();
        stdout(&output.unwrap())
    };
    assert_eq!(complete(&["gdr", "sanity", "--backend", "dm"]), "dmabuf\n");
    assert_eq!(
        complete(&["gdr", "doctor", "--only", "acs.pa"]),
        "acs.path\n"
    );
    for (words, whole) in [
        (&["gdr", "help", "loopb"][..], "loopback\n"),
        (&["gdr", "topo", "why", "GPU3"], "GPU3\n"),
        (&["gdr", "perf", "write-b"], "write-bw\n"),
        (
            &["gdr", "perf", "write-bw", "--device", "127.0.0.1"],
            "127.0.0.1\n",
        ),
        (&["gdr", "loopback", "--from", "127.0.0.1"], "127.0.0.1\n"),
    ] {
        assert_eq!(complete(words), whole, "{words:?}");
    }
    let tests = complete(&["gdrcopy_sanity", "-t", "basic_cumema"]);
    assert_contains!(tests, "basic_cumemalloc");
}

#[test]
fn a_version_names_gdr_and_not_the_command() {
    for line in ["--version", "sanity --version", "version"] {
        let text = stdout(&gdr(line.split(' ')));
        assert!(
            text.starts_with(&format!("gdr {}", env!("CARGO_PKG_VERSION"))),
            "{text}"
        );
    }
}

#[test]
fn helps_speak_of_what_they_are_about() {
    let text = stdout(&gdr(["--help"]));
    assert!(
        text.starts_with("GPUDirect RDMA and CPU access to GPU memory"),
        "{text}"
    );
    for group in ["Prove:", "Diagnose:", "Measure:", "Manage:", "About gdr:"] {
        assert_contains!(text, format!("\n{group}\n"));
    }
    for line in ["help", "help --help", "help topo why", "doctor show --help"] {
        let output = gdr(line.split(' '));
        assert_eq!(code(&output), 0, "{line}: {}", stderr(&output));
    }
    for command in [
        "doctor",
        "topo",
        "nics",
        "fix",
        "collect",
        "diff",
        "completions",
        "man",
    ] {
        let text = stdout(&gdr([command, "--help"]));
        assert!(
            !text.contains("--gpu ") && !text.contains("--backend "),
            "{text}"
        );
    }
    let width = |line: &&str| line.chars().count() <= 100;
    assert!(text.lines().all(|line| width(&line)), "{text}");
}

#[test]
fn what_cannot_be_written_is_said_once_and_fails() {
    for line in [
        "--help",
        "--version",
        "sanity --help",
        "version",
        "nics --example",
        "version --json",
    ] {
        let output = std::process::Command::new(cargo_bin!("gdr"))
            .args(line.split(' '))
            .stdout(
                std::fs::OpenOptions::new()
                    .write(true)
                    .open("/dev/full")
                    .unwrap(),
            )
            .output()
            .unwrap();
        assert_eq!(code(&output), 2, "{line}");
        let text = stderr(&output);
        assert_eq!(text.matches("error: ").count(), 1, "{line}: {text}");
        assert_contains!(text, "standard output: No space left", "{line}");
    }
}

#[test]
fn a_filter_of_log_lines_that_is_none_is_refused() {
    let with = |filter: &str| {
        let mut command = clean(cargo_bin_cmd!("gdr"));
        command
            .env("GDR_LOG", filter)
            .arg("version")
            .output()
            .unwrap()
    };
    let output = with("bogus=x=y");
    assert_eq!(code(&output), 64);
    assert_contains!(stderr(&output), "GDR_LOG is `bogus=x=y`");
    for filter in ["", "info", "gdr_rdma=debug,warn"] {
        assert_eq!(code(&with(filter)), 0, "{filter}");
    }
}

#[test]
fn a_gpu_is_chosen_by_uuid_and_pci_address() {
    let text = fine("copybw -s 64K -w 10 -r 10 --gpu ffff:00:01.0");
    assert_contains!(text, "\nselecting device 1\n");
    let output = simulated("info --gpu GPU-ffffffff");
    assert_eq!(code(&output), 2);
    assert_contains!(stderr(&output), "this process sees 0: GPU-");
}
