//! GDRCopy's tools: the same lines, so that scripts which read them go on working.

use std::os::unix::fs::symlink;

use assert_cmd::{Command, cargo_bin};
use regex::Regex;
use snapshot::assert_contains;

use super::{assert_lines, clean, code, fine, simulated, stderr, stdout};

/// Returns what `gdrcopy_NAME` prints on the simulated GPU; the line begins with the name.
fn tool(line: &str) -> String {
    let (name, options) = line.split_once(' ').unwrap_or((line, ""));
    let directory = tempfile::tempdir().unwrap();
    let tool = directory.path().join(format!("gdrcopy_{name}"));
    symlink(cargo_bin!("gdr"), &tool).unwrap();
    let mut command = clean(Command::new(&tool));
    let output = command
        .arg("--simulate")
        .args(options.split_whitespace())
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{line}: {}", stderr(&output));
    stdout(&output)
}

const INTRODUCTION: [&str; 4] = [
    "SIMULATED: --simulate was given",
    "GPU id:0; name: .+; Bus id: [0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}",
    "GPU id:1; name: .+; Bus id: [0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}",
    "selecting device 0",
];

/// The last line of every simulated run.
const END: &str = "SIMULATED: no GPU was used: this result describes no hardware";

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
fn copybw_prints_the_lines_of_gdrcopys() {
    let text = tool("copybw -s 4096 -c 1000 -o 64 -w 50 -r 7 -a cuMemCreate");
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
        &[&INTRODUCTION[..], &about, &MAPPING, &copies, &[END]].concat(),
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
fn copylat_prints_the_lines_of_gdrcopys() {
    let text = tool("copylat -s 64K -w 100 -r 100 -c");
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
        END,
    ]));
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    assert_lines(&text, &expected);
}

#[test]
fn copylat_says_when_it_rounds_iterations_up() {
    let output = simulated("copylat -s 64K -w 150 -r 10");
    assert_contains!(
        stderr(&output),
        "WARNING: num_write_iters is not a multiple of 100. Increasing num_write_iters from \
             150 to 200."
    );
}

#[test]
fn apiperf_prints_the_lines_of_gdrcopys() {
    let text = tool("apiperf -s 128K -n 10 -w 1");
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
    expected.extend(["closing gdrdrv", END].map(str::to_owned));
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
        assert_contains!(text, "\nBenchmark mode: ");
        assert_contains!(text, "\nRunning 100 iterations with ");
        assert_contains!(text, "\nSingle round trips: ");
    }
    // Under GDRCopy's name there are its lines and no other.
    let expected = [
        "We will measure the visibility of the flag value only. Setting nblocks and nthreads to 1.",
        "Benchmark mode: CPU produces and GPU consumes",
        "gpu alloc fn: cuMemAlloc",
        "Measuring the visibility latency of the flag value.",
        "Running 100 iterations with flag size 4 bytes.",
        "",
        "CPU writes to gpu_flag. GPU polls on the expected gpu_flag value. GPU writes back via \
         cpu_flag. CPU polls on the expected cpu_flag value. We report the round-trip time from when \
         CPU writes to gpu_flag until it observes the update in cpu_flag.",
        "CPU does the time measurement.",
        "",
        r"Round-trip latency per iteration is \(min\) [0-9.e-]+, \(median\) [0-9.e-]+ us",
        "closing gdrdrv",
    ];
    assert_lines(
        &tool("pplat -t 100"),
        &[&INTRODUCTION[..], &expected, &[END]].concat(),
    );
}

#[test]
fn sanity_takes_the_names_of_gdrcopys_tests() {
    let text = tool(
        "sanity -t basic_small_buffers_mapping -t basic_with_tokens -t basic_v2_cumemalloc \
         -t invalidation_access_after_gdr_close_cumemalloc \
         -t invalidation_fork_child_gdr_map_parent_vmmalloc \
         -t invalidation_unix_sock_shared_fd_gdr_map_cumemalloc",
    );
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains!(text, "Total: 9, Passed: 7, Failed: 0, Waived: 2");
    assert_contains!(text, "there is no descriptor of one to pass on");
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
        assert_contains!(stdout(&output), expected, "{name}");
    }
}

