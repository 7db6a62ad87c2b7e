//! `cargo xtask test`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use crate::gpu_steps::STEPS;
use crate::ledger::{Ledger, Outcome};
use crate::workspace::{cargo, has_subcommand, root, target};
use crate::{docs, gpu_bundle, links, vm};

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut ledger = Ledger::default();
    ledger.check("formatting", || {
        component("fmt", "rustfmt", cargo(&["fmt", "--all", "--check"]))
    });
    ledger.check("lints", || {
        let arguments = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        component("clippy", "clippy", cargo(&arguments))
    });
    ledger.check("build", || {
        outcome(cargo(&["build", "--workspace", "--all-targets"]))
    });
    println!("\n== tests");
    tests(&mut ledger, &["test", "--workspace", "--no-fail-fast"])?;
    println!("\n== tests that need optimization");
    tests(&mut ledger, &OPTIMIZED)?;
    ledger.check("documentation", docs::rustdoc);
    ledger.check("links in the documentation", links::check);
    ledger.check("fuzz targets", fuzz_targets);
    ledger.check("licences of dependencies", licences);
    vm::record(&mut ledger, &vm::Options::all());
    gpu(&mut ledger)?;
    Ok(ledger.close())
}

/// Runs a command to its end; its success is the outcome.
pub(crate) fn outcome(mut command: Command) -> anyhow::Result<Outcome> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("{name} cannot be started"))?;
    Ok(if status.success() {
        Outcome::Passed
    } else {
        Outcome::Failed
    })
}

fn component(subcommand: &str, component: &str, command: Command) -> anyhow::Result<Outcome> {
    if has_subcommand(subcommand) {
        return outcome(command);
    }
    let reason = format!("{component} is not installed: rustup component add {component}");
    Ok(Outcome::Skipped { reason })
}

/// Tests too long for a build without optimization; there they are ignored as [`LATER`].
const OPTIMIZED: [&str; 8] = [
    "test",
    "--release",
    "-p",
    "gdr-copy",
    "--test",
    "copy_routines",
    "--",
    "every_size_at_every_pair",
];

/// The reasons of tests that are ignored because they come again: in [`OPTIMIZED`], in the guest.
const LATER: [&str; 2] = ["runs optimized", "runs in the VM"];

/// Runs tests and enters each into the ledger.
fn tests(ledger: &mut Ledger, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = cargo(arguments);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo cannot be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut failed = false;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        if let Some((name, outcome)) = test_line(&line) {
            failed |= outcome == Outcome::Failed;
            ledger.record(name, outcome);
        }
    }
    if !child.wait()?.success() && !failed {
        ledger.record(
            "cargo test (see above: it failed outside of any test)",
            Outcome::Failed,
        );
    }
    Ok(())
}

/// Reads `test NAME ... OUTCOME` as the test harness prints it.
pub(crate) fn test_line(line: &str) -> Option<(&str, Outcome)> {
    let (name, word) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match word.split_once(", ") {
        None if word == "ok" => Outcome::Passed,
        None if word == "FAILED" => Outcome::Failed,
        None if word == "ignored" => Outcome::Skipped {
            reason: "ignored".to_owned(),
        },
        Some(("ignored", reason)) if LATER.contains(&reason) => return None,
        Some(("ignored", reason)) => Outcome::Skipped {
            reason: reason.to_owned(),
        },
        _ => return None,
    };
    Some((name, outcome))
}

/// The fuzz targets are a workspace of their own: they are built for every commit, run by hand.
fn fuzz_targets() -> anyhow::Result<Outcome> {
    if !succeeds("c++") {
        let reason = "no C++ compiler, which libFuzzer is built with".to_owned();
        return Ok(Outcome::Skipped { reason });
    }
    let mut command = cargo(&["build", "--manifest-path", "fuzz/Cargo.toml"]);
    command.env("CARGO_TARGET_DIR", target().join("fuzz"));
    outcome(command)
}

