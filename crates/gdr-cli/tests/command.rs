//! The `gdr` command from the outside, on the simulated GPU.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
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

const INTRODUCTION: [&str; 4] = [
    "simulated: asked for by name",
    "GPU id:0; name: .+; Bus id: [0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}",
    "GPU id:1; name: .+; Bus id: [0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}",
    "selecting device 0",
];

const MAPPING: [&str; 7] = [
    "map_d_ptr: 0x[0-9a-f]+",
    "info.va: [0-9a-f]+",
    r"info.mapped_size: \d+",
    "info.page_size: 65536",
    "info.mapped: 1",
    "info.wc_mapping: 1",
    r"page offset: \d+",
];

#[test]
fn every_help_has_examples_and_the_exit_status() {
    for subcommand in ["sanity", "copybw", "copylat", "apiperf", "pplat", "info"] {
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
fn copybw_prints_the_lines_of_gdrcopys() {
    let text = fine("copybw -s 4096 -c 1000 -o 64 -w 50 -r 7 -a cuMemCreate");
    let about = [
        "testing size: 4096",
        "rounded size: 65536",
        "gpu alloc fn: cuMemCreate",
        "device ptr: [0-9a-f]+",
    ];
    let copies = [
        "user-space pointer:0x[0-9a-f]+",
        "writing test, size=1000 offset=64 num_iters=50",
        r"write BW: [0-9.]+MB/s",
        "reading test, size=1000 offset=64 num_iters=7",
        r"read BW: [0-9.]+MB/s",
        "unmapping buffer",
        "unpinning buffer",
        "closing gdrdrv",
    ];
    assert_lines(
        &text,
        &[&INTRODUCTION[..], &about, &MAPPING, &copies].concat(),
    );
}

#[test]
fn copybw_sweeps_powers_of_two_below_its_bound() {
    let text = fine("copybw -l -c 16 -w 10 -r 10");
    let sizes: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("writing test, size=")?.split(' ').next())
        .collect();
    assert_eq!(sizes, ["1", "2", "4", "8"]);
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
fn copylat_prints_the_lines_of_gdrcopys() {
    let text = fine("copylat -s 64K -w 100 -r 100 -c");
    let head = |name: &str| format!("{name} num iters for each size: 100");
    let sizes: Vec<_> = (0..=16).map(|shift| 1 << shift).collect();
    let rows = |name: &str| {
        let row = |size: &i32| {
            format!("{name} \t {size:>8} \t +[0-9]+\\.[0-9]{{4}} \t +[0-9]+\\.[0-9]{{4}}")
        };
        sizes.iter().map(row).collect::<Vec<_>>()
    };
    let owned = |lines: &[&str]| {
        lines
            .iter()
            .map(|&line| line.to_owned())
            .collect::<Vec<_>>()
    };
    let titles = |tabs: &str| {
        format!("Test {tabs} Size\\(B\\) \t Median Time\\(us\\) \t Min\\. Time\\(us\\)")
    };
    let mut expected = owned(&INTRODUCTION);
    expected.extend(owned(&[
        "device ptr: 0x[0-9a-f]+",
        "allocated size: 65536",
        "gpu alloc fn: cuMemAlloc",
    ]));
    for name in ["cuMemcpy_H2D", "cuMemcpy_D2H"] {
        expected.extend([String::new(), head(name), titles("\t\t")]);
        expected.extend(rows(name));
    }
    expected.push(String::new());
    expected.extend(owned(&MAPPING));
    expected.extend(owned(&[
        "user-space pointer: 0x[0-9a-f]+",
        "use cold cache: no",
    ]));
    for name in ["gdr_copy_to_mapping", "gdr_copy_from_mapping"] {
        expected.extend([String::new(), head(name)]);
        if name == "gdr_copy_to_mapping" {
            expected.push("WARNING: .+".to_owned());
        }
        expected.push(titles("\t\t\t"));
        expected.extend(rows(name));
    }
    expected.extend(owned(&[
        "unmapping buffer",
        "unpinning buffer",
        "closing gdrdrv",
    ]));
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    assert_lines(&text, &expected);
}

#[test]
fn copylat_says_when_it_rounds_iterations_up() {
    let output = simulated("copylat -s 64K -w 150 -r 10");
    assert!(
        stderr(&output).contains(
            "WARNING: num_write_iters is not a multiple of 100. Increasing num_write_iters from \
             150 to 200."
        ),
        "{}",
        stderr(&output)
    );
}

#[test]
fn apiperf_prints_the_lines_of_gdrcopys() {
    let text = fine("apiperf -s 128K -n 10 -w 1");
    let number = r"\d+\.\d{6}";
    let bin = format!(r"\[{number}\t-\t{number}\]\t\d+");
    let size = |bytes: u32| {
        let mut lines = vec![
            r"Size\(B\)\tpin\.Time\(us\)\tmap\.Time\(us\)\tget_info\.Time\(us\)\tunmap\.Time\(us\)\tunpin\.Time\(us\)".to_owned(),
            format!(r"{bytes}(\t{number}){{5}}"),
            format!("Histogram of gdr_pin_buffer latency for {bytes} bytes"),
        ];
        lines.extend(std::iter::repeat_n(bin.clone(), 10));
        lines.push(String::new());
        lines
    };
    let mut expected: Vec<String> = INTRODUCTION.map(str::to_owned).into();
    expected.extend([
        "device ptr: 0x[0-9a-f]+".to_owned(),
        "allocated size: 131072".to_owned(),
    ]);
    expected.extend(size(65_536));
    expected.extend(size(131_072));
    expected.push("closing gdrdrv".to_owned());
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    assert_lines(&text, &expected);
}

#[test]
fn pplat_prints_the_lines_of_gdrcopys() {
    for line in [
        "pplat -t 100",
        "pplat -t 100 -m 1 -s 64 -B 1 -T 16 -G hostmem -C gpumem -D hostmem",
    ] {
        let text = fine(line);
        let result = r"(?m)^Round-trip latency per iteration is \(min\) [0-9.e-]+, \(median\) [0-9.e-]+ us\nclosing gdrdrv$";
        assert!(Regex::new(result).unwrap().is_match(&text), "{text}");
        assert!(text.contains("\nBenchmark mode: "), "{text}");
        assert!(text.contains("\nRunning 100 iterations with "), "{text}");
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
fn gdrcopys_names_are_its_tools() {
    let directory = tempfile::tempdir().unwrap();
    for (name, line, expected) in [
        (
            "gdrcopy_sanity",
            "-v -t attributes_sanity",
            "Total: 1, Passed: 1, Failed: 0, Waived: 0",
        ),
        ("gdrcopy_copybw", "-d 0 -s 65536 -w 10 -r 10", "write BW: "),
        (
            "gdrcopy_copylat",
            "-s 65536 -w 10 -r 10",
            "gdr_copy_from_mapping \t ",
        ),
        (
            "gdrcopy_apiperf",
            "-s 65536 -n 5",
            "Histogram of gdr_pin_buffer latency for 65536 bytes",
        ),
        (
            "gdrcopy_pplat",
            "-t 10 -u 5",
            "Round-trip latency per iteration is (min) ",
        ),
    ] {
        let tool = directory.path().join(name);
        symlink(cargo_bin!("gdr"), &tool).unwrap();
        let mut command = clean(Command::new(&tool));
        let output = command
            .env("GDR_BACKEND", "sim")
            .args(line.split(' '))
            .output()
            .unwrap();
        assert_eq!(code(&output), 0, "{name}: {}", stderr(&output));
        assert!(
            stdout(&output).contains(expected),
            "{name}: {}",
            stdout(&output)
        );
    }
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
