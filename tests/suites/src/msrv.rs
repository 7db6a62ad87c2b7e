//! `cargo xtask msrv`: checks that the workspace compiles with the oldest supported Rust.

use std::fs;
use std::process::ExitCode;

use anyhow::Context;

use xtask_build::results::{Outcome, Results};
use xtask_build::workspace::{cargo_of, root, target};

pub fn run() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    results.check("oldest supported Rust", check);
    Ok(results.close())
}

/// Compiles the libraries and the command with the `rust-version` of the workspace.
pub fn check() -> anyhow::Result<Outcome> {
    let version = rust_version()?;
    let mut probe = cargo_of(&version);
    let is_installed = probe
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !is_installed {
        let reason = format!(
            "Rust {version} is not installed: rustup toolchain install {version} --profile minimal"
        );
        return Ok(Outcome::Skipped { reason });
    }
    let mut command = cargo_of(&version);
    command
        .args(["check", "--locked", "--workspace"])
        .args(["--exclude", "xtask", "--exclude", "gdr-vm-tests"])
        .env("CARGO_TARGET_DIR", target().join("msrv"));
    Outcome::of(command)
}

/// Returns the `rust-version` of the workspace.
fn rust_version() -> anyhow::Result<String> {
    let manifest = root().join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    let table: toml::Table = text.parse()?;
    let version = table
        .get("workspace")
        .and_then(|workspace| workspace.get("package")?.get("rust-version")?.as_str());
    version
        .map(str::to_owned)
        .context("Cargo.toml has no workspace.package.rust-version")
}