#[test]
fn gdr_itself_adds_a_table_of_figures_to_the_lines() {
    for (line, titles) in [
        (
            "copybw -s 4K -w 10 -r 10",
            "bytes way median us p99 us GB/s Gb/s Mop/s",
        ),
        (
            "copylat -s 64K -w 10 -r 10",
            "copy bytes median us p99 us GB/s Gb/s Mop/s",
        ),
        (
            "apiperf -s 64K -n 5",
            "bytes pin us map us get_info us unmap us unpin us",
        ),
    ] {
        let text = fine(line);
        let (_, table) = text.split_once("closing gdrdrv\n\n").unwrap();
        let head = table.lines().next().unwrap();
        assert_eq!(
            head.split_whitespace().collect::<Vec<_>>().join(" "),
            titles
        );
        let fits = text.lines().all(|line| line.chars().count() <= 100);
        assert!(fits, "{text}");
        let (_, wide) = fine(&format!("{line} --wide"))
            .split_once("closing gdrdrv\n\n")
            .map(|(lines, table)| (lines.len(), table.lines().next().unwrap().len()))
            .unwrap();
        assert!(wide > head.len(), "{line}");
        assert!(!tool(line).contains(head), "{line}");
    }
}

#[test]
fn csv_is_nothing_but_rows_of_one_length_that_say_simulated() {
    for line in [
        "copybw -s 4K -w 10 -r 10",
        "copylat -s 64K -w 10 -r 10",
        "apiperf -s 128K -n 5",
        "pplat -t 100",
        "loopback --udp-port 14841 --sweep --size 16 --iterations 10",
        "compare --udp-port 14895 --size 16 --iterations 5",
    ] {
        let text = fine(&format!("{line} --csv"));
        let rows: Vec<Vec<_>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert!(rows.len() > 1, "{line}: {text}");
        assert!(
            rows.iter().all(|row| row.len() == rows[0].len()),
            "{line}: {text}"
        );
        assert_eq!(rows[0].last(), Some(&"simulated"), "{line}");
        assert!(
            rows[1..].iter().all(|row| row.last() == Some(&"true")),
            "{line}: {text}"
        );
        let output = simulated(&format!("{line} --csv"));
        assert_contains!(stderr(&output), "SIMULATED: ", "{line}");
        assert_eq!(
            code(&simulated(&format!("{line} --csv --json"))),
            64,
            "{line}"
        );
    }
}

#[test]
fn a_tools_name_is_in_its_usage_and_version() {
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str, option: &str| {
        let tool = directory.path().join(name);
        if !tool.exists() {
            symlink(cargo_bin!("gdr"), &tool).unwrap();
        }
        clean(Command::new(&tool)).arg(option).output().unwrap()
    };
    for name in [
        "gdrcopy_sanity",
        "gdrcopy_copybw",
        "gdrcopy_copylat",
        "gdrcopy_apiperf",
        "gdrcopy_pplat",
    ] {
        let help = stdout(&run(name, "--help"));
        assert_contains!(help, format!("\nUsage: {name} [OPTIONS]\n"));
        assert_contains!(help, format!("Examples:\n  {name}"));
        let version = stdout(&run(name, "--version"));
        let expected = format!("{name} (gdr) {}", env!("CARGO_PKG_VERSION"));
        assert!(version.starts_with(&expected), "{version}");
        let wrong = run(name, "--frobnicate");
        assert_eq!(code(&wrong), 64);
        assert_contains!(stderr(&wrong), format!("Usage: {name} [OPTIONS]"));
    }
    let unknown = run("gdrcopy_foo", "--help");
    assert_eq!(code(&unknown), 64);
    let words = stderr(&unknown);
    assert!(
        words.contains("gdrcopy_foo") && words.contains("gdrcopy_pplat"),
        "{words}"
    );
}
