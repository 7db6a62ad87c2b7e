//! The workspace's folders, and commands that run in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, bail};

/// Returns the workspace's root.
pub fn root() -> &'static Path {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.ancestors().nth(2).unwrap_or(crate_folder)
}

/// Returns cargo's target folder.
pub fn target() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    root().join(folder)
}

/// Returns a command for the cargo that runs this program, in the root.
pub fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(root()).args(arguments);
    command
}

/// The profile of cargo for what is installed, packaged and measured.
pub const PROFILE: &str = "dist";

/// Set for the tests by `cargo xtask test`: the program of this crate, as [`is_built`] has it.
pub const BUILT: &str = "GDR_BUILT_XTASK";

/// Written once, by `cargo xtask test`.
static IS_BUILT: OnceLock<()> = OnceLock::new();

/// Notes that the whole workspace is built in the profile `dev`, with all targets but benchmarks.
pub fn set_built() {
    // It may be noted already.
    let _ = IS_BUILT.set(());
}

/// Returns whether the whole workspace is built in the profile `dev`, so that nothing of it has to be built. A build of
/// fewer packages is another one: cargo selects fewer features of their dependencies, and compiles most crates once
/// more.
pub fn is_built() -> bool {
    IS_BUILT.get().is_some() || std::env::var_os(BUILT).is_some()
}

/// Returns the folder of what cargo builds in a profile.
pub fn built(profile: &str) -> PathBuf {
    // The profile `dev` builds in `debug`.
    target().join(if profile == "dev" { "debug" } else { profile })
}

/// Builds packages in a profile, and returns the folder of what is built.
pub fn build(profile: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    if profile != "dev" || !is_built() {
        let mut command = cargo(&["build", "--profile", profile]);
        for package in packages {
            command.args(["--package", package]);
        }
        succeed(command)?;
    }
    Ok(built(profile))
}

/// Returns the cargo of another toolchain of rustup, in the root.
pub fn cargo_of(toolchain: &str) -> Command {
    let mut command = Command::new("cargo");
    command
        .arg(format!("+{toolchain}"))
        .current_dir(root())
        // Set by the cargo that runs this, for its own toolchain.
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTDOC")
        .env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Returns whether cargo has a subcommand.
pub fn has_subcommand(name: &str) -> bool {
    let mut probe = cargo(&[name, "--version"]);
    probe
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Runs a command and waits for it. An exit status other than 0 is an error.
pub fn succeed(mut command: Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("{name} cannot be started"))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}
