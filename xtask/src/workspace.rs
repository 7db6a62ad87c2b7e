//! The workspace's folders, and commands that run in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Returns the workspace's root.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Returns cargo's target folder.
pub(crate) fn target() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    root().join(folder)
}

/// Returns a command for the cargo that runs this program, in the root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(root()).args(arguments);
    command
}

/// The cargo of another toolchain of rustup, in the root.
pub(crate) fn cargo_of(toolchain: &str) -> Command {
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

/// Whether cargo has a subcommand.
pub(crate) fn has_subcommand(name: &str) -> bool {
    let mut probe = cargo(&[name, "--version"]);
    probe
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Runs a command and waits for it. An exit status other than 0 is an error.
pub(crate) fn succeed(mut command: Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("{name} cannot be started"))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}
