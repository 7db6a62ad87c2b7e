//! The programs that run in the guest.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Deserialize;

use super::guest;
use crate::verbs_library;
use crate::workspace::{self, cargo, target};

const PACKAGE: &str = "gdr-vm-tests";
/// The profile of the build, see the workspace's `Cargo.toml`.
const PROFILE: &str = "vm";
/// The verbs library that `gdr run` looks for, and the one beside it that takes libibverbs' place.
const LIBRARY: &str = "libgdr-verbs.so";
const SHADOW: &str = "shadow/libibverbs.so.1";

/// A program, built, and what it runs.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    file: PathBuf,
    is_benchmark: bool,
    /// The `gdr` command and its verbs library, by name, for tests of them.
    needs: Vec<(&'static str, PathBuf)>,
}

/// A line of cargo's JSON messages.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds the program of all tests.
pub(crate) fn tests() -> anyhow::Result<Program> {
    let file = build(PACKAGE, PROFILE, ["--test", "rxe"])?;
    // In the profile in which `cargo xtask test` has built it already.
    let gdr = workspace::build("dev", &["gdr-cli"])?.join("gdr");
    let libraries = target().join("vm-verbs");
    let [library, shadow, _trace] = verbs_library::build(PROFILE, &libraries)?;
    Ok(Program {
        name: "rxe".to_owned(),
        file,
        is_benchmark: false,
        needs: vec![
            ("gdr", stripped(gdr, "gdr")?),
            (LIBRARY, stripped(library, LIBRARY)?),
            (SHADOW, stripped(shadow, SHADOW)?),
        ],
    })
}

/// What is measured in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Benchmark {
    /// The soft provider against rxe.
    Rxe,
    /// `gdr perf` against perftest, on rxe.
    Perftest,
    /// The soft provider beside the kernel's TCP, on bad links.
    Tcp,
}

/// Builds a benchmark, and the programs that it runs.
pub(crate) fn benchmark(benchmark: Benchmark) -> anyhow::Result<Program> {
    let name = match benchmark {
        Benchmark::Rxe => "against_rxe",
        Benchmark::Perftest => "against_perftest",
        Benchmark::Tcp => "against_tcp",
    };
    let mut program = Program {
        name: name.to_owned(),
        file: build(PACKAGE, PROFILE, ["--bench", name])?,
        is_benchmark: true,
        needs: Vec::new(),
    };
    if benchmark == Benchmark::Perftest {
        let gdr = build("gdr-cli", PROFILE, ["--bin", "gdr"])?;
        program.needs.push(("gdr", gdr));
    }
    Ok(program)
}

/// Builds one target of a package and returns its path.
fn build(package: &str, profile: &str, [kind, name]: [&str; 2]) -> anyhow::Result<PathBuf> {
    let output = cargo(&[
        "build",
        "--package",
        package,
        "--profile",
        profile,
        kind,
        name,
        "--message-format",
        "json-render-diagnostics",
    ])
    .stderr(Stdio::inherit())
    .output()
    .context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("{package} does not build");
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .find_map(|message| {
            let found = message.target?.name == name;
            message.executable.filter(|_| found)
        })
        .with_context(|| format!("cargo built no {name}"))
}

/// Returns a copy without debug information, or the program itself if `strip` fails.
fn stripped(program: PathBuf, name: &str) -> anyhow::Result<PathBuf> {
    let copy = guest::run_folder().join(name);
    let folder = copy.parent().unwrap_or(&copy);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let done = Command::new("strip")
        .args(["--strip-debug", "-o"])
        .args([&copy, &program])
        .status()
        .is_ok_and(|status| status.success());
    Ok(if done { copy } else { program })
}

impl Program {
    /// The files for the guest's `/gdr`, by name.
    pub(crate) fn files(&self) -> Vec<(&str, &Path)> {
        let needs = self.needs.iter().map(|(name, file)| (*name, &**file));
        [(&*self.name, &*self.file)]
            .into_iter()
            .chain(needs)
            .collect()
    }

    /// Lists the names of its tests.
    pub(crate) fn list(&self, filters: &[String]) -> anyhow::Result<Vec<String>> {
        if self.is_benchmark {
            return Ok(vec![self.name.clone()]);
        }
        let output = Command::new(&self.file)
            .args(["--list", "--format", "terse"])
            .args(filters)
            .output()
            .with_context(|| self.file.display().to_string())?;
        Ok(String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect())
    }

    /// The part of the guest's script that runs it.
    pub(crate) fn script(&self, accelerator: &str, filters: &[String]) -> String {
        let mut script = format!("export GDR_VM={accelerator} RUST_BACKTRACE=1\n");
        let _ = write!(script, "/gdr/{}", self.name);
        if !self.is_benchmark {
            // The tests share devices and networks and change their state.
            script += " --include-ignored --test-threads=1 --color=never";
        }
        for filter in filters {
            let _ = write!(script, " '{}'", filter.replace('\'', r"'\''"));
        }
        script += "\necho \"gdr-vm: exit $?\"\n";
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_script_quotes_filters() {
        let program = Program {
            name: "rxe".to_owned(),
            file: PathBuf::new(),
            is_benchmark: false,
            needs: Vec::new(),
        };
        let script = program.script("tcg", &["a b".to_owned(), "it's".to_owned()]);
        assert!(
            script.contains(r"--color=never 'a b' 'it'\''s'"),
            "{script}"
        );
    }
}
