//! The programs that run in the guest.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::guest;
use crate::workspace::cargo;

const PACKAGE: &str = "gdr-vm-tests";
/// The profile of the build, see the workspace's `Cargo.toml`.
const PROFILE: &str = "vm";

/// A program, built, and the `gdr` command that it may run.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    file: PathBuf,
    is_benchmark: bool,
    /// The `gdr` command, for tests of it.
    gdr: Option<PathBuf>,
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
    Ok(Program {
        name: "rxe".to_owned(),
        file: build(PACKAGE, PROFILE, ["--test", "rxe"])?,
        is_benchmark: false,
        // In the profile in which `cargo xtask test` has built it already.
        gdr: Some(stripped(build("gdr-cli", "dev", ["--bin", "gdr"])?)?),
    })
}

/// Builds the benchmark.
pub(crate) fn benchmark() -> anyhow::Result<Program> {
    let name = "against_rxe";
    Ok(Program {
        name: name.to_owned(),
        file: build(PACKAGE, PROFILE, ["--bench", name])?,
        is_benchmark: true,
        gdr: None,
    })
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
fn stripped(program: PathBuf) -> anyhow::Result<PathBuf> {
    let folder = guest::run_folder();
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let copy = folder.join("gdr");
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
        let gdr = self.gdr.as_deref().map(|gdr| ("gdr", gdr));
        [(&*self.name, &*self.file)]
            .into_iter()
            .chain(gdr)
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
            gdr: None,
        };
        let script = program.script("tcg", &["a b".to_owned(), "it's".to_owned()]);
        assert!(
            script.contains(r"--color=never 'a b' 'it'\''s'"),
            "{script}"
        );
    }
}