fn succeeds(program: &str) -> bool {
    let mut probe = Command::new(program);
    probe
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

fn licences() -> anyhow::Result<Outcome> {
    if !has_subcommand("deny") {
        let reason = "cargo-deny is not installed: cargo install cargo-deny".to_owned();
        return Ok(Outcome::Skipped { reason });
    }
    outcome(cargo(&["deny", "check", "licenses"]))
}

/// Runs what needs a GPU, or names it.
fn gpu(ledger: &mut Ledger) -> anyhow::Result<()> {
    println!("\n== GPU");
    if let Some(reason) = no_gpu() {
        for step in STEPS {
            ledger.record(
                step.name,
                Outcome::Skipped {
                    reason: reason.to_owned(),
                },
            );
        }
        return Ok(());
    }
    let bundle = target().join("gpu-bundle");
    let results = target().join("gpu-results");
    gpu_bundle::make(&bundle)?;
    let mut command = Command::new("bash");
    command
        .arg(bundle.join("run.sh"))
        .env("OUT", &results)
        .current_dir(root());
    // Each step's own verdict says more than the exit status of them all.
    outcome(command)?;
    let summary = std::fs::read_to_string(results.join("summary.tsv"))
        .context("the GPU run left no summary")?;
    for line in summary.lines() {
        if let Some((name, outcome)) = summary_line(line) {
            ledger.record(name, outcome);
        }
    }
    Ok(())
}

/// Reads `NAME <tab> OUTCOME <tab> SECONDS <tab> REASON` as `run.sh` writes it.
fn summary_line(line: &str) -> Option<(&str, Outcome)> {
    let mut fields = line.split('\t');
    let (name, word) = (fields.next()?, fields.next()?);
    let outcome = match word {
        "passed" => Outcome::Passed,
        "failed" => Outcome::Failed,
        "skipped" => Outcome::Skipped {
            reason: fields.nth(1)?.to_owned(),
        },
        _ => return None,
    };
    Some((name, outcome))
}

/// Why no GPU can be used here, if none can.
fn no_gpu() -> Option<&'static str> {
    // Present wherever NVIDIA's driver is loaded and passed in.
    if !Path::new("/dev/nvidiactl").exists() {
        return Some("no NVIDIA GPU");
    }
    (!has_libcuda()).then_some("no libcuda.so.1")
}

fn has_libcuda() -> bool {
    let listed = Command::new("ldconfig")
        .arg("-p")
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libcuda.so.1"));
    let on_path = std::env::var_os("LD_LIBRARY_PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join("libcuda.so.1").exists())
    });
    listed || on_path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_harness_lines_are_understood() {
        let skipped = |reason: &str| Outcome::Skipped {
            reason: reason.to_owned(),
        };
        for (line, expected) in [
            (
                "test bdf::tests::reads ... ok",
                Some(("bdf::tests::reads", Outcome::Passed)),
            ),
            ("test a ... FAILED", Some(("a", Outcome::Failed))),
            ("test a ... ignored", Some(("a", skipped("ignored")))),
            (
                "test a ... ignored, no such CPU",
                Some(("a", skipped("no such CPU"))),
            ),
            (
                "test src/lib.rs - (line 3) ... ok",
                Some(("src/lib.rs - (line 3)", Outcome::Passed)),
            ),
            ("test a ... ignored, runs in the VM", None),
            ("test result: ok. 3 passed; 0 failed; 0 ignored", None),
            ("running 3 tests", None),
        ] {
            assert_eq!(test_line(line), expected, "{line}");
        }
    }

    #[test]
    fn the_gpu_runs_summary_is_understood() {
        assert_eq!(
            summary_line("info\tpassed\t2\t"),
            Some(("info", Outcome::Passed))
        );
        assert_eq!(
            summary_line("copybw\tfailed\t9\tsee"),
            Some(("copybw", Outcome::Failed))
        );
        let reason = "not root".to_owned();
        assert_eq!(
            summary_line("as nobody\tskipped\t0\tnot root"),
            Some(("as nobody", Outcome::Skipped { reason }))
        );
        assert_eq!(summary_line("noise"), None);
    }
}
