//! A simulated GPU is used where it is asked for, and by `gdr loopback` where there is no trace of
//! a real one; every text says so in its first and last line.

use std::path::Path;

use serde_json::Value;

use super::*;

const MEASUREMENTS: [&str; 6] = [
    "sanity -t attributes_sanity",
    "copybw -s 4K -w 10 -r 10",
    "copylat -s 64K -w 10 -r 10",
    "apiperf -s 64K -n 5",
    "pplat -t 10",
    "info",
];

/// Returns whether this machine has no trace of a GPU. Only there can a test see what a command does without one.
fn is_bare() -> bool {
    let holds = |directory: &str, wanted: &dyn Fn(&Path) -> bool| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.any(|path| wanted(&path))
    };
    let is_nvidia = |function: &Path| {
        std::fs::read_to_string(function.join("vendor")).is_ok_and(|text| text.trim() == "0x10de")
    };
    let is_node = |path: &Path| path.to_string_lossy().starts_with("/dev/nvidia");
    gdr_cuda::Cuda::load().is_err()
        && !holds("/sys/bus/pci/devices", &is_nvidia)
        && !holds("/dev", &is_node)
        && !Path::new("/proc/driver/nvidia").exists()
}

fn run(line: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = clean(cargo_bin_cmd!("gdr"));
    command.env_remove("GDR_LIBCUDA");
    command
        .envs(environment.iter().copied())
        .args(line.split_whitespace())
        .output()
        .unwrap()
}

/// It ended with this status and one error, and neither text nor document says that all is well.
fn assert_ends(output: &Output, status: i32, line: &str, words: &str) {
    let (text, errors) = (stdout(output), stderr(output));
    assert_eq!(code(output), status, "{line}: {text}{errors}");
    assert_contains!(errors, words, "{line}");
    assert_eq!(errors.matches("error: ").count(), 1, "{line}: {errors}");
    assert!(
        !text.contains("PASS") && !text.contains("Passed"),
        "{line}: {text}"
    );
}

#[test]
fn every_text_of_a_simulation_says_so_in_its_first_and_last_line() {
    let loopbacks = [
        "loopback --udp-port 14821 --size 4K --iterations 2",
        "loopback --udp-port 14822 --sweep --size 16 --iterations 10",
        "compare --udp-port 14899 --size 16 --iterations 5",
    ];
    for line in MEASUREMENTS.iter().chain(&loopbacks) {
        for asked in ["--simulate", "--backend sim"] {
            let output = run(&format!("{line} {asked}"), &[]);
            assert_eq!(code(&output), 0, "{line}: {}", stderr(&output));
            let text = stdout(&output);
            let lines: Vec<_> = text.lines().collect();
            for line in [lines.first(), lines.last()] {
                assert!(line.unwrap().starts_with("SIMULATED: "), "{text}");
            }
        }
    }
}

#[test]
fn without_a_gpu_a_measurement_is_undecided_and_not_simulated() {
    if !is_bare() {
        return;
    }
    for line in MEASUREMENTS {
        assert_ends(&run(line, &[]), 3, line, "there is no GPU: ");
        let auto = format!("{line} --backend auto");
        assert_ends(
            &run(&auto, &[("GDR_BACKEND", "sim")]),
            3,
            &auto,
            "there is no GPU",
        );
        let required = format!("{line} --require-gpu");
        assert_ends(&run(&required, &[]), 2, &required, "there is no GPU");
        let output = run(&format!("{line} --json"), &[]);
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(fault["error"]["name"], "no_gpu", "{line}");
        assert_eq!(fault["exit"], 3, "{line}");
    }
}

#[test]
fn without_a_gpu_the_loopback_is_simulated_unless_something_real_was_asked_for() {
    if !is_bare() {
        return;
    }
    let line = "loopback --udp-port 14823 --size 4K --iterations 2";
    let output = run(line, &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with("SIMULATED: no NVIDIA GPU is on the PCI bus"),
        "{text}"
    );
    assert!(
        text.lines().last().unwrap().starts_with("SIMULATED: "),
        "{text}"
    );
    for option in ["--gpu 0", "--backend auto", "--backend rm"] {
        let line = format!("{line} {option}");
        assert_ends(&run(&line, &[]), 3, &line, "there is no GPU: ");
    }
    let required = format!("{line} --require-gpu");
    assert_ends(&run(&required, &[]), 2, &required, "there is no GPU: ");
    let named = run(line, &[("GDR_BACKEND", "rm")]);
    assert_ends(&named, 3, line, "there is no GPU: ");
}

#[test]
fn a_driver_that_is_there_and_does_not_work_is_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libcuda.so.1");
    std::fs::write(&library, "not a library").unwrap();
    let environment = [("GDR_LIBCUDA", library.to_str().unwrap())];
    let loopback = "loopback --udp-port 14824 --size 4K --iterations 2";
    for line in MEASUREMENTS.iter().chain([&loopback]) {
        assert_ends(&run(line, &environment), 2, line, "the GPU cannot be used");
        let output = run(&format!("{line} --json"), &environment);
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(fault["error"]["name"], "gpu_unusable", "{line}");
    }
    let missing = [("GDR_LIBCUDA", "/nonexistent/libcuda.so.1")];
    assert_ends(&run(loopback, &missing), 2, loopback, "/nonexistent");
}

#[test]
fn a_required_gpu_contradicts_a_simulation() {
    let output = run("sanity --require-gpu", &[("GDR_BACKEND", "sim")]);
    assert_ends(&output, 2, "GDR_BACKEND=sim", "GDR_BACKEND is sim");
    let output = run("sanity --require-gpu --backend sim", &[]);
    assert_ends(&output, 64, "--backend sim", "contradicts --backend sim");
}

#[test]
fn gdrcopys_names_simulate_only_where_the_environment_says_so() {
    if !is_bare() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for name in ["sanity", "copybw", "copylat", "apiperf", "pplat"] {
        let tool = directory.path().join(format!("gdrcopy_{name}"));
        std::os::unix::fs::symlink(cargo_bin!("gdr"), &tool).unwrap();
        let output = clean(Command::new(&tool)).output().unwrap();
        assert_ends(&output, 3, name, "there is no GPU: ");
        assert_eq!(stdout(&output), "", "{name}");
    }
}
