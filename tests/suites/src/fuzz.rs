//! `cargo xtask fuzz`: a short run of every fuzz target, without cargo-fuzz.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, bail};

use xtask_build::results::{Outcome, Results};
use xtask_build::workspace::{cargo, root, target};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// How long each target runs, in seconds
    #[arg(long, value_name = "N", default_value_t = 30)]
    seconds: u32,
    /// Run this target only
    #[arg(value_name = "TARGET")]
    only: Option<String>,
}

/// How long the targets run.
#[derive(Clone, Copy, Debug)]
enum Effort {
    /// The same inputs each time, for at most [`SMOKE_SECONDS`], because `cargo xtask test` must be reproducible.
    Smoke,
    /// Different inputs each time, for this many seconds, starting with the ones that earlier runs found.
    Search(u32),
}

/// Number of targets to run at once. Each uses one CPU.
const AT_ONCE: usize = 2;

/// Most code of a target is reached within a second or two.
const SMOKE_SECONDS: u32 = 4;

/// Flags that cargo-fuzz passes for a run without a sanitizer: counters at each branch, which guide libFuzzer, and
/// overflow checks.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing";

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let names = match &options.only {
        Some(name) => vec![name.clone()],
        None => targets()?,
    };
    let mut results = Results::default();
    let effort = Effort::Search(options.seconds);
    results.check("fuzz targets", || all(&names, effort));
    Ok(results.close())
}

/// Runs every target, so briefly that only immediate failures are found.
pub fn smoke() -> anyhow::Result<Outcome> {
    all(&targets()?, Effort::Smoke)
}

/// Returns the names of all targets.
fn targets() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn all(names: &[String], effort: Effort) -> anyhow::Result<Outcome> {
    if !has_cpp() {
        let reason = "no C++ compiler, which libFuzzer is built with".to_owned();
        return Ok(Outcome::Skipped { reason });
    }
    let folder = build()?;
    let mut result = Outcome::Passed;
    for at_once in names.chunks(AT_ONCE) {
        let outcomes: Vec<anyhow::Result<Outcome>> = thread::scope(|scope| {
            let runs: Vec<_> = (at_once.iter())
                .map(|name| scope.spawn(|| run_one(&folder, name, effort)))
                .collect();
            let ended = runs.into_iter().map(|run| run.join());
            ended
                .map(|outcome| outcome.unwrap_or_else(|_| bail!("a run of a target panicked")))
                .collect()
        });
        for outcome in outcomes {
            if outcome? == Outcome::Failed {
                result = Outcome::Failed;
            }
        }
    }
    Ok(result)
}

/// Builds the targets and returns the folder of their programs.
fn build() -> anyhow::Result<PathBuf> {
    if Outcome::of(build_command()?)? != Outcome::Passed {
        bail!("the fuzz targets do not compile");
    }
    Ok(target().join("fuzz").join(host()?).join("release"))
}

/// Returns the command that builds the targets.
pub fn build_command() -> anyhow::Result<Command> {
    // Build scripts are built without the flags only if the target is explicit.
    let mut command = cargo(&["build", "--manifest-path", "fuzz/Cargo.toml", "--release"]);
    command
        .args(["--locked", "--target", &host()?])
        .env("RUSTFLAGS", INSTRUMENTED)
        .env("CARGO_TARGET_DIR", target().join("fuzz"));
    Ok(command)
}

/// Returns the target triple of this machine.
fn host() -> anyhow::Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("rustc cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("rustc names no host")
}

/// Runs one target. Inputs found by a search stay in `target/fuzz/corpus`, and a failing input in
/// `target/fuzz/artifacts`.
fn run_one(folder: &Path, name: &str, effort: Effort) -> anyhow::Result<Outcome> {
    let artifacts = make_folder("artifacts", name)?;
    let mut command = Command::new(folder.join(name));
    command
        .current_dir(root())
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-timeout=60", "-rss_limit_mb=2048"])
        .args(["-print_funcs=0", "-print_final_stats=1", "-close_fd_mask=1"])
        .stdin(Stdio::null());
    match effort {
        Effort::Smoke => {
            command.arg("-seed=1");
            command.arg(format!("-max_total_time={SMOKE_SECONDS}"));
        }
        Effort::Search(seconds) => {
            command.arg(format!("-max_total_time={seconds}"));
            command.arg(make_folder("corpus", name)?);
        }
    }
    let output = command
        .output()
        .with_context(|| format!("{name} cannot be started"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        println!("{log}\n{name}: {}", output.status);
        return Ok(Outcome::Failed);
    }
    let runs = log
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    println!("{name}: {} inputs", runs.unwrap_or("?").trim());
    Ok(Outcome::Passed)
}

/// Creates a folder of a target, for what its runs leave.
fn make_folder(kind: &str, name: &str) -> anyhow::Result<PathBuf> {
    let folder = target().join("fuzz").join(kind).join(name);
    fs::create_dir_all(&folder)
        .with_context(|| format!("{} cannot be created", folder.display()))?;
    Ok(folder)
}

/// Returns whether the targets can be built.
pub fn has_cpp() -> bool {
    let mut probe = Command::new("c++");
    probe
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}
