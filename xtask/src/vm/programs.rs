//! What runs in the guest.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::workspace::cargo;

const PACKAGE: &str = "gdr-vm-tests";
/// The profile it is built with, see the workspace's `Cargo.toml`.
const PROFILE: &str = "vm";

/// A program, built.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    is_benchmark: bool,
}

/// One line of what cargo says of its work.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// The program of all tests.
pub(crate) fn tests() -> anyhow::Result<Program> {
    build("--test", "rxe", false)
}

/// The program that measures.
pub(crate) fn benchmark() -> anyhow::Result<Program> {
    build("--bench", "against_rxe", true)
}

fn build(kind: &str, name: &str, is_benchmark: bool) -> anyhow::Result<Program> {
    let output = cargo(&[
        "build",
        "--package",
        PACKAGE,
        "--profile",
        PROFILE,
        kind,
        name,
        "--message-format",
        "json-render-diagnostics",
    ])
    .stderr(Stdio::inherit())
    .output()
    .context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("{PACKAGE} does not build");
    }
    let file = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .find_map(|message| {
            let found = message.target?.name == name;
            message.executable.filter(|_| found)
        })
        .with_context(|| format!("cargo built no {name}"))?;
    Ok(Program {
        name: name.to_owned(),
        file,
        is_benchmark,
    })
}

impl Program {
    /// The names of its tests, for a ledger of what did not run.
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
            // They share devices and networks, whose state they change.
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
    fn the_guests_script_quotes_what_it_is_given() {
        let program = Program {
            name: "rxe".to_owned(),
            file: PathBuf::new(),
            is_benchmark: false,
        };
        let script = program.script("tcg", &["a b".to_owned(), "it's".to_owned()]);
        assert!(
            script.contains(r"--color=never 'a b' 'it'\''s'"),
            "{script}"
        );
    }
}
