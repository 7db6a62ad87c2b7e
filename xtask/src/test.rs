//! `cargo xtask test`.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

use suites::cargo_tests::{self, Targets};
use suites::gpu_steps::STEPS;
use suites::{
    api, examples, fleet_files, fuzz, gpu_bundle, mesh, models, msrv, mutants, peers,
    verbs_programs, vm, words,
};
use xtask_build::results::{Outcome, Results};
use xtask_build::workspace::{cargo, has_subcommand, root, set_built, target};
use xtask_build::{book, documentation, picture, wheel};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run what takes minutes: no downloads, no optimized builds, no virtual machine, of the tests those in
    /// the crates themselves.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if options.quick {
        return quick();
    }
    let mut results = Results::default();
    format_and_lints(&mut results, &["--all-targets"]);
    results.check("build", || {
        let outcome = Outcome::of(cargo(&["build", "--workspace", "--all-targets"]))?;
        if outcome == Outcome::Passed {
            set_built();
        }
        Ok(outcome)
    });
    results.section("tests", |results| {
        cargo_tests::workspace(results, Targets::All)
    })?;
    results.section("tests of the NIC over UDP alone", |results| {
        cargo_tests::over_udp(results, &OF_THE_WIRE)
    })?;
    results.check("examples", examples::all);
    results.check("documentation", documentation::rustdoc);
    results.check("links in the documentation", documentation::links);
    results.check("picture of a terminal", picture::check);
    results.check("pages of the guide", documentation::pages);
    results.check("the guide as a book", book::check);
    results.check("models under every interleaving", models::loom);
    results.check("tests under Miri", models::miri);
    results.check("oldest supported Rust", msrv::check);
    results.check("fuzz targets", fuzz::smoke);
    results.check("words", words::check);
    results.check("lists of mutations", mutants::check);
    results.check("public API", api::check);
    results.check("licences of dependencies", licences);
    results.check("Python package", wheel::check);
    results.check("gdr.torch", wheel::check_torch);
    fleet_files::record(&mut results);
    verbs_programs::record(&mut results, &verbs_programs::Options::all());
    peers::record(&mut results);
    mesh::record(&mut results, &mesh::Options::all());
    vm::record(&mut results, &vm::Options::all());
    results.section("GPU", gpu)?;
    Ok(results.close())
}

/// The checks that find most mistakes in the time of a short break.
fn quick() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    // The tests are compiled below; to lint them takes as long as all else.
    format_and_lints(&mut results, &["--lib", "--bins"]);
    results.section("tests", |results| {
        cargo_tests::workspace(results, Targets::InCrates)
    })?;
    results.check("pages of the guide", documentation::pages);
    results.check("words", words::check);
    results.check("lists of mutations", mutants::check);
    Ok(results.close())
}

fn format_and_lints(results: &mut Results, targets: &[&str]) {
    results.check("formatting", || {
        component("fmt", "rustfmt", cargo(&["fmt", "--all", "--check"]))
    });
    results.check("lints", || {
        let arguments = [
            &["clippy", "--workspace"],
            targets,
            &["--", "-D", "warnings"],
        ];
        component("clippy", "clippy", cargo(&arguments.concat()))
    });
}

fn component(subcommand: &str, component: &str, command: Command) -> anyhow::Result<Outcome> {
    if has_subcommand(subcommand) {
        return Outcome::of(command);
    }
    let reason = format!("{component} is not installed: rustup component add {component}");
    Ok(Outcome::Skipped { reason })
}

/// Tests whose devices are on one host, and so would send by shared memory only.
const OF_THE_WIRE: [&str; 17] = [
    // gdr-nic
    "by_key",
    "hostile",
    "hostile_flood",
    "loopback",
    "port_sharing",
    // gdr-rdma
    "conformance",
    "connection_setup",
    "other_users",
    "process_end",
    "verbs_fork",
    // gdr-verbs
    "contracts",
    "counters",
    "fork",
    "forked_forwarding",
    "raw_packets",
    "torture",
    // gdr-object
    "processes",
];

fn licences() -> anyhow::Result<Outcome> {
    if !has_subcommand("deny") {
        let reason = "cargo-deny is not installed: cargo install cargo-deny".to_owned();
        return Ok(Outcome::Skipped { reason });
    }
    Outcome::of(cargo(&["deny", "check", "licenses"]))
}

/// Runs what needs a GPU, or names it.
fn gpu(results: &mut Results) -> anyhow::Result<()> {
    if let Some(reason) = no_gpu() {
        for step in STEPS {
            results.record(
                step.name,
                Outcome::Skipped {
                    reason: reason.to_owned(),
                },
            );
        }
        return Ok(());
    }
    let bundle = target().join("gpu-bundle");
    let folder = target().join("gpu-results");
    gpu_bundle::make(&bundle)?;
    let mut command = Command::new("bash");
    command
        .arg(bundle.join("run.sh"))
        .env("OUT", &folder)
        .current_dir(root());
    // The outcome of each step is in the summary; the exit status is the whole run's.
    Outcome::of(command)?;
    let summary = std::fs::read_to_string(folder.join("summary.tsv"))
        .context("the GPU run wrote no summary")?;
    for line in summary.lines() {
        if let Some((name, outcome)) = summary_line(line) {
            results.record(name, outcome);
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

/// Returns why the GPU steps cannot run here; `None` if they can.
fn no_gpu() -> Option<&'static str> {
    // It exists where NVIDIA's driver is loaded and, in a container, passed in.
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
    fn lines_of_the_gpu_summary_are_parsed() {
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
