//! `cargo xtask test`.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use suites::cargo_tests::{self, Targets};
use suites::gpu_steps::STEPS;
use suites::{
    api, examples, fleet_files, fuzz, gpu_bundle, habits, mesh, models, msrv, mutants, peers,
    priority, verbs_programs, vm, words,
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
    in_seconds(&mut results);
    lints(&mut results, &["--all-targets"]);
    results.check("build", || {
        // Benchmarks are linted, and run by no test.
        let targets = ["--lib", "--bins", "--tests", "--examples"];
        let arguments = [&["build", "--workspace"][..], &targets].concat();
        let outcome = Outcome::of(cargo(&arguments))?;
        if outcome == Outcome::Passed {
            set_built();
        }
        Ok(outcome)
    });
    // The tests wait more than they compute, and hardly notice.
    let builds_ahead = priority::spawn(19, build_ahead);
    results.section("tests", |results| {
        cargo_tests::workspace(results, Targets::All)
    })?;
    results.section("the VM, and beside it what waits", |results| {
        // What runs beside it has both CPUs when it needs them.
        let guest = priority::spawn(10, guest);
        let ended = beside_the_guest(results);
        match guest.join() {
            Ok(guest) => results.add(guest),
            Err(_) => results.record("the VM (its thread panicked)", Outcome::Failed),
        }
        ended
    })?;
    results.check("models under every interleaving", models::loom);
    results.check("tests under Miri", models::miri);
    results.check("oldest supported Rust", msrv::check);
    results.check("fuzz targets", fuzz::smoke);
    results.check("documentation", documentation::rustdoc);
    results.check("public API", api::check);
    results.check("licences of dependencies", licences);
    results.section("GPU", gpu)?;
    // Its last build is one that a section above has waited for.
    if builds_ahead.join().is_err() {
        results.record("builds ahead (their thread panicked)", Outcome::Failed);
    }
    Ok(results.close())
}

/// The checks that need no build but this one's.
fn in_seconds(results: &mut Results) {
    results.check("formatting", || {
        component("fmt", "rustfmt", cargo(&["fmt", "--all", "--check"]))
    });
    habits::record(results);
    results.check("words", words::check);
    results.check("lists of mutations", mutants::check);
    results.check("links in the documentation", documentation::links);
    results.check("pages of the guide", documentation::pages);
}

/// Builds what sections after the tests begin with, in their order. Nothing is said of a build that fails: its section
/// builds again, and waits for cargo's lock if it is early.
fn build_ahead() {
    let mut loom = models::loom_command();
    loom.arg("--no-run");
    let fuzz = fuzz::has_cpp().then(fuzz::build_command);
    let builds = [vm::build_command(), loom]
        .into_iter()
        .chain(fuzz.and_then(Result::ok))
        .chain([documentation::rustdoc_command()]);
    for mut build in builds {
        build
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _ = build.status();
    }
}

/// Runs the tests in the VM. A guest without KVM computes on one CPU all the time.
fn guest() -> Results {
    let mut results = Results::default();
    vm::record(&mut results, &vm::Options::all());
    results
}

/// Runs what shares no device, address or network with the guest.
fn beside_the_guest(results: &mut Results) -> anyhow::Result<()> {
    results.section("tests of the NIC over UDP alone", |results| {
        cargo_tests::over_udp(results, &OF_THE_WIRE)
    })?;
    verbs_programs::record(results, &verbs_programs::Options::all());
    peers::record(results);
    mesh::record(results, &mesh::Options::all());
    results.check("examples", examples::all);
    results.check("picture of a terminal", picture::check);
    results.check("the guide as a book", book::check);
    results.check("Python package", wheel::check);
    results.check("gdr.torch", wheel::check_torch);
    fleet_files::record(results);
    Ok(())
}

/// Runs the checks that find most mistakes in the time of a short break.
fn quick() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    in_seconds(&mut results);
    // The tests are compiled below; to lint them takes as long as all else.
    lints(&mut results, &["--lib", "--bins"]);
    results.section("tests", |results| {
        cargo_tests::workspace(results, Targets::InCrates)
    })?;
    Ok(results.close())
}

fn lints(results: &mut Results, targets: &[&str]) {
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
